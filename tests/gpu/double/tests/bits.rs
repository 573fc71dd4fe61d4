//! Logic, shifts, and fields of bits.

mod support;
use support::{check, check_both, refused, s};

const ALL32: u64 = 0xffff_ffff;
const ALL64: u64 = u64::MAX;

#[test]
fn logic() {
    for bits in [16, 32, 64] {
        check(&format!("and.b{bits} %d{bits}, %a{bits}, %b{bits}"), &[([0b1100, 0b1010], 0b1000), ([s(-1), 7], 7)]);
        check(&format!("or.b{bits} %d{bits}, %a{bits}, %b{bits}"), &[([0b1100, 0b1010], 0b1110), ([s(-1), 7], s(-1))]);
        check(&format!("xor.b{bits} %d{bits}, %a{bits}, %b{bits}"), &[([0b1100, 0b1010], 0b0110), ([s(-1), 7], s(-8))]);
        check(&format!("not.b{bits} %d{bits}, %a{bits}"), &[([0], s(-1)), ([0b1010], s(-11))]);
        check(&format!("cnot.b{bits} %d{bits}, %a{bits}"), &[([0], 1), ([0x100], 0), ([1 << (bits - 1)], 0)]);
    }
    check("and.pred %dp, %ap, %bp", &[([1, 1], 1), ([1, 0], 0), ([0, 1], 0), ([0, 0], 0)]);
    check("or.pred %dp, %ap, %bp", &[([1, 1], 1), ([1, 0], 1), ([0, 1], 1), ([0, 0], 0)]);
    check("xor.pred %dp, %ap, %bp", &[([1, 1], 0), ([1, 0], 1), ([0, 1], 1), ([0, 0], 0)]);
    check("not.pred %dp, %ap", &[([1], 0), ([0], 1)]);
    refused("and.f32 %d32, %a32, %b32", "F32");
    refused("or.s32 %d32, %a32, %b32", "S32");
    refused("not.u16 %d16, %a16", "U16");
}

#[test]
fn functions_of_three_bits() {
    // The table's index is a in the high bit, then b, then c.
    let (a, b, c) = (0xf0f0_aaaa, 0xcccc_ff00, 0x1234_5678);
    for (table, expected) in [
        (0x80, a & b & c),
        (0xfe, a | b | c),
        (0x96, a ^ b ^ c),
        (0xf0, a),
        (0xcc, b),
        (0xaa, c),
        (0xca, a & b | !a & c),
        (0xe8, a & b | a & c | b & c),
        (0x1a, (a & b | c) ^ a),
        (0x00, 0),
        (0xff, ALL32),
    ] {
        check(&format!("lop3.b32 %d32, %a32, %b32, %c32, {table}"), &[([a, b, c], expected)]);
    }
    refused("lop3.or.b32 %d32, %a32, %b32, %c32, 128", "or");
}

#[test]
fn shifts_past_the_end_leave_nothing() {
    for (bits, top) in [(16, 0x8000u64), (32, 1 << 31), (64, 1 << 63)] {
        let n = bits as u64;
        check(
            &format!("shl.b{bits} %d{bits}, %a{bits}, %b32"),
            &[([1, n - 1], top), ([3, n - 1], top), ([s(-1), n], 0), ([s(-1), ALL32], 0), ([5, 0], 5)],
        );
        for ty in ["u", "b"] {
            check(
                &format!("shr.{ty}{bits} %d{bits}, %a{bits}, %b32"),
                &[([top, n - 1], 1), ([s(-1), n], 0), ([s(-1), ALL32], 0), ([5, 0], 5), ([top, 1], top >> 1)],
            );
        }
        check(
            &format!("shr.s{bits} %d{bits}, %a{bits}, %b32"),
            &[([top, n - 1], s(-1)), ([top, n], s(-1)), ([top, ALL32], s(-1)), ([5, 1], 2), ([top >> 1, n], 0)],
        );
    }
}

#[test]
fn shifts_of_two_words() {
    let (low, high) = (0x89ab_cdef, 0x0123_4567);
    check(
        "shf.l.wrap.b32 %d32, %a32, %b32, %c32",
        &[
            ([low, high, 0], high),
            ([low, high, 8], 0x2345_6789),
            ([low, high, 32], high),
            ([low, high, 40], 0x2345_6789),
        ],
    );
    check(
        "shf.l.clamp.b32 %d32, %a32, %b32, %c32",
        &[([low, high, 8], 0x2345_6789), ([low, high, 32], low), ([low, high, 40], low), ([low, high, ALL32], low)],
    );
    check(
        "shf.r.wrap.b32 %d32, %a32, %b32, %c32",
        &[([low, high, 0], low), ([low, high, 8], 0x6789_abcd), ([low, high, 32], low), ([low, high, 40], 0x6789_abcd)],
    );
    check(
        "shf.r.clamp.b32 %d32, %a32, %b32, %c32",
        &[([low, high, 8], 0x6789_abcd), ([low, high, 32], high), ([low, high, 40], high), ([low, high, ALL32], high)],
    );
    refused("shf.l.b32 %d32, %a32, %b32, %c32", "long shift");
    refused("shf.wrap.b32 %d32, %a32, %b32, %c32", "direction");
}

