//! What the simulated proxies know of a request.

use crate::scenario::Request;
use tollgate_core::facts::Header;

/// The paths of the route classes, by a request's `route`.
pub const PATHS: [&str; 3] = ["/plain", "/dear", "/health"];

pub struct Facts(Request);

impl Facts {
    pub const fn of(request: &Request) -> Self {
        Self(*request)
    }
}

impl tollgate_core::facts::Facts for Facts {
    fn method(&self) -> Vec<u8> {
        b"GET".to_vec()
    }

    fn path(&self) -> Vec<u8> {
        PATHS[self.0.route].into()
    }

    fn header(&self, name: &str) -> Header {
        match name {
            "x-plan" if self.0.gold => Header::One(b"gold".to_vec()),
            "x-tenant" => Header::One(format!("tenant-{}", self.0.tenant).into_bytes()),
            _ => Header::Absent,
        }
    }

    fn client_address(&self) -> Vec<u8> {
        let [_, .., a, b, c] = self.0.client.to_be_bytes();
        format!("10.{a}.{b}.{c}:4000").into_bytes()
    }

    fn content_length(&self) -> Header {
        Header::Absent
    }
}
