//! COM1, on vm-superio's serial, its interrupt line unconnected unless asked for.
//!
//! Owner: the console's mutex guards the device for one byte at a time. Output goes
//! to a file or to standard output; a closed output is remembered and ends the run,
//! and never blocks or kills the guest's thread.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vm_superio::{Serial, Trigger, serial::NoEvents};
use vmm_sys_util::eventfd::EventFd;

/// First port of COM1.
pub const BASE: u16 = 0x3f8;
/// Number of its ports.
pub const PORTS: u16 = 8;
/// Its interrupt line at the IOAPIC.
pub const GSI: u32 = 4;

/// Where the guest's console goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ConsoleTarget {
    /// Nowhere.
    #[default]
    Off,
    /// Standard output.
    Stdout,
    /// A file, created or emptied.
    File(PathBuf),
}

/// COM1's interrupt line: an eventfd that KVM turns into a pulse, or nothing.
struct Line(Option<EventFd>);

impl Trigger for Line {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |line| line.write(1))
    }
}

type Device = Serial<Line, NoEvents, Box<dyn Write + Send>>;

/// The console.
pub struct Console {
    device: Mutex<Device>,
    closed: AtomicBool,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("closed", &self.closed).finish_non_exhaustive()
    }
}

impl Console {
    /// Opens the target; interrupts pulse `line`, if there is one.
    ///
    /// # Errors
    /// If a file cannot be created.
    pub fn open(target: &ConsoleTarget, line: Option<EventFd>) -> io::Result<Self> {
        let out: Box<dyn Write + Send> = match target {
            ConsoleTarget::Off => Box::new(io::sink()),
            ConsoleTarget::Stdout => Box::new(io::stdout()),
            ConsoleTarget::File(path) => Box::new(File::create(path)?),
        };
        Ok(Self {
            device: Mutex::new(Serial::new(Line(line), out)),
            closed: AtomicBool::new(false),
        })
    }

    /// True if `port` is one of COM1's.
    #[must_use]
    pub const fn owns(&self, port: u16) -> bool {
        port >= BASE && port < BASE + PORTS
    }

    /// Serves one byte of an OUT.
    pub fn write(&self, port: u16, value: u8) {
        if self.device().write((port - BASE) as u8, value).is_err() {
            // Partner: `is_closed`; late is only slower.
            self.closed.store(true, Ordering::Relaxed);
        }
    }

    /// Serves one byte of an IN.
    #[must_use]
    pub fn read(&self, port: u16) -> u8 {
        self.device().read((port - BASE) as u8)
    }

    /// Gives the guest input; what does not fit the FIFO is dropped, as a real line
    /// without flow control would.
    pub fn input(&self, bytes: &[u8]) {
        let mut device = self.device();
        let room = device.fifo_capacity().min(bytes.len());
        // Fails only if the interrupt line does, which an eventfd that KVM empties
        // cannot; the bytes are in the FIFO in any case.
        let _ = device.enqueue_raw_bytes(&bytes[..room]);
    }

    /// True once the output has failed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // Partner: the store in `write`.
        self.closed.load(Ordering::Relaxed)
    }

    fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