#[test]
fn bytes_are_chosen() {
    let (a, b) = (0x8372_6150, 0xc7b6_a594);
    check(
        "prmt.b32 %d32, %a32, %b32, %c32",
        &[
            ([a, b, 0x3210], a),
            ([a, b, 0x7654], b),
            ([a, b, 0x0123], 0x5061_7283),
            ([a, b, 0x4051], 0x9450_a561),
            // With the high bit the byte's sign is repeated.
            ([a, b, 0x8b8c], 0x00ff_00ff),
        ],
    );
    // The modes choose by the two low bits of the third.
    for (mode, expected) in [
        ("f4e", [0x8372_6150, 0x9483_7261, 0xa594_8372, 0xb6a5_9483]),
        ("b4e", [0xa5b6_c750, 0xb6c7_5061, 0xc750_6172, 0x5061_7283]),
        ("rc8", [0x5050_5050, 0x6161_6161, 0x7272_7272, 0x8383_8383]),
        ("ecl", [0x8372_6150, 0x8372_6161, 0x8372_7272, 0x8383_8383]),
        ("ecr", [0x5050_5050, 0x6161_6150, 0x7272_6150, 0x8372_6150]),
        ("rc16", [0x6150_6150, 0x8372_8372, 0x6150_6150, 0x8372_8372]),
    ] {
        let rows: Vec<_> = (0..4).map(|i| ([a, b, i as u64 + 4], expected[i])).collect();
        check(&format!("prmt.b32.{mode} %d32, %a32, %b32, %c32"), &rows);
    }
    refused("prmt.b32.f5e %d32, %a32, %b32, %c32", "f5e");
}

#[test]
fn fields_are_taken_out() {
    check(
        "bfe.u32 %d32, %a32, %b32, %c32",
        &[
            ([0xabcd_ef12, 8, 8], 0xef),
            ([0xabcd_ef12, 28, 8], 0xa),
            ([0xabcd_ef12, 0, 0], 0),
            ([0xabcd_ef12, 32, 8], 0),
            ([0xabcd_ef12, 0, 255], 0xabcd_ef12),
            // Only a byte of each is read.
            ([0xabcd_ef12, 0x108, 0x108], 0xef),
        ],
    );
    check(
        "bfe.s32 %d32, %a32, %b32, %c32",
        &[
            ([0xabcd_ef12, 8, 8], s(-17)),
            ([0xabcd_6f12, 8, 8], 0x6f),
            // Behind the last bit the sign goes on.
            ([0xabcd_ef12, 28, 8], s(-6)),
            ([0x2bcd_ef12, 28, 8], 2),
            ([0xabcd_ef12, 40, 8], s(-1)),
            ([0xabcd_ef12, 0, 0], 0),
            ([0xabcd_ef12, 0, 32], 0xabcd_ef12),
            ([0xabcd_ef12, 0, 255], 0xabcd_ef12),
        ],
    );
    let v = 0x8123_4567_89ab_cdef;
    check(
        "bfe.u64 %d64, %a64, %b32, %c32",
        &[([v, 32, 16], 0x4567), ([v, 60, 8], 8), ([v, 64, 8], 0), ([v, 0, 64], v)],
    );
    check(
        "bfe.s64 %d64, %a64, %b32, %c32",
        &[([v, 0, 16], s(-0x3211)), ([v, 60, 8], s(-8)), ([v, 200, 8], s(-1)), ([v, 0, 255], v), ([v, 0, 64], v)],
    );
    refused("bfe.b32 %d32, %a32, %b32, %c32", "B32");
}

