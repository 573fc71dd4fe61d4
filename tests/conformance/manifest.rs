//! `passing.txt`, the cases that pass, and the table of the others in README.md.

use crate::case::{Case, Failure};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
};

const PASSING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance/passing.txt");
const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance/README.md");
/// What comes after this line in README.md is generated.
const MARK: &str = "<!-- generated from here on -->\n";

pub struct Manifest(BTreeSet<String>);

impl Manifest {
    pub fn read() -> Self {
        Self(fs::read_to_string(PASSING).unwrap_or_default().lines().map(str::to_owned).collect())
    }

    /// Adds what passes, and takes out what fails if `remove`.
    pub fn update(&mut self, cases: &[Case], results: &[Result<(), Failure>], remove: bool) {
        for (case, result) in cases.iter().zip(results) {
            match result {
                Ok(()) => drop(self.0.insert(case.name.clone())),
                Err(_) if remove => drop(self.0.remove(&case.name)),
                Err(_) => {}
            }
        }
        let lines: String = self.0.iter().map(|name| format!("{name}\n")).collect();
        fs::write(PASSING, lines).unwrap();
    }

    /// What is not as the manifest says.
    pub fn disagreements(&self, cases: &[Case], results: &[Result<(), Failure>]) -> Vec<String> {
        let (mut wrong, mut new) = (vec![], vec![]);
        for (case, result) in cases.iter().zip(results) {
            match (result, self.0.contains(&case.name)) {
                (Err(failure), true) => wrong.push(format!("{}: {failure}", case.name)),
                (Ok(()), false) => new.push(&case.name[..]),
                _ => {}
            }
        }
        if !new.is_empty() {
            let how = "pass now; add them to tests/conformance/passing.txt (UPDATE_CONFORMANCE=1 does)";
            wrong.push(format!("these {} {how}: {}", new.len(), new.join(" ")));
        }
        wrong
    }
}

/// Rewrites the table of what doesn't pass.
pub fn write_table(cases: &[Case], results: &[Result<(), Failure>]) {
    let mut categories: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let mut reasons: BTreeMap<String, (BTreeSet<&str>, Vec<&str>)> = BTreeMap::new();
    for (case, result) in cases.iter().zip(results) {
        let (passed, of) = categories.entry(case.category()).or_default();
        *of += 1;
        let Err(failure) = result else {
            *passed += 1;
            continue;
        };
        let (operators, names) = reasons.entry(failure.kind()).or_default();
        // An expanded case is made of many operators, few of which are to blame.
        if case.operators.len() <= 3 {
            operators.extend(case.operators.iter().map(|o| &o[..]));
        }
        names.push(case.name.trim_start_matches("node/test_"));
    }
    let mut text = String::from("| category | passing | cases |\n|---|---:|---:|\n");
    for (category, (passed, of)) in categories {
        writeln!(text, "| {category} | {passed} | {of} |").unwrap();
    }
    text.push_str("\n| cases | what doesn't pass, and why | operators | for example |\n|---:|---|---|---|\n");
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, (_, names))| std::cmp::Reverse(names.len()));
    for (reason, (operators, names)) in reasons {
        let operators: Vec<_> = operators.into_iter().collect();
        let reason = reason.replace('|', "\\|");
        writeln!(text, "| {} | {reason} | {} | {} |", names.len(), operators.join(", "), names[0]).unwrap();
    }
    let before = fs::read_to_string(README).unwrap_or_default();
    let written = before.split(MARK).next().unwrap_or_default();
    fs::write(README, format!("{written}{MARK}\n{text}")).unwrap();
}
