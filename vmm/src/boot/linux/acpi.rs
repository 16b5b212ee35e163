//! The ACPI tables of a Linux guest: reduced hardware, so that there is no fixed
//! register block to emulate; vCPUs and IOAPIC in the MADT; COM1 and the panic
//! device in the DSDT; sleep and reset registers on ports of the monitor
//! (ACPI 6.5, 5.2.9 and 4.8.3).

use acpi_tables::aml::{self, AmlStr, EISAName, IO, Interrupt, Name, Package, Path};
use acpi_tables::aml::{Device, ResourceTemplate, Scope};
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use pv_tlb::addr::Gpa;

use crate::devices::power;
use crate::devices::serial;
use crate::memory::{Error, GuestMemory};

/// Where the tables begin: the BIOS area, where a guest also finds the RSDP by
/// itself.
pub const TABLES: Gpa = Gpa(0xe_0000);
/// End of the area.
pub const TABLES_END: Gpa = Gpa(0x10_0000);
/// Most vCPUs that eight-bit APIC ids can name, 255 being everybody.
pub const MAX_VCPUS: u32 = 254;

const OEM: [u8; 6] = *b"PVTLB ";
const OEM_TABLE: [u8; 8] = *b"PVTLBVM ";
const OEM_REVISION: u32 = 1;
const LOCAL_APIC: u32 = 0xfee0_0000;
const IO_APIC: u32 = 0xfec0_0000;
/// Boot architecture flags: no VGA, no CMOS clock; and no 8042 since bit 1 is clear.
const NO_VGA_NO_RTC: u16 = 1 << 2 | 1 << 5;

struct Bytes(Vec<u8>);

impl AmlSink for Bytes {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut sink = Bytes(Vec::new());
    table.to_aml_bytes(&mut sink);
    sink.0
}

/// Writes all tables for `vcpus` vCPUs and returns the address of the RSDP.
///
/// # Errors
/// If guest memory is too small, which its minimum size excludes.
pub fn write(memory: &GuestMemory, vcpus: u32) -> Result<Gpa, Error> {
    let mut next = TABLES.0 + Rsdp::len().next_multiple_of(64) as u64;
    let mut place = |table: Vec<u8>| {
        let gpa = Gpa(next);
        next = (next + table.len() as u64).next_multiple_of(64);
        memory.write(gpa, &table).map(|()| gpa.0)
    };
    let dsdt = place(dsdt())?;
    let fadt = place(fadt(dsdt))?;
    let madt = place(madt(vcpus))?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = place(bytes(&xsdt))?;
    memory.write(TABLES, &bytes(&Rsdp::new(OEM, xsdt)))?;
    Ok(TABLES)
}

fn port(port: u16) -> GAS {
    GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, port.into())
}

fn fadt(dsdt: u64) -> Vec<u8> {
    let mut table = FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION)
        .dsdt_64(dsdt)
        .flag(Flags::Wbinvd)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton);
    table.iapc_boot_arch = NO_VGA_NO_RTC.into();
    table.reset_reg = port(power::RESET);
    table.reset_value = power::RESET_VALUE;
    table.sleep_control_reg = port(power::SLEEP_CONTROL);
    table.sleep_status_reg = port(power::SLEEP_STATUS);
    bytes(&table.finalize())
}

fn madt(vcpus: u32) -> Vec<u8> {
    let address = LocalInterruptController::Address(LOCAL_APIC);
    let mut table = MADT::new(OEM, OEM_TABLE, OEM_REVISION, address);
    for id in 0..vcpus.min(MAX_VCPUS) {
        table.add_structure(ProcessorLocalApic::new(id as u8, id as u8, EnabledStatus::Enabled));
    }
    table.add_structure(IoApic::new(0, IO_APIC, 0));
    bytes(&table)
}

fn dsdt() -> Vec<u8> {
    const HEADER_BYTES: u32 = 36;
    const REVISION: u8 = 6;
    let com1 = bytes(&Device::new(
        Path::new("COM1"),
        vec![
            &Name::new(Path::new("_HID"), &EISAName::new("PNP0501")),
            &Name::new(Path::new("_UID"), &aml::ZERO),
            &Name::new(
                Path::new("_CRS"),
                &ResourceTemplate::new(vec![
                    &Interrupt::new(true, true, false, false, serial::GSI),
                    &IO::new(serial::BASE, serial::BASE, 0, serial::PORTS as u8),
                ]),
            ),
        ],
    ));
    let panic_id: AmlStr = "QEMU0001";
    let panic = bytes(&Device::new(
        Path::new("PNIC"),
        vec![
            &Name::new(Path::new("_HID"), &panic_id),
            &Name::new(Path::new("_STA"), &0x0f_u8),
            &Name::new(
                Path::new("_CRS"),
                &ResourceTemplate::new(vec![&IO::new(power::PANIC, power::PANIC, 1, 1)]),
            ),
        ],
    ));
    let scope = bytes(&Scope::new(Path::new("_SB_"), vec![&Raw(com1), &Raw(panic)]));
    let s5 = bytes(&Name::new(Path::new("_S5_"), &Package::new(vec![&power::SLEEP_TYPE_OFF])));
    let mut table = Sdt::new(*b"DSDT", HEADER_BYTES, REVISION, OEM, OEM_TABLE, OEM_REVISION);
    table.append_slice(&scope);
    table.append_slice(&s5);
    table.as_slice().to_vec()
}

/// Bytes of AML made before; children of a device borrow, and cannot be returned.
struct Raw(Vec<u8>);

impl Aml for Raw {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        sink.vec(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes as _, GuestAddress};

    use super::*;

    fn read(memory: &GuestMemory, gpa: u64, length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        memory.mmap().read_slice(&mut out, GuestAddress(gpa)).expect("in RAM");
        out
    }

    fn table(memory: &GuestMemory, gpa: u64) -> Vec<u8> {
        let header = read(memory, gpa, 8);
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        read(memory, gpa, length as usize)
    }

    fn word(table: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(table[at..at + 8].try_into().expect("eight bytes"))
    }

    fn sums_to_zero(table: &[u8]) -> bool {
        table.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)) == 0
    }

    #[test]
    fn tables_are_found_from_the_rsdp_and_their_sums_are_right() {
        let memory = GuestMemory::new(crate::memory::MIN_BYTES).expect("map");
        for vcpus in [1, 3, MAX_VCPUS] {
            let rsdp = write(&memory, vcpus).expect("written");
            let root = read(&memory, rsdp.0, Rsdp::len());
            assert!(root.starts_with(b"RSD PTR ") && sums_to_zero(&root));
            let xsdt = table(&memory, word(&root, 24));
            assert!(xsdt.starts_with(b"XSDT") && sums_to_zero(&xsdt));
            let fadt = table(&memory, word(&xsdt, 36));
            let madt = table(&memory, word(&xsdt, 44));
            let dsdt = table(&memory, word(&fadt, 140));
            for (found, signature) in [(&fadt, b"FACP"), (&madt, b"APIC"), (&dsdt, b"DSDT")] {
                assert!(found.starts_with(signature) && sums_to_zero(found));
            }
            let last = madt.len() - 12 - 8;
            assert_eq!(u32::from(madt[last + 3]), vcpus - 1, "the last local APIC id");
            assert!(word(&root, 24) + xsdt.len() as u64 <= TABLES_END.0);
        }
    }
}
