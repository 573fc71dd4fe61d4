//! onnx's own backend test suite on our runtime: the cases that `generate.py` wrote, as they
//! are, after the simplifying passes, after writing and reading that, and all of it again for
//! the model without shapes.
//!
//! The folder comes in `COMPRESS_CONFORMANCE`; `tests/run` sets it. `passing.txt` lists the
//! cases that pass: one that fails, and one that passes and isn't listed, fail the test.
//!
//!   COMPRESS_CONFORMANCE_ONLY=lstm   only the cases with that in their name, and why they fail
//!   UPDATE_CONFORMANCE=1             add what passes to `passing.txt`, rewrite the table in README.md
//!   UPDATE_CONFORMANCE=remove        the same, and take out what doesn't pass

mod case;
mod compare;
mod manifest;
#[path = "../pb/mod.rs"]
mod pb;

use case::{Case, Failure};
use manifest::Manifest;
use std::{
    collections::BTreeMap,
    env,
    path::Path,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// Fewer cases than this mean that the generator lost some.
const AT_LEAST: usize = 2000;
/// A case that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs COMPRESS_CONFORMANCE, which tests/run sets"]
fn the_backend_test_suite_of_onnx() {
    let folder = env::var_os("COMPRESS_CONFORMANCE").expect("COMPRESS_CONFORMANCE is the folder of the cases");
    let all = case::find(Path::new(&folder));
    assert!(all.len() >= AT_LEAST, "only {} cases in {}", all.len(), folder.display());
    let only = env::var("COMPRESS_CONFORMANCE_ONLY").unwrap_or_default();
    let cases: Vec<Case> = all.into_iter().filter(|c| c.name.contains(&only)).collect();
    let results = run(&cases);
    summarise(&cases, &results, !only.is_empty());

    let mut manifest = Manifest::read();
    let update = env::var("UPDATE_CONFORMANCE").ok();
    if let Some(how) = &update {
        manifest.update(&cases, &results, how == "remove");
    }
    if update.is_some() && only.is_empty() {
        manifest::write_table(&cases, &results);
    }
    let wrong = manifest.disagreements(&cases, &results);
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// What became of each case, in their order.
fn run(cases: &[Case]) -> Vec<Result<(), Failure>> {
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    let mut results: Vec<Option<Result<(), Failure>>> = cases.iter().map(|_| None).collect();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    send.send((case, None)).unwrap();
                    send.send((case, Some(case.check()))).unwrap();
                }
            });
        }
        drop(send);
        let mut running: BTreeMap<&str, (usize, Instant)> = BTreeMap::new();
        let mut started = 0;
        loop {
            match receive.recv_timeout(Duration::from_secs(1)) {
                Ok((case, None)) => {
                    let place = cases.iter().position(|c| std::ptr::eq(c, case)).unwrap();
                    running.insert(&case.name, (place, Instant::now()));
                    started += 1;
                }
                Ok((case, Some(result))) => {
                    let (place, _) = running.remove(&case.name[..]).unwrap();
                    results[place] = Some(result);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            // A thread cannot be ended, so a case that hangs ends the test.
            if let Some((name, _)) = running.iter().find(|(_, (_, since))| since.elapsed() > PATIENCE) {
                eprintln!("{name} hangs: more than {PATIENCE:?}, {started} cases were started");
                std::process::exit(1);
            }
        }
    });
    results.into_iter().map(|r| r.expect("every case was run")).collect()
}

/// Prints how many pass in each category, and the reasons of the others.
fn summarise(cases: &[Case], results: &[Result<(), Failure>], each: bool) {
    let mut categories: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let mut stages: BTreeMap<&str, usize> = BTreeMap::new();
    let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (case, result) in cases.iter().zip(results) {
        let (passed, of) = categories.entry(case.category()).or_default();
        *of += 1;
        match result {
            Ok(()) => *passed += 1,
            Err(failure) => {
                *stages.entry(failure.stage).or_default() += 1;
                reasons.entry(failure.kind()).or_default().push(&case.name);
                if each {
                    println!("{}: {failure}", case.name);
                }
            }
        }
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, names)| std::cmp::Reverse(names.len()));
    println!("\nreasons:");
    for (reason, names) in reasons {
        println!("{:5}  {reason} ({}{})", names.len(), names[0], if names.len() > 1 { ", ..." } else { "" });
    }
    println!("\nfailures by stage:");
    for (stage, count) in stages {
        println!("{count:5}  {stage}");
    }
    println!("\ncategories:");
    for (category, (passed, of)) in categories {
        println!("{category:20} {passed:4} of {of:4}");
    }
}
