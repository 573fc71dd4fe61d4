//! Gelu, BiasGelu, FastGelu and QuickGelu.

use super::listing::{Listing, text};

/// GELU as it is defined.
pub(super) fn gelu(list: &mut Listing) -> Option<()> {
    list.fits(1, 1)?;
    biased(list, None, "none")
}

/// GELU of a sum.
pub(super) fn bias_gelu(list: &mut Listing) -> Option<()> {
    list.fits(2, 1)?;
    let bias = list.given(1)?;
    biased(list, Some(bias), "none")
}

/// The tanh approximation, of a sum if there is a second input.
pub(super) fn fast_gelu(list: &mut Listing) -> Option<()> {
    list.fits(2, 1)?;
    let bias = list.given(1);
    biased(list, bias, "tanh")
}

fn biased(list: &mut Listing, bias: Option<&str>, approximate: &str) -> Option<()> {
    list.reader()?.finish().ok()?;
    let x = list.given(0)?;
    let y = match bias {
        Some(bias) => {
            let sum = list.op("Add", &[x, bias]);
            list.with("Gelu", &[&sum], vec![text("approximate", approximate)])
        }
        None => list.with("Gelu", &[x], vec![text("approximate", approximate)]),
    };
    list.keeps_name();
    list.result(0, &y);
    Some(())
}

/// `x * sigmoid(alpha * x)`
pub(super) fn quick_gelu(list: &mut Listing) -> Option<()> {
    list.fits(1, 1)?;
    let mut r = list.reader()?;
    let alpha = r.float("alpha", 1.702).ok()?;
    r.finish().ok()?;
    let (x, dtype) = (list.given(0)?, list.float(0)?);
    let alpha = list.number(dtype, alpha);
    let product = list.op("Mul", &[x, &alpha]);
    let gate = list.op("Sigmoid", &[&product]);
    let y = list.op("Mul", &[x, &gate]);
    list.keeps_name();
    list.result(0, &y);
    Some(())
}
