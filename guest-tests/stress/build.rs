//! Link arguments of the guest image: a static executable laid out by linker.ld,
//! with nothing from the C library. The code-generation flags come from whoever
//! builds (vmm/build.rs), since a build script cannot set them.

fn main() {
    let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    for arg in ["-nostdlib", "-nostartfiles", "-static", "-no-pie"] {
        println!("cargo:rustc-link-arg-bins={arg}");
    }
    for arg in [
        "--build-id=none",
        "-z,max-page-size=4096",
        "-z,noexecstack",
        "--no-dynamic-linker",
        "--orphan-handling=error",
    ] {
        println!("cargo:rustc-link-arg-bins=-Wl,{arg}");
    }
    println!("cargo:rustc-link-arg-bins=-Wl,-T,{dir}/linker.ld");
    println!("cargo:rerun-if-changed=linker.ld");
}
