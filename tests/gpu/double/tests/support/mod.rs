//! Runs single instructions and small kernels.
//!
//! An instruction names its operands with their widths: `add.s32 %d32, %a32, %b32` reads two registers of 32 bits. Registers of the
//! double hold 64 bits of anything: what is above an operand's width is filled with rubbish, which must not change a result.

#![allow(dead_code, reason = "each file of tests uses its own part")]

use cuda::{
    isa,
    machine::{Fault, Kind, Launch},
    ptx,
};
use std::fmt::Write;

/// A kernel's body: `%out`, `%in` and `%lane` (the thread) are there, and registers `%r0..63`, `%x0..31`, `%p0..15`.
pub struct Program {
    /// Declarations before the kernel.
    pub outside: String,
    pub body: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Bytes of shared memory that the launch adds.
    pub dynamic: usize,
    pub input: Vec<u64>,
    /// Words of output, which are zero before.
    pub output: usize,
}

impl Program {
    pub fn new(body: &str) -> Self {
        Self {
            outside: String::new(),
            body: body.into(),
            grid: [1; 3],
            block: [32, 1, 1],
            dynamic: 0,
            input: vec![0; 64],
            output: 64,
        }
    }

    pub fn threads(self, n: u32) -> Self {
        Self { block: [n, 1, 1], ..self }
    }

    pub fn grid(self, n: u32) -> Self {
        Self { grid: [n, 1, 1], ..self }
    }

    pub fn outside(self, text: &str) -> Self {
        Self { outside: text.into(), ..self }
    }

    pub fn input(self, input: Vec<u64>) -> Self {
        Self { input, ..self }
    }

    pub fn output(self, words: usize) -> Self {
        Self { output: words, ..self }
    }

    pub fn text(&self) -> String {
        format!(
            ".version 8.5\n.target sm_90\n.address_size 64\n{}
            .visible .entry kernel(.param .u64 kernel_out, .param .u64 kernel_in)
            {{
                .reg .b32 %r<64>, %lane; .reg .b64 %x<32>, %out, %in; .reg .pred %p<16>;
                ld.param.u64 %out, [kernel_out]; ld.param.u64 %in, [kernel_in];
                mov.u32 %lane, %tid.x;
                {}
                ret;
            }}",
            self.outside, self.body
        )
    }

    /// The words of output.
    pub fn run(&self) -> Result<Vec<u64>, Fault> {
        let text = self.text();
        let module = ptx::parse(&text).unwrap_or_else(|why| panic!("{why} in\n{text}"));
        let kernel = isa::decode(&module.entries["kernel"]);
        let mut input = Chunk::of(&self.input);
        let mut output = Chunk::of(&vec![0; self.output]);
        let (from, to) = (input.as_mut_ptr() as u64, output.as_mut_ptr() as u64);
        let mut ranges = vec![(from, from + self.input.len() as u64 * 8), (to, to + self.output as u64 * 8)];
        ranges
            .extend(module.variables.iter().map(|v| (v.as_ptr() as u64, v.as_ptr() as u64 + size_of_val(&**v) as u64)));
        ranges.sort_unstable();
        let launch = Launch {
            kernel: &kernel,
            params: vec![u128::from(to) | u128::from(from) << 64],
            param_bytes: 16,
            grid: self.grid,
            block: self.block,
            dynamic: self.dynamic,
            ranges,
        };
        launch.run()?;
        Ok(output.iter().flat_map(|c| c.0).take(self.output).collect())
    }

    /// The low halves of the words of output: what a kernel wrote with `st.b32` at `8 * i`.
    pub fn run32(&self) -> Vec<u32> {
        self.run().unwrap_or_else(|f| panic!("{f}")).into_iter().map(|w| w as u32).collect()
    }

    /// The fault that it ends with, which is of this kind and says this.
    pub fn fails(&self, kind: Kind, what: &str) {
        match self.run() {
            Ok(_) => panic!("no fault in\n{}", self.body),
            Err(f) => assert!(f.kind == kind && f.what.contains(what), "{:?}: {f}\nwhere {kind:?}: {what}", f.kind),
        }
    }

    /// It ends well.
    pub fn passes(&self) {
        self.run().unwrap_or_else(|f| panic!("{f} in\n{}", self.body));
    }
}

/// A piece of memory, aligned as what a device allocates.
#[repr(align(256))]
#[derive(Clone, Copy)]
struct Chunk([u64; 32]);

impl Chunk {
    fn of(words: &[u64]) -> Vec<Self> {
        let chunk = |of: &[u64]| Self(std::array::from_fn(|i| of.get(i).copied().unwrap_or_default()));
        words.chunks(32).map(chunk).collect()
    }
}

/// A program in which each thread has its own place: `%x30` is that of its eight words of input, `%x31` of its two of output.
pub fn own(body: &str) -> Program {
    Program::new(&format!(
        "mad.wide.u32 %x30, %lane, 64, %in; mad.wide.u32 %x31, %lane, 16, %out;
        {body}"
    ))
}

const OPERANDS: &[char] = &['a', 'b', 'c', 'e'];

