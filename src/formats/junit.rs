//! JUnit's XML: each gate is a test.

use crate::{Report, report::Verdict};
use quick_junit::{NonSuccessKind, Report as Suites, TestCase, TestCaseStatus, TestSuite};

/// The gates of a report as tests, in JUnit's XML. A gate that can't be told is a skipped test, a result that is not fit for
/// use a failed one.
pub fn junit(r: &Report) -> String {
    let model = r.output.as_ref().map_or(&r.input.path, |o| &o.path);
    let mut suite = TestSuite::new(model.as_str());
    let mut add = |name: String, status: TestCaseStatus| {
        let mut case = TestCase::new(name, status);
        case.set_classname("compress");
        suite.add_test_case(case);
    };
    for g in &r.gates {
        let said = format!("limit {}, measured {}", g.limit_shown, g.shown);
        let mut status = match g.verdict {
            Verdict::Passed => TestCaseStatus::success(),
            Verdict::Failed => TestCaseStatus::non_success(NonSuccessKind::Failure),
            Verdict::Unclear => TestCaseStatus::skipped(),
        };
        status.set_message(said);
        add(format!("{}{}", g.name.flag(), g.figure.as_deref().map_or(String::new(), |f| format!(" {f}"))), status);
    }
    let mut usable = match &r.unusable {
        Some(_) => TestCaseStatus::non_success(NonSuccessKind::Failure),
        None => TestCaseStatus::success(),
    };
    if let Some(why) = &r.unusable {
        usable.set_message(why.as_str());
    }
    add("fit for use".into(), usable);
    let mut suites = Suites::new("compress");
    suites.add_test_suite(suite);
    // It is written to memory, and has no text that XML lacks: quick-junit takes control characters out.
    suites.to_string().unwrap_or_default()
}
