//! Running a vCPU's code one access at a time.
//!
//! The code is ordinary Rust that calls its [`Platform`]. To learn what it does after
//! some accesses, it is run from its start with their recorded results; at the next
//! access it is abandoned by unwinding with a private payload, which never reaches a
//! panic hook. Each such point is kept as a node of a tree, children by the result of
//! the access, so that every point is computed once, however many states share it.
//!
//! Owner: one exploration. Nodes are numbered as they are found; within one
//! exploration equal numbers mean equal histories of the vCPU's operation.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use foldhash::fast::FixedState;
use pv_tlb::CpuSet;
use pv_tlb::addr::{Gva, PAGE_BYTES};
use pv_tlb::id::VcpuId;
use pv_tlb::invalidation::{Invalidation, Reach};
use pv_tlb::shootdown::active_cpu::Broadcast;
use pv_tlb::shootdown::rar::ActionRequests;
use pv_tlb::shootdown::{DropSlot, MmId, Platform, Word};
use std::sync::atomic::Ordering;

use super::access::Access;
use super::doorbell;
use super::mutant::Mutant;

/// What abandons the code at its next access.
struct Parked;

/// The platform under the code: answers from the log, then parks.
pub(super) struct Recorder<'a> {
    pub(super) me: VcpuId,
    pub(super) vcpus: u32,
    pub(super) slots: u8,
    pub(super) host: doorbell::Order,
    mutant: Option<Mutant>,
    /// What a mutant remembers within one run of the code.
    pub(super) memory: Cell<Option<u64>>,
    log: &'a [u64],
    next: Cell<usize>,
    found: Cell<Option<Access>>,
}

impl Recorder<'_> {
    /// What the code asks for: one step, or what a mutant makes of it.
    pub(super) fn step(&self, access: Access) -> u64 {
        match self.mutant {
            None => self.perform(access),
            Some(mutant) => mutant.alter(self, access),
        }
    }

    /// One step.
    pub(super) fn perform(&self, access: Access) -> u64 {
        let at = self.next.get();
        if let Some(result) = self.log.get(at) {
            self.next.set(at + 1);
            return *result;
        }
        self.found.set(Some(access));
        resume_unwind(Box::new(Parked));
    }
}

/// Which code: a vCPU's operation by its index, or its interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Code {
    Operation(u8, u8),
    Interrupt(u8),
}

impl Code {
    fn vcpu(self) -> u8 {
        match self {
            Self::Operation(vcpu, _) | Self::Interrupt(vcpu) => vcpu,
        }
    }
}

struct Node {
    code: Code,
    parent: u32,
    /// Result of the parent's access.
    result: u64,
    /// `None` at the end of the code.
    pending: Option<Access>,
}

/// The points that some exploration has reached. Node 0 stands for no code.
pub(super) struct Tree {
    nodes: Vec<Node>,
    roots: HashMap<Code, u32, FixedState>,
    children: HashMap<(u32, u64), u32, FixedState>,
}

/// The machine's constants that code can ask for.
#[derive(Clone, Copy)]
pub(super) struct Constants {
    pub(super) vcpus: u32,
    pub(super) slots: u8,
    pub(super) host: doorbell::Order,
    pub(super) mutant: Option<Mutant>,
}

impl Tree {
    pub(super) fn new() -> Self {
        let none = Node { code: Code::Interrupt(0), parent: 0, result: 0, pending: None };
        Self { nodes: vec![none], roots: HashMap::default(), children: HashMap::default() }
    }

    /// What the code does next at `node`; `None` at its end.
    pub(super) fn pending(&self, node: u32) -> Option<Access> {
        self.nodes[node as usize].pending
    }

