//! Functions: the code of one stands wherever it is called. NVRTC has them for the rare cases of functions of `f64`.

use super::{
    Entry, Instruction, Operand,
    parse::{Names, Parser},
    token::Token,
};
use std::collections::HashMap;

/// Calls inside each other: more would be a function that calls itself.
const DEEPEST: usize = 16;

/// Where the declaration of each function begins that has a body: behind `.func`.
pub fn functions<'a>(tokens: &[Token<'a>]) -> HashMap<&'a str, usize> {
    let mut found = HashMap::new();
    for (i, _) in tokens.iter().enumerate().filter(|(_, t)| t.text == ".func") {
        let rest = &tokens[i + 1..];
        let list = |from: usize| match rest.get(from) {
            Some(t) if t.text == "(" => from + rest[from..].iter().take_while(|t| t.text != ")").count() + 1,
            _ => from,
        };
        let name = list(0);
        let ends = rest[name..].iter().find(|t| t.text == ";" || t.text == "{");
        if let (Some(name), Some("{")) = (rest.get(name), ends.map(|t| t.text)) {
            found.insert(name.text, i + 1);
        }
    }
    found
}

impl<'a> Parser<'a> {
    /// Passes over a function: its code is read where it is called.
    pub(super) fn skip_function(&mut self) -> Result<(), String> {
        loop {
            match self.next()? {
                ";" => return Ok(()),
                "{" => break,
                _ => {}
            }
        }
        let mut depth = 1;
        while depth > 0 {
            match self.next()? {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// `call.uni (result), function, (argument);`
    pub(super) fn call(
        &mut self,
        guard: Option<(usize, bool)>,
        entry: &mut Entry,
        names: &mut Names<'a>,
    ) -> Result<(), String> {
        self.next()?;
        let mut given = self.names_in_brackets()?;
        self.accept(",");
        let name = self.next()?;
        self.accept(",");
        given.extend(self.names_in_brackets()?);
        self.expect(";")?;
        let text = format!("call {name}");
        let Some(function) = self.functions.get(name).copied() else {
            // It is refused when it runs.
            let refused = Instruction { guard, opcode: "call".into(), modifiers: vec![], operands: vec![], text };
            entry.code.push(refused);
            return Ok(());
        };
        if self.depth == DEEPEST {
            return Err(format!("{name} is called inside itself"));
        }
        let end = self.places.len();
        self.places.push(usize::MAX);
        if let Some((register, negated)) = guard {
            let guard = Some((register, !negated));
            let operands = vec![Operand::Label(end)];
            entry.code.push(Instruction { guard, opcode: "bra".into(), modifiers: vec![], operands, text });
        }
        let back = std::mem::replace(&mut self.at, function);
        let mut own = Names::default();
        (own.registers, own.end) = (names.registers, Some(end));
        for (name, ..) in &self.outside {
            own.symbols.extend(names.symbols.get(name).map(|base| (*name, *base)));
        }
        let mut taken = self.variables_in_brackets()?;
        self.next()?;
        taken.extend(self.variables_in_brackets()?);
        if taken.len() != given.len() {
            return Err(format!("{name} takes and gives {} values, not {}", taken.len(), given.len()));
        }
        for (taken, given) in taken.into_iter().zip(given) {
            let base = names.symbols.get(given).ok_or_else(|| format!("no parameter {given}"))?;
            own.symbols.insert(taken, *base);
        }
        while self.peek() != "{" {
            self.next()?;
        }
        let (body, shared) = (self.at, entry.shared);
        self.labels(&mut own)?;
        self.at = body;
        self.body(entry, &mut own)?;
        if entry.shared != shared {
            return Err(format!("{name} has shared memory of its own"));
        }
        self.at = body;
        self.depth += 1;
        self.statements(entry, &mut own)?;
        self.depth -= 1;
        self.places[end] = entry.code.len();
        names.registers = own.registers;
        self.at = back;
        Ok(())
    }

    fn names_in_brackets(&mut self) -> Result<Vec<&'a str>, String> {
        let mut found = vec![];
        if self.accept("(") {
            while !self.accept(")") {
                found.push(self.next()?);
                self.accept(",");
            }
        }
        Ok(found)
    }

    fn variables_in_brackets(&mut self) -> Result<Vec<&'a str>, String> {
        let mut found = vec![];
        if self.accept("(") {
            while !self.accept(")") {
                found.push(self.variable()?.name);
                self.accept(",");
            }
        }
        Ok(found)
    }
}
