//! Random scenarios: right guests on hosts that move them about.
//!
//! Pure: the seed fixes the scenario. The guests may do anything to their own page
//! tables and flush what they like, late or never. Since a scenario frees no frame,
//! whatever an exploration finds is the host's fault: it let a vCPU use what a CPU
//! of its own could not.

use fastrand::Rng;
use pv_tlb::addr::{Gva, PageSize};

use crate::scenario::{
    AccessKind, Actor, Addresses, Extent, Fills, Isa, Line, Mapping, Must, Op, Page, Phase,
    Scenario, Space, Start, Way,
};

/// How large and how restless a random scenario is.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// vCPUs, from 1.
    pub vcpus: usize,
    /// pCPUs, from 1.
    pub pcpus: usize,
    /// Number of lines, at least; the last idiom is completed.
    pub events: usize,
    /// Of 100 lines, how many are moves.
    pub move_percent: u8,
    /// Whether the lines are concurrent (one `par` block) or in sequence.
    pub is_concurrent: bool,
}

/// Makes the scenario of `seed`.
#[must_use]
pub fn scenario(seed: u64, shape: Shape) -> Scenario {
    let mut rng = Rng::with_seed(seed);
    let mut scenario = skeleton(&mut rng, shape, seed);
    let mut placed: Vec<Option<usize>> =
        (0..shape.vcpus).map(|vcpu| (vcpu < shape.pcpus).then_some(vcpu)).collect();
    let mut lines = Vec::new();
    while lines.len() < shape.events {
        let is_move = rng.u8(..100) < shape.move_percent;
        let (actor, ops) = if is_move {
            (Actor::Host, vec![host(&mut rng, &mut placed, shape)])
        } else {
            let running: Vec<usize> =
                (0..shape.vcpus).filter(|vcpu| placed[*vcpu].is_some()).collect();
            let vcpu = running[rng.usize(..running.len())];
            (Actor::Vcpu(vcpu), guest(&mut rng, &mut scenario))
        };
        lines.extend(ops.into_iter().map(|op| {
            let text = format!("{actor:?}: {op:?}");
            Line { actor, op, only_if: None, text, number: 0 }
        }));
    }
    scenario.phases = if shape.is_concurrent {
        vec![Phase { lines }]
    } else {
        lines.into_iter().map(|line| Phase { lines: vec![line] }).collect()
    };
    scenario
}

fn skeleton(rng: &mut Rng, shape: Shape, seed: u64) -> Scenario {
    let same_asid = rng.bool();
    let space = |name: &str, asid| Space { name: name.to_owned(), asid };
    let page = |name: &str, at| Page { name: name.to_owned(), at: Gva(at), size: PageSize::Small };
    let mappings = (0..4).map(|i| Mapping {
        page: i % 2,
        space: i / 2,
        frame: i,
        writable: true,
        global: false,
    });
    Scenario {
        name: format!("random-{seed}"),
        title: String::new(),
        case: None,
        links: Vec::new(),
        about: Vec::new(),
        isa: if rng.bool() { Isa::Arm64 } else { Isa::X86 },
        vcpus: shape.vcpus,
        devices: 0,
        pcpus: shape.pcpus,
        vm_of: vec![0; shape.vcpus],
        fills: Fills::Speculative,
        split_tlb: false,
        spaces: vec![space("M", 5), space("N", if same_asid { 5 } else { 6 })],
        pages: vec![page("X", 0x1000), page("Y", 0x2000)],
        frames: ["F", "G", "H", "I", "J"].map(str::to_owned).to_vec(),
        marks: Vec::new(),
        tables: Vec::new(),
        mappings: mappings.collect(),
        initial: (0..4).filter(|_| rng.u8(..4) > 0).collect(),
        starts: (0..shape.vcpus)
            .map(|vcpu| Start {
                vcpu,
                pcpu: (vcpu < shape.pcpus).then_some(vcpu),
                space: rng.usize(..2),
            })
            .collect(),
        phases: Vec::new(),
        free_moves: vec![0; shape.vcpus],
        options: Vec::new(),
        matrix_options: 0,
        expectations: Vec::new(),
    }
}

/// A move, a preemption or a return, so that at least one vCPU stays placed.
fn host(rng: &mut Rng, placed: &mut [Option<usize>], shape: Shape) -> Op {
    let vcpu = rng.usize(..shape.vcpus);
    let free: Vec<usize> = (0..shape.pcpus).filter(|pcpu| !placed.contains(&Some(*pcpu))).collect();
    match placed[vcpu] {
        None if !free.is_empty() => {
            let pcpu = free[rng.usize(..free.len())];
            placed[vcpu] = Some(pcpu);
            Op::Run(vcpu, pcpu)
        }
        Some(_) if !free.is_empty() && rng.bool() => {
            let pcpu = free[rng.usize(..free.len())];
            placed[vcpu] = Some(pcpu);
            Op::Move(vcpu, pcpu)
        }
        Some(_) if placed.iter().flatten().count() > 1 => {
            placed[vcpu] = None;
            Op::Preempt(vcpu)
        }
        _ => Op::HostFlush,
    }
}

/// What a guest does: an access, a store, a flush late or never, or, as often as
/// not, the whole of an unmapping.
fn guest(rng: &mut Rng, scenario: &mut Scenario) -> Vec<Op> {
    // One page and one space matter most, or little would ever collide.
    let page = usize::from(rng.u8(..4) == 0);
    let space = usize::from(rng.u8(..3) == 0);
    let unmap = Op::SetPte { page, space, mapping: None };
    match rng.u8(..16) {
        0..=5 => vec![Op::Access(AccessKind::Read, page, Must::Anything)],
        6 => vec![unmap],
        7 if scenario.mappings.len() < 7 => {
            let frame = rng.usize(..5);
            scenario.mappings.push(Mapping { page, space, frame, writable: true, global: false });
            vec![Op::SetPte { page, space, mapping: Some(scenario.mappings.len() - 1) }]
        }
        7 | 8 => vec![Op::Flush(extent(rng, page), Way::Locally)],
        9..=12 => vec![unmap, Op::Flush(extent(rng, page), Way::Locally), Op::Sync(rng.bool())],
        13 => vec![unmap, Op::Flush(extent(rng, page), Way::Everywhere), Op::Sync(false)],
        14 => vec![Op::Sync(false)],
        _ => vec![Op::Switch(space, rng.bool())],
    }
}

fn extent(rng: &mut Rng, page: usize) -> Extent {
    let addresses = match rng.u8(..4) {
        0 => Addresses::Everything,
        1 => Addresses::Space,
        _ => Addresses::Pages(vec![page]),
    };
    Extent { addresses, leaf_only: false, space: None }
}
