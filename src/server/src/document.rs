//! A configuration file as it is written, YAML or JSON, with the place of every value.
//!
//! What a value without quotes means depends on who reads it ([`Dialect`]), so it is kept as text until that is known.

#[cfg(test)]
mod tests;

use granit_parser::{Event, Options, Parser, ScalarStyle, Tag};
use std::collections::HashMap;
use std::ops::Range;

/// Aliases may not make more of a file than this many values.
const MAX_NODES: usize = 200_000;

/// Who reads the values without quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Envoy, by yaml-cpp: `no` is false and `010` is 8; what is not a whole number of 32 bits becomes text.
    Envoy,
    /// What speaks to a Kubernetes API server: the same words, but fractions and large numbers are numbers.
    Kubernetes,
    /// JSON, in a file or as text within another.
    Json,
}

/// One value and where it stands in its file, in bytes.
#[derive(Clone, Debug)]
pub struct Node {
    pub value: Value,
    pub span: Range<usize>,
}

#[derive(Clone, Debug)]
pub enum Value {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A field of a map. No two have one name: see [`Document::repeated`].
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    pub name_span: Range<usize>,
    pub node: Node,
}

#[derive(Clone, Debug)]
pub struct Scalar {
    pub text: String,
    style: Style,
}

#[derive(Clone, Debug)]
enum Style {
    Plain,
    Quoted,
    /// With an explicit tag, such as `!!str`.
    Tagged(String),
}

/// What a value without quotes is taken for.
#[derive(Debug, PartialEq)]
enum Meaning<'a> {
    Null,
    Bool(bool),
    /// As JSON writes it.
    Number(String),
    Text(&'a str),
    /// Text that is not as it stands.
    Made(String),
}

/// All values of a file.
#[derive(Debug, Default)]
pub struct Documents {
    pub documents: Vec<Node>,
    /// Fields that a map has twice. The earlier one is left out, as Envoy does.
    pub repeated: Vec<Repeated>,
}

#[derive(Debug)]
pub struct Repeated {
    pub name: String,
    pub earlier: Range<usize>,
    pub span: Range<usize>,
}

/// Why a text is neither YAML nor JSON.
#[derive(Debug)]
pub struct Unreadable {
    pub message: String,
    pub span: Range<usize>,
}

/// Reads all documents of a file.
pub fn parse(source: &str) -> Result<Documents, Unreadable> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str_with_options(source, Options::default()) {
        let (event, span) = event.map_err(|error| {
            let at = error.marker().byte_offset().unwrap_or(source.len()).min(source.len());
            Unreadable { message: error.info(), span: at..at }
        })?;
        let offset = |marker: granit_parser::Marker| marker.byte_offset().unwrap_or(source.len()).min(source.len());
        let start = offset(span.start);
        builder.take(event, start..offset(span.end).max(start))?;
    }
    Ok(builder.done)
}

/// Whether a text is JSON and nothing else; the error says where it is not.
pub fn check_json(text: &str) -> Result<(), Unreadable> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).map(drop).map_err(|error| {
        let line_start = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum::<usize>();
        let at = (line_start + error.column().saturating_sub(1)).min(text.len());
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        Unreadable { message: format!("not valid JSON: {message}"), span: at..at }
    })
}

/// Reads a text that stands as a value in another file; all spans are those of the file.
pub fn parse_within(source: &str, span: &Range<usize>, text: &str, dialect: Dialect) -> Result<Documents, Unreadable> {
    let places = Places::new(source, span, text);
    let checked = if dialect == Dialect::Json { check_json(text) } else { Ok(()) };
    let mut documents = checked
        .and_then(|()| parse(text))
        .map_err(|error| Unreadable { message: error.message, span: places.outer(&error.span) })?;
    for node in &mut documents.documents {
        node.move_to(&places);
    }
    for repeated in &mut documents.repeated {
        repeated.earlier = places.outer(&repeated.earlier);
        repeated.span = places.outer(&repeated.span);
    }
    Ok(documents)
}

/// Where the bytes of a text are in the file that it stands in.
enum Places {
    /// All in a row, from there on.
    From(usize),
    /// Line by line: where it begins in the text and in the file.
    Lines(Vec<(usize, usize)>),
    /// Not known (it was written with escapes, or folded): the whole text stands for each of its parts.
    Whole(Range<usize>),
}

