//! Words, numbers and signs of the text.

/// A piece of the text, and where it begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token<'a> {
    /// Its characters.
    pub text: &'a str,
    /// Its first byte in the module.
    pub at: usize,
}

/// Directives that go to the end of their line and say nothing of what is computed.
const LINES: &[&str] = &[".loc", ".file", ".version", ".target", ".address_size"];

/// The tokens of a module, without comments and what is there for a debugger.
///
/// # Errors
/// A character that PTX doesn't have.
pub fn tokens(text: &str) -> Result<Vec<Token<'_>>, String> {
    let bytes = text.as_bytes();
    let mut out = vec![];
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let length = if bytes[at].is_ascii_whitespace() {
            at += 1;
            continue;
        } else if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        } else if rest.starts_with("/*") {
            at += rest.find("*/").map_or(rest.len(), |end| end + 2);
            continue;
        } else if rest.starts_with(".section") {
            // What follows is for a debugger.
            break;
        } else if let Some(inside) = rest.strip_prefix('"') {
            // Only directives have texts: `.pragma "nounroll"`.
            inside.find('"').ok_or("a text without an end")? + 2
        } else if is_word(bytes[at]) {
            word(rest)
        } else if b",;:{}[]()+-!|@=<>".contains(&bytes[at]) {
            1
        } else {
            return Err(format!("`{}` is not PTX", rest.chars().next().unwrap_or_default()));
        };
        let token = Token { text: &rest[..length], at };
        if LINES.contains(&token.text) {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        }
        out.push(token);
        at += length;
    }
    Ok(out)
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"_$%.".contains(&b)
}

/// The length of the word at the beginning: `cp.async.shared::cta` is one.
fn word(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut n = 0;
    while n < bytes.len() {
        if is_word(bytes[n]) {
            n += 1;
        } else if rest[n..].starts_with("::") {
            n += 2;
        } else {
            break;
        }
    }
    n
}

/// The bits of a number: of an integer 64 of them, of `0f3F800000` those that it names.
pub fn number(text: &str) -> Option<u64> {
    let text = text.trim_end_matches(['U', 'u']);
    let of = |from: usize, radix: u32| u64::from_str_radix(&text[from..], radix).ok();
    match text.get(..2) {
        Some("0f" | "0F" | "0d" | "0D" | "0x" | "0X") => of(2, 16),
        Some("0b" | "0B") => of(2, 2),
        // As in C.
        Some(octal) if octal.starts_with('0') => of(1, 8),
        _ => of(0, 10),
    }
}
