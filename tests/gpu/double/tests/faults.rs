//! Each kind of fault is found, with its number.

mod support;
use cuda::machine::Kind;
use support::{Program, own};

const SHARED: &str = ".shared .align 16 .b8 s[64]; mov.u32 %r0, s; mad.lo.u32 %r1, %lane, 4, %r0;";

/// The first thread alone.
fn first(body: &str) -> Program {
    own(&format!("setp.ne.u32 %p0, %lane, 0; @%p0 exit; {body}")).input(vec![0; 4]).output(4)
}

#[test]
fn memory_that_is_not_there() {
    for access in [
        "ld.global.u32 %r0, [{}]",
        "ld.u32 %r0, [{}]",
        "st.global.u32 [{}], 0",
        "atom.global.add.u32 %r0, [{}], 1",
        "red.global.add.u32 [{}], 1",
    ] {
        let at = |address: &str| first(&format!("{};", access.replace("{}", address)));
        at("%out + 28").passes();
        at("%out + 32").fails(Kind::Address, "32 bytes into an allocation of 32");
        at("%out - 4").fails(Kind::Address, "bytes at");
        at("%in + 65536").fails(Kind::Address, "into an allocation of 32");
        at("16").fails(Kind::Address, "in no allocation");
        at("0").fails(Kind::Address, "in no allocation");
        at("-4").fails(Kind::Address, "bytes at");
    }
    // The last bytes of a vector.
    first("ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%in + 16];").passes();
    first("ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%in + 32];").fails(Kind::Address, "16 bytes at");
    Program::new("mad.wide.u32 %x0, %lane, 8, %out; st.global.u64 [%x0], 0;")
        .output(31)
        .fails(Kind::Address, "thread 31: `st.global.u64 [%x0], 0`: 8 bytes at");
    // A copy reads it when it begins.
    first(".shared .align 16 .b8 s[64]; cp.async.cg.shared.global [s], [%in + 32], 16;")
        .fails(Kind::Address, "into an allocation of 32");
    first("ld.param.u64 %x0, [kernel_in + 8];").fails(Kind::Address, "of 16 bytes of parameters");
}

#[test]
fn shared_and_local_memory_that_is_not_there() {
    for access in [
        "ld.shared.u32 %r2, [{}]",
        "st.shared.u32 [{}], 0",
        "atom.shared.add.u32 %r2, [{}], 1",
        "red.shared.or.b32 [{}], 1",
        "cp.async.ca.shared.global [{}], [%in], 4",
    ] {
        let at =
            |address: &str| first(&format!("{SHARED} st.shared.u32 [%r0 + 60], 0; {};", access.replace("{}", address)));
        at("%r0 + 60").passes();
        at("%r0 + 64").fails(Kind::Address, "4 bytes at 64 of 64 bytes of shared memory");
        at("%r0 - 4").fails(Kind::Address, "of shared memory");
    }
    first(&format!("{SHARED} cvt.u64.u32 %x0, %r0; cvta.shared.u64 %x0, %x0; st.u32 [%x0 + 64], 0;"))
        .fails(Kind::Address, "of shared memory");
    first("st.shared.u32 [0], 0;").fails(Kind::Address, "of 0 bytes of shared memory");
    Program { dynamic: 8, ..first("mov.u32 %r0, 0; st.shared.u64 [%r0], 0;") }.passes();
    for access in ["ld.local.u32 %r2, [{}]", "st.local.u32 [{}], 0"] {
        let at = |address: &str| {
            first(&format!(".local .align 8 .b8 l[24]; mov.u64 %x0, l; {};", access.replace("{}", address)))
        };
        at("%x0 + 20").passes();
        at("%x0 + 24").fails(Kind::Address, "4 bytes at 24 of 24 bytes of local memory");
    }
    first(".local .align 8 .b8 l[24]; mov.u64 %x0, l; cvta.local.u64 %x0, %x0; st.u32 [%x0 + 24], 0;")
        .fails(Kind::Address, "of local memory");
}

#[test]
fn addresses_that_are_not_aligned() {
    for (access, bytes) in [
        ("ld.global.u16 %r2, [%out + 1]", 2),
        ("ld.global.u32 %r2, [%out + 2]", 4),
        ("ld.u64 %x0, [%out + 4]", 8),
        ("ld.global.v2.u32 {%r2, %r3}, [%out + 4]", 8),
        ("ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%out + 8]", 16),
        ("ld.global.v4.u8 {%r2, %r3, %r4, %r5}, [%out + 2]", 4),
        ("st.global.u16 [%out + 3], 0", 2),
        ("st.global.v2.f64 [%out + 8], {0, 0}", 16),
        ("atom.global.add.u32 %r2, [%out + 1], 1", 4),
        ("atom.global.add.u64 %x0, [%out + 4], 1", 8),
        ("st.shared.u32 [%r0 + 2], 0", 4),
        ("st.shared.v4.u32 [%r0 + 8], {0, 0, 0, 0}", 16),
        ("st.local.u32 [l + 1], 0", 4),
        ("ld.param.u64 %x0, [kernel_in + 4]", 8),
        ("cp.async.cg.shared.global [%r0 + 8], [%in], 16", 16),
        ("cp.async.cg.shared.global [%r0], [%in + 8], 16", 16),
        ("cp.async.ca.shared.global [%r0], [%in + 2], 4", 4),
    ] {
        first(&format!(".local .align 8 .b8 l[24]; {SHARED} {access};"))
            .fails(Kind::Misaligned, &format!("{bytes} bytes"));
    }
}

