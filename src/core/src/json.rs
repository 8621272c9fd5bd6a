//! Writing JSON: the little that the filter writes, which has no room for what can write anything (RFC 8259).

use crate::key::Digest;
use core::fmt::Write;

/// An object that is being written.
#[derive(Debug)]
pub struct Object {
    json: String,
}

impl Default for Object {
    fn default() -> Self {
        Self { json: String::from("{") }
    }
}

impl Object {
    /// A field that is text.
    #[must_use]
    pub fn text(mut self, name: &str, value: &str) -> Self {
        self.name(name);
        escaped(&mut self.json, value);
        self
    }

    /// A field that may be left out.
    #[must_use]
    pub fn text_if(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.text(name, value),
            None => self,
        }
    }

    /// A field that is a count.
    #[must_use]
    pub fn number(mut self, name: &str, value: u64) -> Self {
        self.name(name);
        let _ = write!(self.json, "{value}");
        self
    }

    /// A field that is a list of texts.
    #[must_use]
    pub fn texts(mut self, name: &str, values: &[&str]) -> Self {
        self.name(name);
        let mut before = '[';
        for value in values {
            self.json.push(before);
            before = ',';
            escaped(&mut self.json, value);
        }
        self.json.push_str(if before == '[' { "[]" } else { "]" });
        self
    }

    /// A field that is a digest, in hexadecimal.
    #[must_use]
    pub fn digest(mut self, name: &str, value: Digest) -> Self {
        self.name(name);
        let _ = write!(self.json, "\"{value}\"");
        self
    }

    /// A field that is another object.
    #[must_use]
    pub fn object(mut self, name: &str, write: impl FnOnce(Self) -> Self) -> Self {
        self.name(name);
        self.nested(write)
    }

    /// A field that is a list of objects, one for each item.
    #[must_use]
    pub fn objects<T>(
        mut self,
        name: &str,
        items: impl IntoIterator<Item = T>,
        write: impl Fn(Self, T) -> Self,
    ) -> Self {
        self.name(name);
        self.json.push('[');
        for (index, item) in items.into_iter().enumerate() {
            if index > 0 {
                self.json.push(',');
            }
            self = self.nested(|object| write(object, item));
        }
        self.json.push(']');
        self
    }

    /// The whole.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.json.push('}');
        self.json
    }

    fn nested(mut self, write: impl FnOnce(Self) -> Self) -> Self {
        self.json.push('{');
        let mut written = write(self);
        written.json.push('}');
        written
    }

    fn name(&mut self, name: &str) {
        if !self.json.ends_with('{') {
            self.json.push(',');
        }
        escaped(&mut self.json, name);
        self.json.push(':');
    }
}

fn escaped(json: &mut String, text: &str) {
    json.push('"');
    if !text.bytes().any(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
        // As good as all of it.
        json.push_str(text);
        json.push('"');
        return;
    }
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                json.push('\\');
                json.push(character);
            }
            '\0'..='\x1f' => {
                let _ = write!(json, "\\u{:04x}", u32::from(character));
            }
            _ => json.push(character),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let all: String = (0..=0x100).filter_map(char::from_u32).chain("\u{2028}\u{1f600}".chars()).collect();
        let digest = Digest::from_bytes([0xf0; 16]);
        let text = Object::default()
            .text(&all, &all)
            .text_if("left out", None)
            .text_if("some", Some(""))
            .texts("none of them", &[])
            .texts("two", &[&all, "b"])
            .digest("d", digest)
            .object("empty", |inner| inner)
            .object("o", |inner| inner.number("n", u64::MAX).object("{", |inner| inner).text("}", "{"))
            .objects("none", [0_u64; 0], |inner, _| inner)
            .objects("l", [1, 0], |inner, n| if n == 0 { inner } else { inner.number("n", n).number("m", n) })
            .finish();
        let expected = json!({
            &all: all, "some": "", "none of them": [], "two": [all, "b"], "d": digest.to_string(), "empty": {},
            "o": {"n": u64::MAX, "{": {}, "}": "{"}, "none": [], "l": [{"n": 1, "m": 1}, {}],
        });
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }
}
