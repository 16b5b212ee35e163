//! Builds the programs that run in guests and leaves them in `OUT_DIR`, from where they
//! are embedded: the bare-metal guest and the agent for Linux guests.
//!
//! Each has flags of its own, so this is a second cargo with its own target directory
//! and an environment cleaned of everything that would change its flags. An explicit
//! `--target` keeps those flags off build scripts.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// No SSE, since an interpreted CPL0 has none; no red zone, since interrupts and
/// upcalls push below the stack pointer; linked where it is loaded.
const STRESS_RUSTFLAGS: &[&str] = &[
    "-Ctarget-feature=-sse,-sse2",
    "-Crelocation-model=static",
    "-Cno-redzone=yes",
    "-Cforce-frame-pointers=yes",
    "-Cforce-unwind-tables=no",
];

/// The agent is alone in its file system: no loader, no libraries.
const AGENT_RUSTFLAGS: &[&str] = &["-Ctarget-feature=+crt-static"];

fn main() {
    let guests = manifest_dir().join("../guest-tests");
    let pv_tlb = manifest_dir().join("../pv-tlb");
    watch(&guests.join("stress"), &["src", "Cargo.toml", "Cargo.lock", "build.rs", "linker.ld"]);
    watch(&guests.join("linux"), &["src", "Cargo.toml"]);
    watch(&pv_tlb, &["src", "Cargo.toml"]);
    watch(&manifest_dir().join(".."), &["Cargo.lock"]);
    println!("cargo:rerun-if-changed=build.rs");

    embed(&Guest {
        folder: guests.join("stress"),
        binary: "stress-guest",
        rustflags: STRESS_RUSTFLAGS,
        settings: &[],
        embedded_as: "stress-guest.elf",
    });
    embed(&Guest {
        folder: guests.join("linux"),
        binary: "pvtlb-agent",
        rustflags: AGENT_RUSTFLAGS,
        settings: &[("CARGO_PROFILE_RELEASE_STRIP", "symbols")],
        embedded_as: "pvtlb-agent",
    });
}

/// A program that runs in the guest.
struct Guest {
    /// Of its manifest.
    folder: PathBuf,
    binary: &'static str,
    rustflags: &'static [&'static str],
    /// Further settings of its build, by environment variable.
    settings: &'static [(&'static str, &'static str)],
    /// File name in `OUT_DIR`.
    embedded_as: &'static str,
}

fn manifest_dir() -> PathBuf {
    PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"))
}

fn watch(folder: &Path, sources: &[&str]) {
    for source in sources {
        println!("cargo:rerun-if-changed={}", folder.join(source).display());
    }
}

/// Builds `guest` and leaves its binary in `OUT_DIR`.
fn embed(guest: &Guest) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let target_dir = out.join(format!("{}-target", guest.binary));
    build(guest, &target_dir);
    let image = target_dir.join(TARGET).join("release").join(guest.binary);
    std::fs::copy(&image, out.join(guest.embedded_as))
        .unwrap_or_else(|error| panic!("Cannot copy {}: {error}", image.display()));
}

fn build(guest: &Guest, target_dir: &Path) {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"));
    cargo.args(["build", "--release", "--locked", "--target", TARGET, "--bin", guest.binary]);
    cargo.arg("--manifest-path").arg(guest.folder.join("Cargo.toml"));
    cargo.arg("--target-dir").arg(target_dir);
    for (name, _) in env::vars_os().filter(|(name, _)| changes_the_build(name)) {
        cargo.env_remove(name);
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", guest.rustflags.join("\x1f"));
    cargo.envs(guest.settings.iter().copied());
    let output = cargo.output().expect("Cannot run cargo for the guest");
    assert!(
        output.status.success(),
        "{} does not build ({}):\n{}",
        guest.binary,
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
