//! `mma`, `ldmatrix` and `stmatrix`: the fragments are built by the ISA's formulas for their elements.

mod support;
use half::f16;
use support::{own, refused};

/// The row and the column of a lane's element; `group` and `thread` are what the ISA calls groupID and threadID_in_group.
type Place = fn(group: usize, thread: usize, i: usize) -> (usize, usize);

struct Layout {
    /// Elements of a lane.
    count: usize,
    place: Place,
}

const fn layout(count: usize, place: Place) -> Layout {
    Layout { count, place }
}

fn bits(ty: &str) -> usize {
    match ty {
        "s8" | "u8" => 8,
        "f16" | "bf16" => 16,
        _ => 32,
    }
}

fn encode(ty: &str, v: i64) -> u32 {
    match ty {
        "s8" | "u8" => v as u32 & 255,
        "s32" => v as u32,
        "f16" => u32::from(f16::from_f32(v as f32).to_bits()),
        "bf16" => (v as f32).to_bits() >> 16,
        _ => (v as f32).to_bits(),
    }
}

fn decode(ty: &str, v: u32) -> i64 {
    match ty {
        "s32" => i64::from(v as i32),
        "f16" => f16::from_bits(v as u16).to_f32() as i64,
        _ => f32::from_bits(v) as i64,
    }
}

type Matrix = Vec<Vec<i64>>;

/// Numbers in a range that have no pattern.
fn matrix(rows: usize, columns: usize, low: i64, high: i64) -> Matrix {
    let number = |r: usize, c: usize| low + ((r * 73 + c * 31 + r * c * 17) % (high - low + 1) as usize) as i64;
    (0..rows).map(|r| (0..columns).map(|c| number(r, c)).collect()).collect()
}

/// The registers of a lane.
fn registers(m: &Matrix, ty: &str, of: &Layout, lane: usize) -> Vec<u32> {
    let per = 32 / bits(ty);
    let mut out = vec![0; of.count / per];
    for i in 0..of.count {
        let (row, column) = (of.place)(lane / 4, lane % 4, i);
        out[i / per] |= encode(ty, m[row][column]) << (i % per * bits(ty));
    }
    out
}

struct Product<'a> {
    shape: (usize, usize, usize),
    types: [&'a str; 4],
    a: Layout,
    b: Layout,
    c: Layout,
}

impl Product<'_> {
    /// What the instruction makes of matrices.
    fn run(&self, modifiers: &str, (a, b, c): (&Matrix, &Matrix, &Matrix)) -> Matrix {
        let ((m, n, k), [dt, at, bt, ct]) = (self.shape, self.types);
        let mut next = 0;
        let mut names = |count: usize| {
            let list: Vec<_> = (next..next + count).map(|i| format!("%r{i}")).collect();
            next += count;
            (list.clone(), format!("{{{}}}", list.join(", ")))
        };
        let count = |layout: &Layout, ty: &str| layout.count * bits(ty) / 32;
        let [ra, rb, rc] = [(&self.a, at), (&self.b, bt), (&self.c, ct)].map(|(l, ty)| names(count(l, ty)));
        let (d, rd) = names(count(&self.c, dt));
        let mut body = String::new();
        for (i, name) in [&ra.0[..], &rb.0, &rc.0].concat().iter().enumerate() {
            body += &format!("ld.global.b32 {name}, [%x30 + {}];\n", i * 4);
        }
        body += &format!(
            "mma.sync.aligned.m{m}n{n}k{k}.row.col{modifiers}.{dt}.{at}.{bt}.{ct} {rd}, {}, {}, {};\n",
            ra.1, rb.1, rc.1
        );
        for (i, name) in d.iter().enumerate() {
            body += &format!("st.global.b32 [%x31 + {}], {name};\n", i * 4);
        }
        let mut input = vec![0u64; 32 * 8];
        for lane in 0..32 {
            let all =
                [registers(a, at, &self.a, lane), registers(b, bt, &self.b, lane), registers(c, ct, &self.c, lane)]
                    .concat();
            for (i, v) in all.iter().enumerate() {
                input[lane * 8 + i / 2] |= u64::from(*v) << (i % 2 * 32);
            }
        }
        let out = own(&body).input(input).run().unwrap_or_else(|f| panic!("{f}"));
        let mut result = vec![vec![i64::MIN; n]; m];
        let per = 32 / bits(dt);
        for lane in 0..32 {
            for i in 0..self.c.count {
                let word = out[lane * 2 + i / per / 2] >> (i / per % 2 * 32) >> (i % per * bits(dt));
                let (row, column) = (self.c.place)(lane / 4, lane % 4, i);
                result[row][column] = decode(dt, word as u32);
            }
        }
        result
    }

    fn check(&self) {
        let (m, n, k) = self.shape;
        let [_, at, bt, _] = self.types;
        let range = |ty: &str| match ty {
            "s8" => (-128, 127),
            "u8" => (0, 255),
            _ => (-5, 6),
        };
        let (ra, rb) = (range(at), range(bt));
        let (a, b, c) = (matrix(m, k, ra.0, ra.1), matrix(k, n, rb.0, rb.1), matrix(m, n, -50, 70));
        let mut expected = c.clone();
        for row in 0..m {
            for column in 0..n {
                expected[row][column] += (0..k).map(|i| a[row][i] * b[i][column]).sum::<i64>();
            }
        }
        assert_eq!(self.run("", (&a, &b, &c)), expected, "{:?} {:?}", self.shape, self.types);
    }
}

