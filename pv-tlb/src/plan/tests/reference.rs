//! A tiny reference machine: may-hold TLBs whose every possible entry exists, vCPUs
//! that the host moves as it likes, and plans executed to the letter.
//!
//! Each vCPU has a page of its own at address 0, which it maps alone, as with
//! per-CPU page tables, and shares the page at 4096 with all. A flush is taken to be
//! complete when it returns: barriers and accesses under way are the model
//! checker's. So the policy without barrier upgrade looks like the one with it here.

use super::*;
use crate::addr::{Gva, PageCount, PageSize};
use crate::cpuset::MAX_CPUS;
use crate::invalidation::Extent;
use std::collections::BTreeSet;

const VCPUS: usize = 3;
/// The last one is too high to be tracked.
const PCPUS: [u32; 4] = [0, 1, 2, 5000];
const SHARED: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    pcpu: u32,
    /// The vCPU through whose tables it was made.
    owner: usize,
    page: u64,
    version: u32,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The host runs the vCPU there, taking off who is there.
    Enter(usize, u32),
    /// Off the pCPU: preempted, halted or in the host.
    Leave(usize, u8),
    /// The vCPU, if it runs, changes its own page and flushes locally.
    ChangeOwn(usize),
    /// It changes another's own page and asks for a flush there.
    ChangeTheirs(usize, usize),
    /// It changes the shared page and asks for a flush on all.
    ChangeShared(usize),
    /// It asks for everything to be flushed on all.
    FlushAll(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..VCPUS, 0..PCPUS.len()).prop_map(|(v, p)| Event::Enter(v, PCPUS[p])),
        2 => (0..VCPUS, 0..3_u8).prop_map(|(v, how)| Event::Leave(v, how)),
        3 => (0..VCPUS).prop_map(Event::ChangeOwn),
        1 => (0..VCPUS, 0..VCPUS).prop_map(|(v, w)| Event::ChangeTheirs(v, w)),
        1 => (0..VCPUS).prop_map(Event::ChangeShared),
        1 => (0..VCPUS).prop_map(Event::FlushAll),
    ]
}

struct Machine {
    policy: HostPolicy,
    tlb: BTreeSet<Entry>,
    own: [u32; VCPUS],
    shared: u32,
    placement: Placement,
    footprints: Footprints<Vec<Footprint>>,
    /// A flush that the vCPU does before it next runs.
    pending: [bool; VCPUS],
}

/// What a vCPU would have used that it must not.
#[derive(Debug, PartialEq, Eq)]
struct Stale(usize, Entry);

impl Machine {
    /// A machine that keeps footprints of the first `rows` vCPUs.
    fn new(policy: HostPolicy, rows: usize) -> Self {
        let mut placement = Placement::new();
        for vcpu in 0..VCPUS as u32 {
            placement.set(VcpuId(vcpu), RunState::InHost { mid_access: false });
        }
        Self {
            policy,
            tlb: BTreeSet::new(),
            own: [0; VCPUS],
            shared: 0,
            placement,
            footprints: Footprints::new(vec![Footprint::default(); rows]),
            pending: [false; VCPUS],
        }
    }

    fn on(&self, vcpu: usize) -> Option<u32> {
        match self.placement.get(VcpuId(vcpu as u32)) {
            Some(RunState::Running(pcpu)) => Some(pcpu.0),
            _ => None,
        }
    }

    /// True if a vCPU hits the entries of `owner` by their tag.
    fn tag_matches(&self, vcpu: usize, owner: usize) -> bool {
        self.policy.tagging() == Tagging::PerVm || vcpu == owner
    }

    fn version(&self, vcpu: usize, page: u64) -> u32 {
        if page == SHARED { self.shared } else { self.own[vcpu] }
    }

    fn flush(&mut self, pcpu: u32, vcpu: usize, extent: Extent) {
        let per_vm = self.policy.tagging() == Tagging::PerVm;
        self.tlb.retain(|entry| {
            let tag = per_vm || entry.owner == vcpu;
            !(entry.pcpu == pcpu && tag && extent.covers(Gva(entry.page), PageSize::Small))
        });
    }

