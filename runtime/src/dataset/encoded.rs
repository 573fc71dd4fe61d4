//! Data for the decoder of an encoder–decoder pair, which two files hold: data feeds the encoder, and its outputs the decoder.

use super::{Dataset, InputSpec, Samples, source::SampleSource};
use crate::{
    session::{Backend, Session},
    train::once::Once,
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    ops::source::fed,
    tensor::{DType, Tensor},
    verify::verify,
    words::option::{DATA, ENCODER},
};
use sha2::{Digest, Sha256};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

/// What a decoder calls an encoder's output, where the encoder calls it otherwise; and what the encoder calls it.
const STATES: [(&str, &str); 2] =
    [("encoder_hidden_states", "last_hidden_state"), ("encoder_outputs", "last_hidden_state")];
/// The encoder's input that a decoder is given too.
const MASK: (&str, &str) = ("encoder_attention_mask", "attention_mask");
/// What the tokens of a decoder and their mask are called in data: those of its encoder may be called the same.
const OWN: [(&str, &str); 2] = [("input_ids", "decoder_input_ids"), ("attention_mask", "decoder_attention_mask")];

/// Where an input of the decoder comes from.
#[derive(Clone, Copy)]
enum From {
    /// An output of the encoder.
    Output(usize),
    /// What data has for the encoder, or for the decoder after that.
    Data(usize),
}

/// An encoder whose outputs a decoder reads.
pub struct Encoder {
    path: PathBuf,
    session: Arc<Session>,
    /// What data has to have: the encoder's inputs, and those of the decoder that the encoder doesn't make.
    data: Vec<InputSpec>,
    /// How many of those are the encoder's.
    own: usize,
    decoder: Vec<From>,
    digest: String,
}

impl Encoder {
    /// The encoder of `graph`, read from the file at `path`, whose digest is `digest`, for a decoder with these inputs. It runs on the CPU.
    ///
    /// # Errors
    /// Usage when the decoder reads nothing that the encoder makes, when data can't tell their inputs apart, and for an encoder that can't
    /// be run, or has inputs without a type or rank.
    pub fn new(path: &Path, graph: &Graph, digest: &str, decoder: &[InputSpec]) -> Result<Self> {
        let in_file = |e: Error| e.in_file(path);
        let mut data = vec![];
        for node in fed(graph) {
            let value = graph.value(node.into());
            let unknown = || Error::usage(format!("input `{}` has no declared type and rank", value.name));
            let (shape, dtype) = value.fact.dims().zip(value.fact.dtype).ok_or_else(unknown).map_err(in_file)?;
            data.push(InputSpec::new(&value.name, dtype, shape.to_vec()));
        }
        let own = data.len();
        let outputs: Vec<&str> = graph.outputs().iter().map(|o| &o.name[..]).collect();
        let output = |name: &str| {
            let other = STATES.iter().find(|(of_decoder, _)| *of_decoder == name).map(|(_, of_encoder)| *of_encoder);
            let found = outputs.iter().position(|o| *o == name || Some(*o) == other);
            // An encoder of one output calls it what it likes.
            found.or_else(|| (other.is_some() && outputs.len() == 1).then_some(0))
        };
        if !decoder.iter().any(|spec| output(&spec.name).is_some()) {
            let list = |names: Vec<&str>| names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
            let read = list(decoder.iter().map(|s| &s.name[..]).collect());
            let why = format!(
                "the model reads nothing that {ENCODER} makes: it reads {read}, and that makes {}",
                list(outputs)
            );
            return Err(in_file(Error::usage(why).help(format!(
                "a decoder reads `{}`; an encoder makes `{}`, or one output of any name",
                STATES[0].0, STATES[0].1
            ))));
        }
        let mut from = vec![];
        for spec in decoder {
            let mask = (spec.name == MASK.0).then(|| data[..own].iter().position(|s| s.name == MASK.1)).flatten();
            from.push(match (output(&spec.name), mask) {
                (Some(place), _) => From::Output(place),
                (None, Some(place)) => From::Data(place),
                (None, None) => {
                    let own = OWN.iter().find(|(name, _)| *name == spec.name).map_or(&spec.name[..], |(_, own)| own);
                    if data.iter().any(|other| other.name == own) {
                        let why = format!(
                            "the encoder and the decoder both have an input `{own}`: data can't tell them apart"
                        );
                        return Err(in_file(Error::usage(why).help("rename the input of one of them")));
                    }
                    data.push(InputSpec { name: own.into(), ..spec.clone() });
                    From::Data(data.len() - 1)
                }
            });
        }
        // A model that can't be run is compressed without data; an encoder was asked for to be run.
        let cant = |e: Error| in_file(Error::usage(format!("the encoder can't be run: {e}")));
        let session = Arc::new(Session::new(&verify(graph)?, &Backend::cpu(), &[]).map_err(cant)?);
        Ok(Self { path: path.to_owned(), session, data, own, decoder: from, digest: digest.into() })
    }

