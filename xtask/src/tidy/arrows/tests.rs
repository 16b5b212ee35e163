//! Samples of arrows that must pass and arrows that must be refused.

use super::*;
use crate::tidy::tokens::lex;

fn file(path: &str, text: &str) -> File {
    File { path: path.into(), text: text.into() }
}

fn manifest(folder: &str, name: &str, dependencies: &str) -> File {
    let text = format!("[package]\nname = \"{name}\"\n{dependencies}\n");
    file(&format!("{folder}/Cargo.toml"), &text)
}

fn tree(changed: File) -> Vec<File> {
    let mut files = vec![
        file("Cargo.toml", "[workspace]\nmembers = []\n"),
        manifest("pv-tlb", "pv-tlb", "[dependencies]\nbitflags = \"2\""),
        manifest("pv-tlb/model", "pv-tlb-model", "[dependencies]\npv-tlb = { workspace = true }"),
        manifest("api", "pvtlb-api", "[dependencies]\nserde = \"1\""),
        manifest("vmm", "pvtlb", "[dependencies]\npv-tlb = \"1\"\npvtlb-api = \"1\""),
        manifest("guest-tests/stress", "stress", "[dependencies]\npv-tlb = \"1\""),
    ];
    files.retain(|kept| kept.path != changed.path);
    files.push(changed);
    files
}

fn manifest_findings(changed: File) -> usize {
    check_manifests(&tree(changed)).len()
}

#[test]
fn the_designed_arrows_between_crates_pass() {
    let vmm = "[dependencies]\npv-tlb-model = \"1\"\npv-tlb = \"1\"\nlibc = \"0.2\"";
    assert_eq!(manifest_findings(manifest("vmm", "pvtlb", vmm)), 0);
}

#[test]
fn an_arrow_that_is_not_designed_is_refused_in_every_kind_of_dependency() {
    for dependencies in [
        "[dependencies]\npv-tlb = \"1\"",
        "[dev-dependencies]\npv-tlb = \"1\"",
        "[build-dependencies]\npv-tlb = \"1\"",
        "[target.'cfg(loom)'.dependencies]\npv-tlb = \"1\"",
        "[dependencies]\ncore_types = { package = \"pv-tlb\", version = \"1\" }",
    ] {
        assert_eq!(manifest_findings(manifest("api", "pvtlb-api", dependencies)), 1);
    }
    let up = manifest("guest-tests/stress", "stress", "[dependencies]\npvtlb = \"1\"");
    assert_eq!(manifest_findings(up), 1);
}

#[test]
fn the_pure_core_takes_nothing_new_from_outside_but_its_tests_may() {
    let take = |kind: &str| manifest("pv-tlb", "pv-tlb", &format!("[{kind}]\nlibc = \"0.2\""));
    assert_eq!(manifest_findings(take("dependencies")), 1);
    assert_eq!(manifest_findings(take("dev-dependencies")), 0);
}

#[test]
fn a_crate_that_nobody_placed_and_a_manifest_that_is_not_toml_are_found() {
    assert_eq!(manifest_findings(manifest("tools", "tools", "")), 1);
    assert_eq!(manifest_findings(file("api/Cargo.toml", "[package")), 1);
}

#[test]
fn kvm_crates_are_named_only_at_the_border() {
    let found = |path: &str, text: &str| {
        check_kvm_importers(&file(path, text), &lex(text).expect("lexes")).len()
    };
    let text = "use kvm_ioctls::Kvm;\nfn f() { libc::raise(9); }";
    assert_eq!(found("vmm/src/kvm/vm.rs", text), 0);
    assert_eq!(found("vmm/src/vcpu/thread.rs", text), 2);
    assert_eq!(found("vmm/tests/kick.rs", text), 2);
    assert_eq!(found("guest-tests/linux/src/main.rs", text), 0);
    assert_eq!(found("vmm/src/flush/trap.rs", "// libc::raise\nfn f() { g(\"libc\") }"), 0);
}

fn uses(path: &str, text: &str) -> Vec<Use> {
    module_uses(&file(path, text), &lex(text).expect("lexes"))
}

fn targets(path: &str, text: &str) -> Vec<String> {
    uses(path, text).into_iter().map(|found| found.to).collect()
}

#[test]
fn every_way_to_name_a_module_is_seen() {
    let path = "vmm/src/flush/trap.rs";
    assert_eq!(targets(path, "use crate::kvm::Vm;"), ["kvm"]);
    assert_eq!(targets(path, "use crate::{kvm::{Vm, Exit}, memory::Ram};"), ["kvm", "memory"]);
    assert_eq!(targets(path, "fn f(vm: &crate::kvm::Vm) {}"), ["kvm"]);
    assert_eq!(targets(path, "use super::super::kvm::Vm;"), ["kvm"]);
    assert_eq!(targets(path, "mod tests { use super::super::super::kvm::Vm; }"), ["kvm"]);
    assert_eq!(targets("vmm/src/flush.rs", "use super::kvm;"), ["kvm"]);
    assert_eq!(targets("vmm/src/flush/mod.rs", "use super::{kvm, memory};"), ["kvm", "memory"]);
}

#[test]
fn a_module_may_name_itself_and_its_own_parts() {
    let path = "vmm/src/flush/trap.rs";
    assert_eq!(
        targets(path, "use crate::flush::execute; use super::execute; use self::x;").len(),
        0
    );
    assert_eq!(targets(path, "mod tests { use super::*; use super::super::execute; }").len(), 0);
    assert_eq!(targets(path, "pub(crate) fn f() {} pub(super) fn g() {}").len(), 0);
    assert_eq!(targets("api/src/lib.rs", "use crate::kvm::Vm;").len(), 0);
}

fn layer_findings(samples: &[(&str, &str)]) -> usize {
    let all: Vec<Use> = samples.iter().flat_map(|(path, text)| uses(path, text)).collect();
    check_layers(&all).len()
}

#[test]
fn downward_passes_and_upward_is_refused() {
    assert_eq!(layer_findings(&[("vmm/src/vcpu/run_loop.rs", "use crate::flush::trap;")]), 0);
    assert_eq!(layer_findings(&[("vmm/src/main.rs", "use crate::metrics::Counters;")]), 0);
    assert_eq!(layer_findings(&[("vmm/src/flush/trap.rs", "use crate::vcpu::State;")]), 1);
    assert_eq!(layer_findings(&[("vmm/src/metrics.rs", "use crate::kvm::Vm;")]), 1);
    assert_eq!(layer_findings(&[("vmm/src/kvm/vm.rs", "use crate::error::Error;")]), 1);
}

#[test]
fn one_layer_may_be_used_one_way_but_not_in_a_circle() {
    let flush = ("vmm/src/flush/trap.rs", "use crate::placement::Seen;");
    let back = ("vmm/src/placement/mod.rs", "use crate::devices::Bus;");
    let round = ("vmm/src/devices/mod.rs", "use crate::flush::Flush;");
    assert_eq!(layer_findings(&[flush, back]), 0);
    assert_eq!(layer_findings(&[flush, back, round]), 3);
}

#[test]
fn a_module_that_nobody_placed_is_found() {
    assert_eq!(layer_findings(&[("vmm/src/gadget.rs", "use crate::kvm::Vm;")]), 1);
    assert_eq!(layer_findings(&[("vmm/src/main.rs", "use crate::gadget::Gadget;")]), 1);
    assert_eq!(layer_findings(&[("vmm/src/kvm/vm.rs", "use crate::Root;")]), 1);
}