/// Of accumulators with 16 rows.
const SUMS: Place = |g, t, i| (g + if i < 2 { 0 } else { 8 }, t * 2 + (i & 1));

#[test]
fn products_of_bytes() {
    let pairs = [("s8", "s8"), ("u8", "u8"), ("s8", "u8"), ("u8", "s8")];
    for (at, bt) in pairs {
        let types = ["s32", at, bt, "s32"];
        Product {
            shape: (8, 8, 16),
            types,
            a: layout(4, |g, t, i| (g, t * 4 + i)),
            b: layout(4, |g, t, i| (t * 4 + i, g)),
            c: layout(2, |g, t, i| (g, t * 2 + i)),
        }
        .check();
        Product {
            shape: (16, 8, 16),
            types,
            a: layout(8, |g, t, i| (if i < 4 { g } else { g + 8 }, t * 4 + (i & 3))),
            b: layout(4, |g, t, i| (t * 4 + i, g)),
            c: layout(4, SUMS),
        }
        .check();
        large(types).check();
    }
}

fn large(types: [&str; 4]) -> Product<'_> {
    Product {
        shape: (16, 8, 32),
        types,
        a: layout(16, |g, t, i| {
            let low = i < 4 || (8..12).contains(&i);
            (if low { g } else { g + 8 }, t * 4 + (i & 3) + if i < 8 { 0 } else { 16 })
        }),
        b: layout(8, |g, t, i| (t * 4 + (i & 3) + if i < 4 { 0 } else { 16 }, g)),
        c: layout(4, SUMS),
    }
}

#[test]
fn sums_of_integers_wrap_around_or_saturate() {
    let product = large(["s32", "s8", "s8", "s32"]);
    let ones = |rows, columns, v| vec![vec![v; columns]; rows];
    let (a, b) = (ones(16, 32, 1), ones(32, 8, 1));
    let (max, min) = (i64::from(i32::MAX), i64::from(i32::MIN));
    assert_eq!(product.run("", (&a, &b, &ones(16, 8, max))), ones(16, 8, min + 31));
    assert_eq!(product.run(".satfinite", (&a, &b, &ones(16, 8, max))), ones(16, 8, max));
    assert_eq!(product.run(".satfinite", (&ones(16, 32, -1), &b, &ones(16, 8, min + 5))), ones(16, 8, min));
    assert_eq!(product.run(".satfinite", (&a, &b, &ones(16, 8, 5))), ones(16, 8, 37));
}

#[test]
fn products_of_floats() {
    for types in [
        ["f32", "f16", "f16", "f32"],
        ["f16", "f16", "f16", "f16"],
        ["f32", "f16", "f16", "f16"],
        ["f16", "f16", "f16", "f32"],
        ["f32", "bf16", "bf16", "f32"],
    ] {
        if types[0] == types[3] {
            Product {
                shape: (16, 8, 8),
                types,
                a: layout(4, |g, t, i| (if i < 2 { g } else { g + 8 }, t * 2 + (i & 1))),
                b: layout(2, |g, t, i| (t * 2 + i, g)),
                c: layout(4, SUMS),
            }
            .check();
        }
        Product {
            shape: (16, 8, 16),
            types,
            a: layout(8, |g, t, i| {
                let low = i < 2 || (4..6).contains(&i);
                (if low { g } else { g + 8 }, t * 2 + (i & 1) + if i < 4 { 0 } else { 8 })
            }),
            b: layout(4, |g, t, i| (t * 2 + (i & 1) + if i < 2 { 0 } else { 8 }, g)),
            c: layout(4, SUMS),
        }
        .check();
    }
    let types = ["f32", "tf32", "tf32", "f32"];
    Product {
        shape: (16, 8, 4),
        types,
        a: layout(2, |g, t, i| (g + 8 * i, t)),
        b: layout(1, |g, t, _| (t, g)),
        c: layout(4, SUMS),
    }
    .check();
    Product {
        shape: (16, 8, 8),
        types,
        a: layout(4, |g, t, i| (g + 8 * (i & 1), t + 4 * (i / 2))),
        b: layout(2, |g, t, i| (t + 4 * i, g)),
        c: layout(4, SUMS),
    }
    .check();
}

