//! What is known of one request, and the identities that are read from it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What a host knows of one request. Values are bytes: a client may send anything.
pub trait Facts {
    /// `:method`, as sent.
    fn method(&self) -> Vec<u8>;
    /// `:path`, as sent; empty when there is none (CONNECT).
    fn path(&self) -> Vec<u8>;
    /// A header by its lower-case name.
    fn header(&self, name: &str) -> Header;
    /// The client's address as the host trusts it, written as `address` or `address:port`.
    fn client_address(&self) -> Vec<u8>;
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

/// Where one identity may come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A request header, by its lower-case name.
    Header(String),
    /// The client's address; IPv6 is grouped by its first so many bits.
    ClientAddress {
        /// Bits kept of an IPv6 address, 1 to 128.
        ipv6_prefix: u8,
    },
}

/// What a source has told: two values are the same only if they are of one kind, so that nobody can write an address
/// into a header and be taken for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Bytes as they were sent. The same in whichever header.
    Text(Vec<u8>),
    /// A client's address, or the prefix that it is grouped by.
    Address(Vec<u8>),
}

impl Value {
    /// A byte for the kind, and the value.
    #[must_use]
    pub fn parts(&self) -> (u8, &[u8]) {
        match self {
            Self::Text(bytes) => (0, bytes),
            Self::Address(bytes) => (1, bytes),
        }
    }
}

/// What one source says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing: the next source is asked.
    Absent,
    /// Several values. No other source is asked: who sends a header twice must not choose by that which source counts.
    Ambiguous,
    /// The identity's value.
    Value(Value),
}

impl Source {
    /// What this source says of a request. An empty header, and an address that is none, are absent.
    #[must_use]
    pub fn find(&self, facts: &impl Facts) -> Found {
        match self {
            Self::Header(name) => match facts.header(name) {
                Header::One(value) if !value.is_empty() => Found::Value(Value::Text(value)),
                Header::Several => Found::Ambiguous,
                Header::One(_) | Header::Absent => Found::Absent,
            },
            Self::ClientAddress { ipv6_prefix } => parse_address(&facts.client_address())
                .and_then(|address| group_address(address, *ipv6_prefix))
                .map_or(Found::Absent, |bytes| Found::Value(Value::Address(bytes))),
        }
    }
}

/// Reads `1.2.3.4`, `1.2.3.4:5`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:5`, each IPv6 one with or without `%zone`.
fn parse_address(text: &[u8]) -> Option<IpAddr> {
    let text = core::str::from_utf8(text).ok()?;
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Some(socket.ip());
    }
    let inner = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => text,
    };
    inner.split('%').next()?.parse().ok()
}

/// The bytes that stand for an address in a key: an IPv4 address whole, also when it comes embedded in IPv6
/// (mapped, RFC 4291 §2.5.5.2, or by NAT64, RFC 6052 §2.1); an IPv6 address by its prefix.
fn group_address(address: IpAddr, ipv6_prefix: u8) -> Option<Vec<u8>> {
    let v6 = match address {
        IpAddr::V4(v4) => return Some(v4.octets().to_vec()),
        IpAddr::V6(v6) => v6,
    };
    if let Some(v4) = embedded_ipv4(v6) {
        return Some(v4.octets().to_vec());
    }
    let mask = u128::MAX.checked_shl(128_u32.checked_sub(u32::from(ipv6_prefix))?)?;
    Some((v6.to_bits() & mask).to_be_bytes().to_vec())
}

