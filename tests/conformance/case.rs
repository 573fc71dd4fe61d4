//! One case: its files, and what is done with it.

use crate::{compare, pb};
use compress_compiler::{
    graph::Graph,
    onnx::{self, Model},
    pass::Context,
    tensor::Tensor,
    verify::verify,
};
use compress_passes::{Options, pipeline};
use compress_runtime::{
    burn::BurnInterpreter,
    session::{Backend, Session},
};
use std::{
    cell::RefCell,
    fmt, fs,
    panic::{self, AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Once,
};

pub struct Case {
    /// Category and case: `node/test_abs`.
    pub name: String,
    folder: PathBuf,
    rtol: f64,
    atol: f64,
    pub operators: Vec<String>,
    /// The kinds of values other than numeric tensors that it takes or gives.
    kinds: Vec<String>,
}

/// Why a case did not pass, and how far it came.
pub struct Failure {
    pub stage: &'static str,
    pub why: String,
}

impl Failure {
    /// The reason without what differs from case to case: node names and numbers.
    pub fn kind(&self) -> String {
        let line = self.why.lines().next().unwrap_or_default();
        let mut out = String::new();
        let mut quoted = false;
        for c in line.chars() {
            match c {
                '`' => {
                    if quoted {
                        out.push('_');
                    }
                    quoted = !quoted;
                    out.push(c);
                }
                _ if quoted => {}
                '0'..='9' if out.ends_with('#') => {}
                '0'..='9' if !out.ends_with(char::is_alphanumeric) => out.push('#'),
                _ => out.push(c),
            }
        }
        out
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", self.stage, self.why)
    }
}

/// The cases in `folder`, by name.
pub fn find(folder: &Path) -> Vec<Case> {
    let folders = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect()
    };
    let mut cases: Vec<Case> = folders(folder).iter().flat_map(|c| folders(c)).map(|c| Case::read(folder, c)).collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

impl Case {
    fn read(root: &Path, folder: PathBuf) -> Self {
        let name = folder.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let about = fs::read(folder.join("case.json")).unwrap();
        let about: serde_json::Value = serde_json::from_slice(&about).unwrap();
        let list = |key: &str| about[key].as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect();
        let (rtol, atol) = (about["rtol"].as_f64().unwrap(), about["atol"].as_f64().unwrap());
        Self { name, folder, rtol, atol, operators: list("operators"), kinds: list("kinds") }
    }

    pub fn category(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Runs the case in all its forms.
    pub fn check(&self) -> Result<(), Failure> {
        remember_panics();
        let mut stage = "as it is";
        // A panic is a failure of one case, not the end of all.
        let checked = catch_unwind(AssertUnwindSafe(|| self.stages(&mut stage)));
        let checked = checked.unwrap_or_else(|_| Err(format!("panicked {}", PANIC.take())));
        checked.map_err(|why| Failure { stage, why })
    }

    fn stages(&self, stage: &mut &'static str) -> Result<(), String> {
        if !self.kinds.is_empty() {
            return Err(format!("takes or gives values of the kind {}", self.kinds.join(", ")));
        }
        let mut model = self.model("model.onnx")?;
        self.outputs_agree(&model.graph)?;
        *stage = "simplified";
        simplify(&mut model.graph)?;
        self.outputs_agree(&model.graph)?;
        *stage = "written and read";
        let bytes = onnx::to_bytes(&model).map_err(|e| e.to_string())?;
        fs::write(self.folder.join("simplified.onnx"), &bytes).map_err(|e| e.to_string())?;
        self.outputs_agree(&onnx::read_bytes(&bytes).map_err(|e| e.to_string())?.graph)?;
        *stage = "without shapes";
        let mut model = self.model("model_unranked.onnx")?;
        self.outputs_agree(&model.graph)?;
        *stage = "without shapes, simplified";
        simplify(&mut model.graph)?;
        self.outputs_agree(&model.graph)
    }

    fn model(&self, file: &str) -> Result<Model, String> {
        let path = self.folder.join(file);
        onnx::read(&path).map_err(|e| e.to_string().replace(&format!("{}: ", path.display()), ""))
    }

    fn outputs_agree(&self, graph: &Graph) -> Result<(), String> {
        let verified = verify(graph).map_err(|e| e.to_string())?;
        let executable = Session::new(&verified, &Backend::cpu(), &[]).map_err(|e| e.to_string())?;
        let sets = (0..).map(|i| self.folder.join(format!("test_data_set_{i}")));
        for set in sets.take_while(|s| s.exists()) {
            let expected = pb::tensors(&set, "output");
            let got = executable.run(&pb::tensors(&set, "input")).map_err(|e| e.to_string())?;
            if got.len() != expected.len() {
                return Err(format!("{} outputs instead of {}", got.len(), expected.len()));
            }
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let named = |e: String| format!("output `{}`: {e}", graph.outputs()[i].name);
                compare::agree(got, expected, self.rtol, self.atol).map_err(named)?;
                inferred_rightly(graph, i, expected).map_err(named)?;
            }
        }
        Ok(())
    }
}

fn simplify(graph: &mut Graph) -> Result<(), String> {
    let interpreter = BurnInterpreter::cpu();
    let cx = Context::new(&interpreter);
    let passes = pipeline(&Options::default(), None);
    passes.run(graph, &cx, &mut |_, _| Ok(())).map(|_| ()).map_err(|e| e.to_string())
}

/// What is known of an output before it is computed must be true of it.
fn inferred_rightly(graph: &Graph, output: usize, expected: &Tensor) -> Result<(), String> {
    let fact = graph.fact(graph.outputs()[output].port);
    let shape = expected.shape();
    let fits = fact.dims().is_none_or(|dims| {
        dims.len() == shape.len() && dims.iter().zip(shape).all(|(d, n)| d.known().is_none_or(|k| k == *n as i64))
    });
    if !fits || fact.dtype.is_some_and(|d| d != expected.dtype()) {
        return Err(format!("it is inferred as {fact}, and is {expected:?}"));
    }
    Ok(())
}

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the message of a panic for the report of its case, instead of printing it.
fn remember_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // The threads of the cases have no name.
            if std::thread::current().name().is_some() {
                return before(info);
            }
            let place = info.location().map(|l| format!("at {}:{}", l.file(), l.line())).unwrap_or_default();
            let message = info.payload_as_str().unwrap_or_default().lines().next().unwrap_or_default().to_owned();
            PANIC.set(format!("{place}: {message}"));
        }));
    });
}
