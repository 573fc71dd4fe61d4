//! Loads, stores, addresses, variables, and copies to shared memory.

mod support;
use support::{Program, own, refused};

const WORD: u64 = 0x8182_8384_8586_8788;

/// What the first thread writes to the first words of output.
fn first(body: &str, input: &[u64]) -> Vec<u64> {
    own(&format!("setp.ne.u32 %p0, %lane, 0; @%p0 exit; {body}")).input(input.to_vec()).run().unwrap()
}

#[test]
fn values_are_loaded_with_their_sign() {
    // A register larger than the type is filled with the sign, or with zeros.
    for (ty, expected) in [
        ("u8", 0x88),
        ("b8", 0x88),
        ("s8", 0xffff_ffff_ffff_ff88),
        ("u16", 0x8788),
        ("b16", 0x8788),
        ("s16", 0xffff_ffff_ffff_8788),
        ("u32", 0x8586_8788),
        ("b32", 0x8586_8788),
        ("f32", 0x8586_8788),
        ("s32", 0xffff_ffff_8586_8788),
        ("u64", WORD),
        ("s64", WORD),
        ("b64", WORD),
        ("f64", WORD),
    ] {
        for modifiers in [
            "",
            ".global",
            ".global.nc",
            ".volatile.global",
            ".relaxed.gpu.global",
            ".acquire.sys.global",
            ".weak.global",
        ] {
            let out = first(&format!("ld{modifiers}.{ty} %x0, [%in]; st.global.b64 [%out], %x0;"), &[WORD]);
            assert_eq!(out[0], expected, "ld{modifiers}.{ty}");
        }
    }
    for modifiers in
        ["ca", "cg", "cs", "lu", "cv", "L1::no_allocate", "nc.L1::evict_last.L2::128B", "L1::evict_first", "L2::64B"]
    {
        assert_eq!(
            first(&format!("ld.global.{modifiers}.u32 %r0, [%in]; st.global.b32 [%out], %r0;"), &[WORD])[0],
            0x8586_8788
        );
    }
    assert_eq!(first("ldu.global.u32 %r0, [%in + 4]; st.global.b32 [%out], %r0;", &[WORD])[0], 0x8182_8384);
}

#[test]
fn a_store_leaves_what_is_beside_it() {
    for (bits, offset, expected) in
        [(8, 3, 0x8800_0000), (16, 2, 0x8788_0000), (32, 4, 0x8586_8788_0000_0000), (64, 0, WORD)]
    {
        for ty in ["b", "u", "s"] {
            for modifiers in [
                "",
                ".global",
                ".volatile.global",
                ".release.gpu.global",
                ".global.wb",
                ".global.cs",
                ".global.L1::no_allocate",
            ] {
                let out = first(
                    &format!("ld.global.b64 %x0, [%in]; st{modifiers}.{ty}{bits} [%out + {offset}], %x0;"),
                    &[WORD],
                );
                assert_eq!((out[0], out[1]), (expected, 0), "st{modifiers}.{ty}{bits}");
            }
        }
    }
    assert_eq!(
        first("st.global.f32 [%out], 0f3F800000; st.global.f64 [%out + 8], 0d3FF0000000000000;", &[0])[..2],
        [0x3f80_0000, 0x3ff0 << 48]
    );
    assert_eq!(first("st.global.u32 [%out], -1;", &[0])[0], 0xffff_ffff);
}

