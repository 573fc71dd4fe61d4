use super::Cli;
use clap::{Command, CommandFactory};
use compress_compiler::words::option;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Options of other programs that the documentation runs.
const FOREIGN: &[&str] = &[
    "--all",
    "--all-targets",
    "--array",
    "--arm",
    "--batches",
    "--bench",
    "--bind-to",
    "--dependency",
    "--doc",
    "--dynamo",
    "--exact",
    "--example",
    "--features",
    "--gpu",
    "--host",
    "--ignored",
    "--isa",
    "--lengths",
    "--lib",
    "--locked",
    "--logdir",
    "--long",
    "--map-by",
    "--mca",
    "--minutes",
    "--models",
    "--mpi",
    "--no-build",
    "--no-deps",
    "--open",
    "--path",
    "--precisions",
    "--quick",
    "--no-slow",
    "--release",
    "--rm",
    "--seeds",
    "--slow",
    "--steps",
    "--task",
    "--test",
    "--turns",
    "--user",
    "--version",
    "--vulkan",
    "--workspace",
];

fn known(command: &Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(|a| a.get_long()).map(|name| format!("--{name}"));
    own.chain(command.get_subcommands().flat_map(known)).chain(["--help".into()]).collect()
}

#[test]
fn options_that_messages_name_exist() {
    let known = known(&Cli::command());
    let missing: Vec<_> = option::ALL.iter().filter(|o| !known.contains(&format!("--{}", o.0))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Every `--word` of a text.
fn words(text: &str) -> BTreeSet<String> {
    let begins = |(at, _): &(usize, &str)| text[..*at].chars().last().is_none_or(|c| " `\"'([|\n".contains(c));
    let word = |(at, _): (usize, &str)| {
        let rest = &text[at + 2..];
        let end = rest.find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '-');
        rest[..end.unwrap_or(rest.len())].trim_end_matches('-').to_string()
    };
    text.match_indices("--").filter(begins).map(word).filter(|w| w.len() > 1).map(|w| format!("--{w}")).collect()
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, found),
            false if path.extension().is_some_and(|e| e == "rs" || e == "md") => found.push(path),
            false => {}
        }
    }
}

#[test]
fn every_option_that_code_and_docs_name_exists() {
    let known = known(&Cli::command());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = vec![root.join("README.md")];
    ["src", "compiler/src", "passes/src", "runtime/src", "docs", "models"]
        .iter()
        .for_each(|folder| files(&root.join(folder), &mut found));
    let mut strange = vec![];
    for path in found.iter().filter(|p| !p.ends_with("args.rs") && !p.ends_with("args/tests.rs")) {
        let words = words(&fs::read_to_string(path).unwrap());
        let unknown = words.into_iter().filter(|w| !known.contains(w) && !FOREIGN.contains(&&w[..]));
        strange.extend(unknown.map(|w| format!("{}: {w}", path.display())));
    }
    assert!(strange.is_empty(), "{strange:#?}");
}

/// Libraries are called by other front ends too, which write options in their own way.
#[test]
fn only_the_command_writes_flags_into_messages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = vec![];
    ["src", "compiler/src", "passes/src", "runtime/src"].iter().for_each(|f| files(&root.join(f), &mut found));
    for path in found.iter().filter(|p| !p.starts_with(root.join("src/cli")) && !p.ends_with("tests.rs")) {
        let text = fs::read_to_string(path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code.lines().filter(|l| !l.trim_start().starts_with("//") && !words(l).is_empty());
        let lines: Vec<&str> = lines.collect();
        assert!(lines.is_empty(), "{}: {lines:#?}", path.display());
    }
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}