    /// What data has to have.
    pub fn data(&self) -> &[InputSpec] {
        &self.data
    }

    /// A set of [`Encoder::data`] as one of the decoder's `inputs`.
    pub fn encoded(self: &Arc<Self>, set: Dataset, inputs: &[InputSpec]) -> Dataset {
        let mut inputs = inputs.to_vec();
        if let Some(fixed) = set.fixed_batch() {
            inputs.iter_mut().filter_map(|spec| spec.shape.first_mut()).for_each(|front| *front = fixed.into());
        }
        let once = Mutex::new(Once::new(&self.path, self.session.clone(), set.len()));
        let digest = set.digest().ok().map(|of| format!("{:x}", Sha256::digest(format!("{of}\n{}", self.digest))));
        let path = set.path.clone();
        let encoded = Encoded { set, encoder: self.clone(), once, digest };
        Dataset { inputs, samples: Samples::Given(Box::new(encoded)), path }
    }
}

/// Samples behind an encoder.
struct Encoded {
    set: Dataset,
    encoder: Arc<Encoder>,
    once: Mutex<Once>,
    digest: Option<String>,
}

impl SampleSource for Encoded {
    fn len(&self) -> usize {
        self.set.len()
    }

    fn stacks(&self) -> bool {
        self.set.stacks()
    }

    fn are_pictures(&self) -> bool {
        self.set.are_pictures()
    }

    fn inputs(&self, inputs: &[InputSpec], rows: &[usize]) -> Result<Vec<Tensor>> {
        let data = self.set.batch(rows)?.inputs;
        let made = match self.once.lock() {
            Ok(mut once) => once.ask(&data[..self.encoder.own], Some(rows))?,
            Err(_) => return Err(Error::bug("a thread that ran the encoder panicked")),
        };
        let one = |(spec, from): (&InputSpec, &From)| {
            let given = match from {
                From::Output(place) => made.get(*place),
                From::Data(place) => data.get(*place),
            };
            let given = given.ok_or_else(|| Error::bug("an input that nobody gives"))?;
            fitted(given, spec).map_err(|e| e.in_file(&self.encoder.path))
        };
        inputs.iter().zip(&self.encoder.decoder).map(one).collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.set.source().files()
    }

    fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    fn is_labelled(&self) -> bool {
        self.set.is_labelled()
    }

    fn labels(&self, rows: &[usize]) -> Result<Option<Vec<i64>>> {
        self.set.labels(rows)
    }

    fn named_classes(&self) -> Option<usize> {
        self.set.named_classes()
    }

    fn file(&self, row: usize) -> Option<PathBuf> {
        self.set.source().file(row)
    }

    fn unread(&self) -> &[String] {
        self.set.unread()
    }
}

/// What an encoder made, as its decoder takes it.
fn fitted(made: &Tensor, spec: &InputSpec) -> Result<Tensor> {
    let shape = made.shape();
    let agrees = |(found, wanted): (&usize, Option<usize>)| wanted.is_none_or(|wanted| wanted == *found);
    if shape.len() != spec.shape.len() || !shape.iter().zip(spec.sizes()).all(agrees) {
        return Err(Error::data(format!(
            "it makes {shape:?} for the decoder's `{}`, which takes {}",
            spec.name,
            axes(spec)
        ))
        .help(format!("give the {ENCODER} that the decoder was exported with, and {DATA} of its sizes")));
    }
    match made.dtype() {
        found if found == spec.dtype => Ok(made.clone()),
        found if found.is_float() && spec.dtype.is_float() && spec.dtype != DType::F64 => {
            let values = made.as_f32().ok_or_else(|| Error::bug("floats that can't be read"))?;
            Ok(Tensor::floats(spec.dtype, shape, &values))
        }
        DType::I32 | DType::I64 if matches!(spec.dtype, DType::I32 | DType::I64) => {
            let values = made.as_i64().ok_or_else(|| Error::bug("integers that can't be read"))?;
            Ok(Tensor::ints(spec.dtype, shape, &values))
        }
        found => {
            Err(Error::data(format!("it makes {found} for the decoder's `{}`, which takes {}", spec.name, spec.dtype)))
        }
    }
}

fn axes(spec: &InputSpec) -> String {
    let axis = |d: &compress_compiler::value::Dim| d.known().map_or("?".into(), |n| n.to_string());
    format!("[{}]", spec.shape.iter().map(axis).collect::<Vec<_>>().join(", "))
}
