//! What the lanes of a warp tell each other.

mod support;
use cuda::machine::Kind;
use support::{Program, refused, warp};

/// Values of 32 lanes that are all different.
fn values() -> Vec<u32> {
    (0..32).map(|l| l * 0x0101_0101 + 7).collect()
}

/// A shuffle of `values` with a distance and a mask: by lane the value, and whether it was inside.
fn shuffle(mode: &str, by: &str, clamp: u32) -> Vec<(u32, u32)> {
    let input = values();
    let out = |result: &str| {
        let body = format!(
            "{by} shfl.sync.{mode}.b32 %r2|%p0, %r0, %r3, {clamp}, -1; selp.u32 %r4, 1, 0, %p0; mov.b32 %r1, {result};"
        );
        warp(&body, &input).run32()
    };
    let one = warp(&format!("{by} shfl.sync.{mode}.b32 %r1, %r0, %r3, {clamp}, 0xffffffff;"), &input).run32();
    let (value, inside) = (out("%r2"), out("%r4"));
    assert_eq!(one, value);
    value.into_iter().zip(inside).collect()
}

#[test]
fn values_are_shuffled_in_segments() {
    // A segment of `n` lanes: what CUDA makes of a width.
    for n in [1, 2, 4, 8, 16, 32usize] {
        let segments = (32 - n as u32) << 8;
        for by in [0, 1, 2, 3, 5, 8, 16, 31usize] {
            let distance = format!("mov.u32 %r3, {by};");
            let expected = |from: &dyn Fn(usize) -> Option<usize>| -> Vec<_> {
                let of = |lane: usize| match from(lane) {
                    Some(from) => (values()[from], 1),
                    None => (values()[lane], 0),
                };
                (0..32).map(of).collect()
            };
            let inside = |lane: usize, from: usize| (from < 32 && from / n == lane / n).then_some(from);
            let up = expected(&|lane| inside(lane, lane.wrapping_sub(by)));
            assert_eq!(shuffle("up", &distance, segments), up, "up {by} of {n}");
            let down = expected(&|lane| inside(lane, lane + by));
            assert_eq!(shuffle("down", &distance, segments | 31), down, "down {by} of {n}");
            // The others may go to segments before their own.
            let xor = expected(&|lane| (lane ^ by <= (lane | (n - 1))).then_some(lane ^ by));
            assert_eq!(shuffle("bfly", &distance, segments | 31), xor, "bfly {by} of {n}");
            let index = expected(&|lane| Some(lane & !(n - 1) | by & (n - 1)));
            assert_eq!(shuffle("idx", &distance, segments | 31), index, "idx {by} of {n}");
        }
    }
    // Clamps inside of a segment: lanes up to 3 of each 8, and from 2 on.
    let low = shuffle("down", "mov.u32 %r3, 1;", 24 << 8 | 3);
    assert_eq!(low[2], (values()[3], 1));
    assert_eq!(low[3], (values()[3], 0));
    assert_eq!(low[10], (values()[11], 1));
    let high = shuffle("up", "mov.u32 %r3, 1;", 24 << 8 | 2);
    assert_eq!(high[2], (values()[2], 0));
    assert_eq!(high[3], (values()[2], 1));
    // Each lane has its own distance, of which five bits are read.
    let reversed = shuffle("idx", "sub.u32 %r3, 63, %lane;", 31);
    assert_eq!(reversed, (0..32).map(|l| (values()[31 - l], 1)).collect::<Vec<_>>());
    refused("shfl.sync.left.b32 %d32, %a32, 1, 31, -1", "shuffle");
    refused("shfl.up.b32 %d32, %a32, 1, 31", "sync");
}

#[test]
fn a_part_of_the_lanes_shuffles() {
    // Odd lanes only, by two.
    let out = warp(
        "and.b32 %r2, %lane, 1; setp.eq.u32 %p0, %r2, 1; mov.b32 %r1, 99;
        @%p0 shfl.sync.down.b32 %r1, %r0, 2, 31, 0xaaaaaaaa;",
        &values(),
    )
    .run32();
    let v = values();
    assert_eq!((out[0], out[1], out[29], out[31]), (99, v[3], v[31], v[31]));
    // Both sides of a branch, at different instructions.
    let out = warp(
        "setp.lt.u32 %p0, %lane, 16; @%p0 bra LOW;
        shfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xffff0000; bra END;
        LOW: shfl.sync.bfly.b32 %r1, %r0, 2, 31, 0x0000ffff;
        END:",
        &v,
    )
    .run32();
    assert_eq!((out[0], out[15], out[16], out[31]), (v[2], v[13], v[17], v[30]));
}

