//! `atom` and `red`: changes of memory by many threads.

mod support;
use support::{Program, f, g, refused};

/// What 32 threads leave in a word of memory that held `before`, when each changes it by the value of `value` (of its lane).
fn changed(change: &str, before: u64, value: impl Fn(u64) -> u64) -> u64 {
    let bits = if change.ends_with("64") { 64 } else { 32 };
    let body = |space: &str, change: &str| {
        format!(
            "mad.wide.u32 %x0, %lane, 8, %in; ld.global.b64 %x1, [%x0 + 8]; ld.global.b64 %x2, [%in];
            setp.eq.u32 %p0, %lane, 0;
            .shared .align 16 .b8 word[16];
            mov.u64 %x3, {space};
            @%p0 st.b64 [%x3], %x2;
            bar.sync 0;
            {change};
            bar.sync 0;
            ld.b64 %x5, [%x3];
            @%p0 st.global.b64 [%out], %x5;"
        )
    };
    let mut input = vec![before];
    input.extend((0..32).map(value));
    let last = |space: &str, change: &str| Program::new(&body(space, change)).input(input.clone()).run().unwrap()[0];
    let window = "word; cvta.shared.u64 %x3, %x3";
    let (opcode, rest) = change.split_once('.').unwrap();
    assert_eq!(opcode, "atom");
    let results = [
        last("%out", &format!("atom.global.{rest} %x4, [%x3], %x1")),
        last("%out", &format!("red.global.{rest} [%x3], %x1")),
        last("%out", &format!("atom.relaxed.gpu.global.{rest} %x4, [%x3], %x1")),
        last("%out", &format!("atom.{rest} _, [%x3], %x1")),
        last(window, &format!("atom.shared.{rest} %x4, [word], %x1")),
        last(window, &format!("red.shared::cta.{rest} [word], %x1")),
        last(window, &format!("red.{rest} [%x3], %x1")),
    ];
    assert!(results.iter().all(|r| *r == results[0]), "{change}: {results:x?}");
    if bits == 32 { results[0] & 0xffff_ffff } else { results[0] }
}

#[test]
fn many_threads_change_a_word() {
    for ty in ["u32", "s32", "u64"] {
        // The sum of 0 to 31 is 496.
        assert_eq!(changed(&format!("atom.add.{ty}"), 4, |l| l), 500);
        assert_eq!(changed(&format!("atom.min.{ty}"), 40, |l| l + 3), 3);
        assert_eq!(changed(&format!("atom.max.{ty}"), 4, |l| l + 3), 34);
    }
    let minus = |l: u64| (l as i64 - 10) as u64;
    assert_eq!(changed("atom.add.u32", 0xffff_ffff, |_| 1), 31);
    assert_eq!(changed("atom.min.s32", 0, minus), 0xffff_fff6);
    assert_eq!(changed("atom.min.u32", 5, minus), 0);
    assert_eq!(changed("atom.max.u32", 5, minus), 0xffff_ffff);
    assert_eq!(changed("atom.min.s64", 0, minus), minus(0));
    assert_eq!(changed("atom.max.s64", 1 << 63, minus), 21);
    assert_eq!(changed("atom.max.u64", 5, minus), u64::MAX);
    for bits in ["b32", "b64"] {
        assert_eq!(changed(&format!("atom.or.{bits}"), 0, |l| 1 << (l % 8)), 255);
        assert_eq!(changed(&format!("atom.and.{bits}"), 0xffff_ff00, |l| !(256 << (l % 8))), 0xffff_0000);
        assert_eq!(changed(&format!("atom.xor.{bits}"), 7, |l| l + 1), 7 ^ 32);
        assert_eq!(changed(&format!("atom.exch.{bits}"), 7, |_| 9), 9);
    }
    // inc: back to 0 from the limit. 32 steps of 0..=9 from 5.
    assert_eq!(changed("atom.inc.u32", 5, |_| 9), 7);
    assert_eq!(changed("atom.inc.u32", 50, |_| 40), 31);
    // dec: to the limit from 0, and from above it.
    assert_eq!(changed("atom.dec.u32", 5, |_| 9), 3);
    assert_eq!(changed("atom.dec.u32", 50, |_| 40), 40 - 31);
    assert_eq!(changed("atom.add.f32", f(0.5), |l| f(l as f32)) as u32, f(496.5) as u32);
    assert_eq!(changed("atom.add.f64", g(0.5), |l| g(l as f64)), g(496.5));
    assert_eq!(changed("atom.add.noftz.f16x2", 0x4000_3c00, |_| 0x4000_3c00) as u32, 0x5420_5020);
    assert_eq!(changed("atom.add.noftz.bf16x2", 0x4000_3f80, |_| 0x4000_3f80) as u32, 0x4284_4204);
    // The numbers beside it stay as they are.
    assert_eq!(changed("atom.add.noftz.f16", 0x1234_3c00, |_| 0x3c00) as u32, 0x1234_5020);
    assert_eq!(changed("atom.add.noftz.bf16", 0x1234_3f80, |_| 0x3f80) as u32, 0x1234_4204);
}

