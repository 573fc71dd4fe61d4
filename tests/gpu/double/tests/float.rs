//! Arithmetic of `f32` and `f64`.

mod support;
use support::{NAN, check, f, g, refused, results};

const ONE: u64 = 0x3f80_0000;
const MINUS: u64 = 0x8000_0000;
/// 2^-24, half of what lies between 1 and the next `f32`.
const HALF: u64 = 0x3380_0000;
const MAX: u64 = 0x7f7f_ffff;
const INF: u64 = 0x7f80_0000;
/// 2^-60.
const TINY: u64 = 0x2180_0000;

#[test]
fn sums_are_rounded_as_asked() {
    // In turn: 1 + half, its negation, the next one + half, and an exact zero.
    let rows = |expected: [u64; 4]| {
        let of = [[ONE, HALF], [ONE | MINUS, HALF | MINUS], [ONE + 1, HALF], [ONE, ONE | MINUS]];
        [0, 1, 2, 3].map(|i| (of[i], expected[i]))
    };
    let nearest = rows([ONE, ONE | MINUS, ONE + 2, 0]);
    check("add.f32 %d32, %a32, %b32", &nearest);
    check("add.rn.f32 %d32, %a32, %b32", &nearest);
    check("add.rz.f32 %d32, %a32, %b32", &rows([ONE, ONE | MINUS, ONE + 1, 0]));
    // Down, the sum of opposite numbers is -0.
    check("add.rm.f32 %d32, %a32, %b32", &rows([ONE, (ONE + 1) | MINUS, ONE + 1, MINUS]));
    check("add.rp.f32 %d32, %a32, %b32", &rows([ONE + 1, ONE | MINUS, ONE + 2, 0]));
    for rounding in ["rn", "rz", "rm", "rp"] {
        let rows = [
            ([INF, INF | MINUS], NAN),
            ([NAN, 0], NAN),
            ([INF, ONE], INF),
            ([0, 0], 0),
            ([MINUS, MINUS], MINUS),
            ([1, 2], 3),
        ];
        check(&format!("add.{rounding}.f32 %d32, %a32, %b32"), &rows);
        check(&format!("sub.{rounding}.f32 %d32, %a32, %b32"), &[([f(3.0), f(5.0)], f(-2.0)), ([INF, INF], NAN)]);
    }
    check(
        "sub.rm.f32 %d32, %a32, %b32",
        &[([ONE, ONE], MINUS), ([0, 0], MINUS), ([ONE | MINUS, TINY], (ONE + 1) | MINUS)],
    );
    check("sub.rn.f32 %d32, %a32, %b32", &[([ONE, ONE], 0), ([0, 0], 0), ([MINUS, 0], MINUS)]);
}

#[test]
fn products_are_rounded_as_asked() {
    // (1 + 2^-23)^2 = 1 + 2^-22 + 2^-46.
    let rows = |below: u64, above: u64| [([ONE + 1, ONE + 1], below), ([(ONE + 1) | MINUS, ONE + 1], above | MINUS)];
    check("mul.rn.f32 %d32, %a32, %b32", &rows(ONE + 2, ONE + 2));
    check("mul.rz.f32 %d32, %a32, %b32", &rows(ONE + 2, ONE + 2));
    check("mul.rp.f32 %d32, %a32, %b32", &rows(ONE + 3, ONE + 2));
    check("mul.rm.f32 %d32, %a32, %b32", &rows(ONE + 2, ONE + 3));
    // Too large.
    let rows = |up: u64, down: u64| [([MAX, f(2.0)], up), ([MAX, f(-2.0)], down | MINUS)];
    check("mul.rn.f32 %d32, %a32, %b32", &rows(INF, INF));
    check("mul.rz.f32 %d32, %a32, %b32", &rows(MAX, MAX));
    check("mul.rp.f32 %d32, %a32, %b32", &rows(INF, MAX));
    check("mul.rm.f32 %d32, %a32, %b32", &rows(MAX, INF));
    // Too small: 2^-149 times a quarter.
    check("mul.rn.f32 %d32, %a32, %b32", &[([1, f(0.25)], 0), ([1, f(-0.25)], MINUS), ([3, f(0.5)], 2)]);
    check("mul.rp.f32 %d32, %a32, %b32", &[([1, f(0.25)], 1), ([1, f(-0.25)], MINUS)]);
    check("mul.rm.f32 %d32, %a32, %b32", &[([1, f(0.25)], 0), ([1, f(-0.25)], MINUS | 1)]);
    check("mul.f32 %d32, %a32, %b32", &[([0, INF], NAN), ([f(-2.0), f(3.0)], f(-6.0)), ([MINUS, ONE], MINUS)]);
}

