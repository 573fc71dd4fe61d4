"""If, Loop, Scan and model-local functions through the command: valid, and ONNX Runtime computes the same."""

import resource
import subprocess

import numpy as np
import onnx
import pytest
from onnx import parser
from support import TIMEOUT, assert_close, binary, run_onnx

HEAD = '<ir_version: 8, opset_import: ["" : 17{domains}]>\n'


def model(text, domains=""):
    return parser.parse_model(HEAD.replace("{domains}", domains) + text)


def operators(graph):
    """The kinds of all nodes, those in subgraphs included."""
    found = []
    for node in graph.node:
        found.append(node.op_type)
        for a in node.attribute:
            for g in [a.g] if a.HasField("g") else a.graphs:
                found += operators(g)
    return found


def names(graph):
    """All value names that a graph and those inside it make."""
    made = [i.name for i in graph.input] + [t.name for t in graph.initializer]
    for node in graph.node:
        made += [o for o in node.output if o]
        for a in node.attribute:
            if a.HasField("g"):
                made += names(a.g)
    return made


def check(compress, tmp_path, before, feeds, *flags):
    """Compresses, and compares for every one of `feeds`; the result, read."""
    source, output = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(before, source)
    compress(source, "-o", output, "--quiet", *flags)
    onnx.checker.check_model(str(output), full_check=True)
    after = onnx.load(output)
    for feed in feeds:
        assert_close(run_onnx(output, feed), run_onnx(before, feed))
    # The result is as good an input as any.
    again = tmp_path / "again.onnx"
    compress(output, "-o", again, "--quiet", *flags)
    for feed in feeds:
        assert_close(run_onnx(again, feed), run_onnx(before, feed))
    return after


X = np.array([[1, -2, 3], [0.5, 4, -6]], np.float32)

CHOICE = """
main (bool c, float[n,3] x) => (float[n,3] y, float[n,3] z)
  <float[3] w = {1, 2, 3}, float[3] u = {4, 5, 6}> {
    a = Add(x, w)
    y, z = If (c) <
      then_branch = yes () => (float[n,3] p, float[n,3] q) {
        one = Constant <value_float = 1.0> ()
        m = Mul(a, u)
        p = Mul(m, one)
        q = Identity(x)
      },
      else_branch = no () => (float[n,3] r, float[n,3] a2) {
        r = Sub(a, w)
        a2 = Neg(a)
      }
    >
}
"""


def test_branches_read_outer_values(compress, tmp_path):
    feeds = [{"c": np.array(c), "x": X} for c in (True, False)]
    after = check(compress, tmp_path, model(CHOICE), feeds)
    assert sorted(operators(after.graph)).count("Constant") == 0
    assert "If" in operators(after.graph)


def test_a_known_condition_takes_its_branch(compress, tmp_path):
    text = CHOICE.replace("bool c, ", "").replace(
        "a = Add(x, w)", "c = Constant <value = bool {0}> ()\n    a = Add(x, w)"
    )
    after = check(compress, tmp_path, model(text), [{"x": X}])
    assert sorted(operators(after.graph)) == ["Add", "Neg", "Sub"]
    assert [o.name for o in after.graph.output] == ["y", "z"]


def test_a_condition_on_a_shape_takes_its_branch(compress, tmp_path):
    text = """
    main (float[2,3] x) => (float[a,b] y) {
        s = Shape(x)
        i = Constant <value = int64 {0}> ()
        two = Constant <value = int64 {2}> ()
        d = Gather(s, i)
        c = Equal(d, two)
        y = If (c) <
          then_branch = yes () => (float[e,f] p) { p = Relu(x) },
          else_branch = no () => (float[g,h] q) { q = Transpose(x) }
        >
    }
    """
    after = check(compress, tmp_path, model(text), [{"x": X}])
    assert operators(after.graph) == ["Relu"]


LOOP = """
main (int64 n, float[3] x) => (float[3] last, float[k,3] all)
  <float[3] w = {0.5, 0.25, 2}, bool go = {1}> {
    last, all = Loop (n, go, x) <
      body = step (int64 i, bool c, float[3] s) => (bool c2, float[3] s2, float[3] row) {
        c2 = Identity(c)
        big = Constant <value_float = 10.0> ()
        m = ReduceMax <keepdims = 0> (s)
        small = Less(m, big)
        s2 = If (small) <
          then_branch = grow () => (float[3] g) {
            t = Mul(s, w)
            g = Add(t, x)
          },
          else_branch = shrink () => (float[3] h) {
            h = Div(s, big)
          }
        >
        f = Cast <to = 1> (i)
        row = Add(s2, f)
      }
    >
}
"""


@pytest.mark.parametrize("n", [0, 1, 7])
def test_loops_with_branches_inside(compress, tmp_path, n):
    feed = {"n": np.array(n), "x": X[0]}
    after = check(compress, tmp_path, model(LOOP), [feed])
    assert {"Loop", "If"} <= set(operators(after.graph))
    made = names(after.graph)
    assert len(made) == len(set(made)), "names are unique in graphs around each other"


def test_scans_forwards_and_backwards(compress, tmp_path):
    text = """
    main (float[3] start, float[t,3] x) => (float[3] last, float[3,t] rows)
      <float[3] w = {0.5, 0.25, 2}> {
        last, rows = Scan (start, x) <
          num_scan_inputs = 1, scan_input_directions = [1], scan_output_axes = [1],
          body = step (float[3] s, float[3] e) => (float[3] s2, float[3] row) {
            p = Mul(s, w)
            s2 = Add(p, e)
            row = Identity(s2)
          }
        >
    }
    """
    check(compress, tmp_path, model(text), [{"start": X[0], "x": np.tile(X, (4, 1))}])


