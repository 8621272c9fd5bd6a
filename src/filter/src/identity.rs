//! What the host tells of a request, as the core asks for it.

use crate::host::{self, Map};
use core::cell::OnceCell;
use tollgate_core::facts::{Attribute, Facts, Header, MetadataOf, PeerName};
use tollgate_core::pairs::Pairs;

/// The request of the effective context, in its headers phase.
pub(crate) struct Request {
    /// No body follows.
    ends: bool,
    headers: OnceCell<Pairs>,
}

impl Request {
    pub(crate) const fn new(ends: bool) -> Self {
        Self { ends, headers: OnceCell::new() }
    }

    fn headers(&self) -> &Pairs {
        self.headers.get_or_init(|| host::headers(Map::Request))
    }

    fn first(&self, name: &str) -> Vec<u8> {
        self.headers().first(name).unwrap_or_default().to_vec()
    }
}

impl Facts for Request {
    fn method(&self) -> Vec<u8> {
        self.first(":method")
    }

    fn path(&self) -> Vec<u8> {
        self.first(":path")
    }

    fn host(&self) -> Vec<u8> {
        self.first(":authority")
    }

    /// Envoy joins the lines of headers that it knows itself before anyone sees them; for credentials among those a comma
    /// means several: a token has none (RFC 9110 §11.2), and a list of parameters, as in Digest, is other text with every
    /// request.
    fn header(&self, name: &str) -> Header {
        match self.headers().lines(name)[..] {
            [] => Header::Absent,
            [line] if !(matches!(name, "authorization" | "authentication") && line.contains(&b',')) => {
                Header::One(line.to_vec())
            }
            _ => Header::Several,
        }
    }

    fn list(&self, name: &str) -> Vec<u8> {
        self.headers().lines(name).join(&b',')
    }

    fn content_length(&self) -> Header {
        match self.header("content-length") {
            Header::Absent if self.ends => Header::One(b"0".to_vec()),
            header => header,
        }
    }

    fn client_address(&self) -> Vec<u8> {
        property(&["source", "address"]).unwrap_or_default()
    }

    fn attribute(&self, attribute: &Attribute) -> Option<Vec<u8>> {
        match attribute {
            Attribute::Metadata { of, filter, path } => {
                let mut parts: Vec<&str> = match of {
                    MetadataOf::Request => vec!["metadata"],
                    MetadataOf::Route => vec!["xds", "route_metadata"],
                    MetadataOf::VirtualHost => vec!["xds", "virtual_host_metadata"],
                };
                parts.extend(["filter_metadata", filter]);
                parts.extend(path.iter().map(String::as_str));
                property(&parts)
            }
            Attribute::FilterState(name) => property(&["filter_state", name]),
            Attribute::Peer(PeerName::UriSan) => property(&["connection", "uri_san_peer_certificate"]),
            Attribute::Peer(PeerName::DnsSan) => property(&["connection", "dns_san_peer_certificate"]),
            Attribute::Peer(PeerName::Subject) => property(&["connection", "subject_peer_certificate"]),
            Attribute::RouteName => property(&["xds", "route_name"]),
        }
    }
}

fn property(path: &[&str]) -> Option<Vec<u8>> {
    host::property(&path.join("\0"))
}
