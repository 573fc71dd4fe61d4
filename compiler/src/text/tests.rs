use super::{digest, parse, parse_with};
use crate::{error::Kind, node::Port, tensor::Tensor, verify::verify};

/// Everything the form can say, as it prints.
const ALL: &str = r#"graph "all \"of\" it" {
  input %x: f32[batch,4,8,8]
  input %"a/b:0": f32[2] = [1.0, -2.5]
  input %rest: ?[*]
  input %odd: i64["n + 1",?,3]
  const %w: f32[4,1,1,1] = [0.5, -1.0, 1e-7, inf]
  %y = Conv(%x, %w) {pads=[1, 1, 1, 1], group=4} "node/name" : f32[batch,4,10,10]
  %left, _ = Split(%y) {axis=1} : f32[batch,2,10,10], f32[batch,2,10,10]
  %gelu = Gelu(%left) {approximate="tanh"} : f32[batch,2,10,10]
  const %d: f64[1] = [0.1]
  %wide = Cast(%d) {to=1} : f32[1]
  %leak = LeakyRelu(%wide) {alpha=0.1} : f32[1]
  const %shape: i64[2] = [2, 3]
  %full = ConstantOfShape(%shape) {value=i8[1] = [-3]} : i8[2,3]
  const %six: f32[] = [6.0]
  %clip = Clip(%gelu, _, %six) : f32[batch,2,10,10]
  const %lonely: bool[] = [1]
  output %clip
  output %leak as "leaky one"
  output %full
}
"#;

#[test]
fn round_trips() {
    let g = parse(ALL).unwrap();
    assert_eq!(g.to_string(), ALL);
    verify(&g).unwrap();
}

#[test]
fn reads_what_people_write() {
    let g = parse(
        "graph \"g\" {// made by hand
            input %x: f32[N,4] const %w: f32[4,40] = random(7)
            const %m: i8[300] = random(1) const %z: f16[2] = zeros const %h: bf16[3] = fill(0.5)
            const %n: i4[3] = [7, -8, 1] const %t: u2[5] = fill(3) const %e: f8e4m3fn[2] = [448.0, -0.5]
            const %f: f4e2m1[3] = zeros const %b: f6e3m2[3] = [28.0, 0.0625, 1.0]
            %y = MatMul(%x, %w) output %y as \"out\"
        }",
    )
    .unwrap();
    let text = g.to_string();
    assert!(text.contains("%y = MatMul(%x, %w) : f32[N,40]"), "{text}");
    assert!(text.contains("const %z: f16[2] = [0.0, 0.0]"), "{text}");
    assert!(text.contains("const %h: bf16[3] = [0.5, 0.5, 0.5]"), "{text}");
    for narrow in [
        "%n: i4[3] = [7, -8, 1]",
        "%t: u2[5] = [3, 3, 3, 3, 3]",
        "%e: f8e4m3fn[2] = [448.0, -0.5]",
        "%f: f4e2m1[3] = [0.0, 0.0, 0.0]",
        "%b: f6e3m2[3] = [28.0, 0.0625, 1.0]",
    ] {
        assert!(text.contains(narrow), "{text}");
    }
    assert!(text.contains("(640 B)"), "{text}");
    let w = g.constant(g.operand(g.operators().next().unwrap(), 1).unwrap()).unwrap();
    let values = w.as_f32().unwrap();
    let mean = values.iter().sum::<f32>() / 160.0;
    let var = values.iter().map(|v| v * v).sum::<f32>() / 160.0;
    assert!(mean.abs() < 0.2 && (var - 1.0).abs() < 0.3, "mean {mean}, variance {var}");
}

#[test]
fn digests_need_a_lookup() {
    let w = Tensor::f32(&[20], &[0.25; 20]);
    let mut g = crate::graph::Graph::new("g");
    let c = g.add_constant("w", w.clone());
    g.add_output("w", Port::from(c));
    let text = g.to_string();
    assert!(parse(&text).err().unwrap().message().starts_with("line 2: nobody knows the constant #"));
    let again = parse_with(&text, &|d| (d == digest(&w)).then(|| w.clone())).unwrap();
    assert_eq!(again.to_string(), text);
}

#[test]
fn errors_name_the_line() {
    for (body, expected) in [
        ("", "line 2: expected a statement, found the end"),
        ("frob %x", "line 2: expected a statement, found `frob`"),
        ("input %x f32[1]", "line 2: expected `:`, found `f`"),
        ("input %x: f33[1]", "line 2: expected an element type, found `f33`"),
        ("input %x: f32[-1]", "line 2: expected a size, found -1"),
        ("input %x: f32[1\n\n]]", "line 4: expected a statement, found `]`"),
        ("input %\"x: f32[1]", "line 2: expected a closing quote, found the end"),
        ("input %x: f32[1]\ninput %x: f32[1]", "line 3: two values are called `x`"),
        ("const %x: f32[1] = [1]\nconst %x: f32[1] = [1]", "line 3: two values are called `x`"),
        ("const %x: f32[N] = zeros", "line 2: a constant needs a type and a shape without unknowns"),
        ("const %x: f32[2] = [1]", "line 2: f32[2] needs 8 bytes, the file has 4"),
        ("const %x: u8[1] = [256]", "line 2: expected a number of type u8, found `256`"),
        ("const %x: str[1] = zeros", "line 2: string tensors are not supported"),
        ("const %x: f32[99999999999,99999999999] = zeros", "is too large for a constant in text"),
        ("const %x: f32[1] = nothing", "line 2: expected a list, `#`, `zeros`, `fill` or `random`, found `nothing`"),
        ("%y = Relu(%x)", "line 2: no value is called `x` up to here"),
        ("%y = Frobnicate(_)", "line 2: operator Frobnicate"),
        ("%y = opaque(\"\", \"If\")", "line 2: an operator kept as it came cannot be read from text"),
        ("input %x: f32[1]\n%y = Relu(%x) {slope=1}", "line 3: attribute `slope` of Relu"),
        ("input %x: f32[1]\n%y = Relu(%x) : f32[2]", "line 3: declared shape [2], but the operator gives [1]"),
        ("input %x: f32[1]\n%y = Relu(%x) : f32[1], f32[1]", "line 3: 2 types for 1 results"),
        ("output %x", "line 2: no value is called `x` up to here"),
    ] {
        let e = parse(&format!("graph \"g\" {{\n{body}")).err().unwrap();
        assert!(e.message().contains(expected), "{body:?}: {e}");
        assert!(matches!(e.kind(), Kind::Malformed | Kind::Unsupported | Kind::Limit), "{body:?}: {e}");
    }
}

/// No prefix and no single broken character of a graph's text panics.
#[test]
fn broken_text_is_an_error() {
    for i in (0..ALL.len()).filter(|i| ALL.is_char_boundary(*i)) {
        let _ = parse(&ALL[..i]);
        for c in ["é", "\"", "]", "_", "%", "9"] {
            let _ = parse(&format!("{}{c}{}", &ALL[..i], &ALL[i + 1..]));
        }
    }
}