#[test]
fn shared_memory_that_was_never_written() {
    let never = "never written";
    first(&format!("{SHARED} ld.shared.u32 %r2, [%r0];")).fails(Kind::Failed, never);
    first(&format!("{SHARED} st.shared.u16 [%r0], 0; ld.shared.u32 %r2, [%r0];"))
        .fails(Kind::Failed, "byte 2 of shared memory is read and was never");
    first(&format!("{SHARED} atom.shared.add.u32 %r2, [%r0], 1;")).fails(Kind::Failed, never);
    first(&format!("{SHARED} st.shared.v2.u32 [%r0], {{0, 0}}; ld.shared.v4.u32 {{%r2, %r3, %r4, %r5}}, [%r0];"))
        .fails(Kind::Failed, never);
    // What the block before left is gone: the first writes, and all read.
    let program = Program::new(&format!(
        "{SHARED} mov.u32 %r2, %ctaid.x; setp.lt.u32 %p0, %lane, 16; setp.eq.and.u32 %p1, %r2, 0, %p0; @%p1 st.shared.u32 [%r1], 0; @%p0 ld.shared.u32 %r3, [%r1];"
    ));
    Program { grid: [1, 1, 1], ..Program::new(&program.body) }.passes();
    program.grid(40).fails(Kind::Failed, never);
}

#[test]
fn threads_that_touch_the_same_byte_without_a_barrier() {
    // The first thread writes, and thread `other` does something.
    let race = |between: &str, other: u32, access: &str| {
        Program::new(&format!(
            ".shared .align 16 .b8 s[64]; setp.eq.u32 %p0, %lane, 0; setp.eq.u32 %p1, %lane, {other};
            @%p0 st.shared.u32 [s], 1; {between} @%p1 {access};"
        ))
        .threads(64)
    };
    let (read, write, change) = ("ld.shared.u32 %r2, [s]", "st.shared.u32 [s], 2", "atom.shared.add.u32 %r2, [s], 1");
    for other in [1, 40] {
        race("", other, read).fails(Kind::Failed, "which thread 0 wrote, without a barrier");
        race("", other, write).fails(Kind::Failed, "write byte 0 of shared memory without a barrier");
        race("", other, change).fails(Kind::Failed, "without a barrier");
        race("", other, "ld.shared.u8 %r2, [s + 3]").fails(Kind::Failed, "byte 3");
        race("", other, "st.shared.u8 [s + 4], 0").passes();
        for access in [read, write, change] {
            race("bar.sync 0;", other, access).passes();
        }
        // Of what is read, too.
        race("bar.sync 0; ld.shared.u32 %r3, [s];", other, write)
            .fails(Kind::Failed, "which others read, without a barrier");
        race("bar.sync 0; ld.shared.u32 %r3, [s]; bar.sync 0;", other, write).passes();
        // Shuffles and votes don't order memory.
        race("shfl.sync.idx.b32 %r3, %r3, 0, 31, -1;", other, read).fails(Kind::Failed, "without a barrier");
        race("vote.sync.any.pred %p2, %p0, -1;", other, read).fails(Kind::Failed, "without a barrier");
    }
    // A barrier of a warp is enough for its lanes, and for others isn't.
    race("bar.warp.sync -1;", 1, read).passes();
    race("bar.warp.sync -1;", 1, write).passes();
    race("bar.warp.sync -1;", 40, read).fails(Kind::Failed, "without a barrier");
    // Through generic addresses.
    race("mov.u64 %x0, s; cvta.shared.u64 %x0, %x0;", 1, "ld.u32 %r2, [%x0]").fails(Kind::Failed, "without a barrier");
    // Changes at once don't race with each other.
    race("bar.sync 0; red.shared.add.u32 [s], 1;", 3, change).passes();
}

