//! What a Linux kernel is told before its first instruction: command line, memory
//! map, initial RAM disk, and the structure of its boot protocol that points to them.
//!
//! Everything is written once into guest memory that nobody runs in yet.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use linux_loader::cmdline::{self, Cmdline};
use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::pvh::PvhBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use linux_loader::loader::elf::start_info::{
    hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info,
};
use linux_loader::loader::load_cmdline;
use pv_tlb::addr::Gpa;
use vm_memory::GuestAddress;

use super::{Error, acpi};
use crate::memory::{GAP_END, GuestMemory};

/// The zero page, or the PVH start information.
pub const PARAMS: Gpa = Gpa(0x7000);
const PVH_MEMORY_MAP: Gpa = Gpa(0x7100);
const PVH_MODULES: Gpa = Gpa(0x7800);
const CMDLINE: Gpa = Gpa(0x2_0000);
/// Longest command line if the kernel does not say (`COMMAND_LINE_SIZE` - 1).
const CMDLINE_BYTES: usize = 2047;
/// End of the low RAM that a BIOS would leave.
const LOW_RAM_END: u64 = 0x9_fc00;
const HIGH_RAM: u64 = 0x10_0000;

/// Parameters that a user replaces by naming their keys.
const DEFAULTS: &[&str] = &["console=ttyS0", "reboot=k", "panic=1", "pci=off"];

const RAM: u32 = 1;
const RESERVED: u32 = 2;

/// Where the initial RAM disk is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Initrd {
    /// First byte.
    pub gpa: u64,
    /// Length.
    pub bytes: u64,
}

/// The whole command line: the user's, and the defaults whose keys it does not name.
///
/// # Errors
/// If it is longer than `limit` bytes or not printable ASCII.
pub fn cmdline(user: &str, limit: usize) -> Result<Cmdline, Error> {
    let key = |parameter: &str| parameter.split('=').next().unwrap_or_default().to_owned();
    let before_init = user.split(" -- ").next().unwrap_or_default();
    let named: Vec<String> = before_init.split_whitespace().map(key).collect();
    let defaults = DEFAULTS.iter().filter(|d| !named.contains(&key(d)));
    let whole: Vec<&str> =
        defaults.copied().chain([user.trim()]).filter(|s| !s.is_empty()).collect();
    let whole = whole.join(" ");
    if whole.len() > limit {
        return Err(Error::CmdlineLength { bytes: whole.len(), limit });
    }
    let refused = |e: cmdline::Error| Error::Cmdline { text: user.to_owned(), what: e.to_string() };
    let capacity = limit + 1;
    let mut line = Cmdline::new(capacity).map_err(refused)?;
    line.insert_str(&whole).map_err(refused)?;
    Ok(line)
}

/// Longest command line that the kernel of this header takes.
#[must_use]
pub fn cmdline_limit(header: Option<&setup_header>) -> usize {
    const MOST: usize = 0x1_0000;
    match header.map(|header| header.cmdline_size as usize) {
        None | Some(0) => CMDLINE_BYTES,
        Some(limit) => limit.min(MOST),
    }
}

/// Reads the file at `path` to the top of low memory, above `kernel_end`.
///
/// # Errors
/// If it cannot be read or does not fit.
pub fn load_initrd(path: &Path, memory: &GuestMemory, kernel_end: u64) -> Result<Initrd, Error> {
    const PAGE: u64 = 4096;
    let fail = |source| Error::Initrd { path: path.to_owned(), source };
    // A kernel takes an initrd below 2 GiB whatever its header says.
    let top = memory.low_bytes().min(1 << 31);
    let free = top.saturating_sub(kernel_end.next_multiple_of(PAGE));
    let mut data = Vec::new();
    let file = File::open(path).map_err(fail)?;
    let stated = file.metadata().map_err(fail)?.len();
    file.take(free + 1).read_to_end(&mut data).map_err(fail)?;
    let bytes = data.len() as u64;
    if bytes > free {
        let bytes = stated.max(bytes);
        return Err(Error::InitrdSize { path: path.to_owned(), bytes, free });
    }
    let gpa = (top - bytes) / PAGE * PAGE;
    memory.write(Gpa(gpa), &data).map_err(|e| Error::BootData(e.to_string()))?;
    Ok(Initrd { gpa, bytes })
}

