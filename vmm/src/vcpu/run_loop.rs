//! The loop of a vCPU thread, and what it shares with the rest of the monitor.
//!
//! Each turn: re-arm the kick; mark running (with its fence); look at the stop flag
//! and at the inbox; flush and acknowledge; KVM_RUN; mark in host; serve the exit.
//! No lock is held across KVM_RUN.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use pv_tlb::abi::debug_exit::Verdict;
use pv_tlb::abi::doorbell::{PORT, RunHint};
use pv_tlb::id::VcpuId;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::devices::PortBus;
use crate::devices::debug_exit::Report;
use crate::devices::power::PowerEvent;
use crate::flush::execute::Unfinished;
use crate::flush::{FlushSite, VcpuSlot, trap};
use crate::kvm;
use crate::kvm::exit::Exit;
use crate::kvm::vcpu::Vcpu;
use crate::metrics::VcpuMetrics;

/// Something a vCPU thread tells the main loop.
#[derive(Debug)]
pub enum Event {
    /// The guest reported a value.
    Value {
        /// Its key.
        key: u32,
        /// The value.
        value: u64,
    },
    /// The guest ended the run with a verdict, or with a number that is none.
    Ended(Result<Verdict, u32>),
    /// A Linux guest ended the run.
    Power(PowerEvent),
    /// The vCPU cannot go on.
    Failed(Failure),
    /// The console's output is closed.
    ConsoleClosed,
    /// The thread is about to end.
    ThreadEnds,
}

