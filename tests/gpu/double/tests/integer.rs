//! Arithmetic of integers.

mod support;
use support::{check, refused, s};

const MIN32: u64 = 0x8000_0000;
const MAX32: u64 = 0x7fff_ffff;
const ALL32: u64 = 0xffff_ffff;
const MIN64: u64 = 1 << 63;
const ALL64: u64 = u64::MAX;

#[test]
fn sums_and_differences_wrap_around() {
    for ty in ["u16", "s16"] {
        check(&format!("add.{ty} %d16, %a16, %b16"), &[([0xffff, 2], 1), ([0x7fff, 1], 0x8000)]);
        check(&format!("sub.{ty} %d16, %a16, %b16"), &[([0, 1], 0xffff), ([0x8000, 1], 0x7fff)]);
    }
    for ty in ["u32", "s32"] {
        check(&format!("add.{ty} %d32, %a32, %b32"), &[([ALL32, 2], 1), ([MAX32, 1], MIN32)]);
        check(&format!("sub.{ty} %d32, %a32, %b32"), &[([0, 1], ALL32), ([MIN32, 1], MAX32)]);
    }
    for ty in ["u64", "s64"] {
        check(&format!("add.{ty} %d64, %a64, %b64"), &[([ALL64, 2], 1), ([ALL32, 1], 1 << 32)]);
        check(&format!("sub.{ty} %d64, %a64, %b64"), &[([0, 1], ALL64), ([1 << 32, 1], ALL32)]);
    }
}

#[test]
fn sums_saturate_where_asked() {
    check(
        "add.sat.s32 %d32, %a32, %b32",
        &[([MAX32, 1], MAX32), ([MIN32, ALL32], MIN32), ([5, s(-7)], s(-2)), ([MAX32, MIN32], ALL32)],
    );
    check(
        "sub.sat.s32 %d32, %a32, %b32",
        &[([MIN32, 1], MIN32), ([MAX32, ALL32], MAX32), ([0, MIN32], MAX32), ([5, 7], s(-2))],
    );
    refused("add.sat.u32 %d32, %a32, %b32", "saturation");
    refused("add.sat.s16 %d16, %a16, %b16", "saturation");
    refused("mul.lo.sat.s32 %d32, %a32, %b32", "saturation");
}

#[test]
fn products_have_a_low_and_a_high_half() {
    for ty in ["s16", "u16"] {
        check(&format!("mul.lo.{ty} %d16, %a16, %b16"), &[([0xffff, 3], s(-3)), ([0x1234, 0x100], 0x3400)]);
    }
    for ty in ["s32", "u32"] {
        check(&format!("mul.lo.{ty} %d32, %a32, %b32"), &[([ALL32, 3], s(-3)), ([0x1234_5678, 0x100], 0x3456_7800)]);
    }
    for ty in ["s64", "u64"] {
        check(&format!("mul.lo.{ty} %d64, %a64, %b64"), &[([ALL64, 3], s(-3)), ([1 << 40, (1 << 30) + 5], 5 << 40)]);
    }
    check(
        "mul.hi.s16 %d16, %a16, %b16",
        &[([0x7fff, 0x7fff], 0x3fff), ([0xffff, 1], 0xffff), ([0x8000, 0x8000], 0x4000)],
    );
    check("mul.hi.u16 %d16, %a16, %b16", &[([0xffff, 0xffff], 0xfffe), ([0xffff, 1], 0), ([0x8000, 0x8000], 0x4000)]);
    check(
        "mul.hi.s32 %d32, %a32, %b32",
        &[([ALL32, 1], ALL32), ([MIN32, MIN32], 0x4000_0000), ([1 << 20, 1 << 20], 256)],
    );
    check("mul.hi.u32 %d32, %a32, %b32", &[([ALL32, ALL32], 0xffff_fffe), ([ALL32, 1], 0), ([1 << 20, 1 << 20], 256)]);
    check(
        "mul.hi.s64 %d64, %a64, %b64",
        &[([ALL64, 1], ALL64), ([MIN64, MIN64], 1 << 62), ([1 << 40, 1 << 30], 1 << 6)],
    );
    check("mul.hi.u64 %d64, %a64, %b64", &[([ALL64, ALL64], ALL64 - 1), ([ALL64, 1], 0), ([ALL64, MIN64], MAX64)]);
}

