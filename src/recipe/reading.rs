//! How a recipe is read, from a file, a report or a program.

use super::{Job, Recipe};
use clap::{Arg, Args, Command};
use compress_compiler::{
    choice::Choice,
    error::{Error, Result},
    words::option,
};
use serde::de::DeserializeOwned;
use std::{
    fs::File,
    io::{ErrorKind, Read},
    path::Path,
};
use toml::{Table, Value};

impl Recipe {
    /// Reads a recipe: a TOML file, or the report of a job (JSON), which has the job's.
    ///
    /// # Errors
    /// File when it can't be read; usage when it says what no option says.
    pub fn read(path: &Path) -> Result<Self> {
        Self::read_as(path, |_| {})
    }

    /// [`Recipe::read`], of a report whose recipe is `adjusted` first.
    pub(crate) fn read_as(path: &Path, adjusted: impl FnOnce(&mut Table)) -> Result<Self> {
        let text = read(path).map_err(|e| match e.kind() {
            ErrorKind::InvalidData => Error::usage("is not a recipe: a recipe is a text file").in_file(path),
            _ => Error::file(format!("cannot be read: {e}")).in_file(path),
        })?;
        // TOML does not start so.
        let recipe = match text.trim_start().starts_with('{') {
            true => serde_json::from_str(&text)
                .map_err(|e| Error::usage(e.to_string()))
                .and_then(|report| of_report(report, adjusted)),
            false => text.parse(),
        };
        recipe.map_err(|e| e.in_file(path))
    }

    /// Reads a recipe that a program made: the keys and values of a TOML recipe, as JSON. What is null has its default.
    ///
    /// # Errors
    /// Usage when it says what no option says.
    pub fn of_json(text: &str) -> Result<Self> {
        let parsed: serde_json::Value = serde_json::from_str(text).map_err(|e| Error::usage(e.to_string()))?;
        let serde_json::Value::Object(mut keys) = parsed else {
            return Err(Error::usage("a recipe has keys and values"));
        };
        keys.retain(|_, value| !value.is_null());
        let table = Table::try_from(keys).map_err(|e| Error::usage(e.to_string()))?;
        Self::of_table(table)
    }

    /// The job that a table describes, as [`Recipe::table`] makes it.
    ///
    /// # Errors
    /// Usage when it says what no option says.
    pub(crate) fn of_table(mut table: Table) -> Result<Self> {
        let job = match table.remove("job") {
            // Early recipes are of training alone, and don't say so.
            None if ["student", "train"].iter().any(|key| table.contains_key(*key)) => Job::Distill,
            None => return Err(Error::usage("the key `job` is missing").help(format!("jobs: {}", jobs()))),
            Some(Value::String(name)) => name.parse()?,
            Some(other) => {
                return Err(Error::usage(format!("job = {other}")).help("the job is a text, such as \"compress\""));
            }
        };
        // They have the options in a table of their own.
        match table.remove("train") {
            Some(Value::Table(options)) if job == Job::Distill => table.extend(options),
            Some(other) => return Err(Error::usage(format!("unknown key `train` ({other})"))),
            None => {}
        }
        match job {
            Job::Compress => filled(table).map(Self::Compress),
            Job::Sweep => filled(table).map(Self::Sweep),
            Job::Check => filled(table).map(Self::Check),
            Job::Bench => filled(table).map(Self::Bench),
            Job::Explain => filled(table).map(Self::Explain),
            Job::Inspect => filled(table).map(Self::Inspect),
            Job::Sensitivity => filled(table).map(Self::Sensitivity),
            Job::Distill => filled(table).map(Self::Distill),
            Job::Draft => filled(table).map(Self::Draft),
            Job::Search => filled(table).map(Self::Search),
            Job::Merge => filled(table).map(Self::Merge),
            Job::Answers => filled(table).map(Self::Answers),
        }
    }
}

/// More bytes than any recipe or report has.
const LARGEST: u64 = 64 << 20;

fn read(path: &Path) -> std::io::Result<String> {
    let file = File::open(path)?;
    let mut text = String::new();
    match file.take(LARGEST + 1).read_to_string(&mut text)? as u64 > LARGEST {
        true => Err(ErrorKind::InvalidData.into()),
        false => Ok(text),
    }
}

fn jobs() -> String {
    Job::ALL.iter().map(|job| job.name()).collect::<Vec<_>>().join(", ")
}

impl std::str::FromStr for Recipe {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let table = text.parse().map_err(|e: toml::de::Error| Error::usage(e.to_string().trim_end().to_string()))?;
        Self::of_table(table)
    }
}

fn of_report(mut report: serde_json::Value, adjusted: impl FnOnce(&mut Table)) -> Result<Recipe> {
    let recipe = report.pointer_mut("/recipe/run").map(serde_json::Value::take).unwrap_or_default();
    match Table::try_from(recipe) {
        Ok(mut table) => {
            adjusted(&mut table);
            Recipe::of_table(table)
        }
        Err(_) => Err(Error::usage("is not a report with a recipe")
            .help("give a recipe in TOML, or a report.json that this version wrote")),
    }
}

/// The job that a table describes.
fn filled<T: Args + DeserializeOwned>(mut table: Table) -> Result<T> {
    let wrong = |what: String| Error::usage(what).help("keys are the options of the job, as the command line has them");
    // What is flattened has no keys of its own for serde to refuse.
    let command = T::augment_args(Command::new("recipe"));
    // How a job is run is not part of what it does.
    let is_kept = |key: &String| key != option::FORCE.0 && key != option::RESUME.0;
    let known: Vec<String> = command.get_arguments().map(key).filter(is_kept).collect();
    for (name, value) in table.iter_mut() {
        if !known.contains(name) {
            let likeness = |key: &&String| strsim::jaro(key, name);
            let near = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
            let near =
                near.filter(|key| likeness(key) > ALIKE).map_or(String::new(), |n| format!("; the nearest is `{n}`"));
            return Err(wrong(format!("unknown key `{name}`{near}")));
        }
        *value = understood::<T>(name, value).map_err(wrong)?;
    }
    let missing = |arg: &&Arg| arg.is_required_set() && !table.contains_key(&key(arg));
    match command.get_arguments().find(missing) {
        Some(arg) => Err(wrong(format!("the key `{}` is missing", key(arg)))),
        None => table.try_into().map_err(|e: toml::de::Error| wrong(e.to_string())),
    }
}

/// Keys that are less alike are not meant.
const ALIKE: f64 = 0.75;

/// A value as an option takes it: a number may be meant as text, and one of what may be repeated needs no list.
fn understood<T: DeserializeOwned>(name: &str, value: &Value) -> Result<Value, String> {
    if value.as_str() == Some("") {
        return Err(format!("{name} = \"\": there is no value; remove the key for the default"));
    }
    let text = match value {
        Value::Integer(_) | Value::Float(_) => Value::String(value.to_string()),
        _ => value.clone(),
    };
    // Alone, as errors of what is flattened don't say where they are.
    let fits = |value: &Value| Table::from_iter([(name.to_string(), value.clone())]).try_into::<T>().map(drop);
    let Err(refused) = fits(value) else { return Ok(value.clone()) };
    let forms = [text.clone(), Value::Array(vec![value.clone()]), Value::Array(vec![text])];
    let form = forms.into_iter().find(|form| fits(form).is_ok());
    form.ok_or_else(|| format!("{name} = {value}: {}", refused.message()))
}

/// The key of an option: its name on the command line.
fn key(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().as_str().replace('_', "-"), String::from)
}