#[test]
fn several_values_are_loaded_and_stored() {
    let input = [WORD, 0x1112_1314_1516_1718];
    let copy = |n: usize, ty: &str| {
        let registers = (0..n).map(|i| format!("%x{i}")).collect::<Vec<_>>().join(", ");
        let shared = ".shared .align 16 .b8 s[32];";
        let out = first(
            &format!(
                "{shared} ld.global.v{n}.{ty} {{{registers}}}, [%in]; st.shared.v{n}.{ty} [s], {{{registers}}};
                ld.shared.v{n}.{ty} {{{registers}}}, [s]; st.global.v{n}.{ty} [%out], {{{registers}}};"
            ),
            &input,
        );
        [out[0], out[1]]
    };
    for ty in ["u8", "s8", "b8"] {
        assert_eq!(copy(2, ty), [0x8788, 0]);
        assert_eq!(copy(4, ty), [0x8586_8788, 0]);
    }
    for ty in ["u16", "s16", "b16"] {
        assert_eq!(copy(2, ty), [0x8586_8788, 0]);
        assert_eq!(copy(4, ty), [WORD, 0]);
    }
    for ty in ["u32", "s32", "b32", "f32"] {
        assert_eq!(copy(2, ty), [WORD, 0]);
        assert_eq!(copy(4, ty), input);
    }
    for ty in ["u64", "s64", "b64", "f64"] {
        assert_eq!(copy(2, ty), input);
    }
    // Each with its sign, and one that isn't wanted.
    let out = first(
        "ld.global.v4.s8 {%x0, _, %x1, %x2}, [%in + 4]; st.global.v2.b64 [%out], {%x0, %x2};",
        &[0x7f01_0280_0000_0000],
    );
    assert_eq!(out[..2], [0xffff_ffff_ffff_ff80, 0x7f]);
    refused("ld.global.v4.u32 {%d32, %f32}, [%in]", "2 destinations of 4");
    refused("st.global.v2.u32 [%out], %a32", "1 values of 2");
}

#[test]
fn memory_of_all_kinds_has_generic_addresses() {
    // Local memory is of each thread, shared memory of all.
    let out = own(
        ".local .align 8 .b8 l[32]; .shared .align 8 .b8 s[256];
        mov.u64 %x0, l; cvta.local.u64 %x1, %x0; cvta.to.local.u64 %x2, %x1;
        st.local.u32 [l + 8], %lane; ld.u32 %r0, [%x1 + 8]; st.u32 [%x1 + 12], 7; ld.local.u32 %r1, [%x2 + 12];
        mad.lo.u32 %r0, %r1, 100, %r0; st.global.u32 [%x31], %r0;
        mov.u32 %r2, s; mad.lo.u32 %r2, %lane, 8, %r2; st.shared.u32 [%r2], %lane;
        cvt.u64.u32 %x3, %r2; cvta.shared.u64 %x4, %x3; ld.u32 %r3, [%x4]; cvta.to.shared.u64 %x5, %x4; ld.shared.u32 %r4, [%x5];
        add.u32 %r3, %r3, %r4; st.global.u32 [%x31 + 4], %r3;
        cvta.to.global.u64 %x6, %x31; cvta.global.u64 %x6, %x6; add.u64 %x6, %x6, 8; st.u32 [%x6], 5;",
    )
    .input(vec![0; 256])
    .output(64)
    .run()
    .unwrap();
    for lane in 0..32 {
        assert_eq!((out[lane * 2], out[lane * 2 + 1]), ((700 + lane as u64) | ((2 * lane as u64) << 32), 5));
    }
    refused("cvta.const.u32.x %d64, %a64", "x");
    refused("cvta.param.u64 %d64, kernel_out", "space");
}

#[test]
fn variables_have_their_values() {
    let outside = ".global .align 4 .u32 counts[3] = {1, 2, 0x30};
        .const .align 2 .b8 table[4] = {255, 1, 2};
        .visible .global .align 8 .f64 pi = 0d400921FB54442D18;
        .global .align 4 .f32 one[2] = {0f3F800000};
        .global .align 2 .s16 minus[2] = {-1, -2};
        .extern .shared .align 16 .b8 more[];";
    let program = Program::new(
        ".shared .align 4 .b8 own[20];
        setp.ne.u32 %p0, %lane, 0; @%p0 exit;
        ld.global.u32 %r0, [counts + 8]; mov.u64 %x0, counts; ld.u32 %r1, [%x0 + 4]; add.u32 %r0, %r0, %r1; st.global.u32 [%out], %r0;
        ld.const.u8 %r0, [table]; ld.const.s8 %r1, [table]; ld.const.u8 %r2, [table + 3]; add.u32 %r0, %r0, %r1; add.u32 %r0, %r0, %r2; st.global.u32 [%out + 4], %r0;
        ld.global.b64 %x1, [pi]; st.global.b64 [%out + 8], %x1;
        ld.global.v2.b32 {%r0, %r1}, [one]; st.global.v2.b32 [%out + 16], {%r0, %r1};
        ld.global.s16 %x2, [minus + 2]; st.global.b64 [%out + 24], %x2;
        mov.u32 %r3, own; mov.u32 %r4, more; st.global.v2.b32 [%out + 32], {%r3, %r4};
        st.shared.u32 [more + 60], 77; ld.shared.u32 %r5, [%r4 + 60]; st.global.u32 [%out + 40], %r5;
        mov.u32 %r6, %dynamic_smem_size; mov.u32 %r7, %total_smem_size; st.global.v2.b32 [%out + 48], {%r6, %r7};",
    )
    .outside(outside);
    let out = Program { dynamic: 64, ..program }.run().unwrap();
    assert_eq!(out[0], 0x32 | 254 << 32);
    assert_eq!(out[1..4], [0x4009_21fb_5444_2d18, 0x3f80_0000, 0xffff_ffff_ffff_fffe]);
    // What a launch adds is behind what the kernel declares.
    assert_eq!(out[4..7], [32 << 32, 77, 64 | 96 << 32]);
}