const MAX64: u64 = i64::MAX as u64;

#[test]
fn wide_products_have_both() {
    check("mul.wide.s16 %d32, %a16, %b16", &[([s(-1), 2], s(-2)), ([0x8000, 0x8000], 1 << 30)]);
    check("mul.wide.u16 %d32, %a16, %b16", &[([0xffff, 0xffff], 0xfffe_0001), ([0x8000, 2], 0x1_0000)]);
    check("mul.wide.s32 %d64, %a32, %b32", &[([s(-1), 2], s(-2)), ([MIN32, MIN32], 1 << 62)]);
    check("mul.wide.u32 %d64, %a32, %b32", &[([ALL32, ALL32], 0xffff_fffe_0000_0001), ([MIN32, 2], 1 << 32)]);
    check("mul.wide.u32 %d64, %a32, 12", &[([ALL32], 0xb_ffff_fff4)]);
    check("mul.wide.s32 %d64, %a32, -4", &[([3], s(-12)), ([s(-3)], 12)]);
    check("mad.wide.s16 %d32, %a16, %b16, %c32", &[([s(-1), 2, 10], 8), ([3, 4, ALL32], 11)]);
    check(
        "mad.wide.u16 %d32, %a16, %b16, %c32",
        &[([0xffff, 0xffff, 1], 0xfffe_0002), ([0xffff, 0xffff, 0x1_ffff], 0)],
    );
    check("mad.wide.s32 %d64, %a32, %b32, %c64", &[([s(-1), 8, 1 << 40], (1 << 40) - 8), ([2, 3, ALL64], 5)]);
    check(
        "mad.wide.u32 %d64, %a32, %b32, %c64",
        &[([ALL32, ALL32, 2], 0xffff_fffe_0000_0003), ([ALL32, 1, ALL64], ALL32 - 1)],
    );
    refused("mul.wide.u64 %d64, %a64, %b64", "128 bits");
    refused("mul.s32 %d32, %a32, %b32", "part of the product");
}

#[test]
fn products_are_added_to() {
    for ty in ["s16", "u16"] {
        check(&format!("mad.lo.{ty} %d16, %a16, %b16, %c16"), &[([0xffff, 3, 5], 2), ([0x100, 0x100, 7], 7)]);
    }
    for ty in ["s32", "u32"] {
        check(&format!("mad.lo.{ty} %d32, %a32, %b32, %c32"), &[([ALL32, 3, 5], 2), ([0x1_0000, 0x1_0000, 7], 7)]);
    }
    for ty in ["s64", "u64"] {
        check(&format!("mad.lo.{ty} %d64, %a64, %b64, %c64"), &[([ALL64, 3, 5], 2), ([1 << 40, 1 << 40, 7], 7)]);
    }
    check("mad.hi.s16 %d16, %a16, %b16, %c16", &[([0x4000, 16, 1], 5), ([s(-1), 1, 0], 0xffff)]);
    check("mad.hi.u16 %d16, %a16, %b16, %c16", &[([0x4000, 16, 1], 5), ([0xffff, 2, 0xffff], 0)]);
    check("mad.hi.s32 %d32, %a32, %b32, %c32", &[([1 << 30, 16, 1], 5), ([ALL32, 1, 1], 0)]);
    check("mad.hi.u32 %d32, %a32, %b32, %c32", &[([1 << 30, 16, 1], 5), ([ALL32, ALL32, 2], 0)]);
    check("mad.hi.s64 %d64, %a64, %b64, %c64", &[([1 << 62, 16, 1], 5), ([ALL64, 1, 1], 0)]);
    check("mad.hi.u64 %d64, %a64, %b64, %c64", &[([ALL64, ALL64, 2], 0)]);
    refused("mad.hi.sat.s32 %d32, %a32, %b32, %c32", "saturation");
}

