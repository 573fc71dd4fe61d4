//! `wmma`: matrices that are loaded, multiplied and stored, in each layout.

mod support;
use cuda::machine::Kind;
use half::f16;
use support::{Program, refused};

fn bytes(ty: &str) -> usize {
    match ty {
        "s8" | "u8" => 1,
        "f16" | "bf16" => 2,
        _ => 4,
    }
}

fn encode(ty: &str, v: i64) -> u32 {
    match ty {
        "s8" | "u8" | "s32" => v as u32,
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

/// Registers of fragments of `a`, `b` and accumulators, as the ISA lists them.
fn counts(shape: &str, ty: &str, sums: &str) -> [usize; 3] {
    let accumulators = if sums == "f16" { 4 } else { 8 };
    let [a, b] = match (ty, shape) {
        ("f16", _) => [8, 8],
        ("bf16", "m16n16k16") | ("tf32", "m16n16k8") => [4, 4],
        ("bf16", "m8n32k16") => [2, 8],
        ("bf16", "m32n8k16") => [8, 2],
        (_, "m16n16k16") => [2, 2],
        (_, "m8n32k16") => [1, 4],
        (_, "m32n8k16") => [4, 1],
        other => panic!("{other:?}"),
    };
    [a, b, accumulators]
}

/// A matrix in memory.
struct Matrix {
    rows: usize,
    columns: usize,
    by_columns: bool,
    /// Elements from one line to the next.
    stride: usize,
}

impl Matrix {
    fn new(rows: usize, columns: usize, by_columns: bool, more: usize) -> Self {
        Self { rows, columns, by_columns, stride: if by_columns { rows } else { columns } + more }
    }

    fn layout(&self) -> &'static str {
        if self.by_columns { "col" } else { "row" }
    }

    fn at(&self, row: usize, column: usize) -> usize {
        if self.by_columns { column * self.stride + row } else { row * self.stride + column }
    }

    fn put(&self, memory: &mut [u8], ty: &str, of: impl Fn(usize, usize) -> i64) {
        for row in 0..self.rows {
            for column in 0..self.columns {
                let n = bytes(ty);
                let v = encode(ty, of(row, column)).to_le_bytes();
                memory[self.at(row, column) * n..][..n].copy_from_slice(&v[..n]);
            }
        }
    }
}

/// Where matrices are in the input.
const PLACE: usize = 8192;

struct Case<'a> {
    shape: (usize, usize, usize),
    ty: &'a str,
    sums: &'a str,
    /// Whether a, b, c and d are stored by columns.
    by_columns: [bool; 4],
    /// Elements between the lines of matrices.
    more: usize,
    modifiers: &'a str,
}

