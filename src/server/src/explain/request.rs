//! A request that somebody has written down, as the filter would see it.

use std::cell::Cell;
use tollgate_core::facts::{Attribute, Facts, Header, MetadataOf, PeerName};

/// The client of a request that does not say whose it is. RFC 5737 keeps it for documentation.
pub const SOME_CLIENT: &str = "192.0.2.1";

/// One request, and what Envoy knows of it.
#[derive(Debug, Default)]
pub struct Request {
    pub method: String,
    pub host: String,
    /// With its query.
    pub path: String,
    /// In the order in which they are sent, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub client: Option<String>,
    pub given: Vec<Given>,
    pub body: Body,
    /// Lines of cookies come as one, as HTTP/2 has them (RFC 9113 §8.2.3).
    pub joins_cookies: bool,
}

/// What comes behind the headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body {
    #[default]
    None,
    Bytes(usize),
    /// Of a length that is not known here.
    Unknown,
}

/// Headers whose lines Envoy 1.40 joins with commas before a filter sees them: those that it knows itself.
const JOINED: &[&str] = &[
    "accept",
    "accept-encoding",
    "access-control-request-headers",
    "access-control-request-method",
    "access-control-request-private-network",
    "authentication",
    "authorization",
    "cache-control",
    "content-encoding",
    "content-type",
    "expect",
    "grpc-accept-encoding",
    "grpc-timeout",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "origin",
    "pragma",
    "proxy-status",
    "referer",
    "user-agent",
    "via",
    "x-client-trace-id",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
];

/// What an earlier filter, or Envoy itself, is said to have found out.
#[derive(Clone, Debug)]
pub struct Given {
    attribute: Name,
    /// The option that it comes from.
    pub from: String,
    value: Vec<u8>,
    is_asked_for: Cell<bool>,
}

/// What names an [`Attribute`] on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    Metadata {
        of: MetadataOf,
        filter: String,
        /// With dots between its names, which may hold dots themselves.
        path: String,
    },
    Other(Attribute),
}

impl Name {
    pub fn of(attribute: &Attribute) -> Self {
        match attribute {
            Attribute::Metadata { of, filter, path } => {
                Self::Metadata { of: *of, filter: filter.clone(), path: path.join(".") }
            }
            other => Self::Other(other.clone()),
        }
    }

    /// The option that gives a value to this.
    pub fn option(&self) -> String {
        match self {
            Self::Metadata { of, filter, path } => {
                let option = match of {
                    MetadataOf::Request => "--metadata",
                    MetadataOf::Route => "--route-metadata",
                    MetadataOf::VirtualHost => "--virtual-host-metadata",
                };
                format!("{option} {filter}:{path}=…")
            }
            Self::Other(Attribute::FilterState(name)) => format!("--filter-state {name}=…"),
            Self::Other(Attribute::Peer(PeerName::UriSan)) => "--peer uri_san=…".into(),
            Self::Other(Attribute::Peer(PeerName::DnsSan)) => "--peer dns_san=…".into(),
            Self::Other(Attribute::Peer(PeerName::Subject)) => "--peer subject=…".into(),
            Self::Other(Attribute::RouteName | Attribute::Metadata { .. }) => "--envoy-route …".into(),
        }
    }
}

impl Given {
    pub fn new(attribute: Name, value: impl Into<Vec<u8>>) -> Self {
        Self { attribute, from: String::new(), value: value.into(), is_asked_for: Cell::new(false) }
    }

    /// `filter:name.name=text`, or `filter:name.name:=1.5` for a number.
    pub fn metadata(of: MetadataOf, text: &str) -> Result<Self, String> {
        const FORM: &str = "write FILTER:NAME.NAME=TEXT, or FILTER:NAME.NAME:=NUMBER";
        let (filter, rest) = text.split_once(':').ok_or(FORM)?;
        let (path, value) = rest.split_once('=').ok_or(FORM)?;
        let (path, value) = match path.strip_suffix(':') {
            Some(path) => {
                let number: f64 = value.parse().map_err(|_| FORM)?;
                (path, number.to_le_bytes().to_vec())
            }
            None => (path, value.into()),
        };
        if filter.is_empty() || path.is_empty() {
            return Err(FORM.into());
        }
        Ok(Self::new(Name::Metadata { of, filter: filter.into(), path: path.into() }, value))
    }

