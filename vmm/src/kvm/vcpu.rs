//! One vCPU: registers, MSRs, KVM_RUN.
//!
//! Owner: the vCPU thread. [`Vcpu`] holds its VM, and with it the memory KVM uses.

mod msr;
mod protected;

use std::sync::Arc;

use kvm_bindings::{
    CpuId, KVM_MP_STATE_RUNNABLE, kvm_fpu, kvm_mp_state, kvm_regs, kvm_segment, kvm_sregs,
};
use kvm_ioctls::VcpuFd;
use pv_tlb::abi::kvm as kvm_abi;
use pv_tlb::addr::Gpa;
use pv_tlb::id::VcpuId;

use super::exit::{Exit, internal_error};
use super::kick::Kick;
use super::stats::{FlushCount, Statistics};
use super::vm::Vm;
use super::{Error, Result};

const CR0_PE: u64 = 1 << 0;
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_WP: u64 = 1 << 16;
const CR0_PG: u64 = 1 << 31;
const CR3_PWT: u64 = 1 << 3;
const CR4_PAE: u64 = 1 << 5;
const CR4_PGE: u64 = 1 << 7;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;

/// Where and how a vCPU begins: 64-bit code, CPL 0, paging on, interrupts off.
#[derive(Clone, Copy, Debug)]
pub struct LongModeEntry {
    /// First instruction.
    pub rip: u64,
    /// First argument.
    pub rdi: u64,
    /// Second argument.
    pub rsi: u64,
    /// Physical address of the top-level page table.
    pub cr3: Gpa,
    /// Physical address of the descriptor table; entry 1 is code, entry 2 data.
    pub gdt: Gpa,
    /// Bytes of the descriptor table minus 1.
    pub gdt_limit: u16,
}

/// A control-register change and back that makes KVM flush the vCPU's guest
/// translations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlToggle {
    /// CR4.PGE.
    Cr4Pge,
    /// CR3.PWT, which changes the CR3 value without changing the tables.
    Cr3Pwt,
    /// Written back unchanged: a control that flushes nothing.
    Unchanged,
}

/// A vCPU, owned by the thread that runs it.
#[derive(Debug)]
pub struct Vcpu {
    // Field order is drop order: the file goes before the VM that owns the memory.
    fd: VcpuFd,
    id: VcpuId,
    _vm: Arc<Vm>,
}

impl Vcpu {
    pub(super) fn new(fd: VcpuFd, id: VcpuId, vm: Arc<Vm>) -> Result<Self> {
        Ok(Self { fd, id, _vm: vm })
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> VcpuId {
        self.id
    }

    /// Sets the CPUID table.
    ///
    /// # Errors
    /// If KVM refuses the table.
    pub fn set_cpuid(&self, table: &CpuId) -> Result<()> {
        self.fd.set_cpuid2(table).map_err(Error::of(format!("set CPUID of {}", self.id)))
    }

    /// Makes the vCPU runnable at `entry`.
    ///
    /// # Errors
    /// If KVM refuses a register.
    pub fn enter_long_mode(&self, entry: &LongModeEntry) -> Result<()> {
        let what = |register: &str| format!("set {register} of {}", self.id);
        let mut sregs = self.fd.get_sregs().map_err(Error::of(what("special registers")))?;
        long_mode(&mut sregs, entry);
        self.fd.set_sregs(&sregs).map_err(Error::of(what("special registers")))?;
        let regs = kvm_regs {
            rip: entry.rip,
            rdi: entry.rdi,
            rsi: entry.rsi,
            rflags: 0x2,
            ..kvm_regs::default()
        };
        self.fd.set_regs(&regs).map_err(Error::of(what("registers")))?;
        let fpu = kvm_fpu { fcw: 0x37f, mxcsr: 0x1f80, ..kvm_fpu::default() };
        self.fd.set_fpu(&fpu).map_err(Error::of(what("FPU state")))?;
        let runnable = kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE };
        self.fd.set_mp_state(runnable).map_err(Error::of(what("MP state")))
    }

    /// Enables the steal-time record at `record`, without the guest's help.
    ///
    /// # Errors
    /// If KVM refuses the MSR.
    pub fn enable_steal_time(&self, record: Gpa) -> Result<()> {
        let value = record.0 | kvm_abi::STEAL_TIME_ENABLE;
        self.set_msr(
            kvm_abi::MSR_STEAL_TIME,
            value,
            &format!("enable the steal-time record of {}", self.id),
        )
    }

    /// TSC frequency of the guest, kHz.
    ///
    /// # Errors
    /// If KVM cannot say.
    pub fn tsc_khz(&self) -> Result<u32> {
        self.fd.get_tsc_khz().map_err(Error::of("read the guest's TSC frequency"))
    }

    /// A counter of the TLB flushes KVM did for this vCPU. To be opened before the
    /// vCPU runs: KVM takes the vCPU's lock for it.
    ///
    /// # Errors
    /// If this KVM has no such statistic.
    pub fn flush_count(&self) -> Result<FlushCount> {
        FlushCount::open(&self.fd)
    }

    /// All of KVM's statistics of this vCPU. As [`Self::flush_count`], before it runs.
    ///
    /// # Errors
    /// If this KVM has none.
    pub fn statistics(&self) -> Result<Statistics> {
        Statistics::open(&self.fd)
    }

