//! The forms of access logs that are text.
//!
//! ```text
//! Envoy      [START] "METHOD PATH PROTOCOL" CODE FLAGS RECEIVED SENT DURATION SERVICE "XFF" "AGENT" "ID" "HOST" "UPSTREAM"
//! Istio      the same with DETAILS TERMINATION "FAILURE" behind FLAGS, and at the end CLUSTER LOCAL LOCAL CLIENT SNI ROUTE
//! combined   CLIENT - USER [TIME] "METHOD PATH PROTOCOL" CODE SENT "REFERER" "AGENT"; without the last two it is common
//! ```

use super::{Entry, is_said, set_length, set_url, time_of};
use crate::explain::Request;

/// What stands between blanks, or within quotes or brackets.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    Bare(String),
    Quoted(String),
    Bracketed(String),
}

/// The error says why the line is no request.
pub fn read(line: &str) -> Result<Entry, String> {
    const FORM: &str =
        "this is neither JSON nor a form of text that is known: there is no [time] with \"METHOD path\" behind it";
    let words = words(line);
    let time = words.iter().position(|word| matches!(word, Word::Bracketed(_))).ok_or(FORM)?;
    let (Some(Word::Bracketed(at)), Some(Word::Quoted(asked))) = (words.get(time), words.get(time + 1)) else {
        return Err(FORM.into());
    };
    let at = time_of(&at.as_str().into())?;
    let mut parts = asked.split_whitespace();
    let (Some(method), Some(url)) = (parts.next(), parts.next()) else {
        return Err("what stands behind the time is no request: it is written \"METHOD path\"".into());
    };
    let mut request = Request { method: method.into(), joins_cookies: true, ..Request::default() };
    if is_said(url) {
        set_url(&mut request, url);
    }
    let rest = &words[time + 2..];
    if time == 0 {
        envoy(&mut request, rest)
    } else {
        combined(&mut request, &words[..time], rest)
    }
    Ok(Entry { at, request })
}

fn combined(request: &mut Request, before: &[Word], rest: &[Word]) {
    if let Some(Word::Bare(client)) = before.first().filter(|_| before.len() >= 3) {
        request.client = Some(client.clone()).filter(|client| is_said(client));
    }
    let quoted: Vec<&str> = rest.iter().filter_map(Word::quoted).collect();
    for (name, value) in ["referer", "user-agent"].into_iter().zip(quoted) {
        add(request, name, value);
    }
}

fn envoy(request: &mut Request, rest: &[Word]) {
    let quoted: Vec<&str> = rest.iter().filter_map(Word::quoted).collect();
    // Istio has the reason of a failure before them.
    let is_istio = quoted.len() > 5;
    let names = ["x-forwarded-for", "user-agent", "x-request-id", ":authority"];
    for (name, value) in names.into_iter().zip(&quoted[usize::from(is_istio)..]) {
        match name {
            ":authority" if is_said(value) => request.host = (*value).into(),
            ":authority" => {}
            name => add(request, name, value),
        }
    }
    let last_quoted = rest.iter().rposition(|word| word.quoted().is_some()).unwrap_or(0);
    let client = rest.get(last_quoted + 4).filter(|_| is_istio).and_then(Word::bare);
    // Envoy's own form has no address but what Envoy has added here.
    let forwarded = quoted.first().and_then(|list| list.rsplit(',').next()).map(str::trim);
    request.client = client.or(forwarded.filter(|_| !is_istio)).filter(|client| is_said(client)).map(Into::into);
    let received = rest.iter().skip(2).filter_map(Word::bare).skip(if is_istio { 2 } else { 0 });
    if let Some(length) = received.take(1).find_map(|received| received.parse().ok()) {
        set_length(request, length);
    }
}

fn add(request: &mut Request, name: &str, value: &str) {
    if is_said(value) {
        request.headers.push((name.into(), value.into()));
    }
}

impl Word {
    fn bare(&self) -> Option<&str> {
        if let Self::Bare(text) = self { Some(text) } else { None }
    }

    fn quoted(&self) -> Option<&str> {
        if let Self::Quoted(text) = self { Some(text) } else { None }
    }
}

fn words(line: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let (word, behind) = match first {
            '"' => {
                let (text, behind) = until_quote(&rest[1..]);
                (Word::Quoted(text), behind)
            }
            '[' => {
                let (text, behind) = rest[1..].split_once(']').unwrap_or((&rest[1..], ""));
                (Word::Bracketed(text.into()), behind)
            }
            _ => {
                let (text, behind) = rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
                (Word::Bare(text.into()), behind)
            }
        };
        words.push(word);
        rest = behind.trim_start();
    }
    words
}

/// The text up to the quote that ends it, and what is behind that. nginx and Apache write a quote within as `\"` or `\x22`.
fn until_quote(text: &str) -> (String, &str) {
    let mut said = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (said, &text[at + 1..]),
            '\\' => match characters.next() {
                Some((at, 'x')) => match text.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    Some(byte) => {
                        said.push(char::from(byte));
                        characters.nth(1);
                    }
                    None => said.push_str("\\x"),
                },
                Some((_, escaped)) => said.push(escaped),
                None => said.push('\\'),
            },
            other => said.push(other),
        }
    }
    (said, "")
}