#[test]
fn fields_are_put_in() {
    check(
        "bfi.b32 %d32, %a32, %b32, %c32, %e32",
        &[
            ([0xab, 0x1111_1111, 8, 8], 0x1111_ab11),
            ([0xfab, 0, 8, 8], 0xab00),
            ([0xff, 0, 28, 8], 0xf000_0000),
            ([0xff, 0x1234, 0, 0], 0x1234),
            ([0xff, 0x1234, 32, 8], 0x1234),
            ([0xff, 0x1234, 255, 255], 0x1234),
            ([0xabcd_ef12, 0x1234, 0, 255], 0xabcd_ef12),
        ],
    );
    check(
        "bfi.b64 %d64, %a64, %b64, %c32, %e32",
        &[
            ([0xab, ALL64, 32, 8], 0xffff_ffab_ffff_ffff),
            ([5, 0, 0, 64], 5),
            ([5, 9, 64, 64], 9),
            ([ALL64, 0, 63, 2], 1 << 63),
            ([ALL64, 0, 1, 255], ALL64 - 1),
        ],
    );
}

#[test]
fn bits_are_counted_and_found() {
    check("brev.b32 %d32, %a32", &[([1], 1 << 31), ([0x1234_5678], 0x1e6a_2c48)]);
    check("brev.b64 %d64, %a64", &[([1], 1 << 63), ([0x1234_5678], 0x1e6a_2c48_0000_0000)]);
    check("popc.b32 %d32, %a32", &[([0], 0), ([ALL32], 32), ([0x8000_0001], 2)]);
    check("popc.b64 %d32, %a64", &[([0], 0), ([ALL64], 64), ([1 << 40 | 1], 2)]);
    check("clz.b32 %d32, %a32", &[([0], 32), ([1], 31), ([ALL32], 0), ([0x8000], 16)]);
    check("clz.b64 %d32, %a64", &[([0], 64), ([1], 63), ([ALL64], 0), ([1 << 40], 23)]);
    check("bfind.u32 %d32, %a32", &[([0], ALL32), ([1], 0), ([0x8000_0000], 31), ([0x300], 9)]);
    check("bfind.s32 %d32, %a32", &[([0], ALL32), ([s(-1)], ALL32), ([0x300], 9), ([s(-2)], 0), ([s(-0x301)], 9)]);
    check("bfind.u64 %d32, %a64", &[([0], ALL32), ([1 << 40], 40)]);
    check("bfind.s64 %d32, %a64", &[([s(-1)], ALL32), ([s(-(1 << 40) - 1)], 40)]);
    check("bfind.shiftamt.u32 %d32, %a32", &[([0], ALL32), ([1], 31), ([0x8000_0000], 0)]);
    check("bfind.shiftamt.s32 %d32, %a32", &[([s(-1)], ALL32), ([s(-2)], 31), ([0x4000_0000], 1)]);
    check("bfind.shiftamt.u64 %d32, %a64", &[([1], 63), ([1 << 40], 23)]);
    check("bfind.shiftamt.s64 %d32, %a64", &[([1], 63), ([ALL64], ALL32)]);
}

#[test]
fn values_move_between_registers() {
    check("mov.b16 %d16, %a16", &[([0xabcd], 0xabcd)]);
    check("mov.u32 %d32, %a32", &[([ALL32], ALL32)]);
    check("mov.f64 %d64, %a64", &[([ALL64], ALL64)]);
    check("mov.pred %dp, %ap", &[([1], 1), ([0], 0)]);
    check("mov.f32 %d32, 0f3F800000", &[([], 0x3f80_0000)]);
    check("mov.f64 %d64, 0d3FF0000000000000", &[([], 0x3ff0_0000_0000_0000)]);
    check("mov.b64 %d64, {%a32, %b32}", &[([1, 2], 0x2_0000_0001)]);
    check("mov.b32 %d32, {%a16, %b16}", &[([0x1111, 0x2222], 0x2222_1111)]);
    check("mov.b32 %d32, {%a8, %b8, %c8, %e8}", &[([1, 2, 3, 4], 0x0403_0201)]);
    check("mov.b64 %d64, {%a16, %b16, %c16, %e16}", &[([1, 2, 3, 4], 0x4_0003_0002_0001)]);
    check("mov.b16 %d16, {%a8, %b8}", &[([1, 2], 0x201)]);
    check_both("mov.b64 {%d32, %f32}, %a64", &[([0x2_0000_0001], (1, 2))]);
    check_both("mov.b32 {%d16, %f16}, %a32", &[([0x2222_1111], (0x1111, 0x2222))]);
    check_both("mov.b32 {_, %d16}, %a32", &[([0x2222_1111], (0x2222, 0))]);
    check_both("mov.b32 {_, %d8, _, %f8}, %a32", &[([0x0403_0201], (2, 4))]);
    refused("mov.b128 %d64, {%a64, %b64}", "B128");
    refused("mov.b32.x %d32, %a32", "x");
}
