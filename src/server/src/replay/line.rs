//! One line of an access log as a request.

mod text;

use super::FieldArgs;
use crate::explain::{Body, Given, Name, Request, is_token};
use jiff::Timestamp;
use jiff::fmt::strtime;
use serde_json::{Map, Value};
use tollgate_core::facts::{Attribute, MetadataOf};
use tollgate_core::units::Micros;

/// When a request began, and what it was.
#[derive(Debug)]
pub struct Entry {
    pub at: Micros,
    pub request: Request,
}

/// Where a JSON line has what it does not call by its usual name.
#[derive(Debug, Default)]
pub struct Fields {
    /// A header's name, and its field.
    headers: Vec<(String, String)>,
    attributes: Vec<(Name, String)>,
}

const TIMES: &[&str] = &["start_time", "timestamp", "@timestamp", "time", "ts", "time_iso8601", "time_local", "msec"];
const METHODS: &[&str] = &["method", "request_method", ":method"];
/// A path that was rewritten is not the one that the filter saw.
const PATHS: &[&str] =
    &["x-envoy-original-path", "x_envoy_original_path", "original_path", "path", ":path", "request_path"];
/// These may be whole URLs.
const URLS: &[&str] = &["request_uri", "uri", "url", "request_url"];
const HOSTS: &[&str] = &["authority", ":authority", "host", "request_host", "http_host"];
const CLIENTS: &[&str] = &[
    "downstream_remote_address",
    "downstream_remote_address_without_port",
    "client_address",
    "client_ip",
    "remote_addr",
    "remote_address",
    "remote_ip",
];
const LENGTHS: &[&str] = &["bytes_received", "request_body_size"];
const HEADERS: &[&str] = &["headers", "request_headers"];

impl Fields {
    /// The error says which option is not of its form, and what that is.
    pub fn new(args: &FieldArgs) -> Result<Self, String> {
        let mut fields = Self::default();
        for text in &args.header {
            let pair = text.split_once('=').filter(|(name, field)| is_token(name) && !field.is_empty());
            let (name, field) = pair.ok_or("--header: write NAME=FIELD")?;
            fields.headers.push((name.to_ascii_lowercase(), field.into()));
        }
        let mut attributes = |texts: &[String], form: &str, read: &dyn Fn(&str) -> Result<Given, String>| {
            for text in texts {
                let (name, field) = read(text).ok().and_then(Given::into_text).ok_or_else(|| form.to_owned())?;
                fields.attributes.push((name, field));
            }
            Ok::<(), String>(())
        };
        let of = |of| move |text: &str| Given::metadata(of, text);
        attributes(&args.metadata, "--metadata: write FILTER:NAME.NAME=FIELD", &of(MetadataOf::Request))?;
        attributes(&args.route_metadata, "--route-metadata: write FILTER:NAME.NAME=FIELD", &of(MetadataOf::Route))?;
        let form = "--virtual-host-metadata: write FILTER:NAME.NAME=FIELD";
        attributes(&args.virtual_host_metadata, form, &of(MetadataOf::VirtualHost))?;
        attributes(&args.filter_state, "--filter-state: write NAME=FIELD", &Given::filter_state)?;
        attributes(&args.peer, "--peer: write uri_san=FIELD, dns_san=FIELD or subject=FIELD", &Given::peer)?;
        let route = args.envoy_route.iter().map(|field| (Name::Other(Attribute::RouteName), field.clone()));
        fields.attributes.extend(route);
        Ok(fields)
    }

    /// The error says why the line is no request.
    pub fn read(&self, line: &str) -> Result<Entry, String> {
        if line.starts_with('{') {
            let fields = serde_json::from_str(line).map_err(|error| format!("this is no JSON object: {error}"))?;
            return self.json(&fields);
        }
        if self.headers.is_empty() && self.attributes.is_empty() {
            text::read(line)
        } else {
            Err("the options name fields, and a line of text has none: log JSON".into())
        }
    }