#[test]
fn copies_that_nobody_waited_for() {
    let copy = |rest: &str| {
        own(&format!(
            ".shared .align 16 .b8 s[512]; mov.u32 %r0, s; mad.lo.u32 %r1, %lane, 16, %r0; xor.b32 %r2, %lane, 1; mad.lo.u32 %r2, %r2, 16, %r0;
            cp.async.cg.shared.global [%r1], [%x30], 16; {rest}"
        ))
        .input(vec![0; 256])
    };
    let (wait, read) = ("cp.async.commit_group; cp.async.wait_group 0;", "ld.shared.u32 %r3, [%r2];");
    copy(&format!("{wait} bar.sync 0; {read}")).passes();
    let under_way = "hasn't waited for";
    copy(&format!("bar.sync 0; {read}")).fails(Kind::Failed, under_way);
    copy(&format!("cp.async.commit_group; bar.sync 0; {read}")).fails(Kind::Failed, under_way);
    copy(&format!("cp.async.commit_group; cp.async.wait_group 1; bar.sync 0; {read}")).fails(Kind::Failed, under_way);
    // The group isn't closed.
    copy(&format!("cp.async.wait_group 0; bar.sync 0; {read}")).fails(Kind::Failed, under_way);
    copy("ld.shared.u32 %r3, [%r1];").fails(Kind::Failed, under_way);
    copy("st.shared.u32 [%r1], 0;").fails(Kind::Failed, under_way);
    copy(&format!("{wait} {read}")).fails(Kind::Failed, "without a barrier");
    // A second copy to what others still read.
    let again = "cp.async.cg.shared.global [%r1], [%x30], 16;";
    copy(&format!("{wait} bar.sync 0; {read} {again} {wait}"))
        .fails(Kind::Failed, "which others read, without a barrier");
    copy(&format!("{wait} bar.sync 0; {read} bar.sync 0; {again} {wait} bar.sync 0; {read}")).passes();
    // What was there before isn't found in the place of a copy.
    copy(&format!("{wait} bar.sync 0; {read} bar.sync 0; {again} cp.async.commit_group; bar.sync 0; {read}"))
        .fails(Kind::Failed, under_way);
}

#[test]
fn lanes_of_a_warp_at_different_barriers() {
    let two = |a: &str, b: &str| {
        Program::new(&format!("setp.lt.u32 %p0, %lane, 5; @%p0 bra A; {b}; bra END; A: {a}; END:")).threads(64)
    };
    two("bar.sync 0", "bar.sync 0").fails(Kind::Failed, "lanes 0x1f of the warp at another instruction");
    two("barrier.sync 0", "barrier.sync 0").passes();
    two("bar.sync 0", "bar.sync 1").fails(Kind::Failed, "wait for each other");
    Program::new("setp.lt.u32 %p0, %lane, 5; @%p0 bar.sync 0; bar.sync 0;").fails(Kind::Failed, "at this barrier");
}

#[test]
fn threads_that_wait_for_each_other() {
    let waits = "threads wait for each other";
    Program::new("bar.sync 1, 64;").fails(Kind::Failed, waits);
    Program::new("setp.lt.u32 %p0, %lane, 32; @%p0 bra A; bar.sync 1; bra END; A: bar.sync 2; END:")
        .threads(64)
        .fails(Kind::Failed, waits);
    Program::new("setp.lt.u32 %p0, %lane, 5; @%p0 bra A; bar.warp.sync -1; bra END; A: bar.sync 0; END:")
        .fails(Kind::Failed, "0xffffffe0: `bar.warp.sync -1`");
    Program::new("setp.lt.u32 %p0, %lane, 5; @%p0 shfl.sync.idx.b32 %r0, %r1, 0, 31, -1; bar.sync 0;")
        .fails(Kind::Failed, waits);
    Program::new("bar.sync 1, 96;").threads(64).fails(Kind::Failed, waits);
}

#[test]
fn what_needs_the_whole_warp() {
    let mma = "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r6}, {%r0, %r1, %r2, %r3};";
    Program::new(mma).passes();
    Program::new(mma).threads(40).fails(Kind::Failed, "all lanes of the warp, of which 8 run");
    Program::new(&format!("setp.lt.u32 %p0, %lane, 5; @%p0 exit; {mma}")).fails(Kind::Failed, "of which 27 run");
    Program::new(&format!("setp.lt.u32 %p0, %lane, 5; @%p0 {mma} bar.sync 0;"))
        .fails(Kind::Failed, "wait for each other");
    // Lanes that come later are waited for.
    Program::new(&format!("setp.lt.u32 %p0, %lane, 5; @%p0 bra A; add.u32 %r0, %r0, 1; A: {mma}")).passes();
}

#[test]
fn kernels_that_stop_themselves_or_do_what_is_not_known() {
    Program::new("setp.eq.u32 %p0, %lane, 9; @%p0 trap;")
        .fails(Kind::Failed, "thread 9: `@%p0 trap`: the kernel stops itself");
    Program::new("setp.eq.u32 %p0, %lane, 9; @%p0 nonsense.f32 %r0, %r1;").fails(
        Kind::Instruction,
        "thread 9: `@%p0 nonsense.f32 %r0, %r1`: the double can't run this: the instruction `nonsense`",
    );
    Program::new("T: .branchtargets A, B; brx.idx %lane, T; A: B:").fails(Kind::Failed, "chooses 2 of 2 labels");
    // Another block, and the second warp.
    Program::new("mov.u32 %r0, %ctaid.x; setp.eq.u32 %p0, %r0, 3; setp.eq.and.u32 %p0, %lane, 45, %p0; @%p0 trap;")
        .threads(64)
        .grid(5)
        .fails(Kind::Failed, "kernel: block [3, 0, 0], thread 45");
}
