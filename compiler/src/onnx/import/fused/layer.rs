//! FusedConv, FusedGemm and FusedMatMul: layers, and what was computed before or behind them.

use super::listing::{Listing, float, ints};
use onnx_protobuf::AttributeProto;

/// Attributes that FusedConv has from Conv.
const CONV: [&str; 6] = ["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"];

/// Attributes that FusedGemm has from Gemm.
const GEMM: [&str; 4] = ["alpha", "beta", "transA", "transB"];

/// The attributes of a node but its `own`, if they are among `others`.
fn without(list: &Listing, own: &[&str], others: &[&str]) -> Option<Vec<AttributeProto>> {
    let attributes = list.node.attribute.iter().filter(|a| !own.contains(&&a.name[..]));
    attributes.map(|a| others.contains(&&a.name[..]).then(|| a.clone())).collect()
}

/// `activation(conv(X, W) + B + Z)`. Inputs: X, W, B, Z; the last two optional.
pub(super) fn conv(list: &mut Listing) -> Option<()> {
    list.fits(4, 1)?;
    let mut r = list.reader()?;
    let of_conv = without(list, &["activation", "activation_params"], &CONV)?;
    let activation = r.string("activation", "").ok()?;
    let parameters = r.opt_floats("activation_params").ok()?.unwrap_or_default();

    let mut inputs = vec![list.given(0)?, list.given(1)?];
    inputs.extend(list.given(2));
    let mut y = list.with("Conv", &inputs, of_conv);
    list.keeps_name();
    if let Some(z) = list.given(3) {
        y = list.op("Add", &[&y, z]);
    }
    y = match (&activation[..], &parameters[..]) {
        ("", _) => y,
        ("Relu" | "Tanh" | "Sigmoid" | "HardSwish", _) => list.op(&activation, &[&y]),
        ("LeakyRelu", &[alpha]) => list.with("LeakyRelu", &[&y], vec![float("alpha", alpha)]),
        ("HardSigmoid", &[alpha, beta]) => {
            list.with("HardSigmoid", &[&y], vec![float("alpha", alpha), float("beta", beta)])
        }
        ("Clip", &[low, high]) => {
            let dtype = list.float(0)?;
            let (low, high) = (list.number(dtype, low), list.number(dtype, high));
            list.op("Clip", &[&y, &low, &high])
        }
        _ => return None,
    };
    list.result(0, &y);
    Some(())
}

/// `activation(gemm(A, B, C))`. Inputs: A, B, C; the last optional.
pub(super) fn gemm(list: &mut Listing) -> Option<()> {
    list.fits(3, 1)?;
    let mut r = list.reader()?;
    let own = ["activation", "activation_alpha", "activation_beta", "activation_gamma"];
    let of_gemm = without(list, &own, &GEMM)?;
    let activation = r.string("activation", "").ok()?;
    let parameters: &[&str] = match &activation[..] {
        "Relu" | "Tanh" | "Sigmoid" | "Softplus" | "Softsign" => &[],
        "LeakyRelu" | "Elu" | "Celu" | "ThresholdedRelu" => &["alpha"],
        "HardSigmoid" => &["alpha", "beta"],
        "Selu" => &["alpha", "gamma"],
        _ => return None,
    };
    let parameter = |name: &&str| Some(float(name, r.opt_float(&format!("activation_{name}")).ok()??));
    let parameters = parameters.iter().map(parameter).collect::<Option<Vec<_>>>()?;

    let mut inputs = vec![list.given(0)?, list.given(1)?];
    inputs.extend(list.given(2));
    let product = list.with("Gemm", &inputs, of_gemm);
    list.keeps_name();
    let y = list.with(&activation, &[&product], parameters);
    list.result(0, &y);
    Some(())
}

/// `alpha * A' * B'`, where A' and B' are A and B, transposed if asked.
pub(super) fn matmul(list: &mut Listing) -> Option<()> {
    list.fits(2, 1)?;
    let mut r = list.reader()?;
    let alpha = r.float("alpha", 1.0).ok()?;
    let mut flag = |name| r.flag(name, false).ok();
    let (rows, columns) = ((flag("transA")?, flag("transBatchA")?), (flag("transB")?, flag("transBatchB")?));
    r.finish().ok()?;
    if (rows.1 || columns.1) && list.fact(0)?.rank()? != list.fact(1)?.rank()? {
        return None;
    }
    let a = operand(list, 0, rows)?;
    let b = operand(list, 1, columns)?;
    let mut y = list.op("MatMul", &[&a, &b]);
    list.keeps_name();
    if alpha != 1.0 {
        let dtype = list.float(0)?;
        let alpha = list.number(dtype, alpha);
        y = list.op("Mul", &[&y, &alpha]);
    }
    list.result(0, &y);
    Some(())
}

/// The matrices at `slot`, with rows and columns exchanged if `transposed`. If `first`, their rows lie along the first
/// axis, before those that number the matrices.
fn operand(list: &mut Listing, slot: usize, (transposed, first): (bool, bool)) -> Option<String> {
    let x = list.given(slot)?;
    if !transposed && !first {
        return Some(x.into());
    }
    let rank = list.fact(slot)?.rank()?;
    let mut perm: Vec<i64> = (0..rank as i64).collect();
    match rank {
        3.. if first => perm[..rank - 1].rotate_left(1),
        _ if first => return None,
        // A vector stays what it is.
        0 | 1 => return Some(x.into()),
        _ => {}
    }
    if transposed {
        perm.swap(rank - 2, rank - 1);
    }
    Some(list.with("Transpose", &[x], vec![ints("perm", &perm)]))
}
