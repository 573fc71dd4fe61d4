//! From tokens to kernels.

use super::{
    Base, Entry, Instruction, Module, Operand, Special, Type,
    call::functions,
    token::{Token, number, tokens},
};
use std::collections::HashMap;

/// Reads a module.
///
/// # Errors
/// What is not understood, with the line.
pub fn parse(text: &str) -> Result<Module, String> {
    let tokens = tokens(text)?;
    let functions = functions(&tokens);
    let mut parser = Parser {
        text,
        tokens: &tokens,
        at: 0,
        symbols: HashMap::new(),
        outside: vec![],
        functions,
        places: vec![],
        depth: 0,
    };
    let mut module = Module::default();
    match parser.module(&mut module) {
        Ok(()) => Ok(module),
        Err(what) => Err(format!("line {}: {what}", parser.line())),
    }
}

pub(super) struct Parser<'a> {
    text: &'a str,
    tokens: &'a [Token<'a>],
    pub(super) at: usize,
    /// Variables of the module.
    symbols: HashMap<&'a str, Base>,
    /// Shared memory that is declared outside of kernels, whose size a launch may say: name, alignment, bytes.
    pub(super) outside: Vec<(&'a str, usize, usize)>,
    /// Where the declarations of functions begin that have a body.
    pub(super) functions: HashMap<&'a str, usize>,
    /// The place in the code of each label of a kernel, and of the functions that it calls.
    pub(super) places: Vec<usize>,
    /// Calls inside each other.
    pub(super) depth: usize,
}

/// A variable as it is declared.
pub(super) struct Variable<'a> {
    space: &'a str,
    pub(super) name: &'a str,
    ty: Type,
    align: usize,
    bytes: usize,
}

/// Names inside a kernel or a function. Braces open a scope for registers.
#[derive(Default)]
pub(super) struct Names<'a> {
    scopes: Vec<HashMap<String, usize>>,
    pub(super) registers: usize,
    pub(super) symbols: HashMap<&'a str, Base>,
    labels: HashMap<&'a str, usize>,
    targets: HashMap<&'a str, Vec<&'a str>>,
    /// Of a function: the label behind its call.
    pub(super) end: Option<usize>,
}

impl Names<'_> {
    fn register(&self, name: &str) -> Option<usize> {
        self.scopes.iter().rev().find_map(|s| s.get(name)).copied()
    }
}

fn aligned(at: usize, to: usize) -> usize {
    at.div_ceil(to) * to
}

