//! Arithmetic of `f16` and `bf16`, one number or two in a register.

mod support;
use support::{NAN16, check, refused, results};

// `f16`: a sign, 5 bits of exponent (1.0 has 15), 10 of fraction.
const ONE: u64 = 0x3c00;
/// 2^-11, half of what lies between 1 and the next.
const HALF: u64 = 0x1000;
const MINUS: u64 = 0x8000;
const MAX: u64 = 0x7bff;
const INF: u64 = 0x7c00;

// `bf16`: 8 bits of exponent (1.0 has 127), 7 of fraction.
const B_ONE: u64 = 0x3f80;
const B_HALF: u64 = 0x3b80;
const B_INF: u64 = 0x7f80;

/// Checks rows for one number, and for two in one register: each row beside the one before it.
fn check_with_pairs<const N: usize>(op: &str, ty: &str, rows: &[([u64; N], u64)]) {
    let operands = ["%a", "%b", "%c"][..N].join("W, ");
    let instruction = |ty: &str, w: &str| format!("{op}.{ty} %d{w}, {operands}W").replace('W', w);
    check(&instruction(ty, "16"), rows);
    let pairs: Vec<([u64; N], u64)> = (0..rows.len())
        .map(|i| {
            let (low, high) = (rows[i], rows[(i + 1) % rows.len()]);
            (std::array::from_fn(|j| low.0[j] | high.0[j] << 16), low.1 | high.1 << 16)
        })
        .collect();
    check(&instruction(&format!("{ty}x2"), "32"), &pairs);
}

#[test]
fn sums_and_products_of_f16() {
    let rows = [
        ([ONE, HALF], ONE),
        ([ONE + 1, HALF], ONE + 2),
        ([ONE | MINUS, HALF | MINUS], ONE | MINUS),
        ([MAX, MAX], INF),
        ([INF, INF | MINUS], NAN16),
        ([NAN16, 0], NAN16),
        ([ONE, ONE | MINUS], 0),
        ([MINUS, MINUS], MINUS),
        // Numbers too small for a normal exponent are not flushed.
        ([1, 2], 3),
        ([0x0400, 0x8001], 0x03ff),
    ];
    for op in ["add", "add.rn"] {
        check_with_pairs(op, "f16", &rows);
    }
    check_with_pairs("sub", "f16", &[([ONE, 0x4000], ONE | MINUS), ([INF, INF], NAN16), ([ONE, HALF | MINUS], ONE)]);
    let rows = [
        // (1 + 2^-10)^2.
        ([ONE + 1, ONE + 1], ONE + 2),
        ([0x4000, 0xc200], 0xc600),
        ([MAX, 0x4000], INF),
        ([0x0400, 0x3800], 0x0200),
        // Ties of the smallest go to the even one.
        ([1, 0x3800], 0),
        ([3, 0x3800], 2),
        ([0, INF], NAN16),
        ([MINUS, ONE], MINUS),
    ];
    check_with_pairs("mul", "f16", &rows);
    check_with_pairs("mul.rn", "f16", &rows);
    let rows = [
        ([ONE, ONE], ONE),
        ([0x3800, 0x3400], 0x3a00),
        ([ONE | MINUS, 0x3800], 0),
        ([NAN16, ONE], 0),
        ([INF, ONE], ONE),
    ];
    check_with_pairs("add.sat", "f16", &rows);
    check_with_pairs("sub.rn.sat", "f16", &[([ONE, ONE | MINUS], ONE), ([0, ONE], 0)]);
    check_with_pairs("mul.sat", "f16", &[([0x4000, 0x4000], ONE), ([0x3800, 0x3800], 0x3400), ([0xc000, ONE], 0)]);
}

#[test]
fn products_and_sums_of_f16_are_rounded_once() {
    // Products that lie in the middle of two numbers: what is added decides, and if that is nothing the even one is taken.
    let (a, b, even) = (0x3c20, 0x3c10, 0x3c30);
    let (p, q, odd) = (0x3c01, 0x3e00, 0x3e01);
    let rows = [
        ([a, b, 0], even),
        ([a, b, 1], even + 1),
        ([a, b, MINUS | 1], even),
        ([p, q, 0], odd + 1),
        ([p, q, 1], odd + 1),
        ([p, q, MINUS | 1], odd),
        ([p | MINUS, q, 1], odd | MINUS),
        ([a | MINUS, b, MINUS | 1], (even + 1) | MINUS),
        ([0x4000, 0x4200, ONE], 0x4700),
        ([MAX, 0x4000, 0xfbff], MAX),
        ([INF, 0, ONE], NAN16),
        ([ONE | MINUS, 0x4000, ONE], ONE | MINUS),
    ];
    check_with_pairs("fma.rn", "f16", &rows);
    check_with_pairs(
        "fma.rn.relu",
        "f16",
        &[([ONE | MINUS, 0x4000, ONE], 0), ([ONE, ONE, ONE], 0x4000), ([NAN16, 0, 0], NAN16)],
    );
    check_with_pairs(
        "fma.rn.sat",
        "f16",
        &[([ONE | MINUS, 0x4000, ONE], 0), ([ONE, ONE, ONE], ONE), ([NAN16, 0, 0], 0)],
    );
}

