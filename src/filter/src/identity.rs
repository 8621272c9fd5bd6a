//! What the host tells of a request, as the core asks for it.

use crate::host::{self, Map};
use tollgate_core::facts::{Facts, Header};

/// The request of the effective context, in its headers phase.
pub(crate) struct Request;

impl Facts for Request {
    fn method(&self) -> Vec<u8> {
        host::header(Map::Request, ":method").unwrap_or_default()
    }

    fn path(&self) -> Vec<u8> {
        host::header(Map::Request, ":path").unwrap_or_default()
    }

    /// The header getter gives the first line, the property all lines with commas between: they differ exactly when
    /// there are several. A value that holds a comma itself is the same in both.
    fn header(&self, name: &str) -> Header {
        let Some(first) = host::header(Map::Request, name) else { return Header::Absent };
        let all = host::property(&format!("request\0headers\0{name}"));
        if all.as_ref() == Some(&first) { Header::One(first) } else { Header::Several }
    }

    fn client_address(&self) -> Vec<u8> {
        host::property("source\0address").unwrap_or_default()
    }
}
