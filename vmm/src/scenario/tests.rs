//! The commands of `pvtlb scenario`, from their flags to text and exit code.
//!
//! No state but files in a folder of the test's own.

use clap::Parser;

use super::args::ScenarioArgs;
use super::run;
use crate::error::Error;

/// The flags alone, without the program around them.
#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    scenario: ScenarioArgs,
}

/// Runs `pvtlb scenario` with these flags.
fn scenario(flags: &[&str]) -> (String, Result<(), Error>) {
    let line = ["scenario"].iter().chain(flags);
    let args = Flags::try_parse_from(line).expect("flags").scenario;
    let mut out = Vec::new();
    let result = run(&args, &mut out);
    (String::from_utf8(out).expect("text"), result)
}

fn code(result: Result<(), Error>) -> u8 {
    result.map_or_else(|error| error.code(), |()| 0)
}

/// A script file that is gone when the value is.
struct File(std::path::PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pvtlb-{}-{name}.tlb", std::process::id()));
        std::fs::write(&path, text).expect("writable");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // A file that is gone already is as good.
        let _ = std::fs::remove_file(&self.0);
    }
}

const SMALL: &str = "\
scenario small \"Unmap without a flush\"
vcpus 1
pcpus 1
map X -> F
start v0 on p0
v0: unmap X
v0: read X must fault
expect x86-kvm: ok
";

#[test]
fn the_whole_corpus_meets_its_expectations() {
    let (text, result) = scenario(&["run"]);
    assert_eq!(code(result), 0, "{text}");
    assert!(text.contains(": 0 not met"), "{text}");
    assert!(text.lines().all(|line| line == line.trim_end()), "no spaces at the ends of lines");
}

#[test]
fn an_expectation_that_is_not_met_shows_its_interleaving_and_fails() {
    let file = File::new("unmet", SMALL);
    let (text, result) = scenario(&["run", file.path()]);
    assert_eq!(code(result), 5);
    assert!(text.contains("small on x86-kvm: verdict stale, expected ok"), "{text}");
    assert!(text.contains("6     v0: unmap X"), "{text}");
    assert!(text.contains("=> v0 can use X->F (asid 1) where it must fault"), "{text}");
}

#[test]
fn json_and_ktap_say_the_same_as_the_table() {
    let file = File::new("formats", SMALL);
    let (json, result) = scenario(&["run", "--json", file.path()]);
    assert_eq!(code(result), 5);
    let report: pvtlb_api::scenario::ScenarioReport =
        serde_json::from_str(&json).expect("the report's own types");
    assert_eq!(report.unmet, 1);
    assert_eq!(report.scenarios[0].matrix.len(), 10);
    assert_eq!(report.scenarios[0].expectations[0].verdict, "stale");
    let (ktap, _) = scenario(&["run", "--ktap", file.path()]);
    let lines: Vec<&str> = ktap.lines().collect();
    assert_eq!(lines[..2], ["KTAP version 1", "1..1"]);
    assert_eq!(lines[2..5], ["  KTAP version 1", "  # Subtest: small", "  1..1"]);
    assert!(lines[5].starts_with("  not ok 1 x86-kvm # verdict stale"), "{ktap}");
    assert_eq!(lines[6], "not ok 1 small");
}

#[test]
fn a_mistake_is_shown_in_its_place_and_is_bad_input() {
    let file = File::new("mistake", &SMALL.replace("unmap X", "unmpa X"));
    let (_, result) = scenario(&["run", file.path()]);
    let error = result.expect_err("a mistake");
    assert_eq!(error.code(), 2);
    let text = error.to_string();
    assert!(text.contains("6 | v0: unmpa X") && text.contains("Did you mean `unmap`?"), "{text}");
}

#[test]
fn an_unknown_name_or_option_is_answered_with_what_there_is() {
    let (_, result) = scenario(&["explain", "h2-two-vcpus"]);
    let text = result.expect_err("unknown").to_string();
    assert!(text.ends_with("did you mean `h2-two-vcpus-one-tag`?"), "{text}");
    let (_, result) = scenario(&["explore", "tlbsync-twice", "--option", "twice"]);
    let text = result.expect_err("unknown").to_string();
    assert!(text.contains("it has second-sync"), "{text}");
}

#[test]
fn explore_takes_hosts_dials_and_options_and_fails_with_the_verdict() {
    let explore = ["explore", "tlbsync-twice", "--host", "sev-kvm", "--dial", "tlbsync-twice"];
    let (text, result) = scenario(&explore);
    assert_eq!(code(result), 5);
    assert!(text.contains("sev-kvm + tlbsync-twice: STALE (exhaustive"), "{text}");
    let with: Vec<&str> = explore.into_iter().chain(["--option", "second-sync"]).collect();
    assert_eq!(code(scenario(&with).1), 0);
}

#[test]
fn fmt_checks_without_writing_and_writes_without_changing_the_meaning() {
    let file = File::new("fmt", &SMALL.replace("v0: unmap X", "  v0:unmap   X #why"));
    assert_eq!(code(scenario(&["fmt", "--check", file.path()]).1), 5);
    assert_eq!(code(scenario(&["fmt", file.path()]).1), 0);
    let text = std::fs::read_to_string(&file.0).expect("there");
    assert!(text.contains("\nv0: unmap X  #why\n"), "{text}");
    assert_eq!(code(scenario(&["fmt", "--check", file.path()]).1), 0);
}

#[test]
fn why_local_names_the_policies_that_close_all_hazards() {
    let (text, result) = scenario(&["why-local"]);
    assert_eq!(code(result), 0);
    for policy in pv_tlb::plan::HostPolicy::ALL {
        let row = text.lines().find(|line| line.starts_with(&format!("{policy} ")));
        let row = row.unwrap_or_else(|| panic!("no row for {policy}"));
        assert_eq!(row.contains("STALE"), !policy.is_sound(), "{row}");
    }
    assert!(text.lines().count() <= 40, "more than one screen");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}