    fn enter(&mut self, vcpu: usize, pcpu: u32) {
        if let Some(other) = (0..VCPUS).find(|other| self.on(*other) == Some(pcpu)) {
            self.leave(other, RunState::Preempted(PcpuId(pcpu)));
        }
        let id = VcpuId(vcpu as u32);
        self.footprints.left(id);
        let entry = plan_entry(id, PcpuId(pcpu), &self.footprints, self.policy);
        let due = std::mem::take(&mut self.pending[vcpu]);
        if entry.flush != EntryFlush::Nothing || due {
            self.flush(pcpu, vcpu, Extent::Whole);
            match self.policy.tagging() {
                Tagging::PerVm => self.footprints.flushed_vm_on(PcpuId(pcpu)),
                Tagging::PerVcpu => self.footprints.flushed_on(id, PcpuId(pcpu)),
            }
        }
        self.footprints.entered(id, PcpuId(pcpu));
        self.placement.set(id, RunState::Running(PcpuId(pcpu)));
    }

    fn leave(&mut self, vcpu: usize, state: RunState) {
        self.footprints.left(VcpuId(vcpu as u32));
        self.placement.set(VcpuId(vcpu as u32), state);
    }

    fn execute(&mut self, initiator: usize, reach: Reach, extent: Extent) {
        let ask = Invalidation { extent, ..ask(reach) };
        let id = VcpuId(initiator as u32);
        let plan = plan(&ask, id, &self.placement, &self.footprints, self.policy);
        for vcpu in plan.at(When::Now).iter().map(VcpuId::index) {
            match self.on(vcpu) {
                Some(pcpu) => self.flush(pcpu, vcpu, extent),
                None => self.pending[vcpu] = true,
            }
        }
        for vcpu in plan.at(When::AtNextEntry).iter().map(VcpuId::index) {
            self.pending[vcpu] = true;
        }
        match plan.upgrade() {
            Upgrade::None => {}
            Upgrade::Pcpus(pcpus) => {
                pcpus.iter().for_each(|pcpu| self.flush(pcpu.0, initiator, extent));
            }
            Upgrade::Everywhere => {
                PCPUS.into_iter().for_each(|pcpu| self.flush(pcpu, initiator, extent));
            }
            Upgrade::AtReturn(vcpus) => {
                vcpus.iter().for_each(|vcpu| self.footprints.owe(vcpu));
            }
        }
        let reached = matches!(plan.upgrade(), Upgrade::Pcpus(_) | Upgrade::Everywhere);
        if extent == Extent::Whole && reached {
            let targets = reach.vcpus(id, self.placement.present());
            targets.iter().for_each(|vcpu| self.footprints.flushed(vcpu));
        }
    }

    fn step(&mut self, event: Event) -> Result<(), Stale> {
        let page =
            |at| Extent::Range { start: Gva(at), pages: PageCount(1), stride: PageSize::Small };
        match event {
            Event::Enter(vcpu, pcpu) => self.enter(vcpu, pcpu),
            Event::Leave(vcpu, how) => {
                let Some(pcpu) = self.on(vcpu) else { return Ok(()) };
                let states = [RunState::Halted, RunState::InHost { mid_access: false }];
                let preempted = RunState::Preempted(PcpuId(pcpu));
                self.leave(vcpu, states.get(usize::from(how)).copied().unwrap_or(preempted));
            }
            Event::ChangeOwn(vcpu) if self.on(vcpu).is_some() => {
                self.own[vcpu] += 1;
                self.execute(vcpu, Reach::Local, page(0));
            }
            Event::ChangeTheirs(vcpu, other) if self.on(vcpu).is_some() => {
                self.own[other] += 1;
                let set = CpuSet::only(VcpuId(other as u32));
                self.execute(vcpu, Reach::Set(set), page(0));
            }
            Event::ChangeShared(vcpu) if self.on(vcpu).is_some() => {
                self.shared += 1;
                self.execute(vcpu, Reach::All, page(SHARED));
            }
            Event::FlushAll(vcpu) if self.on(vcpu).is_some() => {
                self.execute(vcpu, Reach::All, Extent::Whole);
            }
            _ => {}
        }
        self.check_accesses()?;
        self.fill();
        Ok(())
    }