/// Why a vCPU cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Triple fault, or a shutdown that the guest asked for.
    #[error("Guest shut down by a triple fault on {0}")]
    Shutdown(VcpuId),
    /// KVM gave up on the guest.
    #[error("{1} on {0}")]
    Kvm(VcpuId, String),
    /// An exit without meaning here.
    #[error("Unexpected exit {1} on {0}")]
    Exit(VcpuId, String),
    /// A flush could not be completed.
    #[error(transparent)]
    Flush(#[from] Unfinished),
    /// The kernel refused something.
    #[error(transparent)]
    Kernel(#[from] kvm::Error),
}

/// What vCPU threads and the monitor share.
#[derive(Debug)]
pub struct Shared {
    /// Flush state.
    pub site: FlushSite,
    /// Devices.
    pub bus: PortBus,
    /// Some vCPUs must share a pCPU.
    pub overcommitted: bool,
    stop: AtomicBool,
    sender: Sender<Event>,
    receiver: Mutex<Receiver<Event>>,
    wake: EventFd,
}

impl Shared {
    /// Shared state of a VM that has not started.
    ///
    /// # Errors
    /// If the wake-up descriptor cannot be made.
    pub fn new(site: FlushSite, bus: PortBus, overcommitted: bool) -> kvm::Result<Self> {
        let wake = EventFd::new(EFD_NONBLOCK).map_err(kvm::Error::of("make an eventfd"))?;
        let (sender, receiver) = channel();
        Ok(Self {
            site,
            bus,
            overcommitted,
            stop: AtomicBool::new(false),
            sender,
            receiver: Mutex::new(receiver),
            wake,
        })
    }

    /// Readable when events wait.
    #[must_use]
    pub fn wake(&self) -> &EventFd {
        &self.wake
    }

    /// Takes the events that wait, in the order they were sent.
    pub fn events(&self) -> Vec<Event> {
        // A read that fails says only that nothing had been written.
        let _ = self.wake.read();
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.try_iter().collect()
    }

    /// Makes every vCPU thread end soon. Any thread, any number of times.
    pub fn stop(&self) {
        // Partner: the load in the loop, after `RunState::enter`'s fence; the kick
        // follows the store, so a thread that missed the store leaves KVM_RUN.
        self.stop.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        for slot in &self.site.slots {
            slot.kick.kick();
        }
    }

    pub(super) fn send(&self, event: Event) {
        // The receiver lives in this very structure, and a full eventfd is readable
        // already, so neither can fail in a way that matters.
        let _ = self.sender.send(event);
        let _: io::Result<()> = self.wake.write(1);
    }
}

/// Runs `vcpu` until the VM stops; what was counted is returned.
pub(super) fn run(vcpu: &mut Vcpu, shared: &Shared) -> VcpuMetrics {
    let mut metrics = VcpuMetrics::default();
    let slot = shared.site.slot(vcpu.id());
    let result = vcpu.attach(&slot.kick).map_err(Failure::from).and_then(|()| {
        let result = turns(vcpu, shared, slot, &mut metrics);
        slot.run.leave(false);
        vcpu.detach(&slot.kick);
        metrics.paravirtual = vcpu.paravirtual_use();
        result
    });
    match result {
        Ok(()) | Err(Failure::Flush(Unfinished::Stopped)) => {}
        Err(failure) => shared.send(Event::Failed(failure)),
    }
    metrics
}

fn turns(
    vcpu: &mut Vcpu,
    shared: &Shared,
    slot: &VcpuSlot,
    metrics: &mut VcpuMetrics,
) -> Result<(), Failure> {
    let mut mid_access = false;
    loop {
        slot.kick.rearm();
        slot.run.enter();
        // Partner: `Shared::stop`.
        if shared.stop.load(Ordering::SeqCst) {
            return Ok(());
        }
        let exit = match slot.inbox.owed() {
            // The ack must not come before KVM has finished the access (H4).
            Some(_) if mid_access => vcpu.finish_access()?,
            owed => {
                if let Some(seq) = owed {
                    shared.site.entry.arrange(vcpu, slot.steal.as_deref())?;
                    slot.inbox.acknowledge(seq);
                    metrics.flush.served += 1;
                }
                hint(shared, slot, RunHint::OnPcpu);
                vcpu.run()?
            }
        };
        mid_access = exit.is_mid_access();
        slot.run.leave(mid_access);
        hint(shared, slot, RunHint::OffPcpu);
        serve(vcpu, shared, exit, metrics)?;
    }
}

/// Tells guests where IPIs are cheap. Only a hint, so nothing orders it.
fn hint(shared: &Shared, slot: &VcpuSlot, hint: RunHint) {
    if let Some(page) = slot.page.as_deref() {
        let hint = if shared.overcommitted { RunHint::Unknown } else { hint };
        page.host.run_hint.store(hint as u32, Ordering::Relaxed);
    }
}

fn serve(
    vcpu: &mut Vcpu,
    shared: &Shared,
    exit: Exit,
    metrics: &mut VcpuMetrics,
) -> Result<(), Failure> {
    let id = vcpu.id();
    match exit {
        Exit::PortOut { port: PORT, size, value } => {
            metrics.exits.port += 1;
            trap::doorbell(&shared.site, id, size, value, &shared.stop, &mut metrics.flush)?;
        }
        Exit::PortOut { port, size, value } => {
            metrics.exits.port += 1;
            match shared.bus.write(id, port, size, value) {
                Some(Report::Value { key, value }) => shared.send(Event::Value { key, value }),
                Some(Report::Ended(verdict)) => shared.send(Event::Ended(verdict)),
                Some(Report::Power(event)) => shared.send(Event::Power(event)),
                None if shared.bus.console.is_closed() => {
                    shared.send(Event::ConsoleClosed);
                    return Ok(());
                }
                None => {}
            }
        }
        Exit::PortIn { port, .. } => {
            metrics.exits.port += 1;
            vcpu.answer_read(|_| shared.bus.read(port));
        }
        Exit::MmioRead { .. } => {
            metrics.exits.mmio += 1;
            vcpu.answer_read(|_| 0xff);
        }
        Exit::MmioWrite { .. } => metrics.exits.mmio += 1,
        Exit::Interrupted => metrics.exits.interrupted += 1,
        Exit::Shutdown => return Err(Failure::Shutdown(id)),
        Exit::Failed(what) => return Err(Failure::Kvm(id, what)),
        Exit::Halted => return Err(Failure::Exit(id, "HLT".to_owned())),
    }
    Ok(())
}