#[test]
fn a_change_returns_what_was_there() {
    // Each of 32 threads gets another number.
    let out = Program::new(
        "atom.global.add.u32 %r0, [%in], 1; mad.wide.u32 %x0, %r0, 8, %out; st.global.b32 [%x0], %lane;
        red.global.add.u32 [%in], 0;",
    )
    .run32();
    let mut lanes = out[..32].to_vec();
    lanes.sort_unstable();
    assert_eq!(lanes, (0..32).collect::<Vec<_>>());
}

#[test]
fn a_word_is_exchanged_if_it_is_as_expected() {
    for (bits, mask) in [(16, 0xffff), (32, 0xffff_ffff), (64, u64::MAX)] {
        let out = Program::new(&format!(
            "setp.ne.u32 %p0, %lane, 0; @%p0 exit;
            ld.global.b64 %x0, [%in]; ld.global.b64 %x1, [%in + 8];
            st.global.b64 [%out], %x0;
            atom.global.cas.b{bits} %x2, [%out], %x1, 5; st.global.b64 [%out + 16], %x2;
            atom.global.cas.b{bits} %x3, [%out], %x0, 6; st.global.b64 [%out + 24], %x3;
            ld.global.b64 %x4, [%out]; st.global.b64 [%out + 8], %x4;"
        ))
        .input(vec![0x1111_2222_3333_4444, 0x1111_2222_3333_4445])
        .run()
        .unwrap();
        let before = 0x1111_2222_3333_4444u64;
        assert_eq!(out[1], before & !mask | 6, "{bits}");
        assert_eq!((out[2] & mask, out[3] & mask), (before & mask, before & mask));
    }
    // As a lock, from several blocks.
    let out = Program::new(
        "setp.ne.u32 %p0, %lane, 0; @%p0 exit;
        LOCK: atom.global.acquire.cas.b32 %r0, [%in], 0, 1; setp.ne.u32 %p1, %r0, 0; @%p1 bra LOCK;
        ld.volatile.global.u32 %r1, [%out]; add.u32 %r1, %r1, 1; st.volatile.global.u32 [%out], %r1;
        fence.acq_rel.gpu; atom.global.release.exch.b32 %r0, [%in], 0;",
    )
    .grid(50)
    .run32();
    assert_eq!(out[0], 50);
}

#[test]
fn several_numbers_are_changed() {
    let one = |rest: &str| {
        Program::new(&format!(
            "setp.gt.u32 %p0, %lane, 3; @%p0 exit; mov.b32 %r0, 0f3F800000; mov.b32 %r1, 0f40000000; {rest}"
        ))
        .run()
        .unwrap()
    };
    let out = one("atom.global.v4.f32.add {%r2, %r3, %r4, %r5}, [%out], {%r0, %r1, %r0, %r1};");
    assert_eq!(out[..2], [f(4.0) | f(8.0) << 32; 2]);
    let out = one("red.global.add.v2.f32 [%out], {%r0, %r1};");
    assert_eq!(out[..2], [f(4.0) | f(8.0) << 32, 0]);
    let out = one("mov.b32 %r0, 0x40003c00; red.global.v4.f16x2.add.noftz [%out], {%r0, %r0, %r0, %r0};");
    assert_eq!(out[..2], [0x4800_4400_4800_4400; 2]);
    let out = one("mov.b16 %r0, 0x3f80; red.global.v2.bf16.add.noftz [%out], {%r0, %r0};");
    assert_eq!(out[..2], [0x4080_4080, 0]);
}

#[test]
fn what_they_do_not_have() {
    refused("atom.global.min.f32 %d32, [%out], %a32", "F32");
    refused("atom.global.and.u32 %d32, [%out], %a32", "U32");
    refused("atom.global.add.b32 %d32, [%out], %a32", "B32");
    refused("atom.global.inc.u64 %d64, [%out], %a64", "U64");
    refused("atom.global.exch.b128 %d64, [%out], %a64", "B128");
    refused("atom.global.mul.u32 %d32, [%out], %a32", "changes");
    refused("atom.global.cas.b32 %d32, [%out], %a32", "operands");
    refused("atom.global.add.u32 %d32, [%out], %a32, %b32", "operands");
    refused("atom.global.add.L2::cache_hint.u32 %d32, [%out], %a32", "L2::cache_hint");
    refused("atom.local.add.u32 %d32, [%out], %a32", "space");
    refused("red.global.add.v8.f32 [%out], {%a32, %a32, %a32, %a32, %a32, %a32, %a32, %a32}", "8 times");
    refused("red.global.add.v2.u32 [%out], {%a32, %b32}", "2 times");
    refused("red.global.add.noftz.f32 [%out], %a32", "noftz");
}
