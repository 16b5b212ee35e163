//! The agent's program: process 1 of a guest, or, called with a word, a job or one of
//! its workers.
//!
//! No state. Exit codes of a job: 0 PASS, 1 FAIL, 2 not a job, 3 it could not be
//! reported.

use std::io;
use std::process::ExitCode;

use pvtlb_agent::job::Job;
use pvtlb_agent::wire::{Event, Verdict};
use pvtlb_agent::{init, sweep};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [init::RUN] => run(""),
        [init::RUN, job] => run(job),
        [sweep::WORKER, order] => match sweep::serve_order(order, &mut io::stdout().lock()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("pvtlb-agent: {error}");
                ExitCode::from(3)
            }
        },
        // The kernel passes on words of its command line that it does not know.
        _ if std::process::id() == 1 => init::serve(),
        _ => {
            eprintln!("usage: pvtlb-agent run [KEY=VALUE,...]    (see docs/agent.md)");
            ExitCode::from(2)
        }
    }
}

fn run(job: &str) -> ExitCode {
    let mut out = io::stdout();
    let ended = match Job::parse(job) {
        Ok(job) => std::env::current_exe().and_then(|program| sweep::run(&job, &program, &mut out)),
        Err(error) => {
            // If it cannot be told the exit code still tells.
            let _ = Event::Fault { message: error.to_string() }.send(&mut out);
            return ExitCode::from(2);
        }
    };
    match ended {
        Ok(Verdict::Pass) => ExitCode::SUCCESS,
        Ok(Verdict::Fail) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("pvtlb-agent: {error}");
            ExitCode::from(3)
        }
    }
}