    fn json(&self, fields: &Map<String, Value>) -> Result<Entry, String> {
        let one = |names: &[&str]| names.iter().find_map(|name| text_of(fields.get(*name)?));
        let time = TIMES.iter().find_map(|name| fields.get(*name).filter(|value| text_of(value).is_some()));
        let at = time_of(time.ok_or_else(|| lacks("time", TIMES))?)?;
        let mut request = Request {
            method: one(METHODS).ok_or_else(|| lacks("method", METHODS))?,
            host: one(HOSTS).unwrap_or_default(),
            client: one(CLIENTS),
            // Envoy sees one line of them.
            joins_cookies: true,
            ..Request::default()
        };
        match (one(PATHS), one(URLS)) {
            (Some(path), _) => request.path = path,
            (None, Some(url)) => set_url(&mut request, &url),
            // CONNECT has none.
            (None, None) if request.method == "CONNECT" => {}
            (None, None) => return Err(lacks("path", &[PATHS, URLS].concat())),
        }
        let nested = HEADERS.iter().filter_map(|name| fields.get(*name)?.as_object()).flatten();
        for (name, value) in fields.iter().chain(nested) {
            add_header(&mut request, &name.to_ascii_lowercase().replace('_', "-"), value);
        }
        for (name, field) in &self.headers {
            if let Some(value) = find(fields, field) {
                request.headers.retain(|(known, _)| known != name);
                add_header(&mut request, name, value);
            }
        }
        for (name, field) in &self.attributes {
            request
                .given
                .extend(find(fields, field).and_then(|value| Some(Given::new(name.clone(), bytes_of(value)?))));
        }
        if let Some(length) = one(LENGTHS).and_then(|length| length.parse().ok()) {
            set_length(&mut request, length);
        }
        Ok(Entry { at, request })
    }
}

fn lacks(what: &str, names: &[&str]) -> String {
    format!("there is no {what}: none of {}", names.join(", "))
}

/// A field by its name, or by the names that lead to it with dots between.
fn find<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        find(fields.get(first)?.as_object()?, rest)
    })
}

/// What a field says, if it says anything: Envoy writes `-` or null for what there is not.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()).filter(|text| is_said(text)),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(is) => Some(is.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn is_said(text: &str) -> bool {
    !matches!(text, "" | "-")
}

/// As the filter gets an attribute.
fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Number(number) => Some(number.as_f64()?.to_le_bytes().into()),
        other => text_of(other).map(Vec::from),
    }
}

/// Several lines are an array.
fn add_header(request: &mut Request, name: &str, value: &Value) {
    let lines = value.as_array().map_or_else(|| std::slice::from_ref(value), Vec::as_slice);
    request.headers.extend(lines.iter().filter_map(|line| Some((name.to_owned(), text_of(line)?))));
}

fn set_url(request: &mut Request, url: &str) {
    let Some((_, rest)) = url.split_once("://").filter(|_| !url.starts_with('/')) else {
        request.path = url.into();
        return;
    };
    let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if request.host.is_empty() {
        request.host = host.into();
    }
    request.path = if path.starts_with('/') { path.into() } else { format!("/{path}") };
}

/// What came behind the headers is taken for what they announced.
fn set_length(request: &mut Request, length: usize) {
    if length > 0 && request.headers.iter().all(|(name, _)| name != "content-length") {
        request.headers.push(("content-length".into(), length.to_string()));
        request.body = Body::Bytes(length);
    }
}

/// The moment that a time says: one of RFC 3339, as Envoy writes them, one as nginx and Apache do, or a number of
/// seconds, milliseconds, microseconds or nanoseconds since 1970, by its size. What it is instead is not said: of what is
/// in a line nothing is.
fn time_of(value: &Value) -> Result<Micros, String> {
    let text = text_of(value).unwrap_or_default();
    let wrong = || {
        String::from(
            "the time is none: it is written 2026-12-02T10:00:00Z, 02/Dec/2026:10:00:00 +0000, or in seconds since 1970",
        )
    };
    if let Ok(number) = text.parse::<f64>() {
        let micros = match number {
            _ if number < 1e11 => number * 1e6,
            _ if number < 1e14 => number * 1e3,
            _ if number < 1e17 => number,
            _ => number / 1e3,
        };
        return if (0.0..1e18).contains(&micros) { Ok(Micros::new(micros as u64)) } else { Err(wrong()) };
    }
    let clf = || strtime::parse("%d/%b/%Y:%H:%M:%S %z", &text)?.to_timestamp();
    let at = text.parse::<Timestamp>().or_else(|_| clf()).map_err(|_| wrong())?;
    u64::try_from(at.as_microsecond()).map(Micros::new).map_err(|_| wrong())
}

#[cfg(test)]
mod tests;
