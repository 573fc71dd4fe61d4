//! Data that a program has in memory, such as the arrays of a Python script.

use super::{
    InputSpec, Preprocess,
    array::{Columns, Place, Stored},
    numpy::{DATA, LABELS},
    values,
};
use compress_compiler::{
    error::{Error, Result},
    tensor::Tensor,
};
use std::path::Path;

/// What messages call such a set, in place of a path.
pub(super) const PLACE: &str = "(data)";

/// Data that a program has in memory: items one after the other. The arrays are read where they lie; they must stay as
/// they are while a job runs.
#[derive(Debug)]
pub struct Given {
    items: Vec<GivenItem>,
}

/// A sample, or a batch of samples.
#[derive(Debug)]
pub enum GivenItem {
    /// Arrays by the name of the input that they are for; `y` or `labels` are classes. Others are left alone.
    Named(Vec<(String, Tensor)>),
    /// An array for each input, in the order of the model. One more is classes.
    InOrder(Vec<Tensor>),
}

/// The arrays of an item, as the model takes them.
struct Sorted<'a> {
    inputs: Vec<&'a Tensor>,
    labels: Option<&'a Tensor>,
}

impl Given {
    /// A set of these items: batches, whose arrays have a first axis that counts the samples; or samples, whose arrays lack
    /// it and whose class, if they have one, is a single number.
    ///
    /// # Errors
    /// Data when there is no item.
    pub fn new(items: Vec<GivenItem>) -> Result<Self> {
        if items.is_empty() {
            return Err(Error::data("the data is empty").help("an iterator gives its items once: pass a fresh one"));
        }
        Ok(Self { items })
    }

    /// The set as columns, one for each input.
    pub(super) fn columns(&self, inputs: &[InputSpec], preprocess: Option<&Preprocess>) -> Result<Columns> {
        let items = self.items.iter().enumerate();
        let items = items.map(|(i, item)| item.sorted(inputs).map_err(|e| e.about(format_args!("item {i} (from 0)"))));
        let items = items.collect::<Result<Vec<_>>>()?;
        let singly = are_samples(inputs, &items);
        let mut arrays = vec![];
        for (i, spec) in inputs.iter().enumerate() {
            arrays.push(joined(&spec.name, items.iter().map(|item| item.inputs[i]), singly)?);
        }
        let labels = match items.iter().any(|item| item.labels.is_some()) {
            false => None,
            true => {
                let each = items.iter().enumerate().map(|(i, item)| {
                    item.labels.ok_or_else(|| Error::data(format!("item {i} (from 0) has no labels, others have")))
                });
                Some(joined("labels", each.collect::<Result<Vec<_>>>()?.into_iter(), singly)?)
            }
        };
        let shapes: Vec<&[usize]> = arrays.iter().chain(&labels).map(|a| &a.shape[..]).collect();
        let mut columns = Columns::new(Path::new(PLACE), inputs, &shapes);
        for (spec, array) in inputs.iter().zip(arrays) {
            columns.push(spec, &spec.name, array, preprocess, false)?;
        }
        if let Some(labels) = labels {
            columns.label("labels", labels)?;
        }
        columns.unread = self.items.first().map_or(vec![], |item| item.unread(inputs));
        Ok(columns)
    }
}

impl GivenItem {
    /// Names of arrays that nothing reads.
    fn unread(&self, inputs: &[InputSpec]) -> Vec<String> {
        let Self::Named(arrays) = self else { return vec![] };
        let is_read = |name: &str| {
            let alone = inputs.len() == 1 && DATA.contains(&name);
            alone || LABELS.contains(&name) || inputs.iter().any(|spec| spec.name == name)
        };
        arrays.iter().map(|(name, _)| name).filter(|name| !is_read(name)).cloned().collect()
    }

    fn sorted(&self, inputs: &[InputSpec]) -> Result<Sorted<'_>> {
        match self {
            Self::InOrder(arrays) => match arrays.len().checked_sub(inputs.len()) {
                Some(0 | 1) => {
                    let (first, rest) = arrays.split_at(inputs.len());
                    Ok(Sorted { inputs: first.iter().collect(), labels: rest.first() })
                }
                _ => Err(Error::data(format!("it has {} arrays, the model {} inputs", arrays.len(), inputs.len()))
                    .help("give an array for each input in the order of the model, and perhaps labels after them; or a dict")),
            },
            Self::Named(arrays) => {
                let of = |name: &str| arrays.iter().find(|(n, _)| n == name).map(|(_, array)| array);
                let aliases: &[&str] = if inputs.len() == 1 { &DATA } else { &[] };
                let find = |spec: &InputSpec| {
                    let names = [&spec.name[..]].into_iter().chain(aliases.iter().copied());
                    names.into_iter().find_map(of).ok_or_else(|| {
                        let found = arrays.iter().map(|(n, _)| format!("`{n}`")).collect::<Vec<_>>().join(", ");
                        Error::data(format!("it has no array `{}`; it has {found}", spec.name))
                            .help("name an array after each input, and labels `y` if there are any")
                    })
                };
                let is_input = |name: &&str| inputs.iter().any(|spec| spec.name == **name);
                let labels = LABELS.into_iter().filter(|name| !is_input(name)).find_map(of);
                Ok(Sorted { inputs: inputs.iter().map(find).collect::<Result<_>>()?, labels })
            }
        }
    }
}

/// Whether items are single samples: their labels are single numbers, or they lack the axis that counts samples. A single
/// item without labels is a batch.
fn are_samples(inputs: &[InputSpec], items: &[Sorted]) -> bool {
    if let Some(labels) = items[0].labels {
        return labels.shape().is_empty();
    }
    let in_front = usize::from(!values::stacks(inputs));
    let lacks = |(spec, array): (&InputSpec, &&Tensor)| array.shape().len() + 1 == spec.shape.len() + in_front;
    items.len() > 1 && inputs.iter().zip(&items[0].inputs).all(lacks)
}

/// The arrays of all items as one, along the axis that counts samples.
fn joined<'a>(name: &str, arrays: impl Iterator<Item = &'a Tensor>, singly: bool) -> Result<Stored> {
    let (mut parts, mut rows): (Vec<(usize, Tensor)>, usize) = (vec![], 0);
    for (i, array) in arrays.enumerate() {
        let differs = |what: String| {
            Error::data(format!("array `{name}` of item {i} (from 0) is {what}"))
                .help("all items need arrays of one type and of samples of one size")
        };
        let array = match singly {
            true => array.clone().reshaped([&[1], array.shape()].concat())?,
            false => array.clone(),
        };
        if let Some((_, first)) = parts.first() {
            if first.dtype() != array.dtype() {
                return Err(differs(format!("{}, that of the first {}", array.dtype(), first.dtype())));
            }
            if first.shape().get(1..) != array.shape().get(1..) {
                return Err(differs(format!("{:?}, that of the first {:?}", array.shape(), first.shape())));
            }
        }
        let count = array.shape().first().copied().unwrap_or(1);
        if count > 0 {
            parts.push((rows, array));
        }
        rows += count;
    }
    let Some((_, first)) = parts.first() else {
        return Err(Error::data(format!("array `{name}` has no samples")));
    };
    let (dtype, mut shape) = (first.dtype(), first.shape().to_vec());
    if let Some(front) = shape.first_mut() {
        *front = rows;
    }
    Ok(Stored { place: Place::Memory(parts), dtype, shape })
}
