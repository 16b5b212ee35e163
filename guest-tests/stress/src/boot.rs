//! From the monitor's entry to the program.
//!
//! The monitor starts every vCPU: long mode, CPL0, IF=0, an identity map of the
//! first 4 GiB, RDI the vCPU number, RSI the parameters. vCPU 0 makes what all
//! share and then lets the others go on. States of `SHARED`: 0, 1 (never back).
//!
//! Kept short: a KVM that interprets CPL0 runs it at about 1.5 million
//! instructions a second.

use core::arch::x86_64::__cpuid;
use core::arch::{asm, global_asm};
use core::mem::size_of;
use core::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use pv_tlb::abi::stress::{EXIT_COST_PORT, Program, Strategy};
use pv_tlb::abi::{debug_exit, kvm};
use pv_tlb::shootdown::INIT_MM;

use crate::params::{self, params};
use crate::vcpu::{AREAS, Area, KERNEL_STACK_TOP, Local, USER_STACK_TOP};
use crate::{apic, doorbell, gate, machine, paging, programs, traps};

/// Selector of the CPL0 code segment.
pub(crate) const KERNEL_CODE: u16 = 0x08;
const KERNEL_DATA: u16 = 0x10;
const USER_DATA: u16 = 0x18 | 3;
const USER_CODE: u16 = 0x20 | 3;
const TASK: u16 = 0x28;
/// Entries of a [`Gdt`].
pub(crate) const GDT_ENTRIES: usize = 7;
/// A vCPU's segment descriptors; the last two are its task state.
pub(crate) type Gdt = [u64; GDT_ENTRIES];

const CODE_64: u64 = 0x00af_9b00_0000_ffff;
const DATA: u64 = 0x00cf_9300_0000_ffff;
const DPL_3: u64 = 3 << 45;
const TASK_64: u64 = 0x0000_8900_0000_0000;

const MSR_EFER: u32 = 0xc000_0080;
const EFER_NO_EXECUTE: u64 = 1 << 11;
const CR0_WRITE_PROTECT: u64 = 1 << 16;

const SERIAL: u16 = 0x3f8;
const SERIAL_PORTS: u16 = 8;
/// Ports below this can be opened to CPL3.
const PORTS: u16 = 0x800;
const STATE_BYTES: usize = 104;
const BITMAP_BYTES: usize = PORTS as usize / 8 + 1;

/// A 64-bit task state segment and its I/O bitmap.
#[repr(C, align(8))]
pub(crate) struct TaskState {
    reserved: u32,
    rsp0: [u32; 2],
    rest: [u32; 22],
    /// Bits 31:16: where the bitmap starts.
    bitmap_at: u32,
    /// A set bit closes the port; the byte past the end must be all ones.
    bitmap: [u8; BITMAP_BYTES],
}

impl TaskState {
    /// What a vCPU's area holds before the vCPU fills it.
    pub(crate) const ZERO: Self =
        Self { reserved: 0, rsp0: [0; 2], rest: [0; 22], bitmap_at: 0, bitmap: [0; BITMAP_BYTES] };

    /// The fixed ports open, made by the compiler.
    const fn template() -> Self {
        let mut task = Self::ZERO;
        task.bitmap_at = (STATE_BYTES as u32) << 16;
        task.bitmap = [0xff; BITMAP_BYTES];
        task.open(SERIAL, SERIAL_PORTS);
        task.open(debug_exit::EXIT, debug_exit::PORTS);
        task.open(EXIT_COST_PORT, 4);
        task
    }

    const fn open(&mut self, first: u16, count: u16) {
        let mut port = first;
        while port < first + count {
            self.bitmap[port as usize / 8] &= !(1 << (port % 8));
            port += 1;
        }
    }
}

static TASK_TEMPLATE: TaskState = TaskState::template();
static SHARED: AtomicBool = AtomicBool::new(false);

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    address: u64,
}

