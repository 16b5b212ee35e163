//! One thread per vCPU: named, pinned, joined.
//!
//! Owner: [`Running`] owns the threads; dropping it stops and joins them.

use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use pv_tlb::id::VcpuId;

use super::run_loop::{Event, Shared, run};
use crate::kvm::vcpu::Vcpu;
use crate::kvm::{self, affinity};
use crate::metrics::VcpuMetrics;
use crate::placement::pins::Pins;

/// Pause between two looks at threads that should end.
const LOOK: Duration = Duration::from_micros(200);
/// After this a thread that should end is kicked at every look.
const AGAIN: Duration = Duration::from_millis(500);
/// After this a thread that does not end is left behind.
const PATIENCE: Duration = Duration::from_secs(10);

/// A VM whose vCPU threads run.
#[derive(Debug)]
pub struct Running {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<VcpuMetrics>>,
}

/// Says that the thread ends, also when it panics.
struct Farewell(Arc<Shared>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.send(Event::ThreadEnds);
    }
}

impl Running {
    /// Starts a thread for each of `vcpus`.
    ///
    /// # Errors
    /// If a thread cannot be made; those that were are stopped and joined.
    pub fn start(vcpus: Vec<Vcpu>, shared: Arc<Shared>, pins: &Pins) -> kvm::Result<Self> {
        let mut running = Self { shared, threads: Vec::with_capacity(vcpus.len()) };
        for vcpu in vcpus {
            let thread = spawn(vcpu, Arc::clone(&running.shared), pins)?;
            running.threads.push(thread);
        }
        Ok(running)
    }

    /// What the threads share with the monitor.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Stops all threads and returns what each counted, by vCPU number. A thread
    /// that panicked counts nothing; one that does not end is left behind, so that
    /// a vCPU stuck in the kernel cannot keep the monitor from saying so.
    #[must_use]
    pub fn stop(mut self) -> Vec<VcpuMetrics> {
        self.join()
    }

    fn join(&mut self) -> Vec<VcpuMetrics> {
        self.shared.stop();
        let start = Instant::now();
        while !self.threads.iter().all(JoinHandle::is_finished) && start.elapsed() < PATIENCE {
            sleep(LOOK);
            for (thread, slot) in self.threads.iter().zip(&self.shared.site.slots) {
                if !thread.is_finished() && start.elapsed() > AGAIN {
                    slot.kick.kick_again();
                }
            }
        }
        let ended = |thread: JoinHandle<VcpuMetrics>| match thread.is_finished() {
            true => thread.join().unwrap_or_default(),
            false => VcpuMetrics::default(),
        };
        self.threads.drain(..).map(ended).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

fn spawn(mut vcpu: Vcpu, shared: Arc<Shared>, pins: &Pins) -> kvm::Result<JoinHandle<VcpuMetrics>> {
    let VcpuId(id) = vcpu.id();
    let (pcpus, slice) = (pins.of(vcpu.id()), pins.slice());
    let body = move || {
        let farewell = Farewell(Arc::clone(&shared));
        let scheduled =
            affinity::restrict(&pcpus).and_then(|()| slice.map_or(Ok(()), affinity::request_slice));
        if let Err(error) = scheduled {
            farewell.0.send(Event::Failed(error.into()));
            return VcpuMetrics::default();
        }
        run(&mut vcpu, &farewell.0)
    };
    Builder::new()
        .name(format!("vcpu{id}"))
        .spawn(body)
        .map_err(|e: io::Error| kvm::Error::of(format!("start the thread of vCPU {id}"))(e))
}