impl Places {
    fn new(source: &str, span: &Range<usize>, text: &str) -> Self {
        let Some(written) = source.get(span.clone()) else { return Self::Whole(span.clone()) };
        if let Some(start) = written.find(text) {
            return Self::From(span.start + start);
        }
        let mut lines = Vec::new();
        // The span of a block begins behind its empty lines.
        let blank = text.len() - text.trim_start_matches('\n').len();
        let (mut inner, mut outer) = (blank, span.start);
        let mut rest = text[blank..].split_inclusive('\n').peekable();
        for line in written.split_inclusive('\n') {
            let Some(wanted) = rest.next() else { break };
            let (line_end, wanted_end) = (line.trim_end_matches(['\r', '\n']), wanted.trim_end_matches('\n'));
            if !line_end.ends_with(wanted_end) {
                return Self::Whole(span.clone());
            }
            lines.push((inner, outer + line_end.len() - wanted_end.len()));
            inner += wanted.len();
            outer += line.len();
        }
        if rest.peek().is_some() { Self::Whole(span.clone()) } else { Self::Lines(lines) }
    }

    fn outer(&self, span: &Range<usize>) -> Range<usize> {
        match self {
            Self::From(start) => start + span.start..start + span.end,
            Self::Lines(lines) => {
                let place = |at: usize| {
                    let line = lines.iter().rev().find(|(inner, _)| *inner <= at);
                    line.map_or(0, |(inner, outer)| outer + (at - inner))
                };
                let start = place(span.start);
                start..place(span.end).max(start)
            }
            Self::Whole(whole) => whole.clone(),
        }
    }
}

impl Node {
    fn move_to(&mut self, places: &Places) {
        self.span = places.outer(&self.span);
        match &mut self.value {
            Value::Scalar(_) => {}
            Value::List(list) => list.iter_mut().for_each(|node| node.move_to(places)),
            Value::Map(map) => map.iter_mut().for_each(|entry| {
                entry.name_span = places.outer(&entry.name_span);
                entry.node.move_to(places);
            }),
        }
    }

    /// The fields; none where this is not a map.
    pub fn entries(&self) -> &[Entry] {
        if let Value::Map(map) = &self.value { map } else { &[] }
    }