global_asm!(
    ".section .text.entry, \"ax\"",
    ".globl _start",
    ".type _start, @function",
    "_start:",
    "cld",
    "imul rax, rdi, {stride}",
    "lea rsp, [rip + {areas}]",
    "lea rsp, [rsp + rax + {top}]",
    "xor ebp, ebp",
    "call {boot}",
    "ud2",
    ".size _start, . - _start",
    ".text",
    stride = const size_of::<Area>(),
    areas = sym AREAS,
    top = const KERNEL_STACK_TOP,
    boot = sym boot,
);

extern "C" fn boot(vcpu: u64) -> ! {
    let area = &AREAS[vcpu as usize];
    match vcpu {
        0 => share(),
        // Partner: the store in `share`.
        _ => {
            while !SHARED.load(Acquire) {
                core::hint::spin_loop();
            }
        }
    }
    load_segments(area);
    load_tables(vcpu as u32);
    area.local.id.store(vcpu, Relaxed);
    // SAFETY: the GS segment is loaded, and only `vcpu::me` uses it.
    unsafe { gate::write_msr_here(0xc000_0101, &raw const area.local as u64) };
    apic::enable();
    if params::strategy() == Strategy::KvmPv {
        offer_steal_time(area);
    }
    if params::program() == Program::TripleFault {
        triple_fault();
    }
    doorbell::announce(doorbell::interpreted());
    start_program(area)
}

/// What all vCPUs share.
fn share() {
    params::check();
    gate::DIRECT.store(params().algorithm_cpl == 0, Relaxed);
    traps::fill_idt(params().algorithm_cpl == 0, params::x2apic());
    paging::build_init_mm();
    doorbell::find();
    machine::PCIDS.store(__cpuid(1).ecx & 1 << 17 != 0, Relaxed);
    paging::NO_EXECUTE_OFFERED.store(__cpuid(0x8000_0001).edx & 1 << 20 != 0, Relaxed);
    // Partner: the wait in `boot`.
    SHARED.store(true, Release);
}

/// GDT, segments, task register.
fn load_segments(area: &'static Area) {
    let base = area.task.get() as u64;
    let limit = size_of::<TaskState>() as u64 - 1;
    let low = TASK_64 | limit | ((base & 0xff_ffff) << 16) | (((base >> 24) & 0xff) << 56);
    let gdt = [0, CODE_64, DATA, DATA | DPL_3, CODE_64 | DPL_3, low, base >> 32];
    // SAFETY: the area is this vCPU's own and no CPU uses the table yet.
    unsafe { area.gdt.get().write(gdt) };
    // SAFETY: as above; the template is a valid value of the same type.
    unsafe { core::ptr::copy_nonoverlapping(&raw const TASK_TEMPLATE, area.task.get(), 1) };
    // SAFETY: as above, and just written.
    let task = unsafe { &mut *area.task.get() };
    let stack = area as *const Area as u64 + KERNEL_STACK_TOP as u64;
    task.rsp0 = [stack as u32, (stack >> 32) as u32];
    if let Some(port) = doorbell::port() {
        assert!(port <= PORTS - 4, "Doorbell port {port:#x}, expected below {PORTS:#x}");
        task.open(port, 4);
    }
    let pointer = Pointer { limit: size_of::<Gdt>() as u16 - 1, address: area.gdt.get() as u64 };
    // SAFETY: the table holds valid flat segments for every selector loaded here.
    unsafe {
        asm!(
            "lgdt [{pointer}]",
            "push {code}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "retfq",
            "2:",
            "mov ss, {stack:x}",
            "mov ds, {data:x}",
            "mov es, {data:x}",
            "mov fs, {data:x}",
            "mov gs, {data:x}",
            "ltr {task:x}",
            pointer = in(reg) &raw const pointer,
            code = const KERNEL_CODE,
            scratch = out(reg) _,
            stack = in(reg) u32::from(KERNEL_DATA),
            data = in(reg) u32::from(USER_DATA),
            task = in(reg) u32::from(TASK),
        );
    }
}