#[test]
fn sums_of_floats_are_cut_off() {
    let product = Product {
        shape: (16, 8, 8),
        types: ["f32", "tf32", "tf32", "f32"],
        a: layout(4, |g, t, i| (g + 8 * (i & 1), t + 4 * (i / 2))),
        b: layout(2, |g, t, i| (t + 4 * i, g)),
        c: layout(4, SUMS),
    };
    let sum = |of: [i64; 8], to: i64| {
        let made = product.run("", (&vec![of.to_vec(); 16], &vec![vec![1; 8]; 8], &vec![vec![to; 8]; 16]));
        assert!(made.iter().flatten().all(|v| *v == made[0][0]));
        made[0][0] - to
    };
    let (exact, even, odd) = (1 << 23, 1 << 24, 1 << 25);
    assert_eq!(sum([1; 8], exact), 8);
    // The last bit is lost, once for every four products, where rounding gives 4 and 8.
    assert_eq!(sum([1, 1, 1, 0, 0, 0, 0, 0], even), 2);
    assert_eq!(sum([1, 1, 1, 0, 1, 1, 1, 0], even), 4);
    assert_eq!(sum([-1, -1, -1, 0, -1, -1, -1, 0], -even), -4);
    // Of each product, the bits that lie too far behind the greatest term are lost.
    assert_eq!(sum([1; 8], odd), 0);
    assert_eq!(sum([3, 3, 0, 0, 0, 0, 0, 0], odd), 4);
}

#[test]
fn products_that_they_do_not_have() {
    let mma = |text: &str, why: &str| refused(&format!("mma.sync.aligned.{text}"), why);
    let f16 = "{%r0, %r1, %r2, %r3}, {%r4, %r5}, {%r6}, {%r0, %r1, %r2, %r3}";
    mma(&format!("m16n8k8.row.row.f32.f16.f16.f32 {f16}"), "col");
    mma(&format!("m16n8k8.row.col.f32.f16.bf16.f32 {f16}"), "a product of F16 and Bf16");
    mma(&format!("m16n8k8.row.col.f16.bf16.bf16.f16 {f16}"), "a product of Bf16");
    mma(&format!("m16n8k8.row.col.satfinite.f32.f16.f16.f32 {f16}"), "a product of F16");
    mma(&format!("m16n8k8.row.col.f32.f16.f16.f16 {f16}"), "number of registers");
    mma(&format!("m16n8k16.row.col.f32.f16.f16.f32 {f16}"), "number of registers");
    mma(&format!("m16n8k64.row.col.s32.s4.s4.s32 {f16}"), "");
    mma(&format!("m16n8k256.row.col.s32.b1.b1.s32.xor.popc {f16}"), "");
    mma(&format!("m16n8k32.row.col.f32.e4m3.e4m3.f32 {f16}"), "");
    mma("m8n8k4.row.col.f64.f64.f64.f64 {%x0, %x1}, {%x2}, {%x3}, {%x0, %x1}", "a product of F64");
    mma(&format!("m16n8k8.row.col.kind::x.f32.f16.f16.f32 {f16}"), "kind::x");
    refused("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r0}, {%r1}, {%r2}, {%r3}, %r4, 0", "");
    refused("wgmma.fence.sync.aligned", "wgmma");
}

/// The number of 16 bits at a row and a column of matrix `m`.
fn number(m: usize, row: usize, column: usize) -> u64 {
    (m * 0x1000 + row * 0x100 + column + 1) as u64
}

/// Matrices in shared memory, one row at `(m * 8 + row) * stride` bytes.
fn rows(count: usize, stride: usize) -> Vec<u64> {
    let mut words = vec![0; count * stride];
    for row in 0..count * 8 {
        for column in 0..8 {
            words[row * stride / 8 + column / 4] |= number(row / 8, row % 8, column) << (column % 4 * 16);
        }
    }
    words
}