    /// `name=text`
    pub fn filter_state(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("write NAME=TEXT")?;
        Ok(Self::new(Name::Other(Attribute::FilterState(name.into())), value))
    }

    /// `uri_san=spiffe://…`
    pub fn peer(text: &str) -> Result<Self, String> {
        const FORM: &str = "write uri_san=…, dns_san=… or subject=…";
        let (kind, value) = text.split_once('=').ok_or(FORM)?;
        let name = match kind {
            "uri_san" => PeerName::UriSan,
            "dns_san" => PeerName::DnsSan,
            "subject" => PeerName::Subject,
            _ => return Err(FORM.into()),
        };
        Ok(Self::new(Name::Other(Attribute::Peer(name)), value))
    }

    /// What it is a value of, and the value where that is a text.
    pub fn into_text(self) -> Option<(Name, String)> {
        String::from_utf8(self.value).ok().map(|value| (self.attribute, value))
    }

    pub fn is_asked_for(&self) -> bool {
        self.is_asked_for.get()
    }
}

impl Request {
    /// Adds a header written as curl takes it: `name: value`, or `name;` for one that is empty. `name:` is none.
    pub fn add_header(&mut self, line: &str) -> Result<(), String> {
        let form = || "a header is written as 'name: value'".to_owned();
        let (name, value) = match (line.split_once(':'), line.strip_suffix(';')) {
            (Some((name, value)), _) if value.trim().is_empty() => {
                return if is_token(name) { Ok(()) } else { Err(form()) };
            }
            (Some((name, value)), _) => (name, value.trim()),
            (None, Some(name)) => (name, ""),
            (None, None) => return Err(form()),
        };
        if !is_token(name) {
            return Err(form());
        }
        match name.to_ascii_lowercase().as_str() {
            "host" => self.host = value.into(),
            name => self.headers.push((name.into(), value.into())),
        }
        Ok(())
    }

    fn lines(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    }
}

/// RFC 9110 §5.6.2
pub fn is_token(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(legal)
}

impl Facts for Request {
    fn method(&self) -> Vec<u8> {
        self.method.clone().into()
    }

    fn path(&self) -> Vec<u8> {
        self.path.clone().into()
    }

    fn host(&self) -> Vec<u8> {
        self.host.clone().into()
    }

    /// As the filter takes what Envoy gives it: for credentials a comma means several.
    fn header(&self, name: &str) -> Header {
        let value = match self.lines(name).as_slice() {
            [] => return Header::Absent,
            [value] => (*value).to_owned(),
            lines if name == "cookie" && self.joins_cookies => lines.join("; "),
            lines if JOINED.contains(&name) => lines.join(","),
            _ => return Header::Several,
        };
        let is_credential = matches!(name, "authorization" | "authentication");
        if is_credential && value.contains(',') { Header::Several } else { Header::One(value.into()) }
    }

    fn list(&self, name: &str) -> Vec<u8> {
        self.lines(name).join(",").into()
    }

    fn content_length(&self) -> Header {
        match self.header("content-length") {
            Header::Absent if self.body == Body::None => Header::One(b"0".to_vec()),
            header => header,
        }
    }

    fn client_address(&self) -> Vec<u8> {
        self.client.as_deref().unwrap_or(SOME_CLIENT).into()
    }

    fn attribute(&self, attribute: &Attribute) -> Option<Vec<u8>> {
        let name = Name::of(attribute);
        let given = self.given.iter().find(|given| given.attribute == name)?;
        given.is_asked_for.set(true);
        Some(given.value.clone())
    }
}
