//! Where an identity comes from.

use super::address::{self, Client};
use super::{Attribute, Facts, Header};
use crate::key::Digester;
use crate::path::{decode_query, undo_percent};

/// Where one identity may come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A request header, by its lower-case name.
    Header(String),
    /// What follows a scheme, such as `Bearer`, in a header; the scheme in any case (RFC 9110 §11.1).
    Scheme {
        /// The header's lower-case name.
        header: String,
        /// The scheme.
        scheme: String,
    },
    /// A cookie, by its name.
    Cookie(String),
    /// A parameter of the query, by its decoded name.
    Query(String),
    /// What the host or an earlier filter has found out.
    Attribute(Attribute),
    /// The client's address; IPv6 is grouped by its first so many bits.
    ClientAddress {
        /// Which entry of X-Forwarded-For, from the right; 0 for the address that the host trusts.
        trusted_hops: u8,
        /// Bits kept of an IPv6 address, 1 to 128.
        ipv6_prefix: u8,
    },
    /// The same text for every request.
    Literal(String),
}

/// What a source has told: two values are the same only if they are of one kind, so that nobody can write an address
/// or a verified name into a header and be taken for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// What the client has sent. The same in whichever header, cookie or parameter.
    Text(Vec<u8>),
    /// A client's address, or the prefix that it is grouped by.
    Address(Vec<u8>),
    /// What the host or a filter has found out, and where. The same text from elsewhere is another value.
    Attribute(Attribute, Vec<u8>),
    /// What the policy itself says.
    Literal(Vec<u8>),
}

impl Value {
    /// The value itself.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(bytes) | Self::Address(bytes) | Self::Attribute(_, bytes) | Self::Literal(bytes) => bytes,
        }
    }

    /// Adds the kind and the value to a digest.
    pub(crate) fn digest(&self, digester: &mut Digester<'_>) {
        let kind = match self {
            Self::Text(_) => 0,
            Self::Address(_) => 1,
            Self::Attribute(..) => 2,
            Self::Literal(_) => 3,
        };
        digester.part(&[kind]);
        if let Self::Attribute(attribute, _) = self {
            attribute.digest(digester);
        }
        digester.part(self.bytes());
    }
}

/// What one source says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing: the next source is asked.
    Absent,
    /// Something that cannot be used: the next source is asked.
    Invalid,
    /// Several values. No other source is asked: who sends a header twice must not choose by that which source counts.
    Ambiguous,
    /// The identity's value.
    Value(Value),
    /// The host's own client address in place of an entry that X-Forwarded-For does not have.
    Short(Value),
}

impl Source {
    /// What this source says of a request. What is empty is absent.
    #[must_use]
    pub fn find(&self, facts: &dyn Facts) -> Found {
        match self {
            Self::Header(name) => text(facts.header(name), Some),
            Self::Scheme { header, scheme } => text(facts.header(header), |value| after_scheme(&value, scheme)),
            Self::Cookie(name) => match facts.header("cookie") {
                Header::One(line) => single(cookies(&line, name)),
                Header::Several => Found::Ambiguous,
                Header::Absent => Found::Absent,
            },
            Self::Query(name) => single(parameters(&facts.path(), name).into_iter()),
            Self::Attribute(attribute) => match facts.attribute(attribute) {
                Some(value) if !value.is_empty() => Found::Value(Value::Attribute(attribute.clone(), value)),
                _ => Found::Absent,
            },
            Self::ClientAddress { trusted_hops, ipv6_prefix } => {
                match address::client(facts, *trusted_hops, *ipv6_prefix) {
                    Client::Known(bytes) => Found::Value(Value::Address(bytes)),
                    Client::Short(bytes) => Found::Short(Value::Address(bytes)),
                    Client::Unknown => Found::Invalid,
                }
            }
            Self::Literal(text) => Found::Value(Value::Literal(text.clone().into_bytes())),
        }
    }

    /// Whether a client chooses the value, unless an earlier filter has removed or overwritten what it sent.
    #[must_use]
    pub const fn is_sent_by_client(&self) -> bool {
        matches!(self, Self::Header(_) | Self::Scheme { .. } | Self::Cookie(_) | Self::Query(_))
    }
}

fn text(header: Header, read: impl FnOnce(Vec<u8>) -> Option<Vec<u8>>) -> Found {
    match header {
        Header::Several => Found::Ambiguous,
        Header::Absent => Found::Absent,
        Header::One(value) => match read(value) {
            Some(value) if !value.is_empty() => Found::Value(Value::Text(value)),
            _ => Found::Absent,
        },
    }
}

/// One value, or several that cannot all be meant.
fn single(mut values: impl Iterator<Item = Vec<u8>>) -> Found {
    match (values.next(), values.next()) {
        (Some(value), None) if !value.is_empty() => Found::Value(Value::Text(value)),
        (Some(_), Some(_)) => Found::Ambiguous,
        _ => Found::Absent,
    }
}

/// `token` of `Bearer token`. Another scheme is another source's.
fn after_scheme(value: &[u8], scheme: &str) -> Option<Vec<u8>> {
    let value = value.trim_ascii();
    let (start, rest) = value.split_at_checked(scheme.len())?;
    let spaced = rest.first().is_some_and(u8::is_ascii_whitespace);
    (spaced && start.eq_ignore_ascii_case(scheme.as_bytes())).then(|| rest.trim_ascii_start().to_vec())
}

/// The values of every cookie of this name (RFC 6265 §4.2.1), without the quotes that servers take off, and with their
/// percent-encoding undone: many servers undo it, and to those each spelling is the same caller.
fn cookies<'a>(line: &'a [u8], name: &'a str) -> impl Iterator<Item = Vec<u8>> + 'a {
    line.split(|byte| *byte == b';').filter_map(|pair| {
        let mut parts = pair.splitn(2, |byte| *byte == b'=');
        let given = parts.next()?.trim_ascii();
        let value = parts.next()?.trim_ascii();
        let bare = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        (given == name.as_bytes()).then(|| undo_percent(bare))
    })
}

/// The decoded values of every parameter of this name.
fn parameters(path: &[u8], name: &str) -> Vec<Vec<u8>> {
    let path = path.split(|byte| *byte == b'#').next().unwrap_or_default();
    let query = path.splitn(2, |byte| *byte == b'?').nth(1).unwrap_or_default();
    let pairs = query.split(|byte| *byte == b'&').map(|pair| {
        let mut parts = pair.splitn(2, |byte| *byte == b'=');
        (decode_query(parts.next().unwrap_or_default()), decode_query(parts.next().unwrap_or_default()))
    });
    pairs.filter(|(given, _)| given == name.as_bytes()).map(|(_, value)| value).collect()
}
