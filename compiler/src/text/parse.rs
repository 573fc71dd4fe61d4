//! The parser of the text form: one function a grammar rule, no tokens kept.

use super::{
    OPSET,
    literal::{element, escape, float, packed, random},
};
use crate::{
    attr::{Attr, Reader},
    error::{Error, Result},
    graph::Graph,
    node::Port,
    op::Op,
    ops::{control::Body, source::Input},
    tensor::{DType, Tensor},
    value::{Dim, Fact},
};
use std::{collections::HashMap, str::FromStr};

/// The most elements that `zeros`, `fill` and `random` make.
const MAX_MADE: usize = 1 << 26;

/// Graphs inside each other, of If and its kind.
const MAX_DEPTH: usize = 32;

/// Parses the text form. A constant given by its digest is an error here; see [`parse_with`].
///
/// # Errors
/// Malformed, naming the line and what was expected; what building the graph can raise.
pub fn parse(text: &str) -> Result<Graph> {
    parse_with(text, &|_| None)
}

/// Parses the text form; `lookup` knows the tensor that a digest stands for.
///
/// # Errors
/// As for [`parse`].
pub fn parse_with(text: &str, lookup: &dyn Fn(&str) -> Option<Tensor>) -> Result<Graph> {
    let scope = Scope::default();
    let mut p = Parser { text, at: 0, mark: 0, depth: 0, lookup, scope };
    match p.file() {
        Ok(graph) => Ok(graph),
        Err(e) => {
            let line = 1 + text[..p.mark].matches('\n').count();
            let at = format!("line {line}: {}", e.message());
            Err(Error::new(e.kind(), at))
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    /// The next byte to read.
    at: usize,
    /// Where an error is reported: at the last token, or at the statement once it was read.
    mark: usize,
    /// How many graphs are open inside the first.
    depth: usize,
    lookup: &'a dyn Fn(&str) -> Option<Tensor>,
    scope: Scope,
}

/// The graph that is being read.
#[derive(Default)]
struct Scope {
    graph: Graph,
    values: HashMap<String, Port>,
    /// How many of the inputs are outer values.
    captures: usize,
}

/// A value's name; `None` for `_`.
type Name = Option<String>;

impl<'a> Parser<'a> {
    // --- characters ---

    /// The next character that is not a blank or comment.
    fn peek(&mut self) -> Option<char> {
        loop {
            let rest = &self.text[self.at..];
            let skip = match rest.strip_prefix("//") {
                Some(comment) => 2 + comment.find('\n').unwrap_or(comment.len()),
                None => rest.len() - rest.trim_start().len(),
            };
            if skip == 0 {
                self.mark = self.at;
                return rest.chars().next();
            }
            self.at += skip;
        }
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn expect(&mut self, c: char) -> Result<()> {
        if self.eat(c) { Ok(()) } else { Err(self.expected(&format!("`{c}`"))) }
    }

    fn expected(&mut self, what: &str) -> Error {
        let found = match self.peek() {
            Some(c) => format!("`{c}`"),
            None => "the end".into(),
        };
        Error::malformed(format!("expected {what}, found {found}"))
    }

    /// A keyword, a plain name or a number.
    fn word(&mut self, what: &str) -> Result<&'a str> {
        self.peek();
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_.+-".contains(c))).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.expected(what));
        }
        self.at += end;
        Ok(&rest[..end])
    }

    fn number<T: FromStr>(&mut self, what: &str) -> Result<T> {
        let word = self.word(what)?;
        word.parse().map_err(|_| Error::malformed(format!("expected {what}, found `{word}`")))
    }

    /// A string in double quotes, with Rust's escapes.
    fn string(&mut self) -> Result<String> {
        if self.peek() != Some('"') {
            return Err(self.expected("a string in quotes"));
        }
        let mut out = String::new();
        let mut chars = self.text[self.at + 1..].char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += i + 2;
                    return Ok(out);
                }
                '\\' => out.push(
                    escape(&mut chars.by_ref().map(|(_, c)| c))
                        .ok_or_else(|| Error::malformed("expected an escape such as \\\" or \\n after a backslash"))?,
                ),
                c => out.push(c),
            }
        }
        Err(Error::malformed("expected a closing quote, found the end"))
    }

    /// `item`s with commas in between, up to `close`.
    fn list<T>(&mut self, close: char, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut out = vec![];
        while !self.eat(close) {
            if !out.is_empty() {
                self.expect(',')?;
            }
            out.push(item(self)?);
        }
        Ok(out)
    }

    // --- statements ---

    fn file(&mut self) -> Result<Graph> {
        self.keyword("graph")?;
        let graph = self.graph()?.graph;
        match self.peek() {
            None => Ok(graph),
            Some(_) => Err(self.expected("the end")),
        }
    }

    fn keyword(&mut self, keyword: &str) -> Result<()> {
        match self.word(&format!("`{keyword}`"))? {
            word if word == keyword => Ok(()),
            other => Err(Error::malformed(format!("expected `{keyword}`, found `{other}`"))),
        }
    }

    /// What follows the word `graph`.
    fn graph(&mut self) -> Result<Scope> {
        if self.depth > MAX_DEPTH {
            return Err(Error::limit(format!("more than {MAX_DEPTH} graphs inside each other")));
        }
        let name = self.string()?;
        let inner = Scope { graph: Graph::new(name), ..Scope::default() };
        let outer = std::mem::replace(&mut self.scope, inner);
        self.depth += 1;
        self.expect('{')?;
        while !self.eat('}') {
            self.statement()?;
        }
        self.depth -= 1;
        Ok(std::mem::replace(&mut self.scope, outer))
    }

    fn statement(&mut self) -> Result<()> {
        if matches!(self.peek(), Some('%' | '_')) {
            return self.operator();
        }
        let start = self.at;
        match self.word("a statement")? {
            "input" => {
                if self.scope.captures > 0 {
                    return Err(Error::malformed("captures come after all inputs"));
                }
                let (name, fact) = self.declaration()?;
                let default = if self.eat('=') { Some(self.tensor(&fact)?) } else { None };
                self.mark = start;
                let node = self.scope.graph.add_input(&name, fact, Op::Input(Input { default }))?;
                self.scope.values.insert(name, node.into());
            }
            "capture" if self.depth > 1 => {
                let (name, fact) = self.declaration()?;
                self.mark = start;
                let node = self.scope.graph.add_input(&name, fact, Op::Input(Input { default: None }))?;
                self.scope.values.insert(name, node.into());
                self.scope.captures += 1;
            }
            "const" => {
                let (name, fact) = self.declaration()?;
                self.expect('=')?;
                let tensor = self.tensor(&fact)?;
                self.mark = start;
                // The graph would rename a constant whose name is taken.
                if self.scope.values.contains_key(&name) {
                    return Err(Error::malformed(format!("two values are called `{name}`")));
                }
                let node = self.scope.graph.add_constant(&name, tensor);
                self.scope.values.insert(name, node.into());
            }
            "output" => {
                let value = self.value_name()?;
                let renamed = self.peek() == Some('a') && self.text[self.at..].starts_with("as ");
                let name = if renamed {
                    self.at += 2;
                    self.string()?
                } else {
                    value.clone()
                };
                self.mark = start;
                let port = self.value(&value)?;
                self.scope.graph.add_output(&name, port);
            }
            other => {
                return Err(Error::malformed(format!("expected a statement, found `{other}`")));
            }
        }
        Ok(())
    }

    /// `%name: type`
    fn declaration(&mut self) -> Result<(String, Fact)> {
        let name = self.value_name()?;
        self.expect(':')?;
        Ok((name, self.fact()?))
    }

    fn operator(&mut self) -> Result<()> {
        let start = self.at;
        let results = self.list('=', Self::optional_name)?;
        let op_type = self.word("an operator")?;
        self.expect('(')?;
        if op_type == "opaque" {
            return Err(Error::unsupported("an operator kept as it came cannot be read from text"));
        }
        let operands = self.list(')', Self::optional_name)?;
        let attrs = if self.eat('{') { self.list('}', Self::attribute)? } else { vec![] };
        let name = if self.peek() == Some('"') { self.string()? } else { String::new() };
        let mut types = vec![];
        if self.eat(':') {
            types.push(self.fact()?);
            while self.eat(',') {
                types.push(self.fact()?);
            }
        }
        self.mark = start;
        if !types.is_empty() && types.len() != results.len() {
            return Err(Error::malformed(format!("{} types for {} results", types.len(), results.len())));
        }
        let port = |n: &Name| n.as_ref().map(|n| self.value(n)).transpose();
        let mut ports = operands.iter().map(port).collect::<Result<Vec<_>>>()?;
        let first = ports.first().copied().flatten().map(|p| self.scope.graph.fact(p).clone()).unwrap_or_default();
        let mut reader = Reader::new(op_type, OPSET, ports.len(), results.len(), first, attrs);
        let op = Op::read(&mut reader)?;
        for (slot, tensor) in reader.finish()?.lifted {
            ports.resize(ports.len().max(slot + 1), None);
            ports[slot] = Some(self.scope.graph.add_constant("", tensor).into());
        }
        let outputs: Vec<&str> = results.iter().map(|r| r.as_deref().unwrap_or("")).collect();
        let node = self.scope.graph.add_node(&name, op, &ports, &outputs)?;
        for (slot, declared) in types.iter().enumerate() {
            let port = Port { node, slot };
            self.scope.graph.set_fact(port, self.scope.graph.fact(port).clone().refined(declared)?);
        }
        for (slot, result) in results.into_iter().enumerate() {
            self.scope.values.extend(result.map(|name| (name, Port { node, slot })));
        }
        Ok(())
    }

    fn value(&self, name: &str) -> Result<Port> {
        self.scope
            .values
            .get(name)
            .copied()
            .ok_or_else(|| Error::malformed(format!("no value is called `{name}` up to here")))
    }

    // --- parts ---

    fn value_name(&mut self) -> Result<String> {
        self.expect('%')?;
        if self.text[self.at..].starts_with('"') { self.string() } else { Ok(self.word("a name")?.into()) }
    }

    fn optional_name(&mut self) -> Result<Name> {
        if self.eat('_') { Ok(None) } else { self.value_name().map(Some) }
    }

    /// A type and shape, e.g. `f32[batch,3]`.
    fn fact(&mut self) -> Result<Fact> {
        let dtype = if self.eat('?') { None } else { Some(self.dtype()?) };
        self.expect('[')?;
        if self.eat('*') {
            self.expect(']')?;
            return Ok(Fact::new(dtype, None));
        }
        Ok(Fact::new(dtype, Some(self.list(']', Self::dim)?)))
    }

    fn dtype(&mut self) -> Result<DType> {
        let word = self.word("an element type")?;
        DType::from_name(word).ok_or_else(|| Error::malformed(format!("expected an element type, found `{word}`")))
    }

    fn dim(&mut self) -> Result<Dim> {
        match self.peek() {
            Some('?') => {
                self.at += 1;
                Ok(Dim::Unknown)
            }
            Some('"') => Ok(Dim::Sym(self.string()?.into())),
            Some(c) if c.is_ascii_digit() || c == '-' => match self.number("a size")? {
                n @ 0.. => Ok(Dim::Known(n)),
                n => Err(Error::malformed(format!("expected a size, found {n}"))),
            },
            _ => Ok(Dim::Sym(self.word("a dimension")?.into())),
        }
    }

    fn attribute(&mut self) -> Result<(String, Attr)> {
        let name = self.word("an attribute")?.into();
        self.expect('=')?;
        let value = match self.peek() {
            Some('"') => Attr::Str(self.string()?),
            Some('[') => {
                self.at += 1;
                if self.peek() == Some('"') {
                    return Ok((name, Attr::Strs(self.list(']', Self::string)?)));
                }
                let words = self.list(']', |p| p.word("a number"))?;
                match words.iter().map(|w| w.parse().ok()).collect() {
                    Some(ints) => Attr::Ints(ints),
                    None => Attr::Floats(words.iter().map(|w| float(w)).collect::<Result<_>>()?),
                }
            }
            _ => {
                let start = self.at;
                let word = self.word("an attribute's value")?;
                if word == "graph" {
                    let scope = self.graph()?;
                    Attr::Graph(Body::new(scope.graph, scope.captures))
                } else if DType::from_name(word).is_some() {
                    self.at = start;
                    let fact = self.fact()?;
                    self.expect('=')?;
                    Attr::Tensor(self.tensor(&fact)?)
                } else {
                    word.parse().map(Attr::Int).or_else(|_| float(word).map(Attr::Float))?
                }
            }
        };
        Ok((name, value))
    }

    /// A tensor of the type `fact`.
    fn tensor(&mut self, fact: &Fact) -> Result<Tensor> {
        let (Some(dtype), Some(shape)) = (fact.dtype, fact.fixed()) else {
            return Err(Error::malformed("a constant needs a type and a shape without unknowns"));
        };
        if dtype == DType::String {
            return Err(Error::unsupported("string tensors are not supported"));
        }
        match self.peek() {
            Some('[') => {
                self.at += 1;
                let words = self.list(']', |p| p.word("a number"))?;
                let bytes = words.iter().map(|w| element(dtype, w)).collect::<Result<Vec<_>>>()?.concat();
                return Tensor::new(dtype, shape, packed(dtype, bytes));
            }
            Some('#') => {
                self.at += 1;
                let digest = self.word("a digest")?;
                self.expect('(')?;
                self.number::<u64>("a size in bytes")?;
                self.word("B")?;
                self.expect(')')?;
                let known = (self.lookup)(digest).filter(|t| t.dtype() == dtype && t.shape() == shape);
                return known.ok_or_else(|| Error::malformed(format!("nobody knows the constant #{digest}")));
            }
            _ => {}
        }
        let len = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).filter(|n| *n <= MAX_MADE);
        let len = len.ok_or_else(|| Error::limit(format!("{shape:?} is too large for a constant in text")))?;
        let bytes = match self.word("a constant's value")? {
            "zeros" => vec![0; dtype.bytes(&[len]).unwrap_or(0)],
            "fill" => {
                self.expect('(')?;
                let value = element(dtype, self.word("a number")?)?;
                self.expect(')')?;
                packed(dtype, value.repeat(len))
            }
            "random" => {
                self.expect('(')?;
                let seed = self.number("a seed")?;
                self.expect(')')?;
                random(dtype, len, seed)
            }
            other => {
                return Err(Error::malformed(format!(
                    "expected a list, `#`, `zeros`, `fill` or `random`, found `{other}`"
                )));
            }
        };
        Tensor::new(dtype, shape, bytes)
    }
}
