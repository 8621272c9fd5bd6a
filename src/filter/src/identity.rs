//! What the host tells of a request, as the core asks for it.

use proxy_wasm::hostcalls::{get_map_value_bytes, get_property};
use proxy_wasm::types::MapType;
use tollgate_core::facts::{Facts, Header};

/// The request of the effective context, in its headers phase.
pub(crate) struct Request;

impl Facts for Request {
    fn method(&self) -> Vec<u8> {
        first_value(":method").unwrap_or_default()
    }

    fn path(&self) -> Vec<u8> {
        first_value(":path").unwrap_or_default()
    }

    /// The header getter gives the first line, the property all lines with commas between: they differ exactly when
    /// there are several. A value that holds a comma itself is the same in both.
    fn header(&self, name: &str) -> Header {
        let Some(first) = first_value(name) else { return Header::Absent };
        match get_property(vec!["request", "headers", name]) {
            Ok(all) if all.as_deref().unwrap_or_default() == first => Header::One(first),
            _ => Header::Several,
        }
    }

    fn client_address(&self) -> Vec<u8> {
        get_property(vec!["source", "address"]).ok().flatten().unwrap_or_default()
    }
}

fn first_value(name: &str) -> Option<Vec<u8>> {
    get_map_value_bytes(MapType::HttpRequestHeaders, name).ok().flatten()
}