fn embedded_ipv4(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    const NAT64: [u16; 6] = [0x64, 0xff9b, 0, 0, 0, 0];
    if let Some(v4) = v6.to_ipv4_mapped() {
        return Some(v4);
    }
    let [.., a, b, c, d] = v6.octets();
    v6.segments().starts_with(&NAT64).then(|| Ipv4Addr::new(a, b, c, d))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// A request written down.
    #[derive(Clone, Default)]
    pub(crate) struct Request {
        pub method: &'static str,
        pub path: String,
        pub headers: Vec<(&'static str, Vec<u8>)>,
        pub client: String,
    }

    impl Request {
        pub(crate) fn get(path: &str) -> Self {
            Self { method: "GET", path: path.into(), client: "10.0.0.1:1234".into(), ..Self::default() }
        }

        pub(crate) fn with(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
            self.headers.push((name, value.as_ref().to_vec()));
            self
        }

        pub(crate) fn with_client(mut self, address: &str) -> Self {
            self.client = address.into();
            self
        }
    }

    impl Facts for Request {
        fn method(&self) -> Vec<u8> {
            self.method.into()
        }
        fn path(&self) -> Vec<u8> {
            self.path.clone().into()
        }
        fn header(&self, name: &str) -> Header {
            let mut values = self.headers.iter().filter(|(n, _)| *n == name).map(|(_, value)| value);
            match (values.next(), values.next()) {
                (None, _) => Header::Absent,
                (Some(value), None) => Header::One(value.clone()),
                (Some(_), Some(_)) => Header::Several,
            }
        }
        fn client_address(&self) -> Vec<u8> {
            self.client.clone().into()
        }
    }

    fn client(address: &str, ipv6_prefix: u8) -> Option<Value> {
        match (Source::ClientAddress { ipv6_prefix }).find(&Request::get("/").with_client(address)) {
            Found::Value(value) => Some(value),
            Found::Absent | Found::Ambiguous => None,
        }
    }

    #[test]
    fn an_address_is_the_same_however_it_is_written() {
        for same in ["1.2.3.4", "1.2.3.4:80", "::ffff:1.2.3.4", "[::ffff:1.2.3.4]:80", "64:ff9b::102:304"] {
            assert_eq!(client(same, 64), Some(Value::Address(vec![1, 2, 3, 4])), "{same}");
        }
        let v6 = client("2001:db8:1:2::1", 64);
        assert!(v6.is_some());
        for same in ["[2001:db8:1:2::1]:443", "2001:db8:1:2:ffff::9", "[2001:db8:1:2::7]", "2001:db8:1:2::1%eth0"] {
            assert_eq!(client(same, 64), v6, "{same}");
        }
    }

    #[test]
    fn ipv6_is_grouped_by_its_prefix() {
        // F14
        assert_ne!(client("2001:db8:1:2::1", 64), client("2001:db8:1:3::1", 64));
        assert_ne!(client("2001:db8:1:2::1", 128), client("2001:db8:1:2::2", 128));
        assert_eq!(client("2001:db8:1:2::1", 48), client("2001:db8:1:3::1", 48));
        assert_ne!(client("64:ff9b::808:808", 64), client("64:ff9b::909:909", 64));
    }

    #[test]
    fn what_is_no_address_is_no_identity() {
        for odd in ["", "unix", "/run/envoy.sock", "1.2.3", "[::1", "1.2.3.4.5:1", "envoy://internal", "[]", "%"] {
            assert_eq!(client(odd, 64), None, "{odd}");
        }
    }

    #[test]
    fn a_header_is_an_identity_only_when_it_has_one_value() {
        let source = Source::Header("x-api-key".into());
        let get = || Request::get("/");
        let text = |bytes: &[u8]| Found::Value(Value::Text(bytes.to_vec()));
        assert_eq!(source.find(&get()), Found::Absent);
        assert_eq!(source.find(&get().with("x-api-key", "")), Found::Absent);
        assert_eq!(source.find(&get().with("x-api-key", "a,b")), text(b"a,b"));
        assert_eq!(source.find(&get().with("x-api-key", [0xff, 0xfe])), text(&[0xff, 0xfe]));
        assert_eq!(source.find(&get().with("x-api-key", "a").with("x-api-key", "a")), Found::Ambiguous);
    }
}