    /// The items; none where this is not a list.
    pub fn items(&self) -> &[Self] {
        if let Value::List(list) = &self.value { list } else { &[] }
    }

    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.name == name)
    }

    /// A field of a protobuf message, which Envoy takes as `snake_case` and as `camelCase`.
    pub fn field(&self, name: &str) -> Option<&Self> {
        self.entries().iter().find(|entry| snake_case(&entry.name) == name).map(|entry| &entry.node)
    }

    /// A field of a field, and so on.
    pub fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |node, name| node.field(name))
    }

    /// A word or a text as it is written.
    pub fn text(&self) -> Option<&str> {
        if let Value::Scalar(scalar) = &self.value { Some(&scalar.text) } else { None }
    }

    /// Whether it is true to whoever reads the dialect.
    pub fn is_true(&self, dialect: Dialect) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.meaning(dialect) == Meaning::Bool(true))
    }

    /// Whether it says nothing.
    pub fn is_null(&self, dialect: Dialect) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.meaning(dialect) == Meaning::Null)
    }

    /// Applies YAML's merge keys (`<<`), which Kubernetes knows and Envoy does not.
    pub fn merge(&mut self) {
        match &mut self.value {
            Value::Scalar(_) => {}
            Value::List(list) => list.iter_mut().for_each(Self::merge),
            Value::Map(map) => {
                map.iter_mut().for_each(|entry| entry.node.merge());
                let Some(index) = map.iter().position(|entry| entry.name == "<<") else { return };
                let merged = map.remove(index).node;
                let sources = if merged.items().is_empty() { std::slice::from_ref(&merged) } else { merged.items() };
                for entry in sources.iter().flat_map(Self::entries) {
                    if !map.iter().any(|own| own.name == entry.name) {
                        map.push(entry.clone());
                    }
                }
            }
        }
    }

    /// As JSON text, as it reaches the filter.
    pub fn to_json(&self, dialect: Dialect) -> String {
        let mut json = String::new();
        self.write_json(dialect, &mut json);
        json
    }

    fn write_json(&self, dialect: Dialect, json: &mut String) {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        match &self.value {
            Value::Scalar(scalar) => match scalar.meaning(dialect) {
                Meaning::Null => json.push_str("null"),
                Meaning::Bool(value) => json.push_str(if value { "true" } else { "false" }),
                Meaning::Number(number) => json.push_str(&number),
                Meaning::Text(text) => json.push_str(&quoted(text)),
                Meaning::Made(text) => json.push_str(&quoted(&text)),
            },
            Value::List(list) => {
                json.push('[');
                for (index, node) in list.iter().enumerate() {
                    json.push_str(if index == 0 { "" } else { "," });
                    node.write_json(dialect, json);
                }
                json.push(']');
            }
            Value::Map(map) => {
                json.push('{');
                for (index, entry) in map.iter().enumerate() {
                    json.push_str(if index == 0 { "" } else { "," });
                    json.push_str(&quoted(&entry.name));
                    json.push(':');
                    entry.node.write_json(dialect, json);
                }
                json.push('}');
            }
        }
    }

    fn count(&self) -> usize {
        1 + match &self.value {
            Value::Scalar(_) => 0,
            Value::List(list) => list.iter().map(Self::count).sum(),
            Value::Map(map) => map.iter().map(|entry| entry.node.count()).sum(),
        }
    }

    /// The value that a path of the policy reader (`policies[0].limit`) leads to, with its field where it is one.
    /// A path that leads on from there (to what is not written) gives the last that is.
    pub fn find(&self, path: &str) -> (&Self, Option<&Entry>) {
        self.follow(path).unwrap_or((self, None))
    }

    fn follow(&self, path: &str) -> Option<(&Self, Option<&Entry>)> {
        let path = path.strip_prefix('.').unwrap_or(path);
        if path.is_empty() {
            return Some((self, None));
        }
        if let Some((index, rest)) = path.strip_prefix('[').and_then(|path| path.split_once(']')) {
            return self.items().get(index.parse::<usize>().ok()?)?.follow(rest);
        }
        // A name may hold dots and brackets itself.
        let leads_on = |rest: &str| rest.is_empty() || rest.starts_with(['.', '[']);
        self.entries().iter().find_map(|entry| {
            let rest = path.strip_prefix(entry.name.as_str()).filter(|rest| leads_on(rest))?;
            let (node, deeper) = entry.node.follow(rest)?;
            Some((node, if rest.is_empty() { Some(entry) } else { deeper }))
        })
    }
}

impl Scalar {
    fn meaning(&self, dialect: Dialect) -> Meaning<'_> {
        let text = self.text.as_str();
        let plain = match (&self.style, dialect) {
            (Style::Quoted, _) => return Meaning::Text(text),
            // To yaml-cpp all tags but `!` are as none.
            (Style::Tagged(tag), _) if tag == "!" => return Meaning::Text(text),
            (Style::Tagged(tag), Dialect::Kubernetes | Dialect::Json) if tag.ends_with("str") => {
                return Meaning::Text(text);
            }
            (Style::Tagged(_), _) => false,
            (Style::Plain, _) => true,
        };
        let null = plain && matches!(text, "" | "~" | "null" | "Null" | "NULL");
        match dialect {
            Dialect::Json => match text {
                "null" => Meaning::Null,
                "true" | "false" => Meaning::Bool(text == "true"),
                _ => Meaning::Number(text.into()),
            },
            _ if null => Meaning::Null,
            Dialect::Envoy => match (boolean(text), whole(text)) {
                (Some(value), _) => Meaning::Bool(value),
                (None, Some(number)) if i32::try_from(number).is_ok() => Meaning::Number(number.to_string()),
                (None, Some(number)) => Meaning::Made(number.to_string()),
                (None, None) => Meaning::Text(text),
            },
            Dialect::Kubernetes => {
                let digits = text.replace('_', "");
                match (boolean(text), whole(&digits), float(text)) {
                    (Some(value), ..) => Meaning::Bool(value),
                    (None, Some(number), _) => Meaning::Number(number.to_string()),
                    (None, None, Some(number)) => Meaning::Number(number.to_string()),
                    (None, None, None) => Meaning::Text(text),
                }
            }
        }
    }
}

