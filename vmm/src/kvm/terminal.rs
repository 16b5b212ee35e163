//! The terminal in raw mode, and back in every way a run can end.
//!
//! Owner: the one [`RawTerminal`] guard. Dropping it restores; a panic hook
//! restores before the message is printed; SIGINT and SIGTERM arrive as events of
//! the main loop, which returns and drops the guard.

use std::io::{self, IsTerminal, Stdin};
use std::panic;
use std::sync::Once;

use vmm_sys_util::terminal::Terminal;

use super::{Error, Result};

/// Standard input in raw mode while this lives.
#[derive(Debug)]
pub struct RawTerminal {
    stdin: Stdin,
}

impl RawTerminal {
    /// Puts a terminal on standard input into raw mode; `None` if it is not one.
    ///
    /// # Errors
    /// If the terminal refuses.
    pub fn enter() -> Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        restore_on_panic();
        stdin.lock().set_raw_mode().map_err(|e| {
            Error::of("put the terminal into raw mode")(io::Error::from_raw_os_error(e.errno()))
        })?;
        Ok(Some(Self { stdin }))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Nothing better can be done with a terminal that refuses to be restored.
        let _ = self.stdin.lock().set_canon_mode();
    }
}

fn restore_on_panic() {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |what| {
            let _ = io::stdin().lock().set_canon_mode();
            before(what);
        }));
    });
}