#[test]
fn products_of_24_bits() {
    // The high byte isn't read; with a sign, bit 23 is it.
    check("mul24.lo.u32 %d32, %a32, %b32", &[([0xab00_0002, 3], 6), ([0xff_ffff, 0xff_ffff], 0xfe00_0001)]);
    check("mul24.lo.s32 %d32, %a32, %b32", &[([0xff_ffff, 5], s(-5)), ([0x80_0000, 2], s(-(1 << 24)))]);
    check("mul24.hi.u32 %d32, %a32, %b32", &[([0xff_ffff, 0xff_ffff], 0xffff_fe00), ([0x10_0000, 0x10_0000], 1 << 24)]);
    check("mul24.hi.s32 %d32, %a32, %b32", &[([0xff_ffff, 5], ALL32), ([0x40_0000, 0x40_0000], 1 << 28)]);
    check("mad24.lo.u32 %d32, %a32, %b32, %c32", &[([0xab00_0002, 3, ALL32], 5)]);
    check("mad24.lo.s32 %d32, %a32, %b32, %c32", &[([0xff_ffff, 5, 6], 1)]);
    check("mad24.hi.s32 %d32, %a32, %b32, %c32", &[([0xff_ffff, 5, 6], 5)]);
    check("mad24.hi.u32 %d32, %a32, %b32, %c32", &[([0x10_0000, 0x10_0000, 6], (1 << 24) + 6)]);
}

#[test]
fn quotients_are_cut_towards_zero() {
    check("div.s16 %d16, %a16, %b16", &[([s(-7), 2], s(-3)), ([7, s(-2)], s(-3)), ([0x8000, 2], 0xc000)]);
    check("div.u16 %d16, %a16, %b16", &[([0xffff, 2], 0x7fff), ([7, 9], 0)]);
    check("div.s32 %d32, %a32, %b32", &[([s(-7), 2], s(-3)), ([s(-7), s(-2)], 3)]);
    check("div.u32 %d32, %a32, %b32", &[([ALL32, 2], MAX32), ([ALL32, ALL32], 1)]);
    check("div.s64 %d64, %a64, %b64", &[([s(-7), 2], s(-3)), ([MIN64, 2], 3 << 62)]);
    check("div.u64 %d64, %a64, %b64", &[([ALL64, 2], MAX64), ([1 << 40, 3], 366_503_875_925)]);
    check("rem.s16 %d16, %a16, %b16", &[([s(-7), 2], s(-1)), ([7, s(-2)], 1)]);
    check("rem.u16 %d16, %a16, %b16", &[([0xffff, 10], 5)]);
    check("rem.s32 %d32, %a32, %b32", &[([s(-7), 2], s(-1)), ([7, s(-4)], 3)]);
    check("rem.u32 %d32, %a32, %b32", &[([ALL32, 10], 5)]);
    check("rem.s64 %d64, %a64, %b64", &[([s(-7), 4], s(-3))]);
    check("rem.u64 %d64, %a64, %b64", &[([ALL64, 10], 5)]);
}

#[test]
fn signs_change() {
    for (ty, bits) in [("s16", 16), ("s32", 32), ("s64", 64)] {
        let min = 1 << (bits - 1);
        check(&format!("neg.{ty} %d{bits}, %a{bits}"), &[([5], s(-5)), ([s(-5)], 5), ([min], min), ([0], 0)]);
        check(&format!("abs.{ty} %d{bits}, %a{bits}"), &[([5], 5), ([s(-5)], 5), ([min], min), ([0], 0)]);
    }
}