    /// Attaches the calling thread, which will run this vCPU, to `kick`.
    ///
    /// # Errors
    /// If the signal cannot be set up.
    pub fn attach(&mut self, kick: &Kick) -> Result<()> {
        let byte = &raw mut self.fd.get_kvm_run().immediate_exit;
        // SAFETY: kvm_run stays mapped as long as `self`, which the thread keeps
        // until it has detached (see `run_loop::run`); other writes to the byte go
        // through `self`, on this thread.
        unsafe { kick.attach(byte) }
    }

    /// Detaches the calling thread from `kick`.
    pub fn detach(&mut self, kick: &Kick) {
        kick.detach();
    }

    /// KVM_RUN. An interruption is an exit, not an error.
    ///
    /// # Errors
    /// If KVM_RUN itself fails.
    pub fn run(&mut self) -> Result<Exit> {
        let exit = match self.fd.run() {
            Ok(exit) => Exit::from_kvm(&exit),
            Err(e) if matches!(e.errno(), libc::EINTR | libc::EAGAIN) => Exit::Interrupted,
            Err(e) => return Err(Error::of(format!("run {}", self.id))(e)),
        };
        if matches!(exit, Exit::Failed(_)) {
            let rip = self.fd.get_regs().map_or(0, |regs| regs.rip);
            if let Some(text) = internal_error(self.fd.get_kvm_run(), rip) {
                return Ok(Exit::Failed(text));
            }
        }
        Ok(exit)
    }

    /// Lets KVM finish the access of the last exit without entering the guest; the
    /// vCPU is at an instruction boundary afterwards if this says `Interrupted`.
    ///
    /// # Errors
    /// If KVM_RUN itself fails.
    pub fn finish_access(&mut self) -> Result<Exit> {
        self.fd.set_kvm_immediate_exit(1);
        let exit = self.run();
        self.fd.set_kvm_immediate_exit(0);
        exit
    }

    /// Fills all bytes that an IN or an MMIO read waits for with `byte`.
    pub fn answer_read(&mut self, byte: impl Fn(usize) -> u8) {
        let run = self.fd.get_kvm_run();
        match run.exit_reason {
            kvm_bindings::KVM_EXIT_IO => {
                // SAFETY: exit_reason says which member of the union is valid.
                let io = unsafe { run.__bindgen_anon_1.io };
                let len = usize::from(io.size) * io.count as usize;
                let start = std::ptr::from_mut(run).cast::<u8>();
                // SAFETY: KVM places the data at `data_offset` inside the kvm_run
                // mapping.
                let data = unsafe { start.add(io.data_offset as usize) };
                // SAFETY: KVM has `len` bytes there, and the mapping is borrowed
                // mutably as long as the slice lives.
                let data = unsafe { std::slice::from_raw_parts_mut(data, len) };
                for (i, slot) in data.iter_mut().enumerate() {
                    *slot = byte(i);
                }
            }
            kvm_bindings::KVM_EXIT_MMIO => {
                for (i, slot) in mmio_data(run).iter_mut().enumerate() {
                    *slot = byte(i);
                }
            }
            _ => {}
        }
    }

    /// Changes a control register and changes it back.
    ///
    /// # Errors
    /// If KVM refuses a register.
    pub fn toggle(&self, toggle: ControlToggle) -> Result<()> {
        let what = || format!("toggle a control register of {}", self.id);
        let mut sregs = self.fd.get_sregs().map_err(Error::of(what()))?;
        let before = sregs;
        match toggle {
            ControlToggle::Cr4Pge => sregs.cr4 ^= CR4_PGE,
            ControlToggle::Cr3Pwt => sregs.cr3 ^= CR3_PWT,
            ControlToggle::Unchanged => {}
        }
        self.fd.set_sregs(&sregs).map_err(Error::of(what()))?;
        self.fd.set_sregs(&before).map_err(Error::of(what()))
    }
}

fn mmio_data(run: &mut kvm_bindings::kvm_run) -> &mut [u8] {
    // SAFETY: the caller checked that exit_reason is KVM_EXIT_MMIO, which makes
    // this member of the union valid.
    let mmio = unsafe { &mut run.__bindgen_anon_1.mmio };
    let len = (mmio.len as usize).min(mmio.data.len());
    &mut mmio.data[..len]
}

fn long_mode(sregs: &mut kvm_sregs, entry: &LongModeEntry) {
    let flat = |selector: u16, type_: u8, long: u8| kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_,
        present: 1,
        dpl: 0,
        db: 1 - long,
        s: 1,
        l: long,
        g: 1,
        ..kvm_segment::default()
    };
    sregs.cs = flat(0x08, 0xb, 1);
    let data = flat(0x10, 0x3, 0);
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.gdt.base = entry.gdt.0;
    sregs.gdt.limit = entry.gdt_limit;
    sregs.idt.base = 0;
    sregs.idt.limit = 0;
    // With WP, so that read-only pages are read-only for guest code at CPL 0 too.
    sregs.cr0 = CR0_PE | CR0_ET | CR0_NE | CR0_WP | CR0_PG;
    sregs.cr3 = entry.cr3.0;
    sregs.cr4 = CR4_PAE;
    sregs.efer = EFER_LME | EFER_LMA;
}