/// IDT, page tables, and the bits that say how they are used.
fn load_tables(vcpu: u32) {
    let (address, limit) = traps::idt();
    let pointer = Pointer { limit, address };
    // SAFETY: the table is filled and never changes.
    unsafe { asm!("lidt [{}]", in(reg) &raw const pointer, options(nostack, preserves_flags)) };
    // SAFETY: the identity map covers this image at the same addresses as before.
    unsafe {
        asm!("mov cr3, {}", in(reg) paging::root(INIT_MM, vcpu), options(nostack, preserves_flags));
    }
    if machine::PCIDS.load(Relaxed) {
        // SAFETY: CPUID offers PCIDs, and CR3 bits 11:0 are 0.
        unsafe {
            asm!("mov {0}, cr4", "or {0}, 1 << 17", "mov cr4, {0}", out(reg) _, options(nostack));
        }
    }
    if paging::NO_EXECUTE_OFFERED.load(Relaxed) {
        // SAFETY: every x86-64 CPU has the register.
        let features = unsafe { gate::read_msr_here(MSR_EFER) };
        // SAFETY: CPUID offers the bit, and no entry of the current tables has it.
        unsafe { gate::write_msr_here(MSR_EFER, features | EFER_NO_EXECUTE) };
    }
    let protect = gate::DIRECT.load(Relaxed) || paging::write_protects(vcpu);
    // SAFETY: the one bit changed is about CPL0 stores to read-only pages. Only a
    // program at CPL0 makes any, and it keeps the protection.
    unsafe {
        asm!("mov {0}, cr0", "and {0}, {1}", "or {0}, {2}", "mov cr0, {0}", out(reg) _,
             in(reg) !CR0_WRITE_PROTECT, in(reg) if protect { CR0_WRITE_PROTECT } else { 0 },
             options(nostack));
    }
}

/// Lets KVM keep this vCPU's steal-time record, with the preempted byte in it.
fn offer_steal_time(area: &'static Area) {
    let signature = __cpuid(kvm::CPUID_SIGNATURE);
    let found = [signature.ebx, signature.ecx, signature.edx] == kvm::SIGNATURE;
    assert!(found, "Strategy kvm-pv needs KVM's CPUID leaves");
    let features = __cpuid(kvm::CPUID_FEATURES).eax;
    let needed = kvm::FEATURE_STEAL_TIME | kvm::FEATURE_PV_TLB_FLUSH;
    assert!(features & needed == needed, "KVM features {features:#x}, expected {needed:#x}");
    let record = area.steal_time.get() as u64;
    // SAFETY: the record is this vCPU's own, aligned, and only used as atomics.
    unsafe { gate::write_msr_here(kvm::MSR_STEAL_TIME, record | kvm::STEAL_TIME_ENABLE) };
}

/// An exception that finds no table to be delivered through.
fn triple_fault() -> ! {
    let nothing = Pointer { limit: 0, address: 0 };
    // SAFETY: ends the VM, as the program is meant to.
    unsafe { asm!("lidt [{}]", "ud2", in(reg) &raw const nothing, options(noreturn)) }
}

/// Leaves for the program, at the level it is to run at, with interrupts on.
fn start_program(area: &'static Area) -> ! {
    // As after a call: RSP + 8 is a multiple of 16.
    let stack = area as *const Area as u64 + USER_STACK_TOP as u64 - 8;
    if gate::DIRECT.load(Relaxed) {
        // SAFETY: the stack is this vCPU's own and unused.
        unsafe {
            asm!("mov rsp, {}", "sti", "jmp {}", in(reg) stack, sym programs::main,
                 options(noreturn));
        }
    }
    // SAFETY: as above; the frame names flat CPL3 segments of the loaded GDT.
    unsafe {
        asm!(
            "push {data}", "push {stack}", "push 0x202", "push {code}", "lea {stack}, [rip + {main}]",
            "push {stack}", "iretq",
            data = const USER_DATA, stack = in(reg) stack, code = const USER_CODE,
            main = sym programs::main,
            options(noreturn)
        );
    }
}

const _: () = assert!(core::mem::offset_of!(TaskState, bitmap) == STATE_BYTES);
const _: () = assert!(core::mem::offset_of!(Local, id) == 0);
