//! Rotary embeddings, which ONNX Runtime had before ONNX: the places come before the angles.

use super::{
    length,
    listing::{Listing, int},
    range,
};
use crate::value::Dim;

/// Pairs of features turned by the angles of their places. Inputs: X, the places of all, or the first alone, cosines, sines.
pub(super) fn embedding(list: &mut Listing) -> Option<()> {
    list.fits(4, 1)?;
    let mut r = list.reader()?;
    let (mut heads, turned) = (r.int("num_heads", 0).ok()?, r.int("rotary_embedding_dim", 0).ok()?);
    let interleaved = r.flag("interleaved", false).ok()?;
    let (packed, scale) = (r.flag("is_packed_batching", false).ok()?, r.float("scale", 1.0).ok()?);
    r.finish().ok()?;
    let (x, places, cos, sin) = (list.given(0)?, list.given(1)?, list.given(2)?, list.given(3)?);
    let (Some([_, Dim::Known(pairs)]), false) = (list.dims(2), packed || scale != 1.0) else { return None };
    let rows = match (list.dims(0)?, heads) {
        ([_, _, _, _], _) => 2,
        // The kernel heeds the number of heads where some of their features alone are turned.
        ([_, _, Dim::Known(features)], _) if turned == 0 => {
            let size = pairs.checked_mul(2).filter(|size| *size > 0 && features % size == 0)?;
            heads = features / size;
            1
        }
        ([_, _, _], 1..) => 1,
        _ => return None,
    };
    let places = match list.dims(1)? {
        [_, _] => places.to_owned(),
        // Of all samples, behind the first.
        [Dim::Known(1)] => {
            let end = length(list, x, rows);
            let behind = range(list, &end);
            let places = list.op("Add", &[&behind, places]);
            let batch = length(list, x, 0);
            let axis = list.ints(&[0]);
            let sizes = [&batch, &end].map(|size| list.op("Unsqueeze", &[size, &axis]));
            let shape = list.with("Concat", &[&sizes[0], &sizes[1]], vec![int("axis", 0)]);
            list.op("Expand", &[&places, &shape])
        }
        _ => return None,
    };
    let attributes =
        vec![int("interleaved", interleaved.into()), int("num_heads", heads), int("rotary_embedding_dim", turned)];
    let y = list.with("RotaryEmbedding", &[x, cos, sin, &places], attributes);
    list.keeps_name();
    list.result(0, &y);
    Some(())
}
