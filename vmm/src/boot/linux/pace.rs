//! How fast this KVM runs guest code at CPL 0: hardware runs it at full speed, a
//! software KVM interprets it instruction by instruction, too slowly for a kernel.
//!
//! A vCPU counts a register down at CPL 0 and reports how many TSC ticks that took.
//! The vCPU belongs to the calling thread.

use std::sync::Arc;

use pv_tlb::abi::debug_exit::LOW;
use pv_tlb::abi::stress::IMAGE_GPA;
use pv_tlb::addr::Gpa;
use pv_tlb::id::VcpuId;

use crate::boot::{Error, tables};
use crate::kvm;
use crate::kvm::cpuid::{CpuidTable, Offer};
use crate::kvm::exit::Exit;
use crate::kvm::system::System;
use crate::memory::{GuestMemory, MIN_BYTES};

/// Turns of the loop, two instructions each; a few tens of milliseconds where they
/// are interpreted.
const TURNS: u32 = 20_000;
/// The best of so many runs counts: another thread may have had the pCPU.
const RUNS: u32 = 3;
/// A turn that takes longer is interpreted. Hardware needs about 1 ns, an emulated
/// host 15 ns, an interpreter a microsecond.
const INTERPRETED_NS: f64 = 200.0;

/// Time of one turn of the loop at CPL 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Nanoseconds of two instructions.
    pub turn_ns: f64,
}

impl Pace {
    /// Measures it.
    ///
    /// # Errors
    /// If the guest cannot be run.
    pub fn measure(system: &System) -> Result<Self, Error> {
        let mut best = f64::INFINITY;
        for _ in 0..RUNS {
            best = best.min(run(system)?);
        }
        Ok(Self { turn_ns: best })
    }

    /// True if guest code at CPL 0 is interpreted here.
    #[must_use]
    pub fn is_interpreted(self) -> bool {
        self.turn_ns > INTERPRETED_NS
    }

    /// Million instructions per second.
    #[must_use]
    pub fn mips(self) -> f64 {
        2_000.0 / self.turn_ns
    }
}

fn code() -> Vec<u8> {
    let mut code = vec![0xb9]; // mov ecx, TURNS
    code.extend_from_slice(&TURNS.to_le_bytes());
    code.extend_from_slice(&[0x0f, 0x31, 0x89, 0xc3]); // rdtsc; mov ebx, eax
    code.extend_from_slice(&[0xff, 0xc9, 0x75, 0xfc]); // 1: dec ecx; jnz 1b
    code.extend_from_slice(&[0x0f, 0x31, 0x29, 0xd8]); // rdtsc; sub eax, ebx
    code.extend_from_slice(&[0x66, 0xba]); // mov dx, LOW
    code.extend_from_slice(&LOW.to_le_bytes());
    code.extend_from_slice(&[0xef, 0xf4]); // out dx, eax; hlt
    code
}

fn run(system: &System) -> Result<f64, Error> {
    let memory = GuestMemory::new(MIN_BYTES)?;
    let vm = Arc::new(system.create_vm()?);
    vm.create_irqchip()?;
    for region in memory.regions() {
        vm.add_slot(region)?;
    }
    memory.write(Gpa(IMAGE_GPA), &code())?;
    let entry = tables::write(&memory, IMAGE_GPA)?;
    let mut vcpu = vm.create_vcpu(VcpuId(0))?;
    let table = CpuidTable::supported(system)?;
    vcpu.set_cpuid(&table.for_vcpu(vcpu.id(), 1, &Offer::default())?)?;
    vcpu.enter_long_mode(&entry)?;
    let khz = f64::from(vcpu.tsc_khz()?.max(1));
    loop {
        match vcpu.run()? {
            Exit::PortOut { port: LOW, value, .. } => {
                return Ok(f64::from(value) * 1e6 / khz / f64::from(TURNS));
            }
            Exit::Interrupted => {}
            other => {
                let failed = std::io::Error::other(format!("{other:?}"));
                return Err(kvm::Error::of("measure the speed of guest code")(failed).into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interpreter_is_told_from_hardware_and_from_an_emulated_host() {
        for (turn_ns, interpreted) in [(0.6, false), (15.0, false), (900.0, true)] {
            assert_eq!(Pace { turn_ns }.is_interpreted(), interpreted);
        }
    }
}
