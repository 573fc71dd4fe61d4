//! Recurrent layers and attention.

use super::{done, entries, f, i, list, s, some};
use crate::{maker::Maker, table::Entry};
use compress_compiler::{
    attr::Attr,
    ops::control::Body,
    tensor::{DType, Tensor},
};

pub const ENTRIES: &[&[Entry]] = &[
    entries!(false: recurrent 2, dynamic_lstm 1, attention 2, flex_attention 1, rotary 1, grouped 1, linear_attention 1,
    causal_conv 1, tfidf 1),
];

fn recurrent(m: &mut Maker) -> Option<()> {
    let (name, gates) = m.one(&[("RNN", 1), ("GRU", 3), ("LSTM", 4)]);
    let (t, n, size, hidden) = (m.size(1, 3), m.size(1, 2), m.size(1, 3), m.size(1, 3));
    let direction = m.one(&["forward", "reverse", "bidirectional"]);
    let d = if direction == "bidirectional" { 2 } else { 1 };
    let x = m.source(DType::F32, &[t, n, size]);
    let (w, r) = (m.weight(DType::F32, &[d, gates * hidden, size]), m.weight(DType::F32, &[d, gates * hidden, hidden]));
    let b = m.maybe_weight(0.5, DType::F32, &[d, 2 * gates * hidden]);
    let state = m.maybe_weight(0.4, DType::F32, &[d, n, hidden]);
    let attrs = some(m, &[("direction", s(direction)), ("linear_before_reset", i(1))]);
    let mut attrs: Vec<(&str, Attr)> = attrs.into_iter().filter(|a| a.0 == "direction" || name == "GRU").collect();
    if d == 2 {
        attrs.retain(|a| a.0 != "direction");
        attrs.push(("direction", s(direction)));
    }
    attrs.push(("hidden_size", i(hidden as i64)));
    let count = m.size(1, if name == "LSTM" { 3 } else { 2 });
    m.ops(name, &[Some(x), Some(w), Some(r), b, None, state], &attrs, count).map(drop)
}

fn dynamic_lstm(m: &mut Maker) -> Option<()> {
    let (t, n, size, hidden) = (m.size(1, 3), m.size(1, 2), m.size(1, 3), m.size(1, 3));
    let x = m.source(DType::F32, &[t, n, size]);
    let (w, r) = (m.weight(DType::I8, &[1, size, 4 * hidden]), m.weight(DType::I8, &[1, hidden, 4 * hidden]));
    let b = m.maybe_weight(0.5, DType::F32, &[1, 8 * hidden]);
    let (scale, zero) = (m.weight(DType::F32, &[1]), m.weight(DType::I8, &[1]));
    let by_codes = [Some(scale), Some(zero), Some(scale), Some(zero)];
    let inputs: Vec<Option<_>> =
        [Some(x), Some(w), Some(r), b, None, None, None, None].into_iter().chain(by_codes).collect();
    m.ops("com.microsoft.DynamicQuantizeLSTM", &inputs, &[("hidden_size", i(hidden as i64))], 3).map(drop)
}

fn attention(m: &mut Maker) -> Option<()> {
    let (n, heads, q, k, size) = (m.size(1, 2), m.size(1, 2), m.size(1, 3), m.size(1, 4), m.size(1, 3));
    let query = m.source(DType::F32, &[n, heads, q, size]);
    let (key, value) = (m.weight(DType::F32, &[n, heads, k, size]), m.weight(DType::F32, &[n, heads, k, size]));
    let mask = m.maybe_weight(0.3, DType::F32, &[q, k]);
    let attrs = some(m, &[("scale", f(0.5)), ("softcap", f(3.0))]);
    done(m.op("Attention", &[Some(query), Some(key), Some(value), mask], &attrs))
}

fn flex_attention(m: &mut Maker) -> Option<()> {
    let shape = [1, 2, 3, 2];
    let (q, k, v) = (m.source(DType::F32, &shape), m.weight(DType::F32, &shape), m.weight(DType::F32, &shape));
    let mut attrs = some(m, &[("scale", f(0.5))]);
    if m.chance(0.5) {
        let mut inner = m.inner(&[Tensor::f32(&[1, 2, 3, 3], &[0.5; 18])], &[], 0);
        let name = inner.one(&["Tanh", "Relu", "Identity"]);
        let y = inner.op(name, &[Some(0)], &[])?;
        let body: Body = inner.into_body(&[y], 0);
        attrs.push(("score_mod", body.into()));
    }
    done(m.op("ai.onnx.preview.FlexAttention", &[Some(q), Some(k), Some(v)], &attrs))
}