#[test]
fn sums_and_products_of_bf16() {
    let rows = [
        ([B_ONE, B_HALF], B_ONE),
        ([B_ONE + 1, B_HALF], B_ONE + 2),
        ([0x7f7f, 0x7f7f], B_INF),
        ([B_INF, B_INF | MINUS], NAN16),
        ([1, 2], 3),
        ([0x4000, 0xc040], B_ONE | MINUS),
    ];
    check_with_pairs("add", "bf16", &rows);
    check_with_pairs("add.rn", "bf16", &rows);
    check_with_pairs("sub", "bf16", &[([B_ONE, 0x4000], B_ONE | MINUS), ([B_INF, B_INF], NAN16)]);
    check_with_pairs(
        "mul",
        "bf16",
        &[([B_ONE + 1, B_ONE + 1], B_ONE + 2), ([0x4000, 0xc040], 0xc0c0), ([3, 0x3f00], 2)],
    );
    let (a, b, even) = (0x3f90, 0x3f84, 0x3f94);
    let (p, q, odd) = (0x3f81, 0x3fc0, 0x3fc1);
    // The smallest `bf16` is 2^-133: far behind what an `f64` of the product holds.
    let rows = [
        ([a, b, 0], even),
        ([a, b, 1], even + 1),
        ([a, b, MINUS | 1], even),
        ([p, q, 0], odd + 1),
        ([p, q, 1], odd + 1),
        ([p, q, MINUS | 1], odd),
        ([B_ONE | MINUS, 0x4000, B_ONE], B_ONE | MINUS),
    ];
    check_with_pairs("fma.rn", "bf16", &rows);
    check_with_pairs(
        "fma.rn.relu",
        "bf16",
        &[([B_ONE | MINUS, 0x4000, B_ONE], 0), ([NAN16, 0, 0], NAN16), ([B_ONE, B_ONE, B_ONE], 0x4000)],
    );
}

#[test]
fn the_smaller_the_larger_and_signs() {
    for (ty, one, two) in [("f16", ONE, 0x4000), ("bf16", B_ONE, 0x4000)] {
        let rows = |low: u64, nan: u64, zero: u64| {
            [
                ([one, two | MINUS], low),
                ([two | MINUS, one], low),
                ([NAN16, one], nan),
                ([one, NAN16], nan),
                ([NAN16, NAN16], NAN16),
                ([0, MINUS], zero),
                ([MINUS, 0], zero),
            ]
        };
        check_with_pairs("min", ty, &rows(two | MINUS, one, MINUS));
        check_with_pairs("max", ty, &rows(one, one, 0));
        check_with_pairs("min.NaN", ty, &rows(two | MINUS, NAN16, MINUS));
        check_with_pairs("max.NaN", ty, &rows(one, NAN16, 0));
        check_with_pairs("neg", ty, &[([one], one | MINUS), ([MINUS], 0), ([two | MINUS], two)]);
        check_with_pairs("abs", ty, &[([one | MINUS], one), ([MINUS], 0), ([two], two)]);
    }
}

#[test]
fn approximate_functions() {
    check_with_pairs(
        "ex2.approx",
        "f16",
        &[([0x4000], 0x4400), ([0xfc00], 0), ([NAN16], NAN16), ([0x4c00], INF), ([0], ONE)],
    );
    check_with_pairs("ex2.approx.ftz", "bf16", &[([0x4000], 0x4080), ([0xff80], 0), ([0], B_ONE)]);
    check_with_pairs("tanh.approx", "f16", &[([0], 0), ([INF], ONE), ([INF | MINUS], ONE | MINUS)]);
    check_with_pairs("tanh.approx", "bf16", &[([0], 0), ([B_INF], B_ONE)]);
    // tanh(0.5) = 0.46212 is 1.84847 / 4, and 0.84847 * 1024 = 868.8: 0x365 above 0x3400.
    let got = results("tanh.approx.f16 %d16, %a16", &[vec![0x3800]])[0].0;
    assert!((0x3764..=0x3766).contains(&got), "{got:#x}");
}

#[test]
fn what_they_do_not_have() {
    refused("add.ftz.f16 %d16, %a16, %b16", "ftz");
    refused("add.ftz.bf16 %d16, %a16, %b16", "ftz");
    refused("add.rz.f16 %d16, %a16, %b16", "rz");
    refused("add.relu.f16 %d16, %a16, %b16", "relu");
    refused("min.sat.f16 %d16, %a16, %b16", "sat");
    refused("add.sat.bf16 %d16, %a16, %b16", "sat");
    refused("neg.rn.f16 %d16, %a16", "rn");
    refused("fma.rn.oob.f16 %d16, %a16, %b16, %c16", "oob");
    refused("div.f16 %d16, %a16, %b16", "F16");
    refused("ex2.f16 %d16, %a16", "ex2");
    refused("min.xorsign.abs.f16x2 %d32, %a32, %b32", "xorsign");
}