/// The memory map: (first byte, bytes, type).
fn memory_map(memory: &GuestMemory) -> Vec<(u64, u64, u32)> {
    let (tables, end) = (acpi::TABLES.0, acpi::TABLES_END.0);
    let mut map = vec![
        (0, LOW_RAM_END, RAM),
        (tables, end - tables, RESERVED),
        (HIGH_RAM, memory.low_bytes() - HIGH_RAM, RAM),
    ];
    if memory.bytes() > memory.low_bytes() {
        map.push((GAP_END, memory.bytes() - memory.low_bytes(), RAM));
    }
    map
}

fn write_cmdline(memory: &GuestMemory, line: &Cmdline) -> Result<(), Error> {
    load_cmdline(memory.mmap(), GuestAddress(CMDLINE.0), line)
        .map_err(|e| Error::BootData(e.to_string()))
}

/// Writes the zero page of the 64-bit protocol.
///
/// # Errors
/// If guest memory is too small, which its minimum size excludes.
pub fn write_zero_page(
    memory: &GuestMemory,
    header: Option<&setup_header>,
    line: &Cmdline,
    initrd: Initrd,
    rsdp: Gpa,
) -> Result<(), Error> {
    const OTHER_LOADER: u8 = 0xff;
    const LOADED_HIGH: u8 = 1;
    write_cmdline(memory, line)?;
    let mut params = boot_params { acpi_rsdp_addr: rsdp.0, ..boot_params::default() };
    params.hdr = header.copied().unwrap_or(setup_header {
        boot_flag: 0xaa55,
        header: 0x5372_6448,
        version: 0x020f,
        kernel_alignment: 0x20_0000,
        ..setup_header::default()
    });
    params.hdr.type_of_loader = OTHER_LOADER;
    params.hdr.loadflags |= LOADED_HIGH;
    params.hdr.cmd_line_ptr = CMDLINE.0 as u32;
    params.hdr.ramdisk_image = initrd.gpa as u32;
    params.hdr.ramdisk_size = initrd.bytes as u32;
    let map = memory_map(memory);
    for (slot, (addr, size, kind)) in params.e820_table.iter_mut().zip(&map) {
        *slot = boot_e820_entry { addr: *addr, size: *size, r#type: *kind };
    }
    params.e820_entries = map.len() as u8;
    let params = BootParams::new(&params, GuestAddress(PARAMS.0));
    LinuxBootConfigurator::write_bootparams(&params, memory.mmap())
        .map_err(|e| Error::BootData(e.to_string()))
}

/// Writes the PVH start information.
///
/// # Errors
/// As for [`write_zero_page`].
pub fn write_start_info(
    memory: &GuestMemory,
    line: &Cmdline,
    initrd: Initrd,
    rsdp: Gpa,
) -> Result<(), Error> {
    const MAGIC: u32 = 0x336e_c578;
    write_cmdline(memory, line)?;
    let map: Vec<_> = memory_map(memory)
        .into_iter()
        .map(|(addr, size, type_)| hvm_memmap_table_entry { addr, size, type_, reserved: 0 })
        .collect();
    let modules: Vec<_> = (initrd.bytes > 0)
        .then(|| hvm_modlist_entry { paddr: initrd.gpa, size: initrd.bytes, ..Default::default() })
        .into_iter()
        .collect();
    let start = hvm_start_info {
        magic: MAGIC,
        version: 1,
        nr_modules: modules.len() as u32,
        modlist_paddr: if modules.is_empty() { 0 } else { PVH_MODULES.0 },
        cmdline_paddr: CMDLINE.0,
        rsdp_paddr: rsdp.0,
        memmap_paddr: PVH_MEMORY_MAP.0,
        memmap_entries: map.len() as u32,
        ..hvm_start_info::default()
    };
    let mut params = BootParams::new(&start, GuestAddress(PARAMS.0));
    params.set_sections(&map, GuestAddress(PVH_MEMORY_MAP.0));
    if !modules.is_empty() {
        params.set_modules(&modules, GuestAddress(PVH_MODULES.0));
    }
    PvhBootConfigurator::write_bootparams(&params, memory.mmap())
        .map_err(|e| Error::BootData(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{GAP_START, MIN_BYTES};

    fn text(user: &str) -> String {
        let line = cmdline(user, CMDLINE_BYTES).expect("accepted");
        line.as_cstring().expect("text").into_string().expect("ASCII")
    }

    #[test]
    fn a_user_replaces_a_default_by_naming_its_key() {
        assert_eq!(text(""), "console=ttyS0 reboot=k panic=1 pci=off");
        assert_eq!(text("panic=0 quiet"), "console=ttyS0 reboot=k pci=off panic=0 quiet");
        assert_eq!(text("x -- panic=0"), "console=ttyS0 reboot=k panic=1 pci=off x -- panic=0");
    }

    #[test]
    fn a_line_too_long_or_not_ascii_is_refused_with_its_length() {
        let defaults = text("").len();
        assert!(cmdline(&"a".repeat(CMDLINE_BYTES - defaults - 1), CMDLINE_BYTES).is_ok());
        let error = cmdline(&"a".repeat(CMDLINE_BYTES - defaults), CMDLINE_BYTES);
        let error = error.expect_err("too long").to_string();
        assert!(error.contains("2048 bytes") && error.contains("at most 2047"), "{error}");
        assert!(matches!(cmdline("caf\u{e9}", CMDLINE_BYTES), Err(Error::Cmdline { .. })));
        let header = setup_header { cmdline_size: 100, ..setup_header::default() };
        assert_eq!(cmdline_limit(Some(&header)), 100);
        assert_eq!(cmdline_limit(None), CMDLINE_BYTES);
    }

    #[test]
    fn the_memory_map_covers_all_ram_but_the_bios_area() {
        for bytes in [MIN_BYTES, GAP_START, GAP_START + (1 << 20)] {
            let memory = GuestMemory::new(bytes).expect("map");
            let map = memory_map(&memory);
            let ram: u64 =
                map.iter().filter(|(.., kind)| *kind == RAM).map(|(_, size, _)| size).sum();
            assert_eq!(ram, bytes - (HIGH_RAM - LOW_RAM_END));
            assert!(map.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "in order");
        }
    }

    #[test]
    fn an_initrd_lies_at_the_top_and_one_that_does_not_fit_is_refused() {
        let memory = GuestMemory::new(MIN_BYTES).expect("map");
        let path = std::env::temp_dir().join(format!("pvtlb-initrd-{}", std::process::id()));
        std::fs::write(&path, [7; 5000]).expect("write");
        let initrd = load_initrd(&path, &memory, HIGH_RAM).expect("fits");
        assert_eq!((initrd.gpa % 4096, initrd.bytes), (0, 5000));
        assert!(initrd.gpa + initrd.bytes <= MIN_BYTES);
        let error = load_initrd(&path, &memory, MIN_BYTES - 4096).expect_err("too large");
        std::fs::remove_file(&path).expect("remove");
        assert!(error.to_string().contains("5000 bytes, and 4096 are free"), "{error}");
        let missing = load_initrd(&path, &memory, HIGH_RAM).expect_err("gone").to_string();
        assert!(missing.contains("pvtlb-initrd"), "{missing}");
    }
}