/// The words of YAML 1.1, in the three ways in which yaml-cpp and go-yaml take them.
fn boolean(text: &str) -> Option<bool> {
    const WORDS: [(&str, bool); 8] = [
        ("true", true),
        ("false", false),
        ("yes", true),
        ("no", false),
        ("on", true),
        ("off", false),
        ("y", true),
        ("n", false),
    ];
    let (first, rest) = text.split_at_checked(1)?;
    let cased = rest.bytes().all(|b| b.is_ascii_lowercase())
        || (first.bytes().all(|b| b.is_ascii_uppercase()) && rest.bytes().all(|b| b.is_ascii_uppercase()));
    WORDS.iter().find(|(word, _)| cased && word.eq_ignore_ascii_case(text)).map(|(_, value)| *value)
}

/// Whole numbers of 64 bits as C reads them: `0x1F` by 16, `010` by 8.
fn whole(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let number = i128::from(u64::from_str_radix(digits, radix).ok()?);
    i64::try_from(if negative { -number } else { number }).ok()
}

/// Other numbers that JSON can write.
fn float(text: &str) -> Option<f64> {
    let is_number = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    text.parse().ok().filter(|number: &f64| is_number && number.is_finite())
}

fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len());
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// Makes values of the parser's events.
#[derive(Default)]
struct Builder {
    done: Documents,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
}

/// A list or a map that has not ended yet.
struct Open {
    start: usize,
    anchor: usize,
    value: Value,
    /// The name of the field that comes next.
    name: Option<(String, Range<usize>)>,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Range<usize>) -> Result<(), Unreadable> {
        match event {
            Event::DocumentStart(..) => self.anchors.clear(),
            Event::Scalar(text, style, anchor, tag) => {
                let style = match (tag, style) {
                    (Some(tag), _) => Style::Tagged(name_of(&tag)),
                    (None, ScalarStyle::Plain) => Style::Plain,
                    (None, _) => Style::Quoted,
                };
                let value = Value::Scalar(Scalar { text: text.into_owned(), style });
                self.add(Node { value, span }, anchor)?;
            }
            Event::SequenceStart(_, anchor, _) => self.open(Value::List(Vec::new()), anchor, &span),
            Event::MappingStart(_, anchor, _) => self.open(Value::Map(Vec::new()), anchor, &span),
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    let span = open.start..span.end.max(open.start);
                    self.add(Node { value: open.value, span }, open.anchor)?;
                }
            }
            Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                Some(node) => {
                    self.nodes += node.count();
                    self.add(node, 0)?;
                }
                None => return Err(Unreadable { message: "an alias within what it stands for".into(), span }),
            },
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, value: Value, anchor: usize, span: &Range<usize>) {
        self.open.push(Open { start: span.start, anchor, value, name: None });
    }

    fn add(&mut self, node: Node, anchor: usize) -> Result<(), Unreadable> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            let message = format!("more than {MAX_NODES} values, counted where aliases repeat them");
            return Err(Unreadable { message, span: node.span });
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.open.last_mut() else {
            self.done.documents.push(node);
            return Ok(());
        };
        match &mut open.value {
            Value::List(list) => list.push(node),
            Value::Map(map) => match (open.name.take(), node.value) {
                (None, Value::Scalar(name)) => open.name = Some((name.text, node.span)),
                (None, _) => {
                    return Err(Unreadable {
                        message: "a list or a map as the name of a field".into(),
                        span: node.span,
                    });
                }
                (Some((name, name_span)), value) => {
                    if let Some(index) = map.iter().position(|entry| entry.name == name) {
                        let earlier = map.remove(index).name_span;
                        self.done.repeated.push(Repeated { name: name.clone(), earlier, span: name_span.clone() });
                    }
                    map.push(Entry { name, name_span, node: Node { value, span: node.span } });
                }
            },
            Value::Scalar(_) => {}
        }
        Ok(())
    }
}

fn name_of(tag: &Tag) -> String {
    let (handle, suffix) = tag.parts();
    format!("{handle}{suffix}")
}