#[test]
fn products_and_sums_are_rounded_once() {
    // The product's last bit is all that the sum leaves: 2^-46.
    let exact = [([ONE + 1, ONE + 1, (ONE + 2) | MINUS], 0x2880_0000), ([f(2.0), f(3.0), f(4.0)], f(10.0))];
    for op in ["fma.rn", "fma.rz", "fma.rm", "fma.rp", "mad.rn", "mad.rz"] {
        check(&format!("{op}.f32 %d32, %a32, %b32, %c32"), &exact);
    }
    let rows = |a: u64, b: u64, c: u64| {
        [([ONE, ONE, TINY], a), ([ONE, ONE, TINY | MINUS], b), ([ONE, ONE | MINUS, TINY | MINUS], c | MINUS)]
    };
    check("fma.rn.f32 %d32, %a32, %b32, %c32", &rows(ONE, ONE, ONE));
    check("fma.rz.f32 %d32, %a32, %b32, %c32", &rows(ONE, ONE - 1, ONE));
    check("fma.rm.f32 %d32, %a32, %b32, %c32", &rows(ONE, ONE - 1, ONE + 1));
    check("fma.rp.f32 %d32, %a32, %b32, %c32", &rows(ONE + 1, ONE, ONE));
    check("fma.rm.f32 %d32, %a32, %b32, %c32", &[([ONE, ONE, ONE | MINUS], MINUS), ([0, ONE, 0], 0)]);
    check("fma.rn.f32 %d32, %a32, %b32, %c32", &[([INF, 0, ONE], NAN), ([INF, ONE, INF | MINUS], NAN)]);
    check(
        "fma.rn.sat.f32 %d32, %a32, %b32, %c32",
        &[([f(2.0), f(3.0), ONE], ONE), ([ONE, f(-1.0), f(0.5)], 0), ([NAN, 0, 0], 0)],
    );
    check("fma.rz.sat.f32 %d32, %a32, %b32, %c32", &[([f(2.0), f(3.0), ONE], ONE), ([ONE, f(0.25), f(0.5)], f(0.75))]);
    check(
        "fma.rn.f64 %d64, %a64, %b64, %c64",
        &[([g(1.0) + 1, g(1.0) + 1, (g(1.0) + 2) | 1 << 63], g(2f64.powi(-104)))],
    );
    refused("fma.rn.relu.f32 %d32, %a32, %b32, %c32", "relu");
}

