//! From a scenario and a world to a program.
//!
//! Pure; nothing is kept.

use core::fmt;

use pv_tlb::plan::Tagging;

use super::lower::Lowering;
use super::translation::{Translation, translations};
use super::{Program, Start};
use crate::scenario::{Line, MAX_PCPUS, MAX_VCPUS, Op, Scenario, Way};
use crate::world::World;

/// A scenario that is larger than the model's fixed-size state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// Translations under all tags exceed the 64 bits of a TLB.
    Entries {
        /// Translations of the scenario.
        translations: usize,
        /// Tags in use under the policy.
        tags: usize,
    },
    /// More pCPUs than the state has room for.
    Pcpus(usize),
    /// More flushes than have a number.
    Flushes(usize),
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entries { translations, tags } => write!(
                f,
                "{translations} translations under {tags} tags need {} TLB bits; expected at most 64",
                translations * tags
            ),
            Self::Pcpus(count) => write!(
                f,
                "{count} pCPUs, devices included, are too many; expected at most {MAX_PCPUS}"
            ),
            Self::Flushes(count) => write!(f, "{count} flushes are too many; expected at most 254"),
        }
    }
}

impl core::error::Error for CompileError {}

/// Compiles `scenario` for `world`.
///
/// # Errors
/// If the scenario exceeds a fixed size of the model.
pub fn compile(scenario: &Scenario, world: &World) -> Result<Program, CompileError> {
    let translations = translations(scenario);
    let tags = match world.policy.tagging() {
        Tagging::PerVm => scenario.vm_of.iter().max().map_or(1, |vm| vm + 1),
        Tagging::PerVcpu => scenario.vcpus,
    };
    if translations.len() * tags > 64 {
        return Err(CompileError::Entries { translations: translations.len(), tags });
    }
    let cores = scenario.vcpus - scenario.devices;
    let placed =
        if world.policy.may_migrate() { scenario.pcpus } else { scenario.pcpus.max(cores) };
    if placed + scenario.devices > MAX_PCPUS {
        return Err(CompileError::Pcpus(placed + scenario.devices));
    }
    let mut program = Program {
        isa: scenario.isa,
        policy: world.policy,
        dials: world.dials,
        fills: scenario.fills,
        vcpus: scenario.vcpus,
        devices: scenario.devices,
        pcpus: placed + scenario.devices,
        vm_of: core::array::from_fn(|i| scenario.vm_of.get(i).map_or(0, |vm| *vm as u8)),
        start: starts(scenario, world, placed),
        free_moves: core::array::from_fn(|i| scenario.free_moves.get(i).copied().unwrap_or(0)),
        phases: Vec::new(),
        initial: initial(scenario, &translations),
        flushes: Vec::new(),
        in_space: (0..scenario.spaces.len())
            .map(|space| mask_of(&translations, |t| t.space == space))
            .collect(),
        hits: hits(scenario, &translations),
        leaves: mask_of(&translations, |t| !t.is_table),
        to_frame: (0..scenario.frames.len())
            .map(|frame| mask_of(&translations, |t| t.frame == frame))
            .collect(),
        writable: mask_of(&translations, |t| t.writable),
        stage1_only: mask_of(&translations, |t| t.stage1_only),
        uses_flag: active(scenario, world)
            .any(|line| matches!(&line.op, Op::Flush(_, Way::Flag(_)))),
        translations,
    };
    Lowering::new(scenario, world).phases(&mut program)?;
    Ok(program)
}

fn starts(scenario: &Scenario, world: &World, placed: usize) -> [Start; MAX_VCPUS] {
    let mut starts = [Start::default(); MAX_VCPUS];
    for (vcpu, start) in starts.iter_mut().enumerate().take(scenario.vcpus) {
        start.tag = match world.policy.tagging() {
            Tagging::PerVm => scenario.vm_of[vcpu] as u8,
            Tagging::PerVcpu => vcpu as u8,
        };
        // A device sits on a pCPU of its own, behind those of the host.
        if vcpu + scenario.devices >= scenario.vcpus {
            start.on = (placed + vcpu + scenario.devices - scenario.vcpus + 1) as u8;
        }
    }
    for start in &scenario.starts {
        let slot = &mut starts[start.vcpu];
        slot.space = start.space as u8;
        if let Some(pcpu) = start.pcpu {
            let pcpu = if world.policy.may_migrate() { pcpu } else { start.vcpu };
            slot.on = pcpu as u8 + 1;
        }
    }
    starts
}

pub(super) fn mask_of(translations: &[Translation], wanted: impl Fn(&Translation) -> bool) -> u64 {
    let chosen = translations.iter().enumerate().filter(|(_, t)| wanted(t));
    chosen.fold(0, |mask, (i, _)| mask | 1 << i)
}

fn initial(scenario: &Scenario, translations: &[Translation]) -> u64 {
    let leaves = scenario.initial.iter().fold(0, |mask, mapping| mask | 1 << mapping);
    mask_of(translations, |t| t.is_table) | with_copies(scenario, leaves)
}

/// `leaves` and, in a split TLB, their stage-1-only copies.
pub(super) fn with_copies(scenario: &Scenario, leaves: u64) -> u64 {
    let copies = scenario.mappings.len() + scenario.tables.len();
    if scenario.split_tlb { leaves | leaves << copies } else { leaves }
}

fn hits(scenario: &Scenario, translations: &[Translation]) -> Vec<Vec<u64>> {
    let of = |page: usize, asid: u16| {
        mask_of(translations, |t| t.pages.contains(&page) && t.matches(asid))
    };
    let spaces = &scenario.spaces;
    (0..scenario.pages.len())
        .map(|page| spaces.iter().map(|space| of(page, space.asid)).collect())
        .collect()
}

/// The lines that are executed in this world.
fn active<'a>(scenario: &'a Scenario, world: &'a World) -> impl Iterator<Item = &'a Line> {
    scenario.phases.iter().flat_map(|phase| &phase.lines).filter(|line| is_active(line, world))
}

pub(super) fn is_active(line: &Line, world: &World) -> bool {
    line.only_if.is_none_or(|only_if| world.has_option(only_if.option) == only_if.is)
}