impl Case<'_> {
    /// The product of matrices of numbers.
    fn run(
        &self,
        a: impl Fn(usize, usize) -> i64,
        b: impl Fn(usize, usize) -> i64,
        c: impl Fn(usize, usize) -> i64,
    ) -> Vec<Vec<i64>> {
        let (m, n, k) = self.shape;
        let Self { ty, sums, modifiers, .. } = self;
        let shape = format!("m{m}n{n}k{k}");
        let ma = Matrix::new(m, k, self.by_columns[0], self.more);
        let mb = Matrix::new(k, n, self.by_columns[1], self.more);
        let mc = Matrix::new(m, n, self.by_columns[2], self.more);
        let md = Matrix::new(m, n, self.by_columns[3], self.more);
        let mut memory = vec![0xee; PLACE * 3];
        ma.put(&mut memory, ty, &a);
        mb.put(&mut memory[PLACE..], ty, &b);
        mc.put(&mut memory[PLACE * 2..], sums, &c);
        let mut next = 0;
        let [ra, rb, rc, rd] = [0, 1, 2, 2].map(|i| {
            let count = counts(&shape, ty, sums)[i];
            next += count;
            format!("{{{}}}", (next - count..next).map(|r| format!("%r{r}")).collect::<Vec<_>>().join(", "))
        });
        // Without room between the lines the stride needn't be said.
        let stride = |m: &Matrix| if self.more == 0 { String::new() } else { format!(", {}", m.stride) };
        let types = match (*ty, *sums) {
            ("f16", sums) => format!("{sums}.{sums}"),
            (ty, sums) => format!("{sums}.{ty}.{ty}.{sums}"),
        };
        let (la, lb, lc, ld) = (ma.layout(), mb.layout(), mc.layout(), md.layout());
        let body = format!(
            ".shared .align 32 .b8 s[{PLACE}];
            wmma.load.a.sync.aligned.{la}.{shape}.global.{ty} {ra}, [%in]{};
            wmma.load.b.sync.aligned.{lb}.{shape}.{ty} {rb}, [%in + {PLACE}]{};
            wmma.load.c.sync.aligned.{lc}.{shape}.global.{sums} {rc}, [%in + {}]{};
            wmma.store.d.sync.aligned.{ld}.{shape}.shared.{sums} [s], {rc}{};
            bar.warp.sync -1;
            wmma.load.c.sync.aligned.{ld}.{shape}.shared::cta.{sums} {rc}, [s]{};
            wmma.mma.sync.aligned.{la}.{lb}.{shape}.{types}{modifiers} {rd}, {ra}, {rb}, {rc};
            wmma.store.d.sync.aligned.{ld}.{shape}.global.{sums} [%out], {rd}{};",
            stride(&ma),
            stride(&mb),
            PLACE * 2,
            stride(&mc),
            stride(&md),
            stride(&md),
            stride(&md),
        );
        let input = memory.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect();
        let out = Program::new(&body).input(input).output(PLACE / 8).run().unwrap_or_else(|f| panic!("{f}"));
        let out: Vec<u8> = out.iter().flat_map(|w| w.to_le_bytes()).collect();
        let element = |row: usize, column: usize| {
            let mut v = [0; 4];
            let bytes = bytes(sums);
            v[..bytes].copy_from_slice(&out[md.at(row, column) * bytes..][..bytes]);
            decode(sums, u32::from_le_bytes(v))
        };
        (0..m).map(|row| (0..n).map(|column| element(row, column)).collect()).collect()
    }
}