#[test]
fn numbers_too_small_are_flushed_where_asked() {
    let normal = 0x0080_0000;
    for rounding in ["rn", "rz"] {
        check(
            &format!("add.{rounding}.ftz.f32 %d32, %a32, %b32"),
            &[
                ([1, 0], 0),
                ([MINUS | 1, MINUS], MINUS),
                ([normal | 0x40_0000, normal | MINUS], 0),
                ([normal, 0x7f_ffff], normal),
            ],
        );
        check(
            &format!("mul.{rounding}.ftz.f32 %d32, %a32, %b32"),
            &[
                ([normal, f(0.5)], 0),
                ([normal, f(-0.5)], MINUS),
                ([0x7f_ffff, f(4.0)], 0),
                ([normal, f(2.0)], normal * 2),
            ],
        );
        check(
            &format!("fma.{rounding}.ftz.f32 %d32, %a32, %b32, %c32"),
            &[([1, f(1e30), 0], 0), ([ONE, normal, 0x7f_ffff], normal), ([normal, f(0.5), MINUS], 0)],
        );
    }
    check("sub.ftz.f32 %d32, %a32, %b32", &[([1, 0], 0), ([normal, 1], normal)]);
    check("add.rn.f32 %d32, %a32, %b32", &[([normal | 0x40_0000, normal | MINUS], 0x40_0000)]);
    check("abs.ftz.f32 %d32, %a32", &[([MINUS | 1], 0), ([f(-2.0)], f(2.0))]);
    check("neg.ftz.f32 %d32, %a32", &[([1], MINUS), ([f(-2.0)], f(2.0))]);
    check("min.ftz.f32 %d32, %a32, %b32", &[([1, ONE], 0), ([MINUS | 1, ONE], MINUS)]);
    check("max.ftz.f32 %d32, %a32, %b32", &[([1, f(-1.0)], 0)]);
    check("rcp.approx.ftz.f32 %d32, %a32", &[([1], INF), ([MINUS | 1], INF | MINUS), ([f(1.6e38)], 0)]);
    check("sqrt.approx.ftz.f32 %d32, %a32", &[([1], 0), ([f(4.0)], f(2.0))]);
    check("ex2.approx.ftz.f32 %d32, %a32", &[([f(-130.0)], 0), ([f(-126.0)], normal)]);
    check("ex2.approx.f32 %d32, %a32", &[([f(-130.0)], 1 << 19)]);
    check("lg2.approx.ftz.f32 %d32, %a32", &[([1], INF | MINUS), ([f(0.25)], f(-2.0))]);
    check("lg2.approx.f32 %d32, %a32", &[([1], f(-149.0))]);
}

#[test]
fn results_are_kept_between_zero_and_one_where_asked() {
    for op in ["add.sat", "add.rn.sat", "add.rz.sat", "add.rp.ftz.sat"] {
        check(
            &format!("{op}.f32 %d32, %a32, %b32"),
            &[
                ([f(0.75), f(0.75)], ONE),
                ([f(-1.0), f(0.5)], 0),
                ([NAN, ONE], 0),
                ([f(0.25), f(0.5)], f(0.75)),
                ([INF, ONE], ONE),
            ],
        );
    }
    check("mul.sat.f32 %d32, %a32, %b32", &[([f(2.0), f(3.0)], ONE), ([f(0.5), f(0.5)], f(0.25)), ([0, INF], 0)]);
    check("sub.sat.f32 %d32, %a32, %b32", &[([f(2.0), f(0.5)], ONE), ([0, ONE], 0)]);
    refused("add.sat.f64 %d64, %a64, %b64", "f64");
}

