//! `pvtlb run` with a Linux kernel, on this machine's KVM: tiny kernels inside true
//! bzImages, started as Linux is, each ending its run in one way. A real Linux is
//! booted in the rig.

mod support;

use std::path::Path;
use std::process::Output;

use pvtlb::boot::linux::pace::Pace;
use support::{Scratch, bzimage, elf, kvm, pvtlb, stderr};

/// mov dx, PORT; mov al, VALUE; out dx, al.
fn out(port: u16, value: u8) -> Vec<u8> {
    let [low, high] = port.to_le_bytes();
    vec![0x66, 0xba, low, high, 0xb0, value, 0xee]
}

fn power_off() -> Vec<u8> {
    [out(0x600, 5 << 2 | 1 << 5), vec![0xf4]].concat()
}

fn say(text: &str) -> Vec<u8> {
    text.bytes().flat_map(|byte| out(0x3f8, byte)).collect()
}

/// Boots `code` as the kernel of a bzImage.
fn boot(name: &str, code: &[u8], args: &[&str]) -> Output {
    let file = Scratch::file(name, &bzimage(&elf(code)));
    let path = file.path().to_str().expect("utf-8");
    let fixed = ["run", "--force", "--timeout", "30s", "--memory", "32M", "--kernel", path];
    pvtlb(&[&fixed, args].concat())
}

fn ends(name: &str, code: &[u8], args: &[&str], exit: i32, part: &str) -> Output {
    let output = boot(name, code, args);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(exit), "{name}: {text}");
    assert!(text.contains(part), "{name}: {part:?} is not in: {text}");
    output
}

#[test]
fn each_way_to_end_has_its_exit_code() {
    if kvm("linux_endings").is_none() {
        return;
    }
    for cpus in ["1", "2"] {
        ends("off", &power_off(), &["--cpus", cpus], 0, "switched itself off");
    }
    ends("reset", &[out(0x602, 1), vec![0xf4]].concat(), &[], 10, "reset");
    ends("i8042", &[out(0x64, 0xfe), vec![0xf4]].concat(), &[], 10, "reset");
    ends("pvpanic", &[out(0x604, 1), vec![0xf4]].concat(), &[], 11, "panicked");
    let panic = [say("Kernel panic - not syncing: x\r\n"), out(0x64, 0xfe)].concat();
    ends("panic", &panic, &[], 11, "panicked");
    // mov rax, [0x7f00000000], which is not mapped, without an IDT.
    let fault = [0x48, 0xa1, 0, 0, 0, 0, 0x7f, 0, 0, 0];
    ends("fault", &fault, &[], 4, "triple fault on v0");
}

#[test]
fn the_zero_page_leads_the_kernel_to_its_command_line() {
    if kvm("linux_cmdline").is_none() {
        return;
    }
    // mov esi, [rsi+0x228]; mov dx, 0x3f8; 1: lodsb; test al, al; jz 2f; out dx, al;
    // jmp 1b; 2:
    let show = [
        0x8b, 0xb6, 0x28, 0x02, 0x00, 0x00, 0x66, 0xba, 0xf8, 0x03, 0xac, 0x84, 0xc0, 0x74, 0x03,
        0xee, 0xeb, 0xf8,
    ];
    let code = [show.to_vec(), power_off()].concat();
    let output = ends("cmdline", &code, &["--cmdline", "panic=5 x=y"], 0, "off");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, "console=ttyS0 reboot=k pci=off panic=5 x=y");
}

#[test]
fn a_guest_that_fills_the_console_is_ended_by_the_time_limit() {
    if kvm("linux_flood").is_none() {
        return;
    }
    // 1: out dx, al; jmp 1b.
    let code = [out(0x3f8, b'x'), vec![0xee, 0xeb, 0xfd]].concat();
    let file = Scratch::file("flood1", &bzimage(&elf(&code)));
    let path = file.path().to_str().expect("utf-8");
    let output = pvtlb(&["run", "--force", "--timeout", "1s", "--memory", "32M", "--kernel", path]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(output.stdout.iter().all(|byte| *byte == b'x') && !output.stdout.is_empty());
}

#[test]
fn what_does_not_fit_or_is_not_there_is_refused() {
    if kvm("linux_refusals").is_none() {
        return;
    }
    let refused = |name: &str, args: &[&str], part: &str| {
        ends(name, &power_off(), args, 2, part);
    };
    refused("initrd0", &["--initrd", "/nonexistent/initrd"], "/nonexistent/initrd");
    let large = Scratch::file("initrd1", &vec![0; 40 << 20]);
    let path = large.path().to_str().expect("utf-8");
    refused("initrd2", &["--initrd", path], "41943040 bytes");
    refused("cmdline1", &["--cmdline", &"a".repeat(3000)], "at most 2047");
    refused("pvh", &["--boot-protocol", "pvh"], "no PVH entry");
    refused("mode", &["--pv-tlb", "doorbell"], "expected off or kvm");
    refused("feature", &["--cpu-hide", "warp"], "\"warp\"");
    refused("vcpus", &["--cpus", "255"], "at most 254");
    let mut image = bzimage(&elf(&power_off()));
    let end = image.len() - 12;
    image[end] ^= 0xff;
    let corrupt = Scratch::file("corrupt", &image);
    let path = corrupt.path().to_str().expect("utf-8");
    let output = pvtlb(&["run", "--kernel", path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("gzip"), "{}", stderr(&output));
}

#[test]
fn the_report_says_what_was_offered_and_what_was_not_used() {
    if kvm("linux_report").is_none() {
        return;
    }
    let json = Scratch::file("report.json", b"");
    let path = json.path().to_str().expect("utf-8");
    let args = ["--json", path, "--pv-tlb", "kvm", "--cpu-hide", "steal_time", "--cpus", "2"];
    ends("report", &power_off(), &args, 0, "pv_tlb_flush");
    let report = read(json.path());
    assert_eq!((&report["ending"], &report["mode"]), (&"poweroff".into(), &"kvm".into()));
    assert_eq!((&report["compression"], &report["vcpus"]), (&"gzip".into(), &2.into()));
    let features = report["features"].as_array().expect("a list");
    let find = |name: &str| features.iter().find(|f| f["name"] == name).expect("listed");
    assert_eq!(find("steal_time")["offered"], false);
    assert_eq!(find("steal_time")["used"], false);
    assert_eq!(find("hypervisor")["offered"], true);
    assert_eq!(report["vcpu"].as_array().map(Vec::len), Some(2));
}

fn read(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).expect("read")).expect("JSON")
}

#[test]
fn where_kernel_code_is_interpreted_linux_is_refused_with_the_speed() {
    let Some(system) = kvm("linux_pace") else { return };
    let pace = Pace::measure(&system).expect("measured");
    let file = Scratch::file("pace", &bzimage(&elf(&power_off())));
    let path = file.path().to_str().expect("utf-8");
    let output = pvtlb(&["run", "--memory", "32M", "--timeout", "30s", "--kernel", path]);
    let text = stderr(&output);
    if pace.is_interpreted() {
        assert_eq!(output.status.code(), Some(3), "{text}");
        assert!(text.contains("interprets guest kernel code"), "{text}");
        assert!(text.contains("cargo xtask rig") && text.contains("--force"), "{text}");
    } else {
        assert_eq!(output.status.code(), Some(0), "{text}");
    }
}
