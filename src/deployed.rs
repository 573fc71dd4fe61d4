//! What ONNX Runtime makes of the files, where it is installed: accuracy and speed as deployed there.

use crate::{
    assess::{Assessment, Compared, GATED_SPEED, MOST, SPEED},
    measure::{self, Pace, Reference},
    options::Effort,
    remarks,
    report::{Deployed, Report},
};
use compress_compiler::{
    error::{Kind, Result},
    onnx::Model,
};
use compress_runtime::{
    device::DeviceChoice,
    onnxruntime::{self, Provider},
    session::{Backend, EngineChoice, Session},
};

/// Measures both models on ONNX Runtime, if it was named or is in the active Python environment. What it refuses is told in a
/// note.
///
/// # Errors
/// Interrupted; what reading the data can raise.
pub fn measured(
    of: &Assessment,
    original: &Model,
    written: &Model,
    compared: &Compared,
    report: &mut Report,
) -> Result<Option<Deployed>> {
    let Some(library) = of.library.map(Into::into).or_else(onnxruntime::active) else { return Ok(None) };
    let engine = EngineChoice::OnnxRuntime(Provider::Cpu);
    let found = Backend::open(DeviceChoice::Cpu, engine, Some(&library))
        .and_then(|backend| on(&backend, of, original, written, compared));
    match found {
        Ok(deployed) => {
            remarks::of_deployment(&deployed.speed, report);
            Ok(Some(deployed))
        }
        Err(e) if e.kind() == Kind::Interrupted => Err(e),
        // What was named has to be there.
        Err(e) if e.kind() == Kind::Device && of.library.is_some() => Err(e),
        Err(e) => {
            report.warnings.push(format!("not measured on ONNX Runtime ({}): {e}", library.display()));
            Ok(None)
        }
    }
}

fn on(backend: &Backend, of: &Assessment, original: &Model, written: &Model, compared: &Compared) -> Result<Deployed> {
    let models = [original, written];
    let make = |i: usize| Session::of_model(models[i], backend);
    let (samples, full) = (&of.sets.evaluation, of.measures.check == Effort::Full);
    let before = Reference::new(make(0)?, false);
    let time = (!full).then_some(MOST);
    let accuracy = measure::accuracy(&before, &make(1)?, samples, compared, (of.blame, time), of.monitor)?;
    drop(before);
    let time = if full { GATED_SPEED } else { SPEED };
    let pace = Pace { batch: of.batch, time, as_is: true, one_at_a_time: false };
    let speed = measure::speed(&make, &original.graph, samples, &pace, backend, of.monitor)?;
    Ok(Deployed { engine: backend.engine.to_string(), accuracy, speed, remedy: None, parts: vec![] })
}
