//! Right programs: branches, loops, barriers, and the end of a part of the threads.

mod support;
use support::{Program, refused, warp};

#[test]
fn lanes_go_their_ways_and_meet_again() {
    // Branches inside of branches; where they meet, all lanes have to be there.
    let out = warp(
        "setp.lt.u32 %p0, %lane, 16; @!%p0 bra HIGH;
            setp.lt.u32 %p1, %lane, 8; @%p1 bra LOW8; add.u32 %r1, %r1, 20; bra MEET8; LOW8: add.u32 %r1, %r1, 10;
            MEET8: vote.sync.ballot.b32 %r2, %p1, 0xffff; add.u32 %r1, %r1, %r2; bra MEET;
        HIGH: add.u32 %r1, %r1, 30;
        MEET: activemask.b32 %r3; setp.ne.u32 %p2, %r3, -1; @%p2 trap; bar.sync 0;",
        &[0; 32],
    )
    .run32();
    assert_eq!((out[0], out[8], out[16]), (10 + 255, 20 + 255, 30));
}

#[test]
fn loops_end_when_each_lane_has_enough() {
    // Each lane goes round as often as its number says; inside every second round another path.
    let out = warp(
        "mov.u32 %r2, 0;
        LOOP: setp.ge.u32 %p0, %r2, %lane; @%p0 bra DONE;
            and.b32 %r3, %r2, 1; setp.eq.u32 %p1, %r3, 0; @%p1 bra EVEN;
            add.u32 %r1, %r1, 100; bra NEXT;
            EVEN: add.u32 %r1, %r1, 1;
            NEXT: add.u32 %r2, %r2, 1; bra.uni LOOP;
        DONE: activemask.b32 %r3; setp.ne.u32 %p2, %r3, -1; @%p2 trap;",
        &[0; 32],
    )
    .run32();
    for lane in 0..32u32 {
        assert_eq!(out[lane as usize], lane / 2 * 100 + lane.div_ceil(2));
    }
    // Barriers of the block in a loop that all threads go round as often.
    let out = Program::new(
        ".shared .align 4 .b8 s[256];
        mov.u32 %r0, s; mad.lo.u32 %r1, %lane, 4, %r0; mov.u32 %r2, 0; xor.b32 %r3, %lane, 32; mad.lo.u32 %r3, %r3, 4, %r0; mov.u32 %r5, 0;
        LOOP: add.u32 %r4, %lane, %r2; st.shared.u32 [%r1], %r4; bar.sync 0; ld.shared.u32 %r4, [%r3]; add.u32 %r5, %r5, %r4;
        bar.sync 0; add.u32 %r2, %r2, 1; setp.lt.u32 %p0, %r2, 10; @%p0 bra LOOP;
        mad.wide.u32 %x0, %lane, 8, %out; st.global.u32 [%x0], %r5;",
    )
    .threads(64)
    .run32();
    assert_eq!((out[0], out[63]), (320 + 45, 310 + 45));
}

#[test]
fn a_table_says_where_to_go() {
    let out = warp(
        "T: .branchtargets A, B, C, A;
        and.b32 %r2, %lane, 3; brx.idx %r2, T;
        B: add.u32 %r1, %r1, 20; bra END;
        A: add.u32 %r1, %r1, 10; bra END;
        C: add.u32 %r1, %r1, 30;
        END: activemask.b32 %r3; setp.ne.u32 %p2, %r3, -1; @%p2 trap;",
        &[0; 32],
    )
    .run32();
    assert_eq!(out[..8], [10, 20, 30, 10, 10, 20, 30, 10]);
    let out = warp("T: .branchtargets A, B; setp.lt.u32 %p0, %lane, 2; @%p0 brx.idx.uni %lane, T; mov.u32 %r1, 5; bra E; A: mov.u32 %r1, 6; bra E; B: mov.u32 %r1, 7; E:", &[0; 32]).run32();
    assert_eq!(out[..4], [6, 7, 5, 5]);
}

