//! A recipe as the command line that runs it.

use crate::recipe::Recipe;
use toml::{Table, Value};

/// The command of the job that a recipe's table describes, for a shell, in parts: what is run, and each option. `None` where no
/// command repeats it, as a program gave the data.
pub fn command(run: &Table) -> Option<Vec<String>> {
    let run = Recipe::of_table(run.clone()).and_then(|recipe| recipe.asked()).ok()?;
    let job = run.get("job")?.as_str()?;
    let place = if job == "distill" { "student" } else { "model" };
    let file = file(run.get(place)?.as_str()?);
    let mut parts = vec![match job {
        "compress" | "sweep" => format!("compress {file}"),
        other => format!("compress {other} {file}"),
    }];
    let mut options: Vec<_> = run.iter().filter(|(name, _)| *name != "job" && *name != place).collect();
    options.sort_by_key(|(name, _)| *name);
    for (name, value) in options {
        match value {
            Value::Boolean(true) => parts.push(format!("--{name}")),
            Value::Boolean(false) => {}
            Value::Array(many) if many.iter().all(Value::is_str) => {
                parts.extend(many.iter().map(|one| option(name, &text(one))));
            }
            Value::Array(many) => parts.push(option(name, &many.iter().map(text).collect::<Vec<_>>().join(","))),
            // Its value may be left out, so only what is joined to it is one.
            Value::String(way) if name == "int8" => parts.push(format!("--{name}={way}")),
            one => parts.push(option(name, &text(one))),
        }
    }
    Some(parts)
}

/// An option and its value. A value with a hyphen in front would be taken for an option.
fn option(name: &str, value: &str) -> String {
    match value.starts_with('-') {
        true => quoted(&format!("--{name}={value}")),
        false => format!("--{name} {}", quoted(value)),
    }
}

/// A file as an argument without an option.
fn file(path: &str) -> String {
    quoted(&if path.starts_with('-') { format!("./{path}") } else { path.into() })
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

/// A word for a POSIX shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::given::GIVEN;

    fn of(recipe: &str) -> Option<String> {
        command(&recipe.parse().unwrap()).map(|parts| parts.join(" "))
    }

    #[test]
    fn a_recipe_becomes_a_command() {
        let made = of(
            "job = 'compress'\nmodel = 'a b.onnx'\nint8 = true\nprune = 0.5\nexclude = ['^x', '-y']\nstrict = false",
        );
        assert_eq!(made.unwrap(), "compress 'a b.onnx' --exclude '^x' --exclude=-y --int8 --prune 0.5");
        let made = of("job = 'sweep'\nmodel = 'm.onnx'\nsweep = [0.5, 0.9]").unwrap();
        assert_eq!(made, "compress m.onnx --sweep 0.5,0.9");
        let made = of("job = 'distill'\nstudent = '-s.onnx'\ndata = \"it's\"").unwrap();
        assert_eq!(made, r"compress distill ./-s.onnx --data 'it'\''s'");
    }

    #[test]
    fn what_a_program_gave_has_no_command() {
        assert_eq!(of(&format!("job = 'check'\nmodel = 'm.onnx'\nagainst = 'n.onnx'\ndata = '{GIVEN}'")), None);
    }
}