FUNCTIONS = """
main (float[n,3] x) => (float[n,3] y) <float[3] w = {1, 2, 3}> {
    a = my.scale <alpha = 2.0> (x)
    b = my.scale (a)
    c = my.twice (b, w)
    y = my.choose <high = 1> (c)
}
<domain: "my", opset_import: ["" : 18]>
scale <alpha: float = 0.5> (x) => (y) {
    k = Constant <value_float: float = @alpha> ()
    y = Mul(x, k)
}
<domain: "my", opset_import: ["" : 17, "my" : 1]>
twice (x, bias) => (y) {
    t = my.scale <alpha = 3.0> (x)
    y = Add(t, bias)
}
<domain: "my", opset_import: ["" : 17]>
choose <high: int = 0> (x) => (y) {
    h = Constant <value_int: int = @high> ()
    c = Cast <to = 9> (h)
    y = If (c) <
      then_branch = yes () => (float[n,3] p) { p = Abs(x) },
      else_branch = no () => (float[n,3] q) { q = Neg(x) }
    >
}
"""


def test_functions_are_replaced_by_what_they_stand_for(compress, tmp_path):
    after = check(compress, tmp_path, model(FUNCTIONS, ', "my" : 1'), [{"x": X}])
    assert not after.functions
    assert sorted(operators(after.graph)) == ["Abs", "Add", "Mul"]


def test_a_function_that_calls_itself_is_malformed(compress, tmp_path):
    m = model(FUNCTIONS, ', "my" : 1')
    twice = next(f for f in m.functions if f.name == "twice")
    twice.node[0].op_type = "twice"
    twice.node[0].input.append("bias")
    del twice.node[0].attribute[:]
    (tmp_path / "in.onnx").write_bytes(m.SerializeToString())
    result = compress(tmp_path / "in.onnx", code=3)
    assert "function `twice` calls itself" in result.err


def test_functions_that_grow_without_a_bound_are_a_limit(compress, tmp_path):
    text = "main (float[n,3] x) => (float[n,3] y) { y = my.f0 (x) }\n"
    for i in range(40):
        call = f"my.f{i + 1}" if i < 39 else "Relu"
        body = f"{{ t = {call}(x)\n y = {call}(t) }}"
        text += f'<domain: "my", opset_import: ["" : 17, "my" : 1]> f{i} (x) => (y) {body}\n'
    (tmp_path / "in.onnx").write_bytes(model(text, ', "my" : 1').SerializeToString())
    result = compress(tmp_path / "in.onnx", code=4)
    assert "functions stand for more than" in result.err


def test_a_loop_that_never_ends_is_a_limit(compress, tmp_path):
    m = model(LOOP)
    m.graph.node[0].input[0] = ""
    del m.graph.input[0]
    onnx.save(m, tmp_path / "in.onnx")
    result = compress(tmp_path / "in.onnx", code=4)
    assert "repeat more than" in result.err


@pytest.mark.parametrize("condition", ["Identity (c)", "Constant <value: tensor = bool {1}>()", "Less (s, infinite)"])
def test_a_while_loop_that_never_ends_is_a_limit(compress, tmp_path, condition):
    """Known beforehand where the condition stays true, found out where it is computed."""
    text = f"""
        m (float x) => (float y) {{
            first = Constant <value: tensor = bool {{1}}>()
            infinite = Constant <value: tensor = float {{inf}}>()
            y = Loop ("", first, x) <body = step (int64 i, bool c, float s) => (bool go, float t) {{
                t = Identity (s)
                go = {condition}
            }}>
        }}"""
    onnx.save(model(text), tmp_path / "in.onnx")
    result = compress(tmp_path / "in.onnx", code=4)
    assert "node `y` (Loop): its loops repeat more than" in result.err


def test_a_loop_that_gathers_more_than_memory_holds_is_a_limit(tmp_path):
    """Repetitions of 4 MB each, as long as a number that grows is below infinity."""
    text = """
        m (float x) => (float[n,m] y) {
            first = Constant <value: tensor = bool[1] {1}>()
            last, y = Loop ("", first, x) <body = step (int64 i, bool c, float s) => (bool go, float t, float[m] row) {
                one = Constant <value: tensor = float {1}>()
                infinite = Constant <value: tensor = float {inf}>()
                shape = Constant <value: tensor = int64[1] {1000000}>()
                t = Add (s, one)
                go = Less (t, infinite)
                wide = Expand (t, shape)
                row = Exp (wide)
            }>
        }"""
    onnx.save(model(text), tmp_path / "in.onnx")
    limit = 6 << 30
    done = subprocess.run(
        [binary(), tmp_path / "in.onnx"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 4, done.stderr
    assert "node `last` (Loop): joining what its repetitions gathered needs" in done.stderr


def test_branches_of_different_types_are_malformed(compress, tmp_path):
    m = model(CHOICE)
    branch = m.graph.node[1].attribute[1].g
    branch.node[1].op_type = "Cast"
    branch.node[1].attribute.add(name="to", i=7, type=onnx.AttributeProto.INT)
    branch.output[1].type.tensor_type.elem_type = 7
    (tmp_path / "in.onnx").write_bytes(m.SerializeToString())
    result = compress(tmp_path / "in.onnx", code=3)
    assert "If" in result.err
