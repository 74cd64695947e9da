//! JSON for files that people read and compare: what fits on a line stays on one, lists of numbers always do.

use serde_json::Value;

/// Widest line that a list or object is put on as a whole.
const WIDTH: usize = 140;

/// The text of a value, with a line end.
pub(crate) fn text(value: &Value) -> String {
    let mut out = String::new();
    write(value, 0, &mut out);
    out.push('\n');
    out
}

fn write(value: &Value, depth: usize, out: &mut String) {
    let compact = value.to_string();
    let is_short = compact.len() + depth <= WIDTH || is_numbers(value);
    match value {
        Value::Array(items) if !is_short => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                begin_line(i, depth, out);
                write(item, depth + 1, out);
            }
            end_block(depth, ']', out);
        }
        Value::Object(fields) if !is_short => {
            out.push('{');
            for (i, (name, field)) in fields.iter().enumerate() {
                begin_line(i, depth, out);
                *out += &format!("{}: ", Value::String(name.clone()));
                write(field, depth + 1, out);
            }
            end_block(depth, '}', out);
        }
        _ => *out += &compact,
    }
}

fn begin_line(index: usize, depth: usize, out: &mut String) {
    *out += if index > 0 { ",\n" } else { "\n" };
    *out += &" ".repeat(depth + 1);
}

fn end_block(depth: usize, bracket: char, out: &mut String) {
    out.push('\n');
    *out += &" ".repeat(depth);
    out.push(bracket);
}

/// True if it is numbers, or lists of them, throughout: a curve.
fn is_numbers(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(|item| item.is_number() || is_numbers(item)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn short_things_and_curves_stay_on_a_line() {
        let curve: Vec<[u32; 2]> = (0..100).map(|i| [i, i * i]).collect();
        let value = json!({ "curve": curve, "name": "x".repeat(150), "pair": { "a": 1, "b": [2, "c"] } });
        let text = text(&value);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(text.contains("\n \"pair\": {\"a\":1,\"b\":[2,\"c\"]}\n"), "{text}");
    }
}