#[test]
fn threads_know_where_they_are() {
    let names = [
        "tid.x", "tid.y", "tid.z", "ntid.x", "ntid.y", "ntid.z", "ctaid.x", "ctaid.y", "ctaid.z", "nctaid.x",
        "nctaid.y", "nctaid.z", "laneid", "warpid",
    ];
    let mut body = String::from(
        "mov.u32 %r0, %ctaid.z; mov.u32 %r1, %nctaid.y; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r0, %r0, %r1, %r2;
        mov.u32 %r1, %nctaid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r0, %r0, %r1, %r2;
        mov.u32 %r3, %tid.z; mov.u32 %r4, %tid.y; mad.lo.u32 %r3, %r3, 4, %r4; mov.u32 %r4, %tid.x; mad.lo.u32 %r3, %r3, 5, %r4;
        mad.lo.u32 %r0, %r0, 60, %r3; mad.wide.u32 %x0, %r0, 112, %out;",
    );
    for (i, name) in names.iter().enumerate() {
        body += &format!("mov.u32 %r5, %{name}; st.global.u32 [%x0 + {}], %r5;", i * 8);
    }
    let program = Program { grid: [2, 3, 2], block: [5, 4, 3], output: 12 * 60 * 14, ..Program::new(&body) };
    let out = program.run32();
    for block in 0..12u32 {
        for thread in 0..60u32 {
            let found = &out[(block * 60 + thread) as usize * 14..][..14];
            let tid = [thread % 5, thread / 5 % 4, thread / 20];
            let ctaid = [block % 2, block / 2 % 3, block / 6];
            assert_eq!(found[..3], tid);
            assert_eq!(found[3..6], [5, 4, 3]);
            assert_eq!(found[6..9], ctaid);
            assert_eq!(found[9..12], [2, 3, 2]);
            assert_eq!(found[12..], [thread % 32, thread / 32]);
        }
    }
}

#[test]
fn masks_of_lanes() {
    for (name, of) in [
        ("eq", (|l| 1 << l) as fn(u32) -> u32),
        ("lt", |l| (1 << l) - 1),
        ("le", |l| ((1u64 << (l + 1)) - 1) as u32),
        ("gt", |l| !((1u64 << (l + 1)) - 1) as u32),
        ("ge", |l| !((1u64 << l) - 1) as u32),
    ] {
        let out = support::warp(&format!("mov.u32 %r1, %lanemask_{name};"), &[0; 32]).run32();
        assert_eq!(out, (0..32).map(of).collect::<Vec<_>>(), "{name}");
    }
}

/// Copies of 32 threads to shared memory, which are waited for, and what another thread then finds.
fn copied(copy: &str, wait: &str) -> Vec<u64> {
    own(&format!(
        ".shared .align 16 .b8 s[512];
        mov.u32 %r0, s; mad.lo.u32 %r1, %lane, 16, %r0; st.shared.v4.u32 [%r1], {{-1, -1, -1, -1}};
        {copy}
        {wait}
        bar.sync 0;
        xor.b32 %r2, %lane, 31; mad.lo.u32 %r3, %r2, 16, %r0;
        ld.shared.v2.b64 {{%x0, %x1}}, [%r3]; st.global.v2.b64 [%x31], {{%x0, %x1}};"
    ))
    .input((0..32 * 8).collect())
    .run()
    .unwrap()
}