#[test]
fn instructions_run_under_predicates() {
    let out = warp("setp.lt.u32 %p0, %lane, 3; @%p0 add.u32 %r1, %r1, 1; @!%p0 add.u32 %r1, %r1, 2;", &[0; 32]).run32();
    assert_eq!(out[..5], [1, 1, 1, 2, 2]);
    // What doesn't run isn't wrong.
    warp("setp.gt.u32 %p0, %lane, 99; @%p0 ld.global.u32 %r1, [%lane]; @%p0 trap; @%p0 nonsense.u32 %r1; @%p0 bar.sync 3;", &[0; 32]).passes();
}

#[test]
fn a_part_of_the_threads_ends() {
    for end in ["exit", "ret", "ret.uni"] {
        // The others go on, also to barriers of the block and of the warp.
        let out = Program::new(&format!(
            ".shared .align 4 .b8 s[400]; mov.u32 %r0, s; mad.lo.u32 %r1, %lane, 4, %r0; st.shared.u32 [%r1], %lane;
            setp.ge.u32 %p0, %lane, 50; @%p0 {end};
            bar.sync 0; bar.warp.sync -1; vote.sync.ballot.b32 %r3, %p0, -1;
            sub.u32 %r2, 49, %lane; mad.lo.u32 %r2, %r2, 4, %r0; ld.shared.u32 %r3, [%r2]; mad.wide.u32 %x0, %lane, 8, %out; st.global.u32 [%x0], %r3;"
        ))
        .threads(100)
        .run32();
        assert_eq!((out[0], out[49], out[50]), (49, 0, 0));
    }
    // Behind the end of the code, too; and as a jump to it, with barriers before.
    Program::new("setp.ge.u32 %p0, %lane, 40; @%p0 bra END; bar.sync 0; bar.red.popc.u32 %r1, 0, %p0; END:")
        .threads(64)
        .passes();
}

#[test]
fn barriers_reduce_a_predicate() {
    let reduced = |instruction: &str, condition: &str| {
        let out = Program::new(&format!(
            "{condition} {instruction}; mad.wide.u32 %x0, %lane, 8, %out; st.global.u32 [%x0], %r1;"
        ))
        .threads(96)
        .output(96)
        .run32();
        assert!(out.iter().all(|v| *v == out[0]), "{instruction}: {out:?}");
        out[0]
    };
    let seven = "setp.lt.u32 %p0, %lane, 7;";
    let all = "setp.lt.u32 %p0, %lane, 96;";
    let none = "setp.gt.u32 %p0, %lane, 96;";
    for (condition, popc, and, or) in [(seven, 7, 0, 1), (all, 96, 1, 1), (none, 0, 0, 0)] {
        assert_eq!(reduced("bar.red.popc.u32 %r1, 0, %p0", condition), popc);
        assert_eq!(reduced("bar.red.popc.u32 %r1, 2, 96, !%p0", condition), 96 - popc);
        assert_eq!(reduced("barrier.cta.red.popc.aligned.u32 %r1, 0, %p0", condition), popc);
        let select = "selp.u32 %r1, 1, 0, %p1";
        assert_eq!(reduced(&format!("bar.red.and.pred %p1, 0, %p0; {select}"), condition), and);
        assert_eq!(reduced(&format!("bar.cta.red.or.pred %p1, 1, %p0; {select}"), condition), or);
        assert_eq!(reduced(&format!("barrier.red.or.pred %p1, 1, 96, %p0; {select}"), condition), or);
    }
    refused("bar.red.xor.pred %dp, 0, %ap", "reduction");
}

/// Warps that hand a number to the next one through shared memory.
#[test]
fn a_part_of_the_block_waits_at_its_own_barrier() {
    for sync in ["bar.sync", "bar.cta.sync", "barrier.sync", "barrier.sync.aligned", "barrier.cta.sync.aligned"] {
        // Warps 0 and 1 use barrier 1, warps 2 and 3 barrier 2; then all use 0.
        let out = Program::new(&format!(
            ".shared .align 4 .b8 s[512]; mov.u32 %r0, s; mad.lo.u32 %r1, %lane, 4, %r0;
            st.shared.u32 [%r1], %lane;
            setp.ge.u32 %p0, %lane, 64; @%p0 bra HIGH;
            {sync} 1, 64; bra READ;
            HIGH: mov.u32 %r4, 2; mov.u32 %r5, 64; {sync} %r4, %r5;
            READ: xor.b32 %r2, %lane, 33; mad.lo.u32 %r2, %r2, 4, %r0; ld.shared.u32 %r3, [%r2];
            {sync} 0; st.shared.u32 [%r1], %r3; {sync} 0, 128;
            mad.wide.u32 %x0, %lane, 8, %out; st.global.u32 [%x0], %r3;"
        ))
        .threads(128)
        .output(128)
        .run32();
        for lane in 0..128 {
            assert_eq!(out[lane as usize], lane ^ 33, "{sync}");
        }
    }
    // Lanes of one warp may come to a barrier that isn't `.aligned` at different times.
    Program::new("setp.lt.u32 %p0, %lane, 5; @%p0 bra A; barrier.sync 0; bra B; A: barrier.sync 0; B:")
        .threads(64)
        .passes();
}