fn rotary(m: &mut Maker) -> Option<()> {
    let (n, heads, t, size) = (m.size(1, 2), m.size(1, 2), m.size(1, 3), 4);
    let x = m.source(DType::F32, &[n, heads, t, size]);
    let (cos, sin) = (m.weight(DType::F32, &[n, t, size / 2]), m.weight(DType::F32, &[n, t, size / 2]));
    let attrs = some(m, &[("interleaved", i(1))]);
    done(m.op("RotaryEmbedding", &[Some(x), Some(cos), Some(sin)], &attrs))
}

fn grouped(m: &mut Maker) -> Option<()> {
    let (n, t, past) = (m.size(1, 2), m.size(1, 3), m.size(1, 3));
    let (heads, groups, size) = (2, m.size(1, 2), 4);
    let ints = |m: &mut Maker, shape: &[usize], value: usize| {
        m.constant(Tensor::ints(DType::I32, shape, &vec![value as i64; shape.iter().product()]))
    };
    let (last, all) = (ints(m, &[n], past + t - 1), ints(m, &[], past + t));
    let (cos, sin) = (m.weight(DType::F32, &[8, size / 2]), m.weight(DType::F32, &[8, size / 2]));
    // Reading fills in sizes that an input leaves open: it would not be written as it was.
    let cache = [(); 2].map(|()| {
        let tensor = m.tensor(DType::F32, &[n, groups, past, size]);
        m.constant(tensor)
    });
    let attrs = [("num_heads", i(heads)), ("kv_num_heads", i(groups as i64)), ("do_rotary", i(1))];
    let mut operands = if m.chance(0.5) {
        vec![Some(m.source(DType::F32, &[n, t, (heads as usize + 2 * groups) * size])), None, None]
    } else {
        let q = m.source(DType::F32, &[n, t, heads as usize * size]);
        let [k, v] = [(); 2].map(|()| m.weight(DType::F32, &[n, t, groups * size]));
        vec![Some(q), Some(k), Some(v)]
    };
    operands.extend([cache[0], cache[1], last, all, cos, sin].map(Some));
    let count = m.size(1, 3);
    m.ops("com.microsoft.GroupQueryAttention", &operands, &attrs, count).map(drop)
}

fn linear_attention(m: &mut Maker) -> Option<()> {
    let (n, t) = (m.size(1, 2), m.size(1, 3));
    let q = m.source(DType::F32, &[n, t, 4]);
    let (k, v) = (m.weight(DType::F32, &[n, t, 4]), m.weight(DType::F32, &[n, t, 6]));
    let attrs = [("q_num_heads", i(2)), ("kv_num_heads", i(2)), ("update_rule", s("linear"))];
    let count = m.size(1, 2);
    m.ops("LinearAttention", &[Some(q), Some(k), Some(v)], &attrs, count).map(drop)
}

fn causal_conv(m: &mut Maker) -> Option<()> {
    let (n, c, t) = (m.size(1, 2), m.size(1, 3), m.size(1, 4));
    let x = m.source(DType::F32, &[n, c, t]);
    let w = m.weight(DType::F32, &[c, 1, 3]);
    let bias = m.maybe_weight(0.5, DType::F32, &[c]);
    let attrs = some(m, &[("activation", s("silu"))]);
    let count = m.size(1, 2);
    m.ops("CausalConvWithState", &[Some(x), Some(w), bias], &attrs, count).map(drop)
}

fn tfidf(m: &mut Maker) -> Option<()> {
    let x = m.source(DType::I64, &[2, 6]);
    let mode = m.one(&["TF", "IDF", "TFIDF"]);
    let attrs = [
        ("mode", s(mode)),
        ("min_gram_length", i(1)),
        ("max_gram_length", i(2)),
        ("max_skip_count", i(1)),
        ("ngram_counts", list(&[0, 2])),
        ("ngram_indexes", list(&[0, 1, 2])),
        ("pool_int64s", list(&[1, 2, 0, 1])),
    ];
    done(m.op("TfIdfVectorizer", &[Some(x)], &attrs))
}
