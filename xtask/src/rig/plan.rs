//! Plans: what to run on the rig's host and what to expect, as data.
//!
//! No state. Plans are guest-tests/rig/plans/*.toml; the file's name is the plan's.

use std::fs;
use std::path::{Path, PathBuf};

use rig_wire::{Command, Setup};
use serde::Deserialize;

/// What is wrong with a plan, or with the name of one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("No plan {asked:?}: expected one of {known}")]
    Unknown { asked: String, known: String },
    #[error("Cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("Cannot parse {}", path.display())]
    Parse { path: PathBuf, source: toml::de::Error },
    #[error("Plan {plan:?}: {what}")]
    Wrong { plan: String, what: String },
}

/// A plan.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    /// The file's name without its end.
    #[serde(skip)]
    pub(super) name: String,
    /// One line for people.
    pub(super) description: String,
    /// Name of the host's kernel in the kernel cache.
    #[serde(default = "default_kernel")]
    pub(super) kernel: String,
    /// Kernels that the host finds as `/kernels/NAME`.
    #[serde(default)]
    pub(super) guest_kernels: Vec<String>,
    /// Binaries of this workspace, package and binary of one name, put into `/bin`.
    #[serde(default)]
    pub(super) binaries: Vec<String>,
    /// pCPUs of the emulated host.
    #[serde(default = "default_pcpus")]
    pub(super) pcpus: u32,
    /// Memory of the emulated host, in MiB.
    #[serde(default = "default_memory_mib")]
    pub(super) memory_mib: u32,
    /// From the host's start to its power-off, in seconds.
    pub(super) timeout_s: u64,
    /// The commands.
    #[serde(rename = "step")]
    pub(super) steps: Vec<Step>,
}

/// One command and what is expected of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    /// Its name in results.
    pub(super) name: String,
    /// Program and arguments.
    pub(super) run: Vec<String>,
    /// Exit codes that pass.
    #[serde(default = "default_expect")]
    pub(super) expect: Vec<i32>,
    /// Texts that must stand in its standard output.
    #[serde(default)]
    pub(super) prints: Vec<String>,
    /// Files to bring back; each must be there.
    #[serde(default)]
    pub(super) collect: Vec<String>,
    /// Its time limit, in seconds.
    #[serde(default = "default_step_timeout_s")]
    pub(super) timeout_s: u64,
}

fn default_kernel() -> String {
    "6.12".into()
}

fn default_pcpus() -> u32 {
    2
}

fn default_memory_mib() -> u32 {
    4096
}

fn default_expect() -> Vec<i32> {
    vec![0]
}

fn default_step_timeout_s() -> u64 {
    60
}

/// The folder of this workspace's plans.
pub(super) fn folder() -> PathBuf {
    crate::workspace_dir().join("guest-tests/rig/plans")
}

/// Names of the plans in `folder`, sorted.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, PlanError> {
    let entries = fs::read_dir(folder)
        .map_err(|source| PlanError::Read { path: folder.to_owned(), source })?;
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

impl Plan {
    /// Reads the plan called `name`.
    pub(super) fn load(folder: &Path, name: &str) -> Result<Self, PlanError> {
        let known = names(folder)?;
        if !known.iter().any(|other| other == name) {
            let (asked, known) = (name.to_owned(), known.join(", "));
            return Err(PlanError::Unknown { asked, known });
        }
        let path = folder.join(format!("{name}.toml"));
        let text = fs::read_to_string(&path)
            .map_err(|source| PlanError::Read { path: path.clone(), source })?;
        let mut plan: Self =
            toml::from_str(&text).map_err(|source| PlanError::Parse { path, source })?;
        plan.name = name.to_owned();
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), PlanError> {
        let wrong = |what: String| Err(PlanError::Wrong { plan: self.name.clone(), what });
        if self.steps.is_empty() {
            return wrong("has no step, expected at least one".into());
        }
        for (index, step) in self.steps.iter().enumerate() {
            if self.steps[..index].iter().any(|other| other.name == step.name) {
                return wrong(format!("two steps are called {:?}", step.name));
            }
            if step.run.is_empty() {
                return wrong(format!("step {:?} runs nothing", step.name));
            }
            if step.expect.is_empty() {
                return wrong(format!("step {:?} can never pass: expect is empty", step.name));
            }
        }
        Ok(())
    }

    /// What the host is told, with the modules as paths there.
    pub(super) fn setup(&self, modules: Vec<String>, hold_static_keys: bool) -> Setup {
        let steps = self
            .steps
            .iter()
            .map(|step| Command {
                argv: step.run.clone(),
                timeout_s: step.timeout_s,
                collect: step.collect.clone(),
            })
            .collect();
        Setup { modules, hold_static_keys, limit_s: self.timeout_s, steps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Plan, PlanError> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("test.toml"), text).unwrap();
        Plan::load(dir.path(), "test")
    }

    const HEAD: &str = "description = \"d\"\ntimeout_s = 9\n";

    #[test]
    fn every_plan_of_this_workspace_is_right() {
        let folder = folder();
        let names = names(&folder).unwrap();
        assert!(names.contains(&"smoke".to_owned()));
        for name in names {
            let plan = Plan::load(&folder, &name).unwrap();
            let steps_s: u64 = plan.steps.iter().map(|step| step.timeout_s).min().unwrap();
            assert!(steps_s <= plan.timeout_s, "{name}: no step can use its own limit");
        }
    }

    #[test]
    fn a_step_expects_exit_code_0_unless_it_says_otherwise() {
        let plan = load(&format!("{HEAD}[[step]]\nname = \"s\"\nrun = [\"x\"]\n")).unwrap();
        assert_eq!(plan.steps[0].expect, [0]);
        assert_eq!(plan.name, "test");
    }

    #[test]
    fn an_unknown_plan_lists_the_known_ones() {
        let text = Plan::load(&folder(), "smoky").unwrap_err().to_string();
        assert!(text.contains("\"smoky\"") && text.contains("smoke"), "{text}");
    }

    #[test]
    fn a_misspelt_key_is_refused() {
        let error = load(&format!("{HEAD}[[step]]\nname = \"s\"\nruns = [\"x\"]\n")).unwrap_err();
        assert!(matches!(error, PlanError::Parse { .. }), "{error}");
    }

    #[test]
    fn steps_that_cannot_be_told_apart_run_or_pass_are_refused() {
        for (steps, part) in [
            ("step = []\n", "no step"),
            ("[[step]]\nname = \"s\"\nrun = []\n", "runs nothing"),
            ("[[step]]\nname = \"s\"\nrun = [\"x\"]\nexpect = []\n", "never pass"),
            (
                "[[step]]\nname = \"s\"\nrun = [\"x\"]\n[[step]]\nname = \"s\"\nrun = [\"y\"]\n",
                "two steps",
            ),
        ] {
            let text = load(&format!("{HEAD}{steps}")).unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
        }
    }
}