#[test]
fn matrices_are_loaded_and_stored() {
    let fill = ".shared .align 16 .b8 s[2560]; mov.u32 %r20, s; mov.u32 %r21, %lane;
        FILL: mad.lo.u32 %r22, %r21, 8, %r20; mul.wide.u32 %x0, %r21, 8; add.u64 %x0, %x0, %in; ld.global.b64 %x1, [%x0]; st.shared.b64 [%r22], %x1;
        add.u32 %r21, %r21, 32; setp.lt.u32 %p0, %r21, 320; @%p0 bra FILL; bar.sync 0;";
    for count in [1, 2, 4] {
        let list = ["%r0", "%r1", "%r2", "%r3"][..count].join(", ");
        for stride in [16, 80] {
            let mut input = rows(count, stride);
            input.resize(320, 0);
            // Lanes past those that name rows have any address.
            let place = format!(
                "mad.lo.u32 %r23, %lane, {stride}, %r20; setp.ge.u32 %p1, %lane, {}; @%p1 mov.u32 %r23, 0xffffff01;",
                count * 8
            );
            for (trans, space) in [("", "shared"), (".trans", "shared"), (".trans", "shared::cta")] {
                let body = format!(
                    "{fill} {place} ldmatrix.sync.aligned.m8n8.x{count}{trans}.{space}.b16 {{{list}}}, [%r23];
                    st.global.v4.b32 [%x31], {{%r0, %r1, %r2, %r3}};"
                );
                let out = own(&body).input(input.clone()).run().unwrap_or_else(|f| panic!("{f}"));
                let loaded = |lane: usize, m: usize| out[lane * 2 + m / 2] >> (m % 2 * 32) & 0xffff_ffff;
                for lane in 0..32 {
                    for m in 0..count {
                        let (row, column) = (lane / 4, lane % 4 * 2);
                        let of = |i: usize| {
                            if trans.is_empty() { number(m, row, column + i) } else { number(m, column + i, row) }
                        };
                        assert_eq!(loaded(lane, m), of(0) | of(1) << 16, "x{count}{trans} lane {lane}");
                    }
                }
                // And back, to where nothing is.
                let body = format!(
                    "{fill} {place} ldmatrix.sync.aligned.m8n8.x{count}{trans}.{space}.b16 {{{list}}}, [%r23]; bar.sync 0;
                    .shared .align 16 .b8 t[512]; mov.u32 %r24, t; mad.lo.u32 %r23, %lane, 16, %r24;
                    stmatrix.sync.aligned.m8n8.x{count}{trans}.{space}.b16 [%r23], {{{list}}};
                    bar.warp.sync -1; setp.lt.u32 %p2, %lane, {}; @%p2 ld.shared.v4.b32 {{%r0, %r1, %r2, %r3}}, [%r23];
                    @%p2 st.global.v4.b32 [%x31], {{%r0, %r1, %r2, %r3}};",
                    count * 8
                );
                let out = own(&body).input(input.clone()).run().unwrap_or_else(|f| panic!("{f}"));
                let mut expected = rows(count, 16);
                expected.truncate(count * 16);
                assert_eq!(out[..count * 16], expected, "x{count}{trans}");
            }
        }
    }
    // One that stores and another layout that loads: a transposition.
    let out = own(&format!(
        "{fill} mad.lo.u32 %r23, %lane, 16, %r20; setp.ge.u32 %p1, %lane, 8; @%p1 mov.u32 %r23, 0;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r0}}, [%r23]; stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r23 + 512], {{%r0}};
        bar.warp.sync -1; setp.lt.u32 %p2, %lane, 8; @%p2 ld.shared.v4.b32 {{%r0, %r1, %r2, %r3}}, [%r23 + 512]; @%p2 st.global.v4.b32 [%x31], {{%r0, %r1, %r2, %r3}};"
    ))
    .input({
        let mut input = rows(1, 16);
        input.resize(320, 0);
        input
    })
    .run()
    .unwrap();
    assert_eq!(out[2] & 0xffff_ffff, number(0, 0, 1) | number(0, 1, 1) << 16);
}

#[test]
fn matrices_in_memory_that_they_do_not_have() {
    refused("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1}, [%r2]", "2 registers of 4");
    refused("ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r0}, [%r2]", "how many");
    refused("ldmatrix.sync.aligned.m8n8.x1.global.b16 {%r0}, [%x2]", "space");
    refused("ldmatrix.sync.aligned.m8n8.x1.shared.b8 {%r0}, [%r2]", "type");
    refused("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%r2]", "m8n8");
    refused("stmatrix.sync.aligned.m8n8.x1.shared.b16.x [%r2], {%r0}", "x");
    refused("ldmatrix.aligned.m8n8.x1.shared.b16 {%r0}, [%r2]", "sync");
    let load = |offset: &str| {
        own(&format!(
            ".shared .align 16 .b8 s[512]; mad.lo.u32 %r1, %lane, 16, 0; st.shared.v4.u32 [%r1], {{0, 0, 0, 0}}; bar.sync 0; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r2, %r3, %r4, %r5}}, [%r1 + {offset}];"
        ))
    };
    load("0").passes();
    load("8").fails(cuda::machine::Kind::Misaligned, "16 bytes");
    load("16").fails(cuda::machine::Kind::Address, "of shared memory");
}