#[test]
fn the_smaller_and_the_larger() {
    for bits in [16, 32, 64] {
        check(&format!("min.s{bits} %d{bits}, %a{bits}, %b{bits}"), &[([s(-1), 1], s(-1)), ([3, 2], 2)]);
        check(&format!("max.s{bits} %d{bits}, %a{bits}, %b{bits}"), &[([s(-1), 1], 1), ([3, 2], 3)]);
        check(&format!("min.u{bits} %d{bits}, %a{bits}, %b{bits}"), &[([s(-1), 1], 1), ([3, 2], 2)]);
        check(&format!("max.u{bits} %d{bits}, %a{bits}, %b{bits}"), &[([s(-1), 1], s(-1)), ([3, 2], 3)]);
    }
    refused("min.relu.s32 %d32, %a32, %b32", "relu");
}

#[test]
fn sums_of_differences() {
    for bits in [16, 32, 64] {
        check(
            &format!("sad.s{bits} %d{bits}, %a{bits}, %b{bits}, %c{bits}"),
            &[([s(-5), 5, 1], 11), ([5, s(-5), 1], 11), ([4, 4, s(-1)], s(-1))],
        );
        check(
            &format!("sad.u{bits} %d{bits}, %a{bits}, %b{bits}, %c{bits}"),
            &[([1, s(-1), 1], s(-1)), ([s(-1), 1, 1], s(-1)), ([9, 4, 2], 7)],
        );
    }
}

#[test]
fn sums_of_four_products_of_bytes() {
    // 127, -128 or 128, -1 or 255, 1.
    let a = 0x01ff_807f;
    let (up, down) = (0x0203_0405, 0xfffe_fdfc);
    check("dp4a.s32.s32 %d32, %a32, %b32, %c32", &[([a, up, 0], 122), ([a, up, s(-122)], 0), ([a, down, 3], s(-120))]);
    check(
        "dp4a.u32.u32 %d32, %a32, %b32, %c32",
        &[([a, up, 86], 2000), ([a, down, 0], 32_004 + 32_384 + 64_770 + 255)],
    );
    check("dp4a.u32.s32 %d32, %a32, %b32, %c32", &[([a, down, 0], s(-1403)), ([a, up, 0], 1914)]);
    check("dp4a.s32.u32 %d32, %a32, %b32, %c32", &[([a, down, 0], s(32_004 - 32_384 - 254 + 255))]);
    check("dp4a.s32.s32 %d32, %a32, %b32, %c32", &[([0x0101_0101, 0x0101_0101, MAX32], MAX32 + 4)]);
    refused("dp4a.s32.s16 %d32, %a32, %b32, %c32", "S16");
}

#[test]
fn sums_of_two_products_of_halves_and_bytes() {
    // 32767 and -32768 or 32768; the low bytes are 5 and 4, the high ones 3 and 2.
    let (a, b) = (0x8000_7fff, 0x0203_0405);
    check("dp2a.lo.s32.s32 %d32, %a32, %b32, %c32", &[([a, b, 1], 163_835 - 131_072 + 1)]);
    check("dp2a.hi.s32.s32 %d32, %a32, %b32, %c32", &[([a, b, 0], 98_301 - 65_536)]);
    check("dp2a.lo.u32.u32 %d32, %a32, %b32, %c32", &[([a, b, 0], 163_835 + 131_072)]);
    check("dp2a.hi.u32.s32 %d32, %a32, %b32, %c32", &[([a, 0xff03_0405, 0], 98_301 - 32_768)]);
    refused("dp2a.s32.s32 %d32, %a32, %b32, %c32", "which bytes");
}

#[test]
fn numbers_stand_in_the_place_of_registers() {
    check("add.s32 %d32, %a32, -3", &[([1], s(-2))]);
    check("add.s32 %d32, 0x7fffffff, %a32", &[([1], MIN32)]);
    check("add.u32 %d32, %a32, 4294967295U", &[([1], 0)]);
    check("add.s32 %d32, %a32, 0b101", &[([1], 6)]);
    check("add.s32 %d32, %a32, 017", &[([1], 16)]);
    check("add.s64 %d64, %a64, -9223372036854775808", &[([1], MIN64 + 1)]);
    check("add.s32 %d32, %a32, WARP_SZ", &[([1], 33)]);
}