#[test]
fn quotients_and_roots() {
    // A third lies between 3eaaaaaa and 3eaaaaab, nearer to the latter.
    let three = f(3.0);
    for (rounding, plus, minus) in [("rn", 0xb, 0xb), ("rz", 0xa, 0xa), ("rm", 0xa, 0xb), ("rp", 0xb, 0xa)] {
        let third = 0x3eaa_aaa0;
        check(
            &format!("div.{rounding}.f32 %d32, %a32, %b32"),
            &[([ONE, three], third | plus), ([ONE, three | MINUS], third | minus | MINUS)],
        );
        check(
            &format!("rcp.{rounding}.f32 %d32, %a32"),
            &[([three], third | plus), ([three | MINUS], third | minus | MINUS)],
        );
    }
    // The root of two lies between 3fb504f3 and 3fb504f4, nearer to the former.
    for (rounding, last) in [("rn", 3), ("rz", 3), ("rm", 3), ("rp", 4)] {
        check(
            &format!("sqrt.{rounding}.f32 %d32, %a32"),
            &[([f(2.0)], 0x3fb5_04f0 | last), ([f(9.0)], three), ([MINUS], MINUS)],
        );
    }
    for op in ["div.rn", "div.full", "div.approx", "div.full.ftz", "div.approx.ftz", "div.rn.ftz"] {
        check(
            &format!("{op}.f32 %d32, %a32, %b32"),
            &[([f(6.0), f(3.0)], f(2.0)), ([ONE, 0], INF), ([0, 0], NAN), ([ONE, INF], 0)],
        );
    }
    check("rcp.rn.f32 %d32, %a32", &[([0], INF), ([MINUS], INF | MINUS), ([INF], 0), ([NAN], NAN)]);
    check("sqrt.rn.f32 %d32, %a32", &[([f(-1.0)], NAN), ([INF], INF)]);
    check("rsqrt.approx.f32 %d32, %a32", &[([f(4.0)], f(0.5)), ([0], INF), ([f(-1.0)], NAN), ([INF], 0)]);
    check("div.rn.f64 %d64, %a64, %b64", &[([g(1.0), g(3.0)], 0x3fd5_5555_5555_5555)]);
    check("rcp.rn.f64 %d64, %a64", &[([g(3.0)], 0x3fd5_5555_5555_5555), ([g(-0.0)], g(f64::NEG_INFINITY))]);
    check("sqrt.rn.f64 %d64, %a64", &[([g(2.0)], 0x3ff6_a09e_667f_3bcd)]);
    check("rsqrt.approx.f64 %d64, %a64", &[([g(4.0)], g(0.5))]);
    // Gross: the low half of the result is zero.
    check("rsqrt.approx.ftz.f64 %d64, %a64", &[([g(4.0)], g(0.5)), ([1], 0x7ff0_0000_0000_0000)]);
    check("rcp.approx.ftz.f64 %d64, %a64", &[([g(3.0)], 0x3fd5_5555_0000_0000), ([g(-0.5)], g(-2.0))]);
}

#[test]
fn approximate_functions() {
    check(
        "ex2.approx.f32 %d32, %a32",
        &[([f(3.0)], f(8.0)), ([f(f32::NEG_INFINITY)], 0), ([f(200.0)], INF), ([NAN], NAN)],
    );
    check("lg2.approx.f32 %d32, %a32", &[([f(8.0)], f(3.0)), ([0], INF | MINUS), ([f(-1.0)], NAN)]);
    check("sin.approx.f32 %d32, %a32", &[([0], 0), ([MINUS], MINUS), ([INF], NAN)]);
    check("cos.approx.ftz.f32 %d32, %a32", &[([0], ONE), ([INF], NAN)]);
    check("tanh.approx.f32 %d32, %a32", &[([0], 0), ([INF], ONE), ([INF | MINUS], ONE | MINUS)]);
    // Near what the function is.
    for (op, x, y) in [
        ("ex2", 1.5, 2.828_427),
        ("lg2", 5.0, 2.321_928),
        ("sin", 1.0, 0.841_471),
        ("cos", 1.0, 0.540_302),
        ("tanh", 0.5, 0.462_117),
    ] {
        let got = f32::from_bits(results(&format!("{op}.approx.f32 %d32, %a32"), &[vec![f(x)]])[0].0 as u32);
        assert!((got - y).abs() < 1e-5, "{op}({x}) = {got}");
    }
    refused("ex2.f32 %d32, %a32", "ex2");
    refused("sin.full.f32 %d32, %a32", "sin");
    refused("add.approx.f32 %d32, %a32, %b32", "approx");
}

