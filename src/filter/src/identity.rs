//! What the host tells of a request, as the core asks for it.

use crate::host::{self, Map};
use tollgate_core::facts::{Attribute, Facts, Header, MetadataOf, PeerName};

/// The request of the effective context, in its headers phase.
pub(crate) struct Request {
    /// No body follows.
    pub(crate) ends: bool,
}

impl Facts for Request {
    fn method(&self) -> Vec<u8> {
        host::header(Map::Request, ":method").unwrap_or_default()
    }

    fn path(&self) -> Vec<u8> {
        host::header(Map::Request, ":path").unwrap_or_default()
    }

    fn host(&self) -> Vec<u8> {
        host::header(Map::Request, ":authority").unwrap_or_default()
    }

    /// The header getter gives the first line, the property all lines with commas between: they differ when there are
    /// several. A value that holds a comma itself is the same in both. Envoy joins the lines of headers that it knows
    /// itself before anyone sees them; for credentials among those a comma means several: a token has none (RFC 9110
    /// §11.2), and a list of parameters, as in Digest, is other text with every request.
    fn header(&self, name: &str) -> Header {
        let Some(first) = host::header(Map::Request, name) else { return Header::Absent };
        let joined = matches!(name, "authorization" | "authentication") && first.contains(&b',');
        if self.list(name) == first && !joined { Header::One(first) } else { Header::Several }
    }

    fn list(&self, name: &str) -> Vec<u8> {
        property(&["request", "headers", name]).unwrap_or_default()
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