impl<'a> Parser<'a> {
    fn line(&self) -> usize {
        let at = self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |t| t.at);
        self.text[..at].lines().count().max(1)
    }

    pub(super) fn peek(&self) -> &'a str {
        self.tokens.get(self.at).map_or("", |t| t.text)
    }

    pub(super) fn next(&mut self) -> Result<&'a str, String> {
        let t = self.tokens.get(self.at).ok_or("the text ends too early")?;
        self.at += 1;
        Ok(t.text)
    }

    pub(super) fn accept(&mut self, text: &str) -> bool {
        let found = self.peek() == text;
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, text: &str) -> Result<(), String> {
        match self.accept(text) {
            true => Ok(()),
            false => Err(format!("`{}` where `{text}` was expected", self.peek())),
        }
    }

    fn integer(&mut self) -> Result<u64, String> {
        let negative = self.accept("-");
        let text = self.next()?;
        let v = number(text).ok_or_else(|| format!("`{text}` is not a number"))?;
        Ok(if negative { v.wrapping_neg() } else { v })
    }

    fn module(&mut self, module: &mut Module) -> Result<(), String> {
        while self.at < self.tokens.len() {
            let mut linkage = vec![];
            while [".visible", ".extern", ".weak", ".common"].contains(&self.peek()) {
                linkage.push(self.next()?);
            }
            match self.peek() {
                ".entry" => {
                    self.at += 1;
                    let entry = self.entry()?;
                    module.entries.insert(entry.name.clone(), entry);
                }
                ".func" => self.skip_function()?,
                _ => self.outside(module)?,
            }
        }
        Ok(())
    }

    /// A variable of the module.
    fn outside(&mut self, module: &mut Module) -> Result<(), String> {
        let v = self.variable()?;
        if v.space == ".shared" {
            self.expect(";")?;
            self.outside.push((v.name, v.align, v.bytes));
            return Ok(());
        }
        let mut bytes = vec![0u8; v.bytes];
        if self.accept("=") {
            let list = self.accept("{");
            let mut at = 0;
            loop {
                let value = self.integer()?.to_le_bytes();
                let n = v.ty.bytes();
                bytes.get_mut(at..at + n).ok_or("more values than the variable has")?.copy_from_slice(&value[..n]);
                at += n;
                if !self.accept(",") {
                    break;
                }
            }
            if list {
                self.expect("}")?;
            }
        }
        self.expect(";")?;
        // Words, so that the bytes are aligned for all types but vectors of 16 bytes.
        let words = bytes.chunks(8).map(|c| {
            let mut word = [0; 8];
            word[..c.len()].copy_from_slice(c);
            u64::from_le_bytes(word)
        });
        let words: Box<[u64]> = words.chain([0, 0]).collect();
        self.symbols.insert(v.name, Base::Absolute(words.as_ptr() as u64));
        module.variables.push(words);
        Ok(())
    }

    /// `.shared .align 16 .b8 name[64]`, or a parameter.
    pub(super) fn variable(&mut self) -> Result<Variable<'a>, String> {
        let (mut space, mut align, mut ty, mut lanes) = (None, None, None, 1);
        while self.peek().starts_with('.') {
            match self.next()? {
                word @ (".shared" | ".global" | ".const" | ".local" | ".param") => space = space.or(Some(word)),
                ".align" => align = Some(self.integer()? as usize),
                ".ptr" => {
                    // What a pointer points to says nothing of the parameter itself.
                    while [".global", ".shared", ".const", ".local", ".align"].contains(&self.peek()) {
                        if self.next()? == ".align" {
                            self.integer()?;
                        }
                    }
                }
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                word => {
                    let found = Type::of(&word[1..]).ok_or_else(|| format!("`{word}` in a declaration"))?;
                    ty = Some(found);
                }
            }
        }
        let name = self.next()?;
        let (space, ty) = space.zip(ty).ok_or_else(|| format!("{name} has no space or no type"))?;
        let mut count = lanes;
        while self.accept("[") {
            if !self.accept("]") {
                count *= self.integer()? as usize;
                self.expect("]")?;
            } else {
                count = 0;
            }
        }
        Ok(Variable { space, name, ty, align: align.unwrap_or(ty.bytes() * lanes), bytes: ty.bytes() * count })
    }

    fn entry(&mut self) -> Result<Entry, String> {
        let mut entry = Entry { name: self.next()?.into(), ..Entry::default() };
        let mut names = Names::default();
        if self.accept("(") {
            while !self.accept(")") {
                let v = self.variable()?;
                let at = aligned(entry.param_bytes(), v.align);
                names.symbols.insert(v.name, Base::Param(at as u64));
                entry.params.push((at, v.bytes));
                self.accept(",");
            }
        }
        // Limits of threads and registers.
        while self.peek() != "{" {
            self.next()?;
        }
        let body = self.at;
        self.places.clear();
        self.labels(&mut names)?;
        self.at = body;
        self.body(&mut entry, &mut names)?;
        for (name, align, bytes) in &self.outside {
            entry.shared = aligned(entry.shared, (*align).max(16));
            names.symbols.insert(name, Base::Shared(entry.shared as u64));
            entry.shared += bytes;
        }
        // Names are known now, also those of shared memory behind the kernel's own.
        let end = self.at;
        self.at = body;
        names.scopes.clear();
        names.registers = 0;
        self.statements(&mut entry, &mut names)?;
        entry.registers = names.registers;
        for operand in entry.code.iter_mut().flat_map(|i| &mut i.operands) {
            match operand {
                Operand::Label(to) => *to = self.places[*to],
                Operand::Labels(to) => to.iter_mut().for_each(|to| *to = self.places[*to]),
                _ => {}
            }
        }
        debug_assert_eq!(self.at, end);
        Ok(entry)
    }

    /// Numbers the labels, so that jumps forwards are known.
    pub(super) fn labels(&mut self, names: &mut Names<'a>) -> Result<(), String> {
        let mut depth = 0;
        loop {
            match self.next()? {
                "{" => depth += 1,
                "}" if depth == 1 => return Ok(()),
                "}" => depth -= 1,
                word if self.peek() == ":" && !word.starts_with('.') => {
                    self.at += 1;
                    if self.peek() == ".branchtargets" {
                        self.at += 1;
                        let mut to = vec![];
                        while !self.accept(";") {
                            to.push(self.next()?);
                            self.accept(",");
                        }
                        names.targets.insert(word, to);
                    } else {
                        names.labels.insert(word, self.places.len());
                        self.places.push(usize::MAX);
                    }
                }
                _ => while self.next()? != ";" {},
            }
        }
    }

    /// Lays out the variables of a kernel.
    pub(super) fn body(&mut self, entry: &mut Entry, names: &mut Names<'a>) -> Result<(), String> {
        let mut depth = 0;
        loop {
            match self.peek() {
                "{" => depth += 1,
                "}" if depth == 1 => {
                    self.at += 1;
                    return Ok(());
                }
                "}" => depth -= 1,
                ".shared" | ".local" => {
                    let v = self.variable()?;
                    let at = if v.space == ".shared" { &mut entry.shared } else { &mut entry.local };
                    *at = aligned(*at, v.align);
                    let base = if v.space == ".shared" { Base::Shared(*at as u64) } else { Base::Local(*at as u64) };
                    names.symbols.insert(v.name, base);
                    *at += v.bytes;
                    continue;
                }
                _ => {}
            }
            self.next()?;
        }
    }

    pub(super) fn statements(&mut self, entry: &mut Entry, names: &mut Names<'a>) -> Result<(), String> {
        loop {
            match self.peek() {
                "{" => {
                    self.at += 1;
                    names.scopes.push(HashMap::new());
                }
                "}" => {
                    self.at += 1;
                    names.scopes.pop();
                    if names.scopes.is_empty() {
                        return Ok(());
                    }
                }
                ".reg" => self.registers(names)?,
                // What a call gives and gets.
                ".param" => {
                    let v = self.variable()?;
                    self.expect(";")?;
                    entry.local = aligned(entry.local, v.align);
                    names.symbols.insert(v.name, Base::Local(entry.local as u64));
                    entry.local += v.bytes;
                }
                word if word.starts_with('.') => while self.next()? != ";" {},
                _ if self.tokens.get(self.at + 1).is_some_and(|t| t.text == ":") => {
                    if let Some(label) = names.labels.get(self.peek()) {
                        self.places[*label] = entry.code.len();
                    }
                    self.at += 2;
                }
                _ => {
                    let from = self.tokens[self.at].at;
                    let guard = self.guard(names)?;
                    if self.peek() == "call" || self.peek().starts_with("call.") {
                        self.call(guard, entry, names)?;
                        continue;
                    }
                    let mut instruction = self.instruction(from, guard, names)?;
                    if let Some(end) = names.end.filter(|_| instruction.opcode == "ret") {
                        instruction.opcode = "bra".into();
                        instruction.operands = vec![Operand::Label(end)];
                    }
                    entry.code.push(instruction);
                }
            }
        }
    }

    /// `.reg .b32 %r<10>, %extra;`
    fn registers(&mut self, names: &mut Names<'a>) -> Result<(), String> {
        self.at += 1;
        while self.peek().starts_with('.') {
            self.at += 1;
        }
        loop {
            let name = self.next()?;
            let mut declared = vec![name.to_owned()];
            if self.accept("<") {
                let count = self.integer()?;
                self.expect(">")?;
                declared = (0..count).map(|i| format!("{name}{i}")).collect();
            }
            let scope = names.scopes.last_mut().ok_or("registers outside of a body")?;
            for (i, name) in declared.into_iter().enumerate() {
                scope.insert(name, names.registers + i);
            }
            names.registers = names.registers.max(scope.values().max().map_or(0, |r| r + 1));
            if self.accept(";") {
                return Ok(());
            }
            self.expect(",")?;
        }
    }

    /// `@%p`: the predicate, and whether it is negated.
    fn guard(&mut self, names: &Names<'a>) -> Result<Option<(usize, bool)>, String> {
        if !self.accept("@") {
            return Ok(None);
        }
        let negated = self.accept("!");
        let name = self.next()?;
        let register = names.register(name).ok_or_else(|| format!("no predicate {name}"))?;
        Ok(Some((register, negated)))
    }

    /// The instruction that begins at byte `from`, behind its guard.
    fn instruction(
        &mut self,
        from: usize,
        guard: Option<(usize, bool)>,
        names: &Names<'a>,
    ) -> Result<Instruction, String> {
        let mut words = self.next()?.split('.');
        let opcode = words.next().unwrap_or_default().to_owned();
        let modifiers: Vec<String> = words.map(str::to_owned).collect();
        let mut operands = vec![];
        while !self.accept(";") {
            let operand = match (opcode.as_str(), operands.len()) {
                ("brx", 1) => {
                    let name = self.next()?;
                    let to = names.targets.get(name).ok_or_else(|| format!("no targets {name}"))?;
                    let to = to.iter().map(|l| names.labels.get(l).copied().ok_or_else(|| format!("no label {l}")));
                    Operand::Labels(to.collect::<Result<_, _>>()?)
                }
                _ => self.operand(names)?,
            };
            operands.push(operand);
            if self.peek() != ";" {
                self.expect(",")?;
            }
        }
        let to = self.tokens[self.at - 1].at;
        let text = self.text[from..to].split_whitespace().collect::<Vec<_>>().join(" ");
        Ok(Instruction { guard, opcode, modifiers, operands, text })
    }

    fn operand(&mut self, names: &Names<'a>) -> Result<Operand, String> {
        let first = self.simple(names)?;
        if !self.accept("|") {
            return Ok(first);
        }
        Ok(Operand::Pair(Box::new(first), Box::new(self.simple(names)?)))
    }

    fn simple(&mut self, names: &Names<'a>) -> Result<Operand, String> {
        match self.peek() {
            "{" => {
                self.at += 1;
                let mut of = vec![];
                while !self.accept("}") {
                    of.push(self.simple(names)?);
                    self.accept(",");
                }
                Ok(Operand::Vector(of))
            }
            "[" => {
                self.at += 1;
                let base = match self.simple(names)? {
                    Operand::Register(r) => Base::Register(r),
                    Operand::Symbol(base) => base,
                    Operand::Immediate(v) => Base::Absolute(v),
                    _ => return Err("an address of something else".into()),
                };
                let mut offset = 0i64;
                while self.peek() != "]" {
                    let plus = self.accept("+");
                    if !plus && self.peek() != "-" {
                        return Err(format!("`{}` in an address", self.peek()));
                    }
                    offset += self.integer()? as i64;
                }
                self.at += 1;
                Ok(Operand::Address(base, offset))
            }
            "!" => {
                self.at += 1;
                let name = self.next()?;
                names.register(name).map(Operand::Not).ok_or_else(|| format!("no predicate {name}"))
            }
            "-" => self.integer().map(Operand::Immediate),
            _ => {
                let word = self.next()?;
                if let Some(r) = names.register(word) {
                    return Ok(Operand::Register(r));
                }
                let special = word.strip_prefix('%').and_then(Special::of).map(Operand::Special);
                let symbol =
                    || names.symbols.get(word).or_else(|| self.symbols.get(word)).copied().map(Operand::Symbol);
                let label = || names.labels.get(word).copied().map(Operand::Label);
                let found = match word {
                    "_" => Some(Operand::Discard),
                    "WARP_SZ" => Some(Operand::Immediate(32)),
                    _ => special.or_else(|| number(word).map(Operand::Immediate)).or_else(symbol).or_else(label),
                };
                match found.ok_or_else(|| format!("`{word}` is not known"))? {
                    Operand::Symbol(base) if self.accept("+") => Ok(Operand::Symbol(base.moved(self.integer()?))),
                    found => Ok(found),
                }
            }
        }
    }
}
