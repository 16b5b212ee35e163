//! The modelled machine: pCPUs with may-hold TLBs, vCPUs that move among them, and
//! beside it a reference machine on which every vCPU is a CPU of its own.
//!
//! State: one [`State`] value, owned by whoever explores; a step makes the next one.
//!
//! May-hold. Hardware may fill an entry at any moment at which its page-table entry
//! is valid in a live context, and may act on an open broadcast at any moment up to
//! its completion. Rather than make each of these moments a step, a TLB is the set
//! of all entries it could hold for some choice of moments. This loses nothing: no
//! step is enabled or disabled by what a TLB holds, so the choices that let one
//! entry survive never rule out the path. An entry that an open broadcast covers
//! stays until the issuer's barrier; if it becomes valid in a live context again it
//! may have been dropped and refilled, and so outlives even that. The mode
//! [`Hardware::Literal`] has the moments as steps; a test holds the two together.
//!
//! The reference. An access is STALE if it can use a translation that the same guest
//! could not use were every vCPU a CPU of its own (same silicon, same errata, no
//! host), or one whose frame was freed or frozen meanwhile.

mod access;
mod enabled;
mod guest;
mod host;
mod independent;
mod rar;
mod state;
mod tlb;

pub use access::Fault;
pub(crate) use enabled::free_move;
pub use state::State;

use crate::explore::System;
use crate::program::{HOST, Micro, Program};
use crate::verdict::Price;

/// How the hardware's own freedom is explored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hardware {
    /// TLBs are sets of what could be held; fills and deliveries are no steps.
    #[default]
    MayHold,
    /// Each fill by speculation and each delivery of a broadcast is a step.
    Literal,
}

/// A step of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An actor's next instruction; `choice` picks the translation to latch.
    Op {
        /// Which actor.
        actor: u8,
        /// Which of the translations that a begun access can latch.
        choice: u8,
    },
    /// A vCPU takes a flush interrupt, flushes and answers.
    Interrupt {
        /// Interrupted vCPU.
        target: u8,
        /// vCPU that waits for the answer.
        sender: u8,
    },
    /// The host makes a running vCPU exit, flush and enter again.
    Kick {
        /// Which vCPU.
        target: u8,
    },
    /// The hardware serves the next slot of a vCPU's RAR action vector.
    Scan {
        /// Which vCPU.
        target: u8,
    },
    /// The next part of a move that the host is free to make.
    Free {
        /// Which vCPU.
        vcpu: u8,
        /// To which pCPU, if it is about to come to one.
        pcpu: u8,
    },
    /// Literal mode: a vCPU's walker takes up a translation.
    Fill {
        /// Which vCPU.
        vcpu: u8,
        /// Which translation.
        translation: u8,
    },
    /// Literal mode: a pCPU acts on the open broadcasts of another.
    Deliver {
        /// Issuing pCPU.
        from: u8,
        /// Acting pCPU.
        to: u8,
    },
}

/// A program on the modelled machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    program: &'a Program,
    hardware: Hardware,
}

/// A state in the course of one step.
struct Moment<'a> {
    program: &'a Program,
    hardware: Hardware,
    state: &'a mut State,
    price: &'a mut Price,
}

impl<'a> Machine<'a> {
    /// A machine about to run `program`.
    #[must_use]
    pub const fn new(program: &'a Program, hardware: Hardware) -> Self {
        Self { program, hardware }
    }

    /// The program it runs.
    #[must_use]
    pub const fn program(&self) -> &'a Program {
        self.program
    }

    /// Performs `step` and adds what it costs to `price`.
    ///
    /// # Errors
    /// The promise that the step breaks.
    pub fn perform(&self, state: &mut State, step: Step, price: &mut Price) -> Result<(), Fault> {
        let Self { program, hardware } = *self;
        let mut moment = Moment { program, hardware, state, price };
        match step {
            Step::Op { actor, choice } => {
                let (actor, choice) = (usize::from(actor), usize::from(choice));
                let Some(instruction) = moment.state.next(program, actor) else {
                    return Ok(());
                };
                if actor == HOST {
                    moment.host(instruction.micro);
                } else {
                    moment.guest(actor, instruction.micro, choice)?;
                }
                moment.state.advance(program, actor);
            }
            Step::Interrupt { target, sender } => moment.interrupt(target.into(), sender.into()),
            Step::Kick { target } => moment.serve_owed(target.into()),
            Step::Scan { target } => moment.scan(target.into()),
            Step::Free { vcpu, pcpu } => {
                let micro = free_move(program, moment.state, vcpu, pcpu);
                if let Micro::Exit(vcpu) = micro {
                    moment.state.vcpus[usize::from(vcpu)].moves_left -= 1;
                }
                moment.host(micro);
            }
            Step::Fill { vcpu, translation } => {
                moment.take_up(vcpu.into(), 1 << translation);
            }
            Step::Deliver { from, to } => moment.deliver(from.into(), to.into()),
        }
        moment.speculate();
        Ok(())
    }
}

impl System for Machine<'_> {
    type State = State;
    type Step = Step;
    type Fault = Fault;

    fn initial(&self) -> State {
        let mut state = State::new(self.program);
        let Self { program, hardware } = *self;
        let price = &mut Price::default();
        Moment { program, hardware, state: &mut state, price }.speculate();
        state
    }

    fn enabled(&self, state: &State, steps: &mut Vec<Step>) {
        enabled::list(self, state, steps);
    }

    fn apply(&self, state: &mut State, step: Step) -> Result<(), Fault> {
        self.perform(state, step, &mut Price::default())
    }

    fn is_done(&self, state: &State) -> bool {
        usize::from(state.phase) == self.program.phases.len()
    }

    fn independent(&self, state: &State, one: Step, other: Step) -> bool {
        independent::commute(self, state, one, other)
    }
}
