//! Tensors put into larger ones: padding, and the gradient of slices.

use super::copy::written;
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// What of an axis is filled: `count` entries, from `start` on, every `step`th.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Entries of the axis.
    pub size: usize,
    /// The first that is filled.
    pub start: usize,
    /// From one that is filled to the next, at least 1.
    pub step: usize,
}

/// A tensor whose elements lie anywhere in `data`: by axis, how many entries and how far each is from the one before.
#[derive(Debug, Clone, Copy)]
pub struct Picked<'a> {
    /// Where they lie.
    pub data: &'a [f32],
    /// Where the first lies.
    pub first: usize,
    /// (entries, distance) of each axis.
    pub axes: &'a [(usize, isize)],
}

/// An axis of both tensors.
#[derive(Clone, Copy)]
struct Axis {
    count: usize,
    distance: isize,
    span: Span,
    /// Elements of an entry of the larger tensor.
    inner: usize,
}

/// The tensor whose axes are `spans`, with the elements of `x` there and `fill` elsewhere.
///
/// # Panics
/// When `x` does not fit the spans, or reaches beyond its data.
pub fn place(x: Picked, spans: &[Span], fill: f32) -> Vec<f32> {
    assert_eq!(x.axes.len(), spans.len(), "axes of both tensors");
    let mut axes: Vec<Axis> = vec![];
    let mut inner = 1;
    for (&(count, distance), &span) in x.axes.iter().zip(spans).rev() {
        let fits = span.step > 0 && (count == 0 || span.start + (count - 1) * span.step < span.size);
        assert!(fits, "{count} entries do not fit {span:?}");
        axes.push(Axis { count, distance, span, inner });
        inner *= span.size;
    }
    if inner == 0 || x.axes.iter().any(|(count, _)| *count == 0) {
        return vec![fill; inner];
    }
    let ends = |far: fn(isize, isize) -> isize| {
        let reach = |&(count, distance): &(usize, isize)| far(distance * (count as isize - 1), 0);
        x.first as isize + x.axes.iter().map(reach).sum::<isize>()
    };
    assert!(ends(isize::min) >= 0 && ends(isize::max) < x.data.len() as isize, "elements beyond the data");
    axes.reverse();
    let Some((first, rest)) = joined(&axes).split_first().map(|(first, rest)| (*first, rest.to_vec())) else {
        return vec![x.data[x.first]];
    };
    let fill_all = |to: &mut [MaybeUninit<f32>]| {
        to.par_chunks_exact_mut(first.inner).enumerate().for_each(|(i, to)| match first.source(i, x.first) {
            Some(from) => place_in(x.data, from, &rest, to, fill),
            None => to.fill(MaybeUninit::new(fill)),
        });
    };
    // SAFETY: all entries of the first axis are written.
    unsafe { written(inner, fill_all) }
}

impl Axis {
    /// Where what entry `i` of the larger tensor holds begins, if the smaller one, which begins at `from`, has it.
    fn source(&self, i: usize, from: usize) -> Option<usize> {
        let at = i.checked_sub(self.span.start)?;
        let entry = at / self.span.step;
        let hit = at.is_multiple_of(self.span.step) && entry < self.count;
        hit.then(|| from.wrapping_add_signed(entry as isize * self.distance))
    }
}

/// The axes, with those that are filled whole a part of the one before. The first stays, as threads divide it.
fn joined(axes: &[Axis]) -> Vec<Axis> {
    let mut out: Vec<Axis> = vec![];
    for &axis in axes {
        let whole = axis.count == axis.span.size;
        match out[..] {
            [_, .., ref mut last]
                if whole && last.span.step == 1 && last.distance == axis.count as isize * axis.distance =>
            {
                let Span { size, start, step } = last.span;
                let span = Span { size: size * axis.count, start: start * axis.count, step };
                *last = Axis { count: last.count * axis.count, distance: axis.distance, span, inner: axis.inner };
            }
            _ => out.push(axis),
        }
    }
    out
}

/// Writes all of `to`.
fn place_in(data: &[f32], from: usize, axes: &[Axis], to: &mut [MaybeUninit<f32>], fill: f32) {
    let Some((axis, rest)) = axes.split_first() else {
        return to.fill(MaybeUninit::new(data[from]));
    };
    let Axis { count, distance, span: Span { start, step, .. }, inner } = *axis;
    let blank = MaybeUninit::new(fill);
    if let ([], 1, 1) = (rest, distance, step) {
        to[..start].fill(blank);
        to[start..][..count].iter_mut().zip(&data[from..][..count]).for_each(|(to, x)| _ = to.write(*x));
        to[start + count..].fill(blank);
    } else if rest.is_empty() {
        to.fill(blank);
        for (i, to) in to[start..].iter_mut().step_by(step).take(count).enumerate() {
            to.write(data[from.wrapping_add_signed(i as isize * distance)]);
        }
    } else {
        for (i, to) in to.chunks_exact_mut(inner).enumerate() {
            match axis.source(i, from) {
                Some(from) => place_in(data, from, rest, to, fill),
                None => to.fill(blank),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn axis() -> impl Strategy<Value = (usize, isize, Span)> {
        (0usize..=5, 1usize..=3, 0usize..=3, 0usize..=4, -2isize..=7).prop_map(|(count, step, start, end, distance)| {
            let size = start + count.saturating_sub(1) * step + usize::from(count > 0) + end * usize::from(start > 0);
            (count, distance, Span { size, start, step })
        })
    }

    proptest! {
        #[test]
        fn every_element_is_where_it_belongs(list in prop::collection::vec(axis(), 0..=4)) {
            let axes: Vec<(usize, isize)> = list.iter().map(|a| (a.0, a.1)).collect();
            let spans: Vec<Span> = list.iter().map(|a| a.2).collect();
            let data: Vec<f32> = (0..400).map(|i| i as f32).collect();
            let got = place(Picked { data: &data, first: 150, axes: &axes }, &spans, -1.0);
            let mut expected = vec![(150isize, true)];
            for (count, distance, span) in list {
                expected = (expected.iter())
                    .flat_map(|&(at, inside)| (0..span.size).map(move |i| {
                        let entry = (0..count).find(|e| span.start + e * span.step == i);
                        (at + entry.unwrap_or(0) as isize * distance, inside && entry.is_some())
                    }))
                    .collect();
            }
            let expected: Vec<f32> =
                expected.iter().map(|&(at, inside)| if inside { at as f32 } else { -1.0 }).collect();
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn axes_that_are_filled_whole_are_one() {
        let x: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let whole = |size| Span { size, start: 0, step: 1 };
        let picked = Picked { data: &x, first: 0, axes: &[(2, 6), (1, 6), (3, 2), (2, 1)] };
        let got = place(picked, &[whole(2), Span { size: 3, start: 1, step: 1 }, whole(3), whole(2)], 9.0);
        let expected: Vec<f32> = x.chunks(6).flat_map(|x| [&[9.0; 6], x, &[9.0; 6]].concat()).collect();
        assert_eq!(got, expected);
    }
}