/// The width of operand `letter` in an instruction, and its register.
fn operand(instruction: &str, letter: char) -> Option<(u32, String)> {
    for (width, suffix) in [(8, "8"), (16, "16"), (32, "32"), (64, "64"), (64, "p")] {
        let name = format!("%{letter}{suffix}");
        let ends = |at: usize| !instruction[at + name.len()..].starts_with(|c: char| c.is_ascii_alphanumeric());
        if instruction.match_indices(&name).any(|(at, _)| ends(at)) {
            return Some((width, name));
        }
    }
    None
}

fn cut(width: u32, v: u64) -> u64 {
    if width >= 64 { v } else { v & ((1 << width) - 1) }
}

/// A program that runs an instruction in a thread for each row of inputs.
fn single(instruction: &str, inputs: &[Vec<u64>], rubbish: u64) -> Program {
    let mut body = String::from(".reg .b64 %d8, %d16, %d32, %d64, %dp, %f8, %f16, %f32, %f64, %fp;\n");
    for letter in OPERANDS {
        writeln!(body, ".reg .b64 %{letter}8, %{letter}16, %{letter}32, %{letter}64, %{letter}p;").unwrap();
    }
    let mut input = vec![0; inputs.len() * 8];
    for (i, letter) in OPERANDS.iter().enumerate() {
        let Some((width, name)) = operand(instruction, *letter) else { continue };
        writeln!(body, "ld.global.b64 {name}, [%x30 + {}];", i * 8).unwrap();
        for (lane, row) in inputs.iter().enumerate() {
            let v = row.get(i).copied().unwrap_or_else(|| panic!("{instruction}: {name} has no value"));
            input[lane * 8 + i] = if width == 64 { v } else { cut(width, v) | rubbish << width };
        }
    }
    writeln!(body, "{instruction};").unwrap();
    for (i, letter) in ['d', 'f'].into_iter().enumerate() {
        if let Some((_, name)) = operand(instruction, letter) {
            writeln!(body, "st.global.b64 [%x31 + {}], {name};", i * 8).unwrap();
        }
    }
    own(&body).threads(inputs.len() as u32).input(input).output(inputs.len() * 2)
}

/// What an instruction gives in `%d` and `%f`, once for each row.
pub fn results(instruction: &str, inputs: &[Vec<u64>]) -> Vec<(u64, u64)> {
    let run = |rubbish: u64| {
        let out = single(instruction, inputs, rubbish).run().unwrap_or_else(|f| panic!("{instruction}: {f}"));
        let width = |letter| operand(instruction, letter).map_or(64, |o| o.0);
        out.chunks(2).map(|c| (cut(width('d'), c[0]), cut(width('f'), c[1]))).collect::<Vec<_>>()
    };
    let clean = run(0);
    assert_eq!(clean, run(0x5a5a_c3c3_dead_beef), "{instruction}: bits that aren't an operand's change the result");
    clean
}

/// An instruction gives the results of a table: inputs `a`, `b`, `c`, `e`, and `d`.
pub fn check<const N: usize>(instruction: &str, rows: &[([u64; N], u64)]) {
    let inputs: Vec<_> = rows.iter().map(|r| r.0.to_vec()).collect();
    let width = operand(instruction, 'd').map_or(64, |o| o.0);
    for ((inputs, expected), (got, _)) in rows.iter().zip(results(instruction, &inputs)) {
        let expected = cut(width, *expected);
        assert_eq!(got, expected, "{instruction} of {inputs:#x?}: {got:#x}, not {expected:#x}");
    }
}

/// Of one that has two results, in `%d` and `%f`.
pub fn check_both<const N: usize>(instruction: &str, rows: &[([u64; N], (u64, u64))]) {
    let inputs: Vec<_> = rows.iter().map(|r| r.0.to_vec()).collect();
    for ((inputs, expected), got) in rows.iter().zip(results(instruction, &inputs)) {
        assert_eq!(got, *expected, "{instruction} of {inputs:x?}");
    }
}

/// An instruction that the double says it doesn't have, for a reason that names this.
pub fn refused(instruction: &str, why: &str) {
    let program = single(instruction, &[vec![0; 4]], 0);
    program.fails(Kind::Instruction, why);
}

/// An integer with a sign.
pub fn s(v: i64) -> u64 {
    v as u64
}

/// The bits of an `f32`.
pub fn f(v: f32) -> u64 {
    u64::from(v.to_bits())
}

/// The bits of an `f64`.
pub fn g(v: f64) -> u64 {
    v.to_bits()
}

/// What isn't a number, as an `f32` and as an `f16` or `bf16`: the ones that instructions give.
pub const NAN: u64 = 0x7fff_ffff;
pub const NAN16: u64 = 0x7fff;

/// A warp with a register of input (`%r0`) and of output (`%r1`) for each lane.
pub fn warp(body: &str, input: &[u32]) -> Program {
    let body = format!(
        "mad.wide.u32 %x30, %lane, 8, %in; mad.wide.u32 %x31, %lane, 8, %out;
        ld.global.b32 %r0, [%x30]; mov.b32 %r1, 0;
        {body}
        st.global.b32 [%x31], %r1;"
    );
    let input: Vec<u64> = input.iter().map(|v| u64::from(*v)).collect();
    let lanes = input.len();
    Program::new(&body).threads(lanes as u32).input(input).output(lanes)
}