#[test]
fn copies_arrive_when_they_are_waited_for() {
    let group = "cp.async.commit_group; cp.async.wait_group 0;";
    for wait in [group, "cp.async.wait_all;", "cp.async.commit_group; cp.async.wait_all;"] {
        for space in ["shared", "shared::cta"] {
            for modifiers in ["ca.{}.global", "cg.{}.global", "cg.{}.global.L2::128B"] {
                let out = copied(&format!("cp.async.{} [%r1], [%x30], 16;", modifiers.replace("{}", space)), wait);
                for lane in 0..32 {
                    let from = (31 - lane) as u64 * 8;
                    assert_eq!(out[lane * 2..][..2], [from, from + 1]);
                }
            }
        }
    }
    let ones = u64::MAX;
    assert_eq!(copied("cp.async.ca.shared.global [%r1 + 8], [%x30 + 8], 8;", group)[..2], [ones, 31 * 8 + 1]);
    assert_eq!(
        copied("cp.async.ca.shared.global [%r1 + 4], [%x30 + 8], 4;", group)[..2],
        [0xffff_ffff | (31 * 8 + 1) << 32, ones]
    );
    // Only a part is read, or nothing: the rest is zeros, and what isn't read needn't be there.
    assert_eq!(
        copied("mov.u32 %r5, 8; cp.async.cg.shared.global [%r1], [%x30 + 16], 16, %r5;", group)[..2],
        [31 * 8 + 2, 0]
    );
    assert_eq!(copied("mov.u64 %x2, 0; cp.async.cg.shared.global [%r1], [%x2], 16, 0;", group)[..2], [0, 0]);
    // Of several groups the last may be under way.
    let two = "cp.async.ca.shared.global [%r1], [%x30 + 8], 8; cp.async.commit_group;
        cp.async.ca.shared.global [%r1 + 8], [%x30 + 16], 8; cp.async.commit_group;";
    assert_eq!(copied(two, "cp.async.wait_group 1; cp.async.wait_group 0;")[..2], [31 * 8 + 1, 31 * 8 + 2]);
    assert_eq!(copied(two, "cp.async.wait_all;")[..2], [31 * 8 + 1, 31 * 8 + 2]);
}

#[test]
fn what_they_do_not_have() {
    refused("ld.global.b128 %d64, [%in]", "B128");
    refused("st.global.b128 [%in], %a64", "B128");
    refused("ld.global.f16 %d16, [%in]", "F16");
    refused("ld.global.pred %dp, [%in]", "Pred");
    refused("ld.global.L2::cache_hint.u32 %d32, [%in], %a64", "L2::cache_hint");
    refused("ld.mmio.relaxed.sys.global.u32 %d32, [%in]", "mmio");
    refused("st.async.u32 [%out], %a32, [%out]", "async");
    refused("ld.shared::cluster.u32 %d32, [%in]", "shared::cluster");
    refused("cp.async.ca.shared.global [%out], [%in], 12", "so many bytes");
    refused("cp.async.cg.shared.global [%out], [%in], 8", "so many bytes");
    refused("cp.async.shared.global [%out], [%in], 16", "cache");
    refused("cp.async.cg.shared.global.L2::cache_hint [%out], [%in], 16, %a64", "L2::cache_hint");
    refused("cp.async.bulk.commit_group", "bulk");
    refused("cp.reduce.async.bulk.global.shared::cta [%out], [%in], 16", "reduce");
    refused("cp.async.mbarrier.arrive.shared.b64 [%out]", "cache");
    refused("prefetch.tensormap [%in]", "tensormap");
    refused("discard.global.L2 [%out], 128", "discard");
    refused("mov.b64.x %d64, %a64", "x");
    own("prefetch.global.L2 [%in]; prefetch.global.L2::evict_last [%in]; prefetchu.L1 [%in]; applypriority.global.L2::evict_normal [%in], 128;").input(vec![0; 256]).passes();
}
