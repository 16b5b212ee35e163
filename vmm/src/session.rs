//! One run of a machine, from start to the reason it ended.
//!
//! Runs on the main thread: an event-manager loop over vCPU events, signals, the
//! time limit and console input. Owner of the vCPU threads while it lasts.

use std::cell::RefCell;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use event_manager::{EventManager, EventOps, Events, MutEventSubscriber, SubscriberOps};
use pv_tlb::abi::debug_exit::Verdict;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::timerfd::TimerFd;

use crate::boot::Machine;
use crate::devices::power::PowerEvent;
use crate::kvm;
use crate::kvm::signals::{EndSignal, EndSignals};
use crate::metrics::VcpuMetrics;
use crate::vcpu::run_loop::{Event, Failure, Shared};

/// Control-A then x leaves an interactive console, as in QEMU.
const ESCAPE: u8 = 0x01;

/// Why a run ended.
#[derive(Debug)]
pub enum Ending {
    /// The guest gave a verdict, or a number that is none.
    Verdict(Result<Verdict, u32>),
    /// A Linux guest switched itself off, asked for a reset, or panicked.
    Power(PowerEvent),
    /// A vCPU could not go on.
    Failed(Failure),
    /// The guest did not report in time.
    TimedOut(Duration),
    /// The user asked for the end.
    Signal(EndSignal),
    /// The user left the console.
    Left,
    /// The console's output was closed.
    ConsoleClosed,
    /// A vCPU thread ended without saying why.
    Died,
}

/// A run that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Why.
    pub ending: Ending,
    /// Values the guest reported, in order.
    pub values: Vec<(u32, u64)>,
    /// What each vCPU thread counted.
    pub metrics: Vec<VcpuMetrics>,
}

/// How a run is watched.
#[derive(Clone, Copy, Debug)]
pub struct Watching<'a> {
    /// SIGINT and SIGTERM.
    pub signals: &'a EndSignals,
    /// Longest run; `None` for no limit.
    pub limit: Option<Duration>,
    /// Pass standard input to the guest's console.
    pub input: bool,
}

/// Runs `machine` until something ends it.
///
/// # Errors
/// If threads or the event loop cannot be set up.
pub fn run(machine: Machine, watching: Watching<'_>) -> kvm::Result<Finished> {
    let running = machine.start()?;
    let watch = Watch::new(Arc::clone(running.shared()), watching)?;
    let watch = Rc::new(RefCell::new(watch));
    let what = || kvm::Error::of("run the event loop");
    let mut events = EventManager::new().map_err(|e| what()(io::Error::other(e.to_string())))?;
    let _id = events.add_subscriber(Rc::clone(&watch));
    while watch.borrow().ending.is_none() {
        events.run().map_err(|e| what()(io::Error::other(e.to_string())))?;
    }
    drop(events);
    let metrics = running.stop();
    let mut watch = watch.borrow_mut();
    let ending = watch.ending.take().unwrap_or(Ending::Died);
    Ok(Finished { ending, values: std::mem::take(&mut watch.values), metrics })
}

struct Watch<'a> {
    shared: Arc<Shared>,
    watching: Watching<'a>,
    timer: TimerFd,
    stdin: io::Stdin,
    escaped: bool,
    values: Vec<(u32, u64)>,
    ending: Option<Ending>,
}

impl<'a> Watch<'a> {
    fn new(shared: Arc<Shared>, watching: Watching<'a>) -> kvm::Result<Self> {
        let what = || kvm::Error::of("set the time limit");
        let errno = |e: vmm_sys_util::errno::Error| io::Error::from_raw_os_error(e.errno());
        let mut timer = TimerFd::new().map_err(|e| what()(errno(e)))?;
        if let Some(limit) = watching.limit {
            timer.reset(limit, None).map_err(|e| what()(errno(e)))?;
        }
        Ok(Self {
            shared,
            watching,
            timer,
            stdin: io::stdin(),
            escaped: false,
            values: Vec::new(),
            ending: None,
        })
    }

    /// The first reason counts.
    fn end(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    fn vcpu_events(&mut self) {
        for event in self.shared.events() {
            match event {
                Event::Value { key, value } => self.values.push((key, value)),
                Event::Ended(verdict) => self.end(Ending::Verdict(verdict)),
                Event::Power(event) => self.end(Ending::Power(event)),
                Event::Failed(failure) => self.end(Ending::Failed(failure)),
                Event::ConsoleClosed => self.end(Ending::ConsoleClosed),
                Event::ThreadEnds => self.end(Ending::Died),
            }
        }
    }

    fn console_input(&mut self, ops: &mut EventOps<'_>, events: Events) {
        let mut bytes = [0; 64];
        match self.stdin.lock().read(&mut bytes) {
            Ok(count) if count > 0 => {
                for byte in &bytes[..count] {
                    match (std::mem::take(&mut self.escaped), *byte) {
                        (true, b'x') => self.end(Ending::Left),
                        (false, ESCAPE) => self.escaped = true,
                        (_, byte) => self.shared.bus.console.input(&[byte]),
                    }
                }
            }
            // End of input, or a terminal that has gone: the guest runs on.
            _ => drop(ops.remove(events)),
        }
    }
}

impl MutEventSubscriber for Watch<'_> {
    fn process(&mut self, events: Events, ops: &mut EventOps<'_>) {
        let fd = events.fd();
        if fd == self.shared.wake().as_raw_fd() {
            self.vcpu_events();
        } else if fd == self.watching.signals.as_raw_fd() {
            if let Some(signal) = self.watching.signals.take() {
                self.end(Ending::Signal(signal));
            }
        } else if fd == self.timer.as_raw_fd() {
            self.end(Ending::TimedOut(self.watching.limit.unwrap_or_default()));
        } else {
            self.console_input(ops, events);
        }
    }

    fn init(&mut self, ops: &mut EventOps<'_>) {
        let mut fds = vec![
            self.shared.wake().as_raw_fd(),
            self.watching.signals.as_raw_fd(),
            self.timer.as_raw_fd(),
        ];
        if self.watching.input {
            fds.push(self.stdin.as_raw_fd());
        }
        for fd in fds {
            let added = ops.add(Events::new_raw(fd, EventSet::IN));
            // A regular file on standard input cannot be polled; the guest then has
            // no input. Anything else cannot fail with valid descriptors.
            if added.is_err() && fd != self.stdin.as_raw_fd() {
                self.end(Ending::Died);
            }
        }
    }
}
