//! `cvt`: from each type to each.

mod support;
use support::{NAN, NAN16, check, f, g, refused, s};

const INTEGERS: &[(&str, u32, bool)] = &[
    ("u8", 8, false),
    ("s8", 8, true),
    ("u16", 16, false),
    ("s16", 16, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u64", 64, false),
    ("s64", 64, true),
];

/// The number that the low bits of `v` stand for.
fn number(v: u64, bits: u32, signed: bool) -> i128 {
    let v = i128::from(v) & ((1 << bits) - 1);
    if signed && v >> (bits - 1) == 1 { v - (1 << bits) } else { v }
}

const INPUTS: &[u64] = &[
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    1 << 63,
    u64::MAX,
];

#[test]
fn integers_of_all_sizes() {
    for (from, from_bits, from_signed) in INTEGERS {
        for (to, to_bits, to_signed) in INTEGERS {
            // A result fills a register that is larger than its type: with its sign, or with zeros.
            for width in [16, 32, 64].into_iter().filter(|w| w >= to_bits) {
                let (low, high) = match to_signed {
                    true => (-(1i128 << (to_bits - 1)), (1i128 << (to_bits - 1)) - 1),
                    false => (0, (1i128 << to_bits) - 1),
                };
                let rows = |f: &dyn Fn(i128) -> i128| {
                    let expected = |v: u64| f(number(v, *from_bits, *from_signed)) as u64;
                    INPUTS.iter().map(|v| ([*v], expected(*v))).collect::<Vec<_>>()
                };
                let cut = |v: i128| number(v as u64, *to_bits, *to_signed);
                check(&format!("cvt.{to}.{from} %d{width}, %a{from_bits}"), &rows(&cut));
                check(&format!("cvt.sat.{to}.{from} %d{width}, %a{from_bits}"), &rows(&|v| v.clamp(low, high)));
            }
        }
    }
    refused("cvt.rn.s32.s16 %d32, %a16", "rounding");
    refused("cvt.rni.s32.s16 %d32, %a16", "rounding");
    refused("cvt.relu.s32.s16 %d32, %a16", "relu");
    refused("cvt.ftz.s32.s16 %d32, %a16", "small");
}

#[test]
fn floats_are_rounded_to_integers() {
    // The results of 2.5, 3.5, -2.5, 0.5, -0.25.
    for (rounding, expected) in
        [("rni", [2, 4, -2, 0, 0]), ("rzi", [2, 3, -2, 0, 0]), ("rmi", [2, 3, -3, 0, -1]), ("rpi", [3, 4, -2, 1, 0])]
    {
        for (to, bits, signed) in INTEGERS {
            let width = bits.max(&16);
            let rows = |of: [u64; 5]| -> Vec<_> {
                let kept = |v: i64| if *signed { s(v) } else { s(v.max(0)) };
                of.into_iter().zip(expected).map(|(v, e)| ([v], kept(e))).collect()
            };
            let of = [2.5, 3.5, -2.5, 0.5, -0.25];
            check(&format!("cvt.{rounding}.{to}.f32 %d{width}, %a32"), &rows(of.map(|v| f(v as f32))));
            check(&format!("cvt.{rounding}.{to}.f64 %d{width}, %a64"), &rows(of.map(g)));
            check(&format!("cvt.{rounding}.{to}.f16 %d{width}, %a16"), &rows([0x4100, 0x4300, 0xc100, 0x3800, 0xb400]));
            check(
                &format!("cvt.{rounding}.{to}.bf16 %d{width}, %a16"),
                &rows([0x4020, 0x4060, 0xc020, 0x3f00, 0xbe80]),
            );
            check(&format!("cvt.{rounding}.sat.{to}.f32 %d{width}, %a32"), &rows(of.map(|v| f(v as f32))));
        }
    }
    // Numbers too small are zero where they are flushed.
    check("cvt.rpi.s32.f32 %d32, %a32", &[([1], 1)]);
    check("cvt.rpi.ftz.s32.f32 %d32, %a32", &[([1], 0)]);
    check("cvt.rmi.ftz.s32.f32 %d32, %a32", &[([0x8000_0001], 0)]);
    refused("cvt.s32.f32 %d32, %a32", "rounded");
    refused("cvt.rn.s32.f32 %d32, %a32", "rounding");
}

#[test]
fn floats_too_large_become_the_last_integer() {
    for (to, bits, signed) in INTEGERS {
        let (low, high) = match signed {
            true => (s(-1) << (bits - 1), (1u64 << (bits - 1)) - 1),
            false => (0, u64::MAX >> (64 - bits)),
        };
        let width = bits.max(&16);
        // What isn't a number is 0, but the high bit alone from `f64` and to 64 bits.
        let high_bit = |v: u64| if *signed { s(-1) << v } else { 1 << v };
        let nan = if *bits == 64 { 1 << 63 } else { 0 };
        check(
            &format!("cvt.rzi.{to}.f32 %d{width}, %a32"),
            &[
                ([f(1e30)], high),
                ([f(-1e30)], low),
                ([f(f32::INFINITY)], high),
                ([f(f32::NEG_INFINITY)], low),
                ([NAN], nan),
            ],
        );
        check(
            &format!("cvt.rni.{to}.f64 %d{width}, %a64"),
            &[([g(1e30)], high), ([g(f64::NEG_INFINITY)], low), ([g(f64::NAN)], high_bit(u64::from(bits - 1)))],
        );
        check(&format!("cvt.rni.{to}.f16 %d{width}, %a16"), &[([0x7c00], high), ([0xfc00], low), ([NAN16], nan)]);
        check(&format!("cvt.rni.{to}.bf16 %d{width}, %a16"), &[([0x7f80], high), ([0xff80], low), ([NAN16], nan)]);
    }
    // The first that is too large, and the last that isn't.
    check(
        "cvt.rzi.s8.f32 %d32, %a32",
        &[([f(127.9)], 127), ([f(128.0)], 127), ([f(-128.9)], s(-128)), ([f(-200.0)], s(-128))],
    );
    check("cvt.rzi.u8.f32 %d32, %a32", &[([f(255.9)], 255), ([f(300.0)], 255), ([f(-0.9)], 0), ([f(-3.0)], 0)]);
    check("cvt.rni.s32.f32 %d32, %a32", &[([f(2_147_483_648.0)], 0x7fff_ffff), ([f(2_147_483_520.0)], 0x7fff_ff80)]);
}

#[test]
fn integers_become_floats() {
    for (ty, bits, signed) in INTEGERS {
        let width = bits;
        let top = 1u64 << (bits - 1);
        let negative = |v: f64| if *signed { -v } else { v };
        let rn = if bits == &8 { "" } else { ".rn" };
        let power = 2f64.powi(*bits as i32 - 1);
        check(
            &format!("cvt.rn.f32.{ty} %d32, %a{width}"),
            &[([0], 0), ([100], f(100.0)), ([top], f(negative(power) as f32))],
        );
        check(&format!("cvt.rn.f64.{ty} %d64, %a{width}"), &[([0], 0), ([100], g(100.0)), ([top], g(negative(power)))]);
        check(&format!("cvt{rn}.f16.{ty} %d16, %a{width}"), &[([0], 0), ([100], 0x5640)]);
        check(&format!("cvt{rn}.bf16.{ty} %d16, %a{width}"), &[([0], 0), ([100], 0x42c8)]);
        if *signed {
            check(&format!("cvt.rn.f32.{ty} %d32, %a{width}"), &[([s(-3)], f(-3.0))]);
            check(&format!("cvt.rn.f16.{ty} %d16, %a{width}"), &[([s(-3)], 0xc200)]);
            check(&format!("cvt.rn.bf16.{ty} %d16, %a{width}"), &[([s(-3)], 0xc040)]);
        }
    }
    // 2^32 - 1, and -(2^31 - 1): 24 bits are kept.
    for (rounding, unsigned, signed) in [
        ("rn", 0x4f80_0000, 0xcf00_0000),
        ("rz", 0x4f7f_ffff, 0xceff_ffff),
        ("rm", 0x4f7f_ffff, 0xcf00_0000),
        ("rp", 0x4f80_0000, 0xceff_ffff),
    ] {
        check(
            &format!("cvt.{rounding}.f32.u32 %d32, %a32"),
            &[([0xffff_ffff], unsigned), ([1 << 24], f(16_777_216.0))],
        );
        check(&format!("cvt.{rounding}.f32.s32 %d32, %a32"), &[([0x8000_0001], signed)]);
    }
    for (rounding, large, odd) in
        [("rn", 0x5f80_0000, 0x5d80_0000), ("rz", 0x5f7f_ffff, 0x5d80_0000), ("rp", 0x5f80_0000, 0x5d80_0001)]
    {
        check(&format!("cvt.{rounding}.f32.u64 %d32, %a64"), &[([u64::MAX], large), ([(1 << 60) + 1], odd)]);
    }
    // 2^53 + 1 lies in the middle, 2^53 + 3 too.
    let power = 1 << 53;
    check(
        "cvt.rn.f64.s64 %d64, %a64",
        &[
            ([power + 1], g(power as f64)),
            ([power + 3], g((power + 4) as f64)),
            ([s(-(power as i64) - 1)], g(-(power as f64))),
        ],
    );
    check("cvt.rz.f64.u64 %d64, %a64", &[([power + 3], g((power + 2) as f64)), ([u64::MAX], 0x43ef_ffff_ffff_ffff)]);
    check(
        "cvt.rp.f64.s64 %d64, %a64",
        &[([power + 1], g((power + 2) as f64)), ([s(-(power as i64) - 3)], g(-((power + 2) as f64)))],
    );
    check(
        "cvt.rm.f64.s64 %d64, %a64",
        &[([power + 1], g(power as f64)), ([s(-(power as i64) - 3)], g(-((power + 4) as f64)))],
    );
    check("cvt.rn.f64.u64 %d64, %a64", &[([u64::MAX], 0x43f0_0000_0000_0000)]);
    // To 11 bits; 65520 is the first that becomes infinite.
    check(
        "cvt.rn.f16.s32 %d16, %a32",
        &[([2049], 0x6800), ([2051], 0x6802), ([65_519], 0x7bff), ([65_520], 0x7c00), ([s(-70_000)], 0xfc00)],
    );
    check("cvt.rz.f16.s32 %d16, %a32", &[([2051], 0x6801), ([70_000], 0x7bff), ([s(-2051)], 0xe801)]);
    check("cvt.rm.f16.s32 %d16, %a32", &[([2051], 0x6801), ([s(-2051)], 0xe802)]);
    check("cvt.rp.f16.u16 %d16, %a16", &[([2049], 0x6801)]);
    // To 8 bits: 2^60 + 2^52 lies in the middle, and one more doesn't.
    let middle = (1 << 60) + (1 << 52);
    check("cvt.rn.bf16.u64 %d16, %a64", &[([middle], 0x5d80), ([middle + 1], 0x5d81), ([middle - 1], 0x5d80)]);
    check("cvt.rn.f16.s64 %d16, %a64", &[([1 << 40], 0x7c00), ([2049], 0x6800)]);
    check("cvt.rn.sat.f32.s32 %d32, %a32", &[([5], f(1.0)), ([s(-5)], 0)]);
    refused("cvt.rni.f32.s32 %d32, %a32", "rounding");
}

#[test]
fn floats_become_smaller() {
    // 1 + 2^-11 lies in the middle of two `f16`.
    let middle = 0x3f80_1000;
    let m = 0x8000_0000;
    for (rounding, expected) in [
        ("rn", [0x3c00, 0x3c01, 0x3c02, 0xbc01, 0x7c00, 0xfc00, 0, 0x8000]),
        ("rz", [0x3c00, 0x3c00, 0x3c01, 0xbc00, 0x7bff, 0xfbff, 0, 0x8000]),
        ("rm", [0x3c00, 0x3c00, 0x3c01, 0xbc01, 0x7bff, 0xfc00, 0, 0x8001]),
        ("rp", [0x3c01, 0x3c01, 0x3c02, 0xbc00, 0x7c00, 0xfbff, 1, 0x8000]),
    ] {
        let of = [middle, middle + 1, middle + 0x2000, (middle + 1) | m, f(65_520.0), f(-65_520.0), f(1e-8), f(-1e-8)];
        let rows: Vec<_> = of.iter().zip(expected).map(|(v, e)| ([*v], e)).collect();
        check(&format!("cvt.{rounding}.f16.f32 %d16, %a32"), &rows);
        let rows: Vec<_> =
            of.iter().zip(expected).map(|(v, e)| ([g(f64::from(f32::from_bits(*v as u32)))], e)).collect();
        check(&format!("cvt.{rounding}.f16.f64 %d16, %a64"), &rows);
        check(
            &format!("cvt.{rounding}.f16.f32 %d16, %a32"),
            &[([f(f32::INFINITY)], 0x7c00), ([NAN], NAN16), ([f(1.5)], 0x3e00)],
        );
    }
    // What is behind the last bit of an `f32` decides too.
    let tie = 1.0 + 2f64.powi(-11);
    check("cvt.rn.f16.f64 %d16, %a64", &[([g(tie)], 0x3c00), ([g(tie) + 1], 0x3c01), ([g(tie) - 1], 0x3c00)]);
    for (rounding, expected) in [
        ("rn", [0x3f80, 0x3f81, 0x3f82, 0x7f80]),
        ("rz", [0x3f80, 0x3f80, 0x3f81, 0x7f7f]),
        ("rm", [0x3f80, 0x3f80, 0x3f81, 0x7f7f]),
        ("rp", [0x3f81, 0x3f81, 0x3f82, 0x7f80]),
    ] {
        let of = [0x3f80_8000, 0x3f80_8001, 0x3f81_8000, 0x7f7f_ffff];
        let rows: Vec<_> = of.iter().zip(expected).map(|(v, e)| ([*v], e)).collect();
        check(&format!("cvt.{rounding}.bf16.f32 %d16, %a32"), &rows);
    }
    check("cvt.rn.bf16.f32 %d16, %a32", &[([NAN], NAN16), ([f(f32::NEG_INFINITY)], 0xff80), ([1], 0), ([0x8001], 1)]);
    check(
        "cvt.rn.bf16.f16 %d16, %a16",
        &[([0x3c00], 0x3f80), ([0x3c04], 0x3f80), ([0x3c0c], 0x3f82), ([NAN16], NAN16)],
    );
    check("cvt.rn.f16.bf16 %d16, %a16", &[([0x3f81], 0x3c08), ([0x4780], 0x7c00)]);
    // A third, and what is too large or too small.
    let third = 0x3eaa_aaaa;
    for (rounding, plus, minus, large, small) in [
        ("rn", third + 1, third + 1, f(f32::INFINITY), 0),
        ("rz", third, third, f(f32::MAX), 0),
        ("rm", third, third + 1, f(f32::MAX), 0),
        ("rp", third + 1, third, f(f32::INFINITY), 1),
    ] {
        let rows = [
            ([g(1.0 / 3.0)], plus),
            ([g(-1.0 / 3.0)], minus | m),
            ([g(1e39)], large),
            ([g(1e-60)], small),
            ([g(f64::NAN)], NAN),
        ];
        check(&format!("cvt.{rounding}.f32.f64 %d32, %a64"), &rows);
    }
}

#[test]
fn floats_become_larger() {
    let m = 0x8000;
    check(
        "cvt.f32.f16 %d32, %a16",
        &[
            ([0x3c01], 0x3f80_2000),
            ([1], 0x3380_0000),
            ([m], 0x8000_0000),
            ([0x7c00], f(f32::INFINITY)),
            ([NAN16], NAN),
        ],
    );
    check(
        "cvt.f32.bf16 %d32, %a16",
        &[([0x3f81], 0x3f81_0000), ([1], 0x1_0000), ([0xff80], f(f32::NEG_INFINITY)), ([NAN16], NAN)],
    );
    check(
        "cvt.f64.f32 %d64, %a32",
        &[([f(0.1)], g(f64::from(0.1f32))), ([1], g(2f64.powi(-149))), ([0x8000_0000], 1 << 63)],
    );
    check("cvt.f64.f16 %d64, %a16", &[([0x3c01], g(1.0 + 2f64.powi(-10)))]);
    check("cvt.ftz.f64.f32 %d64, %a32", &[([1], 0), ([0x8000_0001], 1 << 63), ([f(2.0)], g(2.0))]);
    check("cvt.ftz.f32.f16 %d32, %a16", &[([1], 0x3380_0000)]);
    check("cvt.rn.ftz.f32.f64 %d32, %a64", &[([g(1e-40)], 0), ([g(-1e-40)], 0x8000_0000), ([g(2.0)], f(2.0))]);
    check("cvt.rn.f32.f64 %d32, %a64", &[([g(2f64.powi(-149))], 1)]);
    check("cvt.rp.ftz.f16.f32 %d16, %a32", &[([1], 0), ([0x0080_0000], 1)]);
    refused("cvt.ftz.f64.f16 %d64, %a16", "small");
}

#[test]
fn floats_lose_their_fraction() {
    for (rounding, expected) in [
        ("rni", [2.0, 4.0, -2.0, -0.0]),
        ("rzi", [2.0, 3.0, -2.0, -0.0]),
        ("rmi", [2.0, 3.0, -3.0, -1.0]),
        ("rpi", [3.0, 4.0, -2.0, -0.0]),
    ] {
        let of = [2.5, 3.5, -2.5, -0.25];
        let rows: Vec<_> = of.iter().zip(expected).map(|(v, e)| ([f(*v)], f(e))).collect();
        check(&format!("cvt.{rounding}.f32.f32 %d32, %a32"), &rows);
        let rows: Vec<_> = of.iter().zip(expected).map(|(v, e)| ([g(f64::from(*v))], g(f64::from(e)))).collect();
        check(&format!("cvt.{rounding}.f64.f64 %d64, %a64"), &rows);
    }
    check("cvt.rni.f32.f32 %d32, %a32", &[([f(1e30)], f(1e30)), ([NAN], NAN), ([f(f32::INFINITY)], f(f32::INFINITY))]);
    check("cvt.rmi.ftz.f32.f32 %d32, %a32", &[([0x8000_0001], 0x8000_0000)]);
    check("cvt.rni.f16.f16 %d16, %a16", &[([0x4100], 0x4000), ([0x4300], 0x4400)]);
    check("cvt.rzi.bf16.bf16 %d16, %a16", &[([0x4060], 0x4040)]);
    refused("cvt.rni.f32.f64 %d32, %a64", "rounding");
}

#[test]
fn floats_are_kept_in_range() {
    check("cvt.sat.f32.f32 %d32, %a32", &[([f(1.5)], f(1.0)), ([f(-1.0)], 0), ([NAN], 0), ([f(0.3)], f(0.3))]);
    check("cvt.ftz.sat.f32.f32 %d32, %a32", &[([1], 0)]);
    check("cvt.rn.sat.f16.f32 %d16, %a32", &[([f(1.5)], 0x3c00), ([f(-1.0)], 0), ([NAN], 0)]);
    check("cvt.sat.f64.f64 %d64, %a64", &[([g(1.5)], g(1.0)), ([g(0.3)], g(0.3))]);
    check("cvt.rn.relu.f16.f32 %d16, %a32", &[([f(1.5)], 0x3e00), ([f(-1.0)], 0), ([NAN], NAN16)]);
    check("cvt.rn.relu.bf16.f32 %d16, %a32", &[([f(1.5)], 0x3fc0), ([f(-1.0)], 0), ([NAN], NAN16)]);
    refused("cvt.relu.f32.f32 %d32, %a32", "relu");
    refused("cvt.rn.satfinite.f16.f32 %d16, %a32", "satfinite");
}

#[test]
fn two_floats_in_one_register() {
    // The first of them is the high one.
    let (a, b) = (f(1.0), 0x3f81_8000);
    check("cvt.rn.f16x2.f32 %d32, %a32, %b32", &[([a, f(-2.0)], 0x3c00_c000), ([NAN, f(65_520.0)], 0x7fff_7c00)]);
    check("cvt.rn.bf16x2.f32 %d32, %a32, %b32", &[([a, b], 0x3f80_3f82), ([b, NAN], 0x3f82_7fff)]);
    check("cvt.rz.bf16x2.f32 %d32, %a32, %b32", &[([a, b], 0x3f80_3f81)]);
    check("cvt.rz.f16x2.f32 %d32, %a32, %b32", &[([f(65_520.0), 0x3f80_1001], 0x7bff_3c00)]);
    check("cvt.rn.relu.f16x2.f32 %d32, %a32, %b32", &[([a, f(-2.0)], 0x3c00_0000), ([f(-1.0), NAN], NAN16)]);
    check("cvt.rn.relu.bf16x2.f32 %d32, %a32, %b32", &[([f(-1.0), a], 0x3f80)]);
    refused("cvt.rm.f16x2.f32 %d32, %a32, %b32", "conversion");
    refused("cvt.rn.sat.f16x2.f32 %d32, %a32, %b32", "conversion");
    refused("cvt.rn.ftz.f16x2.f32 %d32, %a32, %b32", "conversion");
    refused("cvt.rn.f16x2.f16 %d32, %a16, %b16", "conversion");
    refused("cvt.rn.satfinite.e4m3x2.f32 %d16, %a32, %b32", "no type");
}

#[test]
fn tf32_has_ten_bits_of_fraction() {
    let m = 0x8000_0000;
    check(
        "cvt.rna.tf32.f32 %d32, %a32",
        &[
            ([0x3f80_1000], 0x3f80_2000),
            ([0x3f80_0fff], 0x3f80_0000),
            ([0x3f80_3000], 0x3f80_4000),
            ([0x3f80_1000 | m], 0x3f80_2000 | m),
            ([0x7f7f_ffff], f(f32::INFINITY)),
            ([f(f32::INFINITY)], f(f32::INFINITY)),
            ([NAN], NAN),
        ],
    );
    check(
        "cvt.rn.tf32.f32 %d32, %a32",
        &[([0x3f80_1000], 0x3f80_0000), ([0x3f80_1001], 0x3f80_2000), ([0x3f80_3000], 0x3f80_4000), ([NAN], NAN)],
    );
    check(
        "cvt.rz.tf32.f32 %d32, %a32",
        &[([0x3f80_1fff], 0x3f80_0000), ([0x3f80_2000 | m], 0x3f80_2000 | m), ([NAN], NAN)],
    );
    refused("cvt.rm.tf32.f32 %d32, %a32", "rounding");
    refused("cvt.rna.f16.f32 %d16, %a32", "rounding");
    refused("cvt.rna.satfinite.tf32.f32 %d32, %a32", "satfinite");
}

#[test]
fn integers_are_packed() {
    // The first is behind the second; before both goes what the third had.
    check(
        "cvt.pack.sat.s8.s32.b32 %d32, %a32, %b32, %c32",
        &[([1, s(-2), 0x1111_2233], 0x2233_01fe), ([300, s(-300), 0], 0x7f80)],
    );
    check("cvt.pack.sat.u8.s32.b32 %d32, %a32, %b32, %c32", &[([300, s(-300), 0x1122], 0x1122_ff00)]);
    check("cvt.pack.sat.s16.s32 %d32, %a32, %b32", &[([1, s(-2)], 0x0001_fffe), ([70_000, s(-70_000)], 0x7fff_8000)]);
    check("cvt.pack.sat.u16.s32 %d32, %a32, %b32", &[([70_000, s(-1)], 0xffff_0000)]);
    refused("cvt.pack.sat.s4.s32.b32 %d32, %a32, %b32, %c32", "pack");
}
