//! The scripts that come with the program.
//!
//! Constant text, in the binary; the files are `resources/scenarios/*.tlb`.

/// A script of the corpus.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// Name, which is that of its file and of its scenario.
    pub name: &'static str,
    /// Text.
    pub source: &'static str,
}

macro_rules! scripts {
    ($($name:literal)*) => {
        &[$(Script {
            name: $name,
            source: include_str!(concat!(
                env!("CARGO_MANIFEST_DIR"), "/../../resources/scenarios/", $name, ".tlb"
            )),
        }),*]
    };
}

/// Every script, by name.
pub const ALL: &[Script] = scripts![
    "arm-range-operand"
    "arm-repeat-tlbi"
    "arm-write-after-protect"
    "asid-reused-after-a-move"
    "deferred-flush-on-a-shared-pcpu"
    "device-does-not-hear"
    "everything-moves"
    "flush-before-the-store"
    "free-before-the-answer"
    "freed-page-table"
    "ghcb-reused"
    "h1-move-away-and-back"
    "h2-two-vcpus-one-tag"
    "h3-barrier-on-another-pcpu"
    "h4-done-while-in-the-guest"
    "host-moves-at-will"
    "hypercall-shadow-paging"
    "hypercall-to-a-moved-vcpu"
    "hypercall-truncated-targets"
    "invlpgb-cpuid-lie"
    "invlpgb-host-without-asid"
    "invlpgb-per-vcpu-tags"
    "invlpgb-then-moved"
    "ipi-against-broadcast"
    "ipi-to-a-preempted-vcpu"
    "kernel-stack-reused"
    "nested-flush-per-switch"
    "no-shootdown-at-all"
    "pcid-slot-reused"
    "pv-flag-before-the-store"
    "pv-flag-never-cleared"
    "pv-flag-overwritten"
    "pv-flush-after-entry"
    "pv-lost-flag"
    "pv-preempted-mid-instruction"
    "pv-stale-record-address"
    "rar-event-during-a-scan"
    "rar-spares-globals"
    "rar-stride"
    "rar-to-oneself"
    "rar-torn-payload"
    "reclaim-from-another-cpu"
    "riscv-fence-is-no-nop"
    "riscv-fence-size"
    "riscv-split-tlb"
    "single-vcpu-broadcasts"
    "tlbid-domain-too-small"
    "tlbsync-twice"
    "two-senders-at-once"
    "vmid-given-away"
    "x86-invlpg-leaves-globals"
];

/// The script of that name.
///
/// # Errors
/// The most similar name there is.
pub fn find(name: &str) -> Result<&'static Script, &'static str> {
    let found = ALL.iter().find(|script| script.name == name);
    found.ok_or_else(|| {
        let likeness = |script: &Script| strsim::jaro_winkler(name, script.name);
        let nearest = ALL.iter().max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
        nearest.map_or("", |script| script.name)
    })
}
