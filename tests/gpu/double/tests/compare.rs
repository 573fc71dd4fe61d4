//! Comparisons, and choices by them.

mod support;
use support::{NAN, NAN16, check, check_both, f, g, refused, s};

/// The results for less, equal, greater, and what isn't a number.
type Holds = [u64; 4];

const ORDERED: &[(&str, Holds)] = &[
    ("eq", [0, 1, 0, 0]),
    ("ne", [1, 0, 1, 0]),
    ("lt", [1, 0, 0, 0]),
    ("le", [1, 1, 0, 0]),
    ("gt", [0, 0, 1, 0]),
    ("ge", [0, 1, 1, 0]),
];

const OF_FLOATS: &[(&str, Holds)] = &[
    ("equ", [0, 1, 0, 1]),
    ("neu", [1, 0, 1, 1]),
    ("ltu", [1, 0, 0, 1]),
    ("leu", [1, 1, 0, 1]),
    ("gtu", [0, 0, 1, 1]),
    ("geu", [0, 1, 1, 1]),
    ("num", [1, 1, 1, 0]),
    ("nan", [0, 0, 0, 1]),
];

#[test]
fn integers_are_compared_with_their_sign() {
    for (op, holds) in ORDERED {
        for bits in [16, 32, 64] {
            let rows = [([s(-2), 1], holds[0]), ([s(-2), s(-2)], holds[1]), ([1, s(-2)], holds[2])];
            check(&format!("setp.{op}.s{bits} %dp, %a{bits}, %b{bits}"), &rows);
            let rows = [([1, s(-2)], holds[0]), ([7, 7], holds[1]), ([s(-2), 1], holds[2])];
            check(&format!("setp.{op}.u{bits} %dp, %a{bits}, %b{bits}"), &rows);
        }
    }
    for (op, holds) in [("lo", [1, 0, 0]), ("ls", [1, 1, 0]), ("hi", [0, 0, 1]), ("hs", [0, 1, 1])] {
        for bits in [16, 32, 64] {
            let rows = [([1, s(-2)], holds[0]), ([7, 7], holds[1]), ([s(-2), 1], holds[2])];
            check(&format!("setp.{op}.u{bits} %dp, %a{bits}, %b{bits}"), &rows);
        }
        refused(&format!("setp.{op}.s32 %dp, %a32, %b32"), "S32");
        refused(&format!("setp.{op}.f32 %dp, %a32, %b32"), "F32");
    }
    for bits in [16, 32, 64] {
        check(&format!("setp.eq.b{bits} %dp, %a{bits}, %b{bits}"), &[([5, 5], 1), ([5, 6], 0)]);
        check(&format!("setp.ne.b{bits} %dp, %a{bits}, %b{bits}"), &[([5, 5], 0), ([5, 6], 1)]);
    }
    refused("setp.lt.b32 %dp, %a32, %b32", "B32");
    refused("setp.ltu.s32 %dp, %a32, %b32", "S32");
}

#[test]
fn floats_are_compared_also_with_what_is_not_a_number() {
    for (op, h) in ORDERED.iter().chain(OF_FLOATS) {
        let rows = |one: u64, two: u64, nan: u64, zeros: [u64; 2]| {
            [
                ([one, two], h[0]),
                ([two, two], h[1]),
                ([two, one], h[2]),
                ([nan, one], h[3]),
                ([one, nan], h[3]),
                ([nan, nan], h[3]),
                // -0 is 0.
                (zeros, h[1]),
            ]
        };
        check(&format!("setp.{op}.f32 %dp, %a32, %b32"), &rows(f(-2.0), f(1.5), NAN, [f(-0.0), 0]));
        check(&format!("setp.{op}.f64 %dp, %a64, %b64"), &rows(g(-2.0), g(1.5), g(f64::NAN), [g(-0.0), 0]));
        check(&format!("setp.{op}.f16 %dp, %a16, %b16"), &rows(0xc000, 0x3e00, NAN16, [0x8000, 0]));
        check(&format!("setp.{op}.bf16 %dp, %a16, %b16"), &rows(0xc000, 0x3fc0, NAN16, [0x8000, 0]));
    }
    check("setp.gt.f32 %dp, %a32, %b32", &[([f(f32::INFINITY), f(f32::MAX)], 1), ([1, 0], 1)]);
    // What is too small is zero.
    check("setp.gt.ftz.f32 %dp, %a32, %b32", &[([1, 0], 0), ([0x0080_0000, 0x007f_ffff], 1)]);
    check("setp.eq.ftz.f32 %dp, %a32, %b32", &[([1, 0x8000_0001], 1)]);
    refused("setp.eq.ftz.f64 %dp, %a64, %b64", "F64");
}

#[test]
fn a_comparison_has_two_results() {
    check_both("setp.lt.s32 %dp|%fp, %a32, %b32", &[([1, 2], (1, 0)), ([2, 1], (0, 1))]);
    // With one that isn't a number both `lt` and its negation are computed from the comparison.
    check_both("setp.lt.f32 %dp|%fp, %a32, %b32", &[([NAN, 0], (0, 1))]);
    // Joined: p is cmp op c, q is not cmp op c.
    let rows = |p: fn(bool, bool) -> bool| {
        [(1, 2, 0), (1, 2, 1), (2, 1, 0), (2, 1, 1)]
            .map(|(a, b, c)| ([a, b, c], (u64::from(p(a < b, c == 1)), u64::from(p(a >= b, c == 1)))))
    };
    check_both("setp.lt.and.s32 %dp|%fp, %a32, %b32, %cp", &rows(|a, b| a && b));
    check_both("setp.lt.or.s32 %dp|%fp, %a32, %b32, %cp", &rows(|a, b| a || b));
    check_both("setp.lt.xor.s32 %dp|%fp, %a32, %b32, %cp", &rows(|a, b| a ^ b));
    check_both("setp.lt.and.s32 %dp|%fp, %a32, %b32, !%cp", &rows(|a, b| a && !b));
    check_both("setp.lt.or.f32 _|%fp, %a32, %b32, %cp", &[([f(2.0), f(1.0), 0], (0, 1))]);
    check("setp.eq.and.u16 %dp, %a16, %b16, !%cp", &[([1, 1, 0], 1), ([1, 1, 1], 0)]);
    refused("setp.lt.nand.s32 %dp, %a32, %b32, %cp", "nand");
    refused("setp.s32 %dp, %a32, %b32", "comparison");
}

