//! An exit of KVM_RUN as an owned value, so that nothing borrows the vCPU.

use kvm_bindings::{KVM_EXIT_INTERNAL_ERROR, kvm_run};
use kvm_ioctls::VcpuExit;

/// Why KVM_RUN returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// OUT: `size` bytes (1, 2 or 4) of `value`; of a string instruction, the first.
    PortOut {
        /// Port number.
        port: u16,
        /// Operand size in bytes.
        size: u8,
        /// The operand.
        value: u32,
    },
    /// IN: the answer is filled in before the next KVM_RUN.
    PortIn {
        /// Port number.
        port: u16,
        /// Operand size times repeat count, in bytes.
        bytes: usize,
    },
    /// A load from an address without memory.
    MmioRead {
        /// Guest physical address.
        gpa: u64,
        /// Bytes asked for.
        bytes: usize,
    },
    /// A store to an address without memory.
    MmioWrite {
        /// Guest physical address.
        gpa: u64,
    },
    /// HLT with no in-kernel irqchip.
    Halted,
    /// Triple fault, or a shutdown the guest asked for.
    Shutdown,
    /// A signal or `immediate_exit`.
    Interrupted,
    /// KVM could not go on; the text says what it told us.
    Failed(String),
}

impl Exit {
    /// True if KVM may still have to finish an access whose address it has
    /// translated already: such a vCPU is not at an instruction boundary (hazard
    /// H4). A plain OUT is complete but for the instruction pointer.
    #[must_use]
    pub const fn is_mid_access(&self) -> bool {
        matches!(self, Self::PortIn { .. } | Self::MmioRead { .. } | Self::MmioWrite { .. })
    }

    pub(super) fn from_kvm(exit: &VcpuExit<'_>) -> Self {
        match exit {
            VcpuExit::IoOut(port, data) => {
                let mut raw = [0; 4];
                let size = data.len().min(4);
                raw[..size].copy_from_slice(&data[..size]);
                Self::PortOut { port: *port, size: size as u8, value: u32::from_le_bytes(raw) }
            }
            VcpuExit::IoIn(port, data) => Self::PortIn { port: *port, bytes: data.len() },
            VcpuExit::MmioRead(gpa, data) => Self::MmioRead { gpa: *gpa, bytes: data.len() },
            VcpuExit::MmioWrite(gpa, _) => Self::MmioWrite { gpa: *gpa },
            VcpuExit::Hlt => Self::Halted,
            VcpuExit::Shutdown => Self::Shutdown,
            VcpuExit::Intr => Self::Interrupted,
            other => Self::Failed(format!("{other:?}")),
        }
    }
}

/// Adds what KVM says of an internal error: the suberror and, if it could not
/// emulate an instruction, the instruction's bytes.
pub(super) fn internal_error(run: &kvm_run, rip: u64) -> Option<String> {
    if run.exit_reason != KVM_EXIT_INTERNAL_ERROR {
        return None;
    }
    // SAFETY: exit_reason says which member of the union KVM filled in.
    let error = unsafe { run.__bindgen_anon_1.internal };
    let emulation = error.suberror == 1 && error.ndata >= 3;
    let bytes: Vec<u8> = error.data.iter().skip(1).flat_map(|w| w.to_le_bytes()).collect();
    let shown: Vec<String> = match (emulation, bytes.first()) {
        (true, Some(size)) => {
            bytes.iter().skip(1).take((*size).min(15).into()).map(|b| format!("{b:02x}")).collect()
        }
        _ => Vec::new(),
    };
    let what = if emulation { "could not emulate an instruction" } else { "internal error" };
    Some(format!(
        "KVM {what} at guest rip {rip:#x} (suberror {}, bytes [{}])",
        error.suberror,
        shown.join(" ")
    ))
}
