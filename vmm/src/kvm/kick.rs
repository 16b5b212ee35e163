//! The kick: making a vCPU thread leave KVM_RUN soon, exactly once per need.
//!
//! Owner: the vCPU's thread attaches, re-arms and detaches; any thread kicks. A
//! kick is a real-time signal; its handler sets the sticky `immediate_exit` byte of
//! the thread's own kvm_run through a raw pointer, so that a signal that arrives
//! between the last check and KVM_RUN still makes KVM_RUN return at once.
//!
//! States, in one word: epoch (bits 63:1, raised by each re-arm) and sent (bit 0).
//! "Sent" means: a signal was sent after the last re-arm, so another would add
//! nothing.
//!
//! Memory ordering. Re-arm clears `immediate_exit`, then starts a new epoch, then
//! (in the caller) the thread marks itself running, fences and looks at its inbox.
//! A kicker posts, fences and then reads the word. If it reads "sent", the signal
//! precedes the next re-arm, and the inbox is looked at after that re-arm. The
//! epoch keeps a slow kicker from marking a later epoch as sent.

use std::cell::Cell;
use std::io;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

use super::{Error, Result};

const SENT: u64 = 1;
const EPOCH: u64 = 2;

thread_local! {
    /// The `immediate_exit` byte of the vCPU that this thread runs, or null.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

/// The kick of one vCPU thread.
#[derive(Debug, Default)]
pub struct Kick {
    word: AtomicU64,
    /// Thread id; 0 before attach and after detach.
    tid: AtomicI32,
}

/// What a kick came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kicked {
    /// A signal was sent.
    Sent,
    /// One had been sent since the target last looked; no need for another.
    AlreadySent,
    /// No thread is attached: nothing runs that could miss the request.
    NobodyThere,
}

impl Kick {
    /// Attaches the calling thread, which will run the vCPU whose `immediate_exit`
    /// byte is at `immediate_exit`.
    ///
    /// # Errors
    /// If the signal cannot be set up.
    ///
    /// # Safety
    /// The byte stays valid until this thread calls [`Self::detach`], and nobody
    /// but this thread and its signal handler writes it.
    pub(super) unsafe fn attach(&self, immediate_exit: *mut u8) -> Result<()> {
        install_once()?;
        IMMEDIATE_EXIT.set(immediate_exit);
        // SAFETY: gettid has no preconditions.
        let tid = unsafe { libc::gettid() };
        // Partner: the acquire load in `kick`.
        self.tid.store(tid, Ordering::Release);
        Ok(())
    }

    /// Attaches the calling thread as if it ran a vCPU.
    #[cfg(test)]
    pub(crate) fn attach_without_vcpu(&self) {
        // SAFETY: a null pointer is never written through.
        unsafe { self.attach(ptr::null_mut()) }.expect("attach");
    }

    /// Detaches the calling thread; later kicks find nobody. A signal on its way
    /// finds a null pointer and does nothing.
    pub(crate) fn detach(&self) {
        self.tid.store(0, Ordering::Release);
        IMMEDIATE_EXIT.set(ptr::null_mut());
    }

    /// Clears the sticky byte and starts a new epoch. Vcpu thread only, before it
    /// marks itself running and looks at its inbox.
    pub fn rearm(&self) {
        let byte = IMMEDIATE_EXIT.get();
        if !byte.is_null() {
            // SAFETY: set by `attach`, whose caller keeps it valid until `detach`
            // nulls it; only this thread and its own signal
            // handler write the byte. Volatile, because the handler may interrupt
            // between any two instructions.
            unsafe { ptr::write_volatile(byte, 0) };
        }
        // Own word but for kickers' compare-exchange, which fails on a new epoch.
        let epoch = self.word.load(Ordering::Relaxed) & !SENT;
        // Partner: the load and compare-exchange in `kick`.
        self.word.swap(epoch.wrapping_add(EPOCH), Ordering::SeqCst);
    }

    /// Makes the vCPU thread leave KVM_RUN soon, or not enter it.
    pub fn kick(&self) -> Kicked {
        // Partner: the swap in `rearm`.
        let seen = self.word.load(Ordering::SeqCst);
        if seen & SENT != 0 {
            return Kicked::AlreadySent;
        }
        self.send(seen)
    }

    /// Sends a signal even if one was sent: for a thread that should have ended.
    pub fn kick_again(&self) -> Kicked {
        self.send(self.word.load(Ordering::SeqCst))
    }

    fn send(&self, seen: u64) -> Kicked {
        // Partner: `attach` and `detach`.
        let tid = self.tid.load(Ordering::Acquire);
        if tid == 0 {
            return Kicked::NobodyThere;
        }
        let process = std::process::id();
        // SAFETY: plain system call on integers. A thread id that has been reused
        // by another thread of this process only runs a handler that does nothing.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, tid, SIGRTMIN()) };
        if sent != 0 {
            return Kicked::NobodyThere;
        }
        let _ = self.word.compare_exchange(seen, seen | SENT, Ordering::SeqCst, Ordering::Relaxed);
        Kicked::Sent
    }
}

extern "C" fn on_kick(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let byte = IMMEDIATE_EXIT.get();
    if !byte.is_null() {
        // SAFETY: as in `rearm`; the handler runs on the thread that owns the byte.
        // A const-initialised thread-local without a destructor is a plain load,
        // so it may be read in a signal handler.
        unsafe { ptr::write_volatile(byte, 1) };
    }
}

fn install_once() -> Result<()> {
    static INSTALLED: Once = Once::new();
    let mut result = Ok(());
    INSTALLED.call_once(|| {
        result = register_signal_handler(SIGRTMIN(), on_kick)
            .map_err(|e| io::Error::from_raw_os_error(e.errno()))
            .map_err(Error::of("install the kick signal"));
    });
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kick_sets_the_sticky_byte_and_rearm_clears_it() {
        let mut byte = 0_u8;
        let kick = Kick::default();
        assert_eq!(kick.kick(), Kicked::NobodyThere);
        // SAFETY: the byte lives until `detach` at the end of this test.
        unsafe { kick.attach(&raw mut byte) }.expect("attach");
        assert_eq!(kick.kick(), Kicked::Sent);
        assert_eq!(kick.kick(), Kicked::AlreadySent);
        // SAFETY: the signal to this thread was delivered on return from tgkill.
        assert_eq!(unsafe { ptr::read_volatile(&raw const byte) }, 1);
        kick.rearm();
        // SAFETY: own local variable.
        assert_eq!(unsafe { ptr::read_volatile(&raw const byte) }, 0);
        assert_eq!(kick.kick(), Kicked::Sent);
        kick.detach();
        assert_eq!(kick.kick(), Kicked::AlreadySent);
    }

    #[test]
    fn a_slow_kicker_cannot_mark_a_later_epoch_as_sent() {
        let kick = Kick::default();
        let old = kick.word.load(Ordering::SeqCst);
        kick.rearm();
        let marked =
            kick.word.compare_exchange(old, old | SENT, Ordering::SeqCst, Ordering::Relaxed);
        assert!(marked.is_err());
    }
}