    /// The start of `code`, which `run` runs.
    pub(super) fn root(
        &mut self,
        code: Code,
        constants: Constants,
        run: impl FnOnce(&Recorder<'_>),
    ) -> u32 {
        if let Some(root) = self.roots.get(&code) {
            return *root;
        }
        let pending = next_access(code, constants, &[], run);
        let node = self.push(Node { code, parent: 0, result: 0, pending });
        self.roots.insert(code, node);
        node
    }

    /// The point after `node`'s access gave `result`.
    pub(super) fn child(
        &mut self,
        node: u32,
        result: u64,
        constants: Constants,
        run: impl FnOnce(&Recorder<'_>, Code),
    ) -> u32 {
        if let Some(child) = self.children.get(&(node, result)) {
            return *child;
        }
        let code = self.nodes[node as usize].code;
        let mut log: Vec<u64> = self.history(node).map(|(_, result)| result).collect();
        log.reverse();
        log.push(result);
        let pending = next_access(code, constants, &log, |p| run(p, code));
        let child = self.push(Node { code, parent: node, result, pending });
        self.children.insert((node, result), child);
        child
    }

    /// Looks of the wait that `node` is about to repeat, newest first: what the code
    /// saw since the last turn.
    pub(super) fn looks(&self, node: u32) -> impl Iterator<Item = (Access, u64)> {
        self.history(node)
            .take_while(|(access, _)| *access != Access::Relax)
            .filter(|(access, _)| access.is_look())
    }

    /// Accesses before `node` and their results, newest first.
    fn history(&self, node: u32) -> impl Iterator<Item = (Access, u64)> {
        let mut at = node;
        std::iter::from_fn(move || {
            let Node { parent, result, .. } = self.nodes[at as usize];
            at = parent;
            let access = self.nodes[parent as usize].pending?;
            Some((access, result))
        })
    }

    fn push(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }
}

fn next_access(
    code: Code,
    constants: Constants,
    log: &[u64],
    run: impl FnOnce(&Recorder<'_>),
) -> Option<Access> {
    let recorder = Recorder {
        me: VcpuId(u32::from(code.vcpu())),
        vcpus: constants.vcpus,
        slots: constants.slots,
        host: constants.host,
        mutant: constants.mutant,
        memory: Cell::new(None),
        log,
        next: Cell::new(0),
        found: Cell::new(None),
    };
    match catch_unwind(AssertUnwindSafe(|| run(&recorder))) {
        Ok(()) => None,
        Err(payload) if payload.is::<Parked>() => recorder.found.get(),
        Err(payload) => resume_unwind(payload),
    }
}

/// A tree shared by the calls of one exploration.
pub(super) type SharedTree = RefCell<Tree>;

/// The vCPUs of `set`, one bit each.
pub(super) fn bits(set: &CpuSet) -> u8 {
    set.words()[0] as u8
}

fn page_of(address: Gva) -> u8 {
    (address.0 / PAGE_BYTES) as u8
}

impl Platform for Recorder<'_> {
    fn me(&self) -> VcpuId {
        self.me
    }

    fn vcpus(&self) -> u32 {
        self.vcpus
    }

    fn load(&self, word: Word, _: Ordering) -> u64 {
        self.step(Access::Load(word))
    }

    fn store(&self, word: Word, value: u64, order: Ordering) {
        match order {
            Ordering::SeqCst => self.step(Access::Swap(word, value)),
            _ => self.step(Access::Store(word, value)),
        };
    }

    fn swap(&self, word: Word, value: u64, _: Ordering) -> u64 {
        self.step(Access::Swap(word, value))
    }

    fn compare_exchange(&self, word: Word, current: u64, new: u64) -> Result<u64, u64> {
        match self.step(Access::CompareExchange(word, current, new)) {
            old if old == current => Ok(old),
            old => Err(old),
        }
    }

    fn fetch_add(&self, word: Word, value: u64, _: Ordering) -> u64 {
        self.step(Access::Add(word, value))
    }

    fn fetch_or(&self, word: Word, bits: u64, _: Ordering) -> u64 {
        self.step(Access::Or(word, bits))
    }

    fn fetch_and(&self, word: Word, bits: u64, _: Ordering) -> u64 {
        self.step(Access::And(word, bits))
    }

    fn fence(&self, _: Ordering) {
        self.step(Access::Fence);
    }

    fn invalidate_page(&self, page: Gva) {
        self.step(Access::DropPage(page_of(page)));
    }

    fn invalidate_context(&self) {
        self.step(Access::DropContext);
    }

    fn load_mm(&self, mm: MmId, slot: u8, flush: bool) {
        self.step(Access::LoadMm(mm, slot, flush));
    }

    fn slots(&self) -> u8 {
        self.slots
    }

    fn send_ipi(&self, targets: &CpuSet) {
        self.step(Access::Ipi(bits(targets)));
    }

    fn relax(&self) {
        self.step(Access::Relax);
    }

    fn doorbell(&self, ask: &Invalidation) -> bool {
        let present = CpuSet::first(self.vcpus);
        doorbell::ring(self, &Reach::vcpus(&ask.reach, self.me, &present));
        true
    }

    fn answers_at_once(&self, target: VcpuId) -> bool {
        self.step(Access::Hint(target)) != 0
    }
}

impl DropSlot for Recorder<'_> {
    fn drop_slot(&self, slot: u8, page: Option<Gva>) {
        self.step(Access::DropSlot(slot, page.map(page_of)));
    }
}

impl Broadcast for Recorder<'_> {
    fn broadcast(&self, slot: Option<u8>, page: Option<Gva>) {
        self.step(Access::Broadcast(slot, page.map(page_of)));
    }

    fn sync(&self) {
        self.step(Access::Sync);
    }

    fn fence_stores(&self) {
        self.step(Access::FenceStores);
    }

    // Threads do not move between the modelled vCPUs.
    fn pin(&self, _: bool) {}
}

impl ActionRequests for Recorder<'_> {
    fn request_action(&self, targets: &CpuSet) {
        self.step(Access::ActionRequest(bits(targets)));
    }
}
