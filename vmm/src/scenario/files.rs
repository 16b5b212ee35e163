//! Scripts from files, from standard input and from the program itself.

use std::io::Read;
use std::path::Path;

use pv_tlb_model::corpus;
use pv_tlb_model::scenario::Scenario;
use pv_tlb_model::script::{ScriptError, parse, render};

use crate::error::Error;

/// A script and its text.
pub(super) struct Loaded {
    pub(super) scenario: Scenario,
    pub(super) source: String,
}

/// The scripts named, or all that come with the program.
pub(super) fn load_all(names: &[String]) -> Result<Vec<Loaded>, Error> {
    if names.is_empty() {
        return corpus::ALL.iter().map(|script| load(script.name)).collect();
    }
    names.iter().map(|name| load(name)).collect()
}

/// The script in the file `name`, or the one of that name that comes with the program.
pub(super) fn load(name: &str) -> Result<Loaded, Error> {
    let is_file = name == "-" || name.ends_with(".tlb") || Path::new(name).exists();
    let source = if is_file {
        read(name)?
    } else {
        let script = corpus::find(name).map_err(|nearest| {
            Error::Usage(format!(
                "There is neither a file nor a scenario `{name}`; did you mean `{nearest}`?"
            ))
        })?;
        script.source.to_owned()
    };
    let scenario = parse(&source).map_err(|errors| mistakes(name, &source, &errors))?;
    Ok(Loaded { scenario, source })
}

/// The text of a file; `-` is standard input.
pub(super) fn read(path: &str) -> Result<String, Error> {
    let mut text = String::new();
    let read = if path == "-" {
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    read.map_err(|error| Error::Usage(format!("Cannot read {path}: {error}")))
}

/// The error that shows every mistake of a script in its place.
pub(super) fn mistakes(path: &str, source: &str, errors: &[ScriptError]) -> Error {
    let count = match errors.len() {
        1 => "1 mistake".to_owned(),
        count => format!("{count} mistakes"),
    };
    let shown = render(path, source, errors);
    Error::Usage(format!("{path} has {count}\n\n{}", shown.trim_end()))
}
