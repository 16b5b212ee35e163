//! The line-framed report on the second serial port.
//!
//! Owner: shared by process 1 and the readers of a command's outputs; a mutex keeps
//! lines whole. States: none, a line is either sent or not.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use nix::sys::termios::{SetArg, cfmakeraw, tcdrain, tcgetattr, tcsetattr};
use rig_wire::{Event, REPORT_TTY};

/// The way back to the machine that runs the rig.
pub(crate) struct Report {
    port: Mutex<File>,
}

impl Report {
    /// Opens the port and stops the terminal layer from changing bytes.
    ///
    /// Fails with a message if the kernel has no second serial port.
    pub(crate) fn open() -> Result<Self, String> {
        let cannot = |what: &str, error: io::Error| {
            format!("Cannot {what} the report port {REPORT_TTY}: {error}")
        };
        let port = OpenOptions::new()
            .read(true)
            .write(true)
            .open(REPORT_TTY)
            .map_err(|error| cannot("open", error))?;
        let mut settings = tcgetattr(&port).map_err(|errno| cannot("read", errno.into()))?;
        cfmakeraw(&mut settings);
        tcsetattr(&port, SetArg::TCSANOW, &settings)
            .map_err(|errno| cannot("set up", errno.into()))?;
        Ok(Self { port: Mutex::new(port) })
    }

    /// Sends one event. A port that takes no more bytes ends in the time limit on
    /// the other side, so a failure is only told on the console.
    pub(crate) fn send(&self, event: &Event) {
        let mut line = match serde_json::to_vec(event) {
            Ok(line) => line,
            Err(error) => {
                eprintln!("rig-init: cannot encode {event:?}: {error}");
                return;
            }
        };
        line.push(b'\n');
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = port.write_all(&line) {
            eprintln!("rig-init: cannot report {event:?}: {error}");
        }
    }

    /// Waits until the last byte has left, since power-off loses what is queued.
    pub(crate) fn drain(&self) {
        let port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = tcdrain(&*port) {
            eprintln!("rig-init: cannot drain the report: {error}");
        }
    }
}