#[test]
fn pairs_of_halves_are_compared_each() {
    // p is of the low halves, q of the high ones.
    check_both(
        "setp.lt.f16x2 %dp|%fp, %a32, %b32",
        &[([0x4000_3c00, 0x3c00_4000], (1, 0)), ([0x3c00_7fff, 0x4000_4000], (0, 1))],
    );
    check_both("setp.neu.bf16x2 %dp|%fp, %a32, %b32", &[([0x4000_3f80, 0x4000_7fff], (1, 0))]);
    check(
        "set.gt.f16x2.f16x2 %d32, %a32, %b32",
        &[([0x4000_3c00, 0x3c00_4000], 0x3c00_0000), ([0x3c00_4000, 0x4000_3c00], 0x3c00)],
    );
    check("set.eq.u32.f16x2 %d32, %a32, %b32", &[([0x4000_3c00, 0x4000_4000], 0xffff_0000)]);
    check("set.eq.bf16x2.bf16x2 %d32, %a32, %b32", &[([0x4000_3f80, 0x4000_3f80], 0x3f80_3f80)]);
}

#[test]
fn a_comparison_sets_all_bits_or_one() {
    check("set.lt.u32.s32 %d32, %a32, %b32", &[([s(-1), 1], 0xffff_ffff), ([1, s(-1)], 0)]);
    check("set.lt.s32.u32 %d32, %a32, %b32", &[([s(-1), 1], 0), ([1, s(-1)], 0xffff_ffff)]);
    check("set.eq.f32.u16 %d32, %a16, %b16", &[([4, 4], f(1.0)), ([4, 5], 0)]);
    check("set.ge.f32.f64 %d32, %a64, %b64", &[([g(4.0), g(4.0)], f(1.0)), ([g(f64::NAN), g(4.0)], 0)]);
    check("set.neu.u32.f32 %d32, %a32, %b32", &[([NAN, NAN], 0xffff_ffff), ([f(1.0), f(1.0)], 0)]);
    check("set.gt.ftz.u32.f32 %d32, %a32, %b32", &[([1, 0], 0)]);
    check("set.gt.f16.f16 %d16, %a16, %b16", &[([0x4000, 0x3c00], 0x3c00), ([0x3c00, 0x4000], 0)]);
    check("set.lt.and.u32.s32 %d32, %a32, %b32, %cp", &[([1, 2, 1], 0xffff_ffff), ([1, 2, 0], 0)]);
    check("set.lt.xor.u32.s32 %d32, %a32, %b32, !%cp", &[([1, 2, 1], 0xffff_ffff), ([1, 2, 0], 0)]);
    check(
        "set.lt.and.u32.f16x2 %d32, %a32, %b32, %cp",
        &[([0, 0x4000_4000, 1], 0xffff_ffff), ([0, 0x4000_4000, 0], 0)],
    );
    refused("set.lt.b32.s32 %d32, %a32, %b32", "B32");
    refused("set.lt.f16x2.bf16x2 %d32, %a32, %b32", "F16x2");
}

#[test]
fn one_of_two_is_chosen() {
    for (ty, bits) in [("b16", 16), ("u16", 16), ("s16", 16), ("b32", 32), ("u32", 32), ("s32", 32), ("f32", 32)] {
        check(&format!("selp.{ty} %d{bits}, %a{bits}, %b{bits}, %cp"), &[([5, 6, 1], 5), ([5, 6, 0], 6)]);
    }
    for ty in ["b64", "u64", "s64", "f64"] {
        check(&format!("selp.{ty} %d64, %a64, %b64, %cp"), &[([1 << 40, 6, 1], 1 << 40), ([5, 1 << 41, 0], 1 << 41)]);
    }
    check("selp.u32 %d32, 1, 0, %ap", &[([1], 1), ([0], 0)]);
    check("selp.b32 %d32, %a32, %b32, !%cp", &[([5, 6, 1], 6)]);
    check("slct.b32.s32 %d32, %a32, %b32, %c32", &[([5, 6, 0], 5), ([5, 6, s(-1)], 6), ([5, 6, 7], 5)]);
    check("slct.f64.s32 %d64, %a64, %b64, %c32", &[([5, 6, 0], 5), ([5, 6, s(-1)], 6)]);
    // Of floats -0 is not less than 0, and what isn't a number chooses the second.
    let rows =
        [([5, 6, f(0.5)], 5), ([5, 6, f(-0.0)], 5), ([5, 6, f(-1.0)], 6), ([5, 6, NAN], 6), ([5, 6, 0x8000_0001], 6)];
    check("slct.u32.f32 %d32, %a32, %b32, %c32", &rows);
    check("slct.ftz.u32.f32 %d32, %a32, %b32, %c32", &[([5, 6, 0x8000_0001], 5)]);
    refused("slct.b32.u32 %d32, %a32, %b32, %c32", "choice by this type");
    refused("selp.b32.x %d32, %a32, %b32, %cp", "x");
}