#[test]
fn groups_that_name_each_other_go_on_for_themselves() {
    // At one instruction the low and the high half have their own masks.
    let halves = "setp.lt.u32 %p0, %lane, 16; selp.b32 %r2, 0xffff, 0xffff0000, %p0;";
    let out = warp(&format!("{halves} redux.sync.add.u32 %r1, %r0, %r2;"), &(0..32).collect::<Vec<_>>()).run32();
    assert_eq!((out[0], out[31]), (120, 376));
    let out =
        warp(&format!("{halves} setp.ge.u32 %p1, %lane, 14; vote.sync.ballot.b32 %r1, %p1, %r2;"), &[0; 32]).run32();
    assert_eq!((out[0], out[31]), (0xc000, 0xffff_0000));
    // Each value's lanes, as they found each other.
    let out = warp(
        "and.b32 %r3, %r0, 3; match.any.sync.b32 %r2, %r3, -1; redux.sync.add.u32 %r1, %r0, %r2;",
        &(0..32).collect::<Vec<_>>(),
    )
    .run32();
    assert_eq!(out[..4], [112, 120, 128, 136]);
    // Some wait for those that come later.
    let out = warp(
        "setp.lt.u32 %p0, %lane, 24; selp.b32 %r2, 0xffffff, 0xff000000, %p0; setp.lt.u32 %p1, %lane, 8; @%p1 bra LATER;
        bra JOIN; LATER: add.u32 %r0, %r0, 1000; JOIN: redux.sync.max.u32 %r1, %r0, %r2;",
        &(0..32).collect::<Vec<_>>(),
    )
    .run32();
    assert_eq!((out[0], out[23], out[24]), (1007, 1007, 31));
}

#[test]
fn lanes_vote() {
    let votes = |condition: &str| {
        let p = |mode: &str| {
            warp(&format!("{condition} vote.sync.{mode}.pred %p1, %p0, -1; selp.u32 %r1, 1, 0, %p1;"), &[0; 32]).run32()
        };
        let not = |mode: &str| {
            warp(&format!("{condition} vote.sync.{mode}.pred %p1, !%p0, -1; selp.u32 %r1, 1, 0, %p1;"), &[0; 32])
                .run32()[5]
        };
        let ballot = warp(&format!("{condition} vote.sync.ballot.b32 %r1, %p0, -1;"), &[0; 32]).run32();
        assert!(ballot.iter().all(|b| *b == ballot[0]));
        let found = ["all", "any", "uni"].map(|mode| p(mode)[7]);
        assert_eq!(not("all"), 1 - found[1]);
        assert_eq!(not("any"), 1 - found[0]);
        (ballot[0], found)
    };
    assert_eq!(votes("setp.lt.u32 %p0, %lane, 3;"), (7, [0, 1, 0]));
    assert_eq!(votes("setp.lt.u32 %p0, %lane, 32;"), (u32::MAX, [1, 1, 1]));
    assert_eq!(votes("setp.gt.u32 %p0, %lane, 31;"), (0, [0, 0, 1]));
    // Only of those that take part, and others give nothing.
    let out = warp(
        "setp.lt.u32 %p0, %lane, 8; setp.lt.u32 %p1, %lane, 4; @%p0 vote.sync.ballot.b32 %r1, %p1, 0xff;",
        &[0; 32],
    )
    .run32();
    assert_eq!((out[0], out[7], out[8]), (15, 15, 0));
    let out =
        warp("setp.lt.u32 %p0, %lane, 8; @%p0 vote.sync.all.pred %p1, %p0, 0xff; selp.u32 %r1, 1, 0, %p1;", &[0; 32])
            .run32();
    assert_eq!((out[0], out[8]), (1, 0));
    refused("vote.ballot.b32 %d32, %ap", "sync");
    refused("vote.sync.none.pred %dp, %ap, -1", "vote");
}

#[test]
fn lanes_reduce() {
    let minus: Vec<u32> = (0..32).map(|l: i32| (5 - l) as u32).collect();
    for (op, expected) in [
        ("add.u32", (5 * 32 - 496i32) as u32),
        ("add.s32", (5 * 32 - 496i32) as u32),
        ("min.u32", 0),
        ("min.s32", -26i32 as u32),
        ("max.u32", u32::MAX),
        ("max.s32", 5),
    ] {
        assert_eq!(warp(&format!("redux.sync.{op} %r1, %r0, -1;"), &minus).run32(), [expected; 32], "{op}");
    }
    let bits: Vec<u32> = (0..32).map(|l| 1 << l | 0x1000_0000).collect();
    assert_eq!(warp("redux.sync.or.b32 %r1, %r0, -1;", &bits).run32(), [u32::MAX; 32]);
    assert_eq!(warp("redux.sync.and.b32 %r1, %r0, -1;", &bits).run32(), [0x1000_0000; 32]);
    // All 32 lanes have bit 28, which thereby is 0.
    assert_eq!(warp("redux.sync.xor.b32 %r1, %r0, -1;", &bits).run32(), [!0x1000_0000; 32]);
    let out = warp("setp.lt.u32 %p0, %lane, 4; @%p0 redux.sync.add.u32 %r1, %r0, 15;", &minus).run32();
    assert_eq!((out[3], out[4]), (5 + 4 + 3 + 2, 0));
    refused("redux.sync.mul.u32 %d32, %a32, -1", "reduction");
    refused("redux.sync.add.f32 %d32, %a32, -1", "F32");
    refused("redux.sync.min.b32 %d32, %a32, -1", "B32");
    refused("redux.sync.xor.u32 %d32, %a32, -1", "U32");
    refused("redux.sync.min.abs.NaN.f32 %d32, %a32, -1", "F32");
}