#[test]
fn doubles() {
    let (max, inf, one) = (g(f64::MAX), g(f64::INFINITY), g(1.0));
    let half = g(2f64.powi(-53));
    check("add.f64 %d64, %a64, %b64", &[([one, half], one), ([one + 1, half], one + 2), ([max, max], inf)]);
    check("add.rn.f64 %d64, %a64, %b64", &[([g(0.1), g(0.2)], 0x3fd3_3333_3333_3334)]);
    check("sub.rn.f64 %d64, %a64, %b64", &[([one, g(3.0)], g(-2.0)), ([one, one], 0)]);
    check("mul.rn.f64 %d64, %a64, %b64", &[([g(0.1), g(3.0)], 0x3fd3_3333_3333_3334)]);
    check("min.f64 %d64, %a64, %b64", &[([one, g(-1.0)], g(-1.0)), ([g(f64::NAN), one], one), ([0, 1 << 63], 1 << 63)]);
    check("max.f64 %d64, %a64, %b64", &[([one, g(-1.0)], one), ([one, g(f64::NAN)], one), ([1 << 63, 0], 0)]);
    check("abs.f64 %d64, %a64", &[([g(-2.5)], g(2.5))]);
    check("neg.f64 %d64, %a64", &[([g(-2.5)], g(2.5)), ([0], 1 << 63)]);
    refused("add.rz.f64 %d64, %a64, %b64", "rounding");
    refused("add.ftz.f64 %d64, %a64, %b64", "f64");
}

#[test]
fn the_smaller_the_larger_and_signs() {
    let rows = |small: u64, nan: u64, zero: u64| {
        [
            ([f(-2.0), ONE], small),
            ([ONE, f(-2.0)], small),
            ([NAN, ONE], nan),
            ([ONE, NAN], nan),
            ([NAN, NAN], NAN),
            ([0, MINUS], zero),
            ([MINUS, 0], zero),
        ]
    };
    check("min.f32 %d32, %a32, %b32", &rows(f(-2.0), ONE, MINUS));
    check("max.f32 %d32, %a32, %b32", &rows(ONE, ONE, 0));
    check("min.NaN.f32 %d32, %a32, %b32", &rows(f(-2.0), NAN, MINUS));
    check("max.NaN.f32 %d32, %a32, %b32", &rows(ONE, NAN, 0));
    check("max.ftz.NaN.f32 %d32, %a32, %b32", &[([1, f(-1.0)], 0), ([1, NAN], NAN)]);
    check("abs.f32 %d32, %a32", &[([f(-2.0)], f(2.0)), ([MINUS], 0), ([MINUS | 1], 1), ([INF | MINUS], INF)]);
    check("neg.f32 %d32, %a32", &[([f(-2.0)], f(2.0)), ([0], MINUS), ([1], MINUS | 1)]);
    // The sign of the first, and the rest of the second.
    check("copysign.f32 %d32, %a32, %b32", &[([f(-1.0), f(2.0)], f(-2.0)), ([0, f(-3.0)], f(3.0))]);
    check("copysign.f64 %d64, %a64, %b64", &[([g(-1.0), g(2.0)], g(-2.0))]);
    refused("add.NaN.f32 %d32, %a32, %b32", "NaN");
    refused("min.xorsign.abs.f32 %d32, %a32, %b32", "xorsign");
    refused("neg.rn.f32 %d32, %a32", "neg");
    refused("abs.sat.f32 %d32, %a32", "sat");
}

#[test]
fn kinds_of_numbers() {
    let of = [f(1.0), 0, MINUS, 1, INF | MINUS, NAN];
    for (test, expected) in [
        ("finite", [1, 1, 1, 1, 0, 0]),
        ("infinite", [0, 0, 0, 0, 1, 0]),
        ("number", [1, 1, 1, 1, 1, 0]),
        ("notanumber", [0, 0, 0, 0, 0, 1]),
        // Zeros are normal.
        ("normal", [1, 1, 1, 0, 0, 0]),
        ("subnormal", [0, 0, 0, 1, 0, 0]),
    ] {
        let rows: Vec<_> = of.iter().zip(expected).map(|(v, e)| ([*v], e)).collect();
        check(&format!("testp.{test}.f32 %dp, %a32"), &rows);
        let of = [g(1.0), 0, 1 << 63, 1, g(f64::NEG_INFINITY), g(f64::NAN)];
        let rows: Vec<_> = of.iter().zip(expected).map(|(v, e)| ([*v], e)).collect();
        check(&format!("testp.{test}.f64 %dp, %a64"), &rows);
    }
    refused("testp.zero.f32 %dp, %a32", "test of this kind");
}
