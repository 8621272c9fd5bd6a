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

    /// The header getter gives the first line, the property all lines with commas between: they differ when there are
    /// several. A value that holds a comma itself is the same in both. Envoy joins the lines of headers that it knows
    /// itself before anyone sees them; for credentials among those a comma means several, since no scheme has one.
    fn header(&self, name: &str) -> Header {
        let Some(first) = host::header(Map::Request, name) else { return Header::Absent };
        let all = host::property(&format!("request\0headers\0{name}"));
        let joined = matches!(name, "authorization" | "authentication") && first.contains(&b',');
        if all.as_ref() == Some(&first) && !joined { Header::One(first) } else { Header::Several }
    }

    fn client_address(&self) -> Vec<u8> {
        host::property("source\0address").unwrap_or_default()
    }
}
