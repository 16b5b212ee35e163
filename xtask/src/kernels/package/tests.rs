//! Kernels are taken out of packages that are built here, in both layouts.

use std::io::Write;

use object::write::Object as Written;
use object::{Architecture, BinaryFormat, Endianness, SectionKind};

use super::*;

const RELEASE: &str = "6.99.1+deb13-test-amd64";

fn module(depends: &str) -> Vec<u8> {
    let mut object = Written::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let section = object.add_section(Vec::new(), b".modinfo".to_vec(), SectionKind::Data);
    object.set_section_data(section, format!("license=GPL\0depends={depends}\0").into_bytes(), 1);
    object.write().unwrap()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut writer =
        lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

/// A package with the given files, built by dpkg-deb itself.
fn package(dir: &Path, name: &str, files: &[(&str, Vec<u8>)]) -> PathBuf {
    let root = dir.join(name);
    fs::create_dir_all(root.join("DEBIAN")).unwrap();
    fs::write(
        root.join("DEBIAN/control"),
        format!("Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.invalid>\nDescription: x\n"),
    )
    .unwrap();
    for (path, bytes) in files {
        let path = root.join(path.replace("RELEASE", RELEASE));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let file = dir.join(format!("{name}.deb"));
    let mut command = Command::new("dpkg-deb");
    command.args(["--root-owner-group", "--build"]).arg(&root).arg(&file);
    apt::run(command).unwrap();
    file
}

fn modules() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("usr/lib/modules/RELEASE/kernel/kvm/kvm-amd.ko.xz", xz(&module("kvm,ccp"))),
        ("usr/lib/modules/RELEASE/kernel/kvm/kvm.ko.xz", xz(&module("irqbypass"))),
        ("usr/lib/modules/RELEASE/kernel/lib/irqbypass.ko", module("")),
        ("usr/lib/modules/RELEASE/kernel/net/unused.ko.xz", b"broken".to_vec()),
        ("usr/lib/modules/RELEASE/modules.builtin", b"kernel/drivers/ccp.ko\n".to_vec()),
    ]
}

fn take(dir: &Path, packages: &[PathBuf], wanted: &str) -> Result<Contents, PackageError> {
    let into = dir.join("into");
    fs::create_dir_all(&into).unwrap();
    take_out(packages, RELEASE, &[wanted.to_owned()], &into)
}

fn names(contents: &Contents) -> Vec<&str> {
    contents.modules.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn one_package_gives_the_image_of_boot_and_modules_after_their_needs() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = modules();
    files.push(("boot/vmlinuz-RELEASE", b"image".to_vec()));
    let image = package(dir.path(), "linux-image", &files);
    let contents = take(dir.path(), &[image], "kvm-amd").unwrap();
    assert_eq!(names(&contents), ["irqbypass", "kvm", "kvm_amd"]);
    assert_eq!(fs::read(&contents.image).unwrap(), b"image");
    assert_eq!(fs::read(&contents.modules[1].1).unwrap(), module("irqbypass"));
    assert!(!dir.path().join("into/unpacked").exists());
}

#[test]
fn split_packages_give_the_image_beside_the_modules() {
    let dir = tempfile::tempdir().unwrap();
    let binary = package(
        dir.path(),
        "linux-binary",
        &[("usr/lib/modules/RELEASE/vmlinuz", b"image".to_vec())],
    );
    let others = package(dir.path(), "linux-modules", &modules());
    let contents = take(dir.path(), &[binary, others], "kvm_amd").unwrap();
    assert_eq!(names(&contents), ["irqbypass", "kvm", "kvm_amd"]);
    assert_eq!(fs::read(&contents.image).unwrap(), b"image");
}

#[test]
fn a_package_without_an_image_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let others = package(dir.path(), "linux-modules", &modules());
    let text = take(dir.path(), &[others], "kvm-amd").unwrap_err().to_string();
    assert!(text.contains(RELEASE) && text.contains("linux-modules.deb"), "{text}");
}

#[test]
fn a_module_that_is_nowhere_or_broken_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = modules();
    files.push(("boot/vmlinuz-RELEASE", b"image".to_vec()));
    let image = package(dir.path(), "linux-image", &files);
    let text = take(dir.path(), std::slice::from_ref(&image), "kvm-intel").unwrap_err().to_string();
    assert!(text.contains("kvm_intel"), "{text}");
    let error = take(dir.path(), &[image], "unused").unwrap_err();
    assert!(matches!(error, PackageError::Decompress { .. }), "{error}");
}

#[test]
fn a_file_that_is_no_package_fails_with_the_tools_words() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("broken.deb");
    fs::write(&file, b"nothing").unwrap();
    let text = take(dir.path(), &[file], "kvm-amd").unwrap_err().to_string();
    assert!(text.contains("broken.deb") && text.contains("dpkg-deb"), "{text}");
}

#[test]
fn dashes_and_compression_do_not_change_a_modules_name() {
    assert_eq!(module_name(Path::new("a/kvm-amd.ko.xz")).unwrap(), "kvm_amd");
    assert_eq!(module_name(Path::new("a/kvm_amd.ko")).unwrap(), "kvm_amd");
    assert_eq!(module_name(Path::new("a/modules.builtin")), None);
    assert_eq!(module_name(Path::new("a/kvm.ko.debug")), None);
}
