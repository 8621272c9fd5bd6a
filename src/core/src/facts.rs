//! What is known of one request, and the identities that are read from it.

mod address;
mod once;
mod source;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use once::Once;
pub use source::{Found, Source, Value};

use crate::key::Digester;

/// What a host knows of one request. Values are bytes: a client may send anything.
///
/// A host that cannot know something leaves the method out: then nothing is known of it.
pub trait Facts {
    /// `:method`, as sent.
    fn method(&self) -> Vec<u8>;

    /// `:path`, as sent, with its query; empty when there is none (CONNECT).
    fn path(&self) -> Vec<u8>;

    /// A header by its lower-case name.
    fn header(&self, name: &str) -> Header;

    /// The client's address as the host trusts it, written as `address` or `address:port`.
    fn client_address(&self) -> Vec<u8>;

    /// `:authority`, as sent.
    fn host(&self) -> Vec<u8> {
        Vec::new()
    }

    /// All lines of a header that is a list, in their order, with commas between; empty when it was not sent.
    fn list(&self, name: &str) -> Vec<u8> {
        match self.header(name) {
            Header::One(value) => value,
            Header::Absent | Header::Several => Vec::new(),
        }
    }

    /// `content-length`; "0" for a request that is known to have no body.
    fn content_length(&self) -> Header {
        self.header("content-length")
    }

    /// What the host itself or an earlier filter has found out.
    fn attribute(&self, _attribute: &Attribute) -> Option<Vec<u8>> {
        None
    }
}

/// A header that is meant to have one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Header {
    /// Not sent.
    Absent,
    /// Sent once. A comma in it is part of the value.
    One(Vec<u8>),
    /// Sent several times: which of them is meant cannot be known.
    Several,
}

/// Something that the client did not send as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// A value within metadata: text as its bytes, a number as the 8 bytes of a little-endian double.
    Metadata {
        /// What the metadata is about.
        of: MetadataOf,
        /// Its namespace: for a request, the name of the filter that has written it.
        filter: String,
        /// The names that lead to the value; never empty.
        path: Vec<String>,
    },
    /// An object in the filter state, by its name.
    FilterState(String),
    /// A name in the client's certificate.
    Peer(PeerName),
    /// The name of Envoy's route.
    RouteName,
}

/// What metadata is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataOf {
    /// This request: dynamic metadata, from an earlier filter.
    Request,
    /// The route that Envoy has chosen.
    Route,
    /// That route's virtual host.
    VirtualHost,
}

/// A name in a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerName {
    /// The first URI among the subject's alternative names, such as a SPIFFE id.
    UriSan,
    /// The first DNS name among them.
    DnsSan,
    /// The subject, written as in RFC 2253.
    Subject,
}

impl Attribute {
    /// Adds what names this attribute to a digest.
    fn digest(&self, digester: &mut Digester<'_>) {
        let (kind, names): (u8, &[String]) = match self {
            Self::Metadata { of, filter, path } => {
                digester.part(filter.as_bytes());
                (*of as u8, path)
            }
            Self::FilterState(name) => (3, core::slice::from_ref(name)),
            Self::Peer(name) => (4_u8.saturating_add(*name as u8), &[]),
            Self::RouteName => (7, &[]),
        };
        digester.part(&[kind]);
        for name in names {
            digester.part(name.as_bytes());
        }
    }
}