    /// Whatever a running vCPU hits must be what its tables say now.
    fn check_accesses(&self) -> Result<(), Stale> {
        for vcpu in 0..VCPUS {
            let Some(pcpu) = self.on(vcpu) else { continue };
            for entry in self.tlb.iter().filter(|entry| entry.pcpu == pcpu) {
                let own_or_shared = entry.owner == vcpu || entry.page == SHARED;
                let current = entry.version == self.version(vcpu, entry.page);
                if self.tag_matches(vcpu, entry.owner) && !(own_or_shared && current) {
                    return Err(Stale(vcpu, *entry));
                }
            }
        }
        Ok(())
    }

    /// Every walk that could happen has happened.
    fn fill(&mut self) {
        for owner in 0..VCPUS {
            let Some(pcpu) = self.on(owner) else { continue };
            for page in [0, SHARED] {
                self.tlb.insert(Entry { pcpu, owner, page, version: self.version(owner, page) });
            }
        }
    }

    fn footprints_cover_the_tlb(&self) -> bool {
        self.tlb.iter().filter(|entry| entry.pcpu < MAX_CPUS).all(|entry| {
            let row = self.footprints.of(VcpuId(entry.owner as u32));
            row.is_none_or(|row| row.may_hold().contains(PcpuId(entry.pcpu)))
        })
    }
}

fn history() -> impl Strategy<Value = Vec<Event>> {
    proptest::collection::vec(event(), 1..50)
}

proptest! {
    // PROPTEST_CASES may ask for more.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(2_000)))]

    #[test]
    fn no_history_makes_a_sound_policy_use_a_stale_entry(
        events in history(), rows in 2..=VCPUS,
    ) {
        for policy in HostPolicy::ALL.into_iter().filter(|policy| policy.is_sound()) {
            let mut machine = Machine::new(policy, rows);
            for event in &events {
                if let Err(stale) = machine.step(*event) {
                    prop_assert!(false, "{policy}: {event:?}: {stale:?}");
                }
                prop_assert!(machine.footprints_cover_the_tlb(), "{policy}: {event:?}");
            }
        }
    }
}

fn outcome(policy: HostPolicy, events: &[Event]) -> Result<(), Stale> {
    let mut machine = Machine::new(policy, VCPUS);
    events.iter().try_for_each(|event| machine.step(*event))
}

/// Away, a local flush, and back: the old pCPU still holds what was flushed.
const AWAY_AND_BACK: [Event; 4] =
    [Event::Enter(0, 0), Event::Enter(0, 1), Event::ChangeOwn(0), Event::Enter(0, 0)];
/// Two vCPUs with tables of their own take turns on one pCPU.
const TAKING_TURNS: [Event; 2] = [Event::Enter(0, 0), Event::Enter(1, 0)];

#[test]
fn a_local_flush_after_a_move_is_lost_unless_it_is_carried_or_the_return_flushes() {
    for policy in HostPolicy::ALL {
        let lost = matches!(policy, HostPolicy::None | HostPolicy::LastVcpuRan);
        assert_eq!(outcome(policy, &AWAY_AND_BACK).is_err(), lost, "{policy}");
    }
}

#[test]
fn a_shared_pcpu_shows_foreign_entries_unless_they_go_at_entry_or_have_other_tags() {
    use HostPolicy::{ForceBroadcast, ForceBroadcastNoBarrier, None};
    for policy in HostPolicy::ALL {
        let foreign = matches!(policy, None | ForceBroadcast | ForceBroadcastNoBarrier);
        assert_eq!(outcome(policy, &TAKING_TURNS).is_err(), foreign, "{policy}");
    }
}