#[test]
fn lanes_of_a_warp_wait_for_each_other() {
    let body = |sync: &str| {
        format!(
            ".shared .align 4 .b8 s[128]; mov.u32 %r2, s; mad.lo.u32 %r3, %lane, 4, %r2; st.shared.u32 [%r3], %lane;
            {sync}
            xor.b32 %r4, %lane, 1; mad.lo.u32 %r4, %r4, 4, %r2; ld.shared.u32 %r1, [%r4];"
        )
    };
    let expected: Vec<_> = (0..32).map(|l| l ^ 1).collect();
    assert_eq!(warp(&body("bar.warp.sync -1;"), &[0; 32]).run32(), expected);
    assert_eq!(warp(&body("mov.u32 %r5, 0xffffffff; bar.warp.sync %r5;"), &[0; 32]).run32(), expected);
    // Halves at one instruction, each with its own mask.
    let halves = "setp.lt.u32 %p0, %lane, 16; selp.b32 %r5, 0xffff, 0xffff0000, %p0; bar.warp.sync %r5;";
    assert_eq!(warp(&body(halves), &[0; 32]).run32(), expected);
    // After a branch, with a mask of those that took it.
    let taken = "setp.lt.u32 %p0, %lane, 16; @%p0 bra LOW; bar.warp.sync 0xffff0000; bra MEET; LOW: bar.warp.sync 0x0000ffff; MEET:";
    assert_eq!(warp(&body(taken), &[0; 32]).run32(), expected);
}

#[test]
fn one_warp_waits_for_a_flag_that_another_sets() {
    Program::new(
        "setp.ge.u32 %p0, %lane, 32; @%p0 bra SET;
        WAIT: ld.acquire.gpu.global.u32 %r0, [%out]; setp.eq.u32 %p1, %r0, 0; @%p1 bra WAIT; ret;
        SET: fence.acq_rel.gpu; st.release.gpu.global.u32 [%out], 1;",
    )
    .threads(64)
    .passes();
}

#[test]
fn what_orders_memory_and_waits_says_nothing_of_results() {
    warp(
        "membar.cta; membar.gl; membar.sys; fence.acq_rel.cta; fence.sc.sys; fence.proxy.async; fence.proxy.alias; fence.proxy.async.shared::cta;
        nanosleep.u32 20; griddepcontrol.wait; griddepcontrol.launch_dependents;",
        &[0; 32],
    )
    .passes();
    refused("fence.proxy.tensormap::generic.release.gpu", "tensormap::generic");
    refused("fence.mbarrier_init.release.cluster", "mbarrier_init");
    refused("membar.all", "all");
}

#[test]
fn what_they_do_not_have() {
    refused("bar.arrive 1, 64", "doesn't wait");
    refused("barrier.cluster.arrive", "doesn't wait");
    refused("barrier.cluster.wait", "doesn't wait");
    refused("bar.sync.x 0", "x");
    refused("bar.warp.sync.x -1", "x");
    refused("bar.warp.arrive -1", "without `.sync`");
    refused("exit.x", "x");
    refused("trap.x", "x");
    refused("nanosleep.u64 %a64", "u64");
    refused("griddepcontrol.x", "x");
    refused("setmaxnreg.inc.sync.aligned.u32 64", "setmaxnreg");
    refused("mbarrier.init.shared.b64 [%out], 1", "mbarrier");
    refused("nonsense", "nonsense");
    refused("add.cc.u32 %d32, %a32, %b32", "cc");
    refused("addc.u32 %d32, %a32, %b32", "addc");
}
