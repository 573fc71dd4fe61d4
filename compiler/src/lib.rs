//! The language of the pipeline: graphs, operators, ONNX in and out. No Burn, no pass.
//!
//! # What a graph means
//!
//! A [`Graph`](graph::Graph) is a directed acyclic multigraph. A **node** applies an operator
//! ([`op::Op`]) to values and makes new ones; a **value** is one output of a node, addressed by
//! a [`Port`](node::Port) (node, output slot); an **edge** says that a node reads a value at one
//! of its input slots. Edges are the only truth about who uses what.
//!
//! Graph inputs and constants are nodes too: `Op::Input` and `Op::Constant` read nothing and
//! make one value. The graph's outputs are a list of (name, value): two outputs may be the same
//! value, and an output may be an input; the writer puts in the Identity that ONNX then wants.
//!
//! A value has a **name**, unique in the graph, which is ONNX's, so that a user finds their
//! layer again: what replaces a value takes over its name. It also has a
//! [`Fact`](value::Fact): what is known before anything runs. That is its element type; its
//! shape, in which a dimension is a number, a symbol (`batch`: equal symbols are equal sizes) or
//! unknown; and for small integer tensors the elements, each perhaps unknown, which is how
//! `Shape -> Gather -> Concat -> Reshape` is understood. Inference never fails for want of
//! knowledge, only for a contradiction.
//!
//! An **operator** has one form, that of the newest ONNX operator set: what old opsets kept in
//! attributes is a constant input here. A node we don't understand becomes `Op::Opaque`: kept
//! byte for byte, a barrier to passes, not executable. If, Loop and Scan hold graphs of their own
//! ([`ops::control::Body`]); the outer values that those read are operands of the node. A
//! **constant** read by several nodes is one node with several edges: tied weights stay tied. An
//! initializer that is also a graph input is a weight, unless the reader is told to leave it an input with a default.
//!
//! A graph is well-formed when [`verify::verify`] says so; the writer and the runtime take only
//! its proof. The same graph has a text form ([`text`]) that round-trips, for people and tests.
//!
//! # From here
//!
//! [`onnx::read`] makes a graph, passes ([`pass::Pass`], most of them sets of
//! [`rewrite::Rule`]s) change it, [`onnx::write`](onnx::write()) makes a file again.

#![warn(missing_docs)]

pub mod attr;
pub mod axes;
pub mod bound;
pub mod captured;
pub mod choice;
pub mod clipping;
pub mod error;
pub mod forms;
pub mod graph;
pub mod judge;
pub mod memo;
pub mod narrow;
pub mod node;
pub mod onnx;
pub mod op;
pub mod ops;
pub mod part;
pub mod pass;
pub mod pipeline;
pub mod rewrite;
pub mod spill;
pub mod storage;
pub mod tensor;
pub mod text;
pub mod value;
pub mod verify;
pub mod words;