#[test]
fn products_in_each_layout() {
    let integers = [(16, 16, 16), (32, 8, 16), (8, 32, 16)];
    for (ty, sums, shapes, low, range) in [
        ("s8", "s32", &integers[..], -128, 256),
        ("u8", "s32", &integers, 0, 256),
        ("f16", "f32", &integers, -5, 11),
        ("f16", "f16", &integers, -5, 11),
        ("bf16", "f32", &integers, -5, 11),
        ("tf32", "f32", &[(16, 16, 8)], -5, 11),
    ] {
        let number =
            |seed: usize| move |r: usize, c: usize| low + ((r * 73 + c * 31 + r * c * 17 + seed) % range) as i64;
        let (a, b) = (number(3), number(90));
        let c = |r: usize, c: usize| (r * 7 + c) as i64 - 40;
        for shape in shapes {
            for layouts in 0..16 {
                let by_columns = [0, 1, 2, 3].map(|i| layouts >> i & 1 == 1);
                for more in [0, 16] {
                    let case = Case { shape: *shape, ty, sums, by_columns, more, modifiers: "" };
                    let found = case.run(a, b, c);
                    for (row, line) in found.iter().enumerate() {
                        for (column, found) in line.iter().enumerate() {
                            let expected = c(row, column) + (0..shape.2).map(|i| a(row, i) * b(i, column)).sum::<i64>();
                            assert_eq!(*found, expected, "{shape:?} {ty} {by_columns:?} +{more}: {row}, {column}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn sums_of_integers_wrap_around_or_saturate() {
    let case =
        |modifiers| Case { shape: (16, 16, 16), ty: "s8", sums: "s32", by_columns: [false; 4], more: 0, modifiers };
    let (max, min) = (i64::from(i32::MAX), i64::from(i32::MIN));
    assert_eq!(case("").run(|_, _| 1, |_, _| 1, |_, _| max)[3][4], min + 15);
    assert_eq!(case(".satfinite").run(|_, _| 1, |_, _| 1, |_, _| max)[3][4], max);
    assert_eq!(case(".satfinite").run(|_, _| -1, |_, _| 1, |_, _| min + 3)[3][4], min);
}

#[test]
fn matrices_that_are_not_there() {
    let load = |instruction: &str| Program::new(&format!(".shared .align 32 .b8 s[1024]; {instruction};"));
    let (eight, two) = ("{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}", "{%r0, %r1}");
    load(&format!("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {eight}, [%in]")).passes();
    load(&format!("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {eight}, [%in + 32]"))
        .fails(Kind::Address, "into an allocation of 512");
    load(&format!("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {eight}, [%in], 24"))
        .fails(Kind::Address, "into an allocation of 512");
    load(&format!("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {eight}, [%in + 4]"))
        .fails(Kind::Misaligned, "a matrix at");
    load(&format!("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {eight}, [%in], 17"))
        .fails(Kind::Misaligned, "rows of 34 bytes");
    load(&format!("wmma.load.a.sync.aligned.row.m16n16k16.shared.s8 {two}, [s]")).fails(Kind::Failed, "never written");
    load(&format!("wmma.store.d.sync.aligned.row.m16n16k16.shared.s32 [s], {eight}")).passes();
    load(&format!("wmma.store.d.sync.aligned.row.m16n16k16.shared.s32 [s + 32], {eight}"))
        .fails(Kind::Address, "of shared memory");
    load(&format!("wmma.load.a.sync.aligned.row.m16n16k16.global.s8 {two}, [%in]"))
        .threads(16)
        .fails(Kind::Failed, "all lanes");
    // What lanes stored for themselves.
    let store = "mad.lo.u32 %r9, %lane, 8, 0; st.shared.v2.u32 [%r9], {0, 0};";
    let read = format!("wmma.load.a.sync.aligned.row.m16n16k16.shared.s8 {two}, [s]");
    load(&format!("{store} bar.sync 0; {read}")).passes();
}

#[test]
fn what_they_do_not_have() {
    let eight = "{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}";
    refused(&format!("wmma.load.a.sync.aligned.m16n16k16.global.f16 {eight}, [%in]"), "layout");
    refused(&format!("wmma.load.e.sync.aligned.row.m16n16k16.global.f16 {eight}, [%in]"), "which matrix");
    refused(&format!("wmma.load.a.aligned.row.m16n16k16.global.f16 {eight}, [%in]"), "sync");
    refused(&format!("wmma.load.a.sync.aligned.row.m8n8k4.global.f64 {eight}, [%in]"), "(8, 8, 4)");
    refused(&format!("wmma.load.a.sync.aligned.row.m16n16k16.global.f64 {eight}, [%in]"), "F64");
    refused("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r0, %r1}, [%in]", "in 2 registers");
    refused(&format!("wmma.load.a.sync.aligned.row.m16n16k16.global.f16.x {eight}, [%in]"), "x");
    refused(&format!("wmma.mma.sync.aligned.row.col.m16n16k16.f32 {eight}, {eight}, {eight}, {eight}"), "types");
    refused(
        &format!("wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.u8.s32 {eight}, {eight}, {eight}, {eight}"),
        "a product of S8 and U8",
    );
    refused(
        &format!("wmma.mma.sync.aligned.row.col.m16n16k8.f32.bf16.bf16.f32 {eight}, {eight}, {eight}, {eight}"),
        "a product of Bf16",
    );
    refused(
        &format!("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32.satfinite {eight}, {eight}, {eight}, {eight}"),
        "a product of F16",
    );
    refused(&format!("wmma.fill.sync.aligned.row.m16n16k16.f32 {eight}"), "operation");
}
