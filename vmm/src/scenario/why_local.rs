//! `pvtlb scenario why-local`: the answer to one review question, on one screen.
//!
//! Every verdict and price in it is explored when it is asked for.

use std::fmt::Write as _;

use pv_tlb::plan::HostPolicy;
use pv_tlb_model::run::Effort;
use pv_tlb_model::verdict::Verdict;
use pv_tlb_model::world::{Dial, World};

use super::files::load;
use super::measure::judge_in;
use super::render::{columns, loud};
use crate::error::Error;

const QUESTION: &str = "\
How does a local TLBI work when the vCPU can move to another physical CPU?

It reaches the TLB of the pCPU that executes it and no other. Four things can go wrong:
  H1  move away, flush locally, move back: the old pCPU still has the entry
  H2  two vCPUs of one VM share a pCPU and a tag: one hits what the other left
  H3  the barrier runs on another pCPU than the flush: it waits for nothing
  H4  the flush is reported done while its target is still inside the guest

";

const HAZARDS: [&str; 4] = [
    "h1-move-away-and-back",
    "h2-two-vcpus-one-tag",
    "h3-barrier-on-another-pcpu",
    "h4-done-while-in-the-guest",
];

const ANSWER: &str = "
Price: what H1's one local flush and two moves cost, as broadcasts/pCPUs disturbed/entries
dropped. H4 is about the host's own calls, not about moves: where such a call returns early
(dial early-done) every policy is STALE.
On KVM/arm64 every guest's local TLBI is broadcast (FB) and its DSB widened (BSU): a guest
that flushes locally is right there, and gains little. To let it gain, clear FB and flush
when a vCPU changes pCPU, as x86 does. Clearing FB and nothing else is the row last-vcpu-ran.
Sources (Linux 7.3.4): arm64 asm/kvm_arm.h HCR_GUEST_FLAGS, kvm/arm.c kvm_arch_vcpu_load and
kernel/process.c __switch_to; x86 kvm/vmx/vmx.c, kvm/svm/svm.c, kvm/svm/sev.c pre_sev_run.
See each claim: pvtlb scenario explain h1-move-away-and-back (and the three others)
";

/// Who is known to do what the policy says.
const fn known_host(policy: HostPolicy) -> &'static str {
    match policy {
        HostPolicy::None => "nobody; the bug",
        HostPolicy::ForceBroadcastNoBarrier => "HCR_EL2.FB without BSU",
        HostPolicy::ForceBroadcast => "pKVM, as far as read (arm.c:676; open)",
        HostPolicy::LastVcpuRan => "KVM/arm64 if FB were cleared",
        HostPolicy::Pinned => "static partitioning",
        HostPolicy::Arm64Kvm => "KVM/arm64",
        HostPolicy::X86Kvm => "KVM on VMX; on SVM but for SEV",
        HostPolicy::SevKvm => "KVM for SEV guests",
        HostPolicy::Footprint | HostPolicy::FootprintDeferred => "pvtlb's proposal",
    }
}

/// The screen.
pub(super) fn text() -> Result<String, Error> {
    let effort = Effort::default();
    let scenarios = HAZARDS.iter().map(|name| Ok(load(name)?.scenario));
    let scenarios = scenarios.collect::<Result<Vec<_>, Error>>()?;
    let mut rows = Vec::new();
    for policy in HostPolicy::ALL {
        let mut row = vec![policy.to_string()];
        for scenario in &scenarios {
            let judgement = judge_in(scenario, &World::of(policy), &effort)?;
            row.push(loud(judgement.verdict.name()));
        }
        let h1 = judge_in(&scenarios[0], &World::of(policy), &effort)?;
        row.push(match h1.price {
            Some(price) if h1.verdict == Verdict::Ok => {
                format!("{}/{}/{}", price.broadcasts, price.disturbed, price.dropped)
            }
            _ => "-".to_owned(),
        });
        row.push(known_host(policy).to_owned());
        rows.push(row);
        let early = World::of(policy).with(Dial::EarlyDone);
        if judge_in(&scenarios[3], &early, &effort)?.verdict != Verdict::Stale {
            return Err(Error::Verdict(format!("H4 with early-done is not stale on {policy}")));
        }
    }
    let mut out = QUESTION.to_owned();
    let header = ["host policy", "H1", "H2", "H3", "H4", "price", "who does it"];
    let _ = write!(out, "{}{ANSWER}", columns(&header, &rows));
    Ok(out)
}