#[test]
fn lanes_find_those_with_the_same_value() {
    let input: Vec<u32> = (0..32).map(|l| l / 10).collect();
    let masks = [0x3ff, 0x3ff << 10, 0x3ff << 20, 3 << 30];
    let expected: Vec<u32> = (0..32).map(|l| masks[l / 10]).collect();
    assert_eq!(warp("match.any.sync.b32 %r1, %r0, -1;", &input).run32(), expected);
    // Values of 64 bits that differ in the high half only.
    assert_eq!(
        warp("cvt.u64.u32 %x0, %r0; shl.b64 %x0, %x0, 40; match.any.sync.b64 %r1, %x0, -1;", &input).run32(),
        expected
    );
    let all = "match.all.sync.b32 %r1|%p0, %r0, -1; @%p0 add.u32 %r1, %r1, 1;";
    assert_eq!(warp(all, &[5; 32]).run32(), [0; 32]);
    assert_eq!(warp(&all.replace("add.u32 %r1, %r1, 1", "mov.u32 %r1, 7"), &[5; 32]).run32(), [7; 32]);
    assert_eq!(warp(all, &input).run32(), [0; 32]);
    assert_eq!(warp("match.all.sync.b32 %r1, %r0, -1;", &[5; 32]).run32(), [u32::MAX; 32]);
    let out = warp("setp.lt.u32 %p0, %lane, 10; @%p0 match.all.sync.b32 %r1, %r0, 0x3ff;", &input).run32();
    assert_eq!((out[0], out[10]), (0x3ff, 0));
    refused("match.some.sync.b32 %d32, %a32, -1", "match");
    refused("match.any.sync.u32 %d32, %a32, -1", "U32");
}

#[test]
fn one_lane_is_elected() {
    let out = warp("elect.sync %r2|%p0, -1; selp.u32 %r1, 100, %r2, %p0;", &[0; 32]).run32();
    assert_eq!((out[0], &out[1..]), (100, &[0; 31][..]));
    let out =
        warp("setp.ge.u32 %p0, %lane, 5; @%p0 elect.sync %r1|%p1, 0xffffffe0; @%p1 add.u32 %r1, %r1, 100;", &[0; 32])
            .run32();
    assert_eq!((out[4], out[5], out[31]), (0, 105, 5));
}

#[test]
fn lanes_see_which_are_active() {
    assert_eq!(warp("activemask.b32 %r1;", &[0; 32]).run32(), [u32::MAX; 32]);
    assert_eq!(warp("activemask.b32 %r1;", &[0; 5]).run32(), [31; 5]);
    let out = warp(
        "setp.lt.u32 %p0, %lane, 4; @%p0 bra LOW; activemask.b32 %r1; bra END; LOW: activemask.b32 %r1; END:",
        &[0; 32],
    )
    .run32();
    assert_eq!((out[0], out[4]), (15, !15));
    refused("activemask.b64 %d64", "b64");
}

#[test]
fn lanes_have_to_be_members() {
    Program::new("shfl.sync.idx.b32 %r1, %r0, 0, 31, 0xfffffffe;").fails(Kind::Failed, "not in its mask");
    Program::new("setp.lt.u32 %p0, %lane, 4; @%p0 redux.sync.add.u32 %r1, %r0, -1; bar.warp.sync -1;")
        .fails(Kind::Failed, "wait for each other");
    Program::new("setp.lt.u32 %p0, %lane, 4; @%p0 bar.warp.sync 7;").fails(Kind::Failed, "not in its mask");
    // Lanes that aren't there, or have ended, are not waited for.
    assert_eq!(warp("redux.sync.add.u32 %r1, %r0, -1;", &[1; 5]).run32(), [5; 5]);
    Program::new("setp.lt.u32 %p0, %lane, 4; @%p0 exit; bar.warp.sync -1; redux.sync.add.u32 %r1, %r0, -1;").passes();
    // Also if they end while others wait for them.
    Program::new(
        "setp.lt.u32 %p0, %lane, 4; @%p0 bra END; bar.warp.sync -1; redux.sync.add.u32 %r1, %r0, -1; END: ret;",
    )
    .passes();
}
