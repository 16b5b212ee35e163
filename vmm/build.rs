//! Builds the bare-metal guest and leaves its image in `OUT_DIR/stress-guest.elf`,
//! from where it is embedded.
//!
//! The guest is a workspace of its own, so this is a second cargo with its own target
//! directory, its own lock file and an environment cleaned of everything that would
//! change its flags. An explicit `--target` keeps those flags off build scripts.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// No SSE, since an interpreted CPL0 has none; no red zone, since interrupts and
/// upcalls push below the stack pointer; linked where it is loaded.
const RUSTFLAGS: &[&str] = &[
    "-Ctarget-feature=-sse,-sse2",
    "-Crelocation-model=static",
    "-Cno-redzone=yes",
    "-Cforce-frame-pointers=yes",
    "-Cforce-unwind-tables=no",
];

fn main() {
    let guest = manifest_dir().join("../guest-tests/stress");
    let pv_tlb = manifest_dir().join("../pv-tlb");
    for source in ["src", "Cargo.toml", "Cargo.lock", "build.rs", "linker.ld"] {
        watch(&guest.join(source));
    }
    for source in ["src", "Cargo.toml"] {
        watch(&pv_tlb.join(source));
    }
    // Has the versions and lints that pv-tlb inherits.
    watch(&manifest_dir().join("../Cargo.toml"));
    println!("cargo:rerun-if-changed=build.rs");

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let target_dir = out.join("guest-target");
    build(&guest, &target_dir);
    let image = target_dir.join(TARGET).join("release/stress-guest");
    std::fs::copy(&image, out.join("stress-guest.elf"))
        .unwrap_or_else(|error| panic!("Cannot copy {}: {error}", image.display()));
}

fn manifest_dir() -> PathBuf {
    PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"))
}

fn watch(path: &Path) {
    println!("cargo:rerun-if-changed={}", path.display());
}

fn build(guest: &Path, target_dir: &Path) {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"));
    cargo.args(["build", "--release", "--locked", "--target", TARGET, "--manifest-path"]);
    cargo.arg(guest.join("Cargo.toml")).arg("--target-dir").arg(target_dir);
    for (name, _) in env::vars_os().filter(|(name, _)| changes_the_build(name)) {
        cargo.env_remove(name);
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", RUSTFLAGS.join("\x1f"));
    let output = cargo.output().expect("Cannot run cargo for the guest");
    assert!(
        output.status.success(),
        "The guest does not build ({}):\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// True for variables that the outer cargo sets for this crate, or that the user
/// set for the outer build. What finds the registry and the toolchain stays.
fn changes_the_build(name: &OsString) -> bool {
    const PREFIXES: &[&str] = &[
        "CARGO_PKG_",
        "CARGO_CFG_",
        "CARGO_FEATURE_",
        "CARGO_PROFILE_",
        "CARGO_TARGET_",
        "CARGO_BUILD_",
        "CARGO_MANIFEST_",
        "CARGO_ENCODED_",
        "RUSTC",
        "RUSTFLAGS",
        "RUSTDOC",
        "LLVM_",
        "CARGO_LLVM_",
        "CLIPPY_",
    ];
    const NAMES: &[&str] = &[
        "CARGO_MAKEFLAGS",
        "MAKEFLAGS",
        "MFLAGS",
        "OUT_DIR",
        "TARGET",
        "HOST",
        "NUM_JOBS",
        "OPT_LEVEL",
        "PROFILE",
        "DEBUG",
        "CARGO_PRIMARY_PACKAGE",
        "CARGO_INCREMENTAL",
    ];
    let name = name.to_string_lossy();
    NAMES.contains(&name.as_ref()) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}
