use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// A request written down.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub method: &'static str,
    pub path: String,
    pub host: &'static str,
    pub headers: Vec<(&'static str, Vec<u8>)>,
    pub client: String,
    pub attributes: Vec<(Attribute, Vec<u8>)>,
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

    pub(crate) fn with_attribute(mut self, attribute: &Attribute, value: impl AsRef<[u8]>) -> Self {
        self.attributes.push((attribute.clone(), value.as_ref().to_vec()));
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
    fn host(&self) -> Vec<u8> {
        self.host.into()
    }
    fn list(&self, name: &str) -> Vec<u8> {
        let lines: Vec<Vec<u8>> =
            self.headers.iter().filter(|(known, _)| *known == name).map(|(_, value)| value.clone()).collect();
        lines.join(&b',')
    }
    fn attribute(&self, attribute: &Attribute) -> Option<Vec<u8>> {
        self.attributes.iter().find(|(known, _)| known == attribute).map(|(_, value)| value.clone())
    }
}

pub(crate) fn metadata(filter: &str, path: &[&str]) -> Attribute {
    let path = path.iter().map(|name| String::from(*name)).collect();
    Attribute::Metadata { of: MetadataOf::Request, filter: filter.into(), path }
}

fn text(bytes: impl AsRef<[u8]>) -> Found {
    Found::Value(Value::Text(bytes.as_ref().to_vec()))
}

fn client(address: &str, ipv6_prefix: u8) -> Option<Value> {
    let source = Source::ClientAddress { trusted_hops: 0, ipv6_prefix };
    match source.find(&Request::get("/").with_client(address)) {
        Found::Value(value) => Some(value),
        _ => None,
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

fn forwarded(request: &Request, trusted_hops: u8) -> Found {
    Source::ClientAddress { trusted_hops, ipv6_prefix: 64 }.find(request)
}

fn address(octets: [u8; 4]) -> Value {
    Value::Address(octets.to_vec())
}

#[test]
fn trusted_hops_are_entries_of_x_forwarded_for_counted_from_the_right() {
    // F12
    let request = Request::get("/").with("x-forwarded-for", "6.6.6.6, 203.0.113.128, 203.0.113.10");
    assert_eq!(forwarded(&request, 0), Found::Value(address([10, 0, 0, 1])));
    assert_eq!(forwarded(&request, 1), Found::Value(address([203, 0, 113, 10])));
    assert_eq!(forwarded(&request, 2), Found::Value(address([203, 0, 113, 128])));
    assert_eq!(forwarded(&request, 3), Found::Value(address([6, 6, 6, 6])));
    assert_eq!(forwarded(&request, 4), Found::Short(address([10, 0, 0, 1])));
    assert_eq!(forwarded(&Request::get("/"), 1), Found::Short(address([10, 0, 0, 1])));
}

#[test]
fn what_a_client_forwards_itself_changes_no_trusted_entry() {
    // F10
    for invented in
        ["6.6.6.6", "6.6.6.6, 7.7.7.7", "203.0.113.10", "unknown", ",,,", "", "\u{e4}", "[", "1.1.1.1 2.2.2.2"]
    {
        let line = format!("{invented}, 203.0.113.9:4711");
        let one = Request::get("/").with("x-forwarded-for", &line);
        assert_eq!(forwarded(&one, 1), Found::Value(address([203, 0, 113, 9])), "{invented:?}");
        let two = Request::get("/").with("x-forwarded-for", invented).with("x-forwarded-for", "203.0.113.9");
        assert_eq!(forwarded(&two, 1), Found::Value(address([203, 0, 113, 9])), "{invented:?} on a line of its own");
    }
    let v6 = Request::get("/").with("x-forwarded-for", "9.9.9.9,[::ffff:203.0.113.9]:80 ");
    assert_eq!(forwarded(&v6, 1), Found::Value(address([203, 0, 113, 9])));
    assert_eq!(forwarded(&Request::get("/").with("x-forwarded-for", "1.1.1.1, unknown"), 1), Found::Invalid);
}

#[test]
fn a_header_is_an_identity_only_when_it_has_one_value() {
    let source = Source::Header("x-api-key".into());
    let get = || Request::get("/");
    assert_eq!(source.find(&get()), Found::Absent);
    assert_eq!(source.find(&get().with("x-api-key", "")), Found::Absent);
    assert_eq!(source.find(&get().with("x-api-key", "a,b")), text("a,b"));
    assert_eq!(source.find(&get().with("x-api-key", [0xff, 0xfe])), text([0xff, 0xfe]));
    assert_eq!(source.find(&get().with("x-api-key", "a").with("x-api-key", "a")), Found::Ambiguous);
}

#[test]
fn a_scheme_is_taken_off_in_any_case_and_another_scheme_is_nobodys() {
    let source = Source::Scheme { header: "authorization".into(), scheme: "Bearer".into() };
    let of = |value: &str| source.find(&Request::get("/").with("authorization", value));
    for same in ["Bearer abc", "bearer abc", "BEARER   abc", " Bearer\tabc ", "bEaReR abc"] {
        assert_eq!(of(same), text("abc"), "{same:?}");
    }
    for other in ["Basic abc", "Bearer", "Bearer ", "Bearerabc", "abc", "", "Beare abc"] {
        assert_eq!(of(other), Found::Absent, "{other:?}");
    }
    assert_ne!(of("Bearer abc"), of("Bearer ABC"), "the token keeps its case");
    let twice = Request::get("/").with("authorization", "Bearer a").with("authorization", "Bearer b");
    assert_eq!(source.find(&twice), Found::Ambiguous);
}

#[test]
fn a_cookie_is_found_by_its_whole_name_and_only_once() {
    let source = Source::Cookie("sid".into());
    let of = |line: &str| source.find(&Request::get("/").with("cookie", line));
    for same in ["sid=abc", "a=b; sid=abc", "sid=abc;x=y", "xsid=1; sid=\"abc\"; sidx=2", " sid = abc "] {
        assert_eq!(of(same), text("abc"), "{same:?}");
    }
    for none in ["", "sid", "sid=", "SID=abc", "a=sid=abc", "a=b", "sid=\"\""] {
        assert_eq!(of(none), Found::Absent, "{none:?}");
    }
    assert_eq!(of("sid=abc=="), text("abc=="));
    // Many servers undo the encoding: each spelling is the same caller, and `+` is no space here.
    for same in ["sid=a%62c%3d", "sid=%61%62%63%3D", "sid=\"abc%3D\"", "sid=abc="] {
        assert_eq!(of(same), text("abc="), "{same:?}");
    }
    assert_eq!(of("sid=a+b%%zz%2"), text("a+b%%zz%2"));
    assert_eq!(of("sid=%2561"), text("%61"), "undone once");
    assert_eq!(of("sid=a; sid=b"), Found::Ambiguous);
    assert_eq!(of("sid=a; sid="), Found::Ambiguous);
    assert_eq!(source.find(&Request::get("/").with("cookie", "sid=a").with("cookie", "b=c")), Found::Ambiguous);
}

#[test]
fn a_parameter_of_the_query_is_decoded_and_only_once_there() {
    let of = |path: &str| Source::Query("key".into()).find(&Request::get(path));
    for same in ["/?key=a%20b", "/x?y=z&key=a+b", "/?%6bey=%61%20b#key=c", "/?key=a%20b&", "/?KEY=c&key=a+b&keys=d"] {
        assert_eq!(of(same), text("a b"), "{same:?}");
    }
    for none in ["/", "/?", "/key=a", "/?key", "/?key=", "/#?key=a", "/%3Fkey=a", "/?a=key=b"] {
        assert_eq!(of(none), Found::Absent, "{none:?}");
    }
    assert_eq!(of("/?key=a?b"), text("a?b"));
    assert_eq!(of("/?key=%zz%4"), text("%zz%4"));
    for several in ["/?key=a&key=b", "/?key=a&%6Bey=a", "/?key&key=a"] {
        assert_eq!(of(several), Found::Ambiguous, "{several:?}");
    }
}

#[test]
fn an_attribute_is_no_text_that_a_client_could_send() {
    let tenant = metadata("envoy.filters.http.jwt_authn", &["payload", "tenant"]);
    let source = Source::Attribute(tenant.clone());
    assert_eq!(source.find(&Request::get("/")), Found::Absent);
    assert_eq!(source.find(&Request::get("/").with_attribute(&tenant, "")), Found::Absent);
    let found = source.find(&Request::get("/").with_attribute(&tenant, "acme"));
    assert_eq!(found, Found::Value(Value::Attribute(tenant, b"acme".to_vec())));
    assert_ne!(found, text("acme"));
}

#[test]
fn values_of_two_kinds_have_two_digests() {
    let bytes = b"acme".to_vec();
    let attribute = |attribute: Attribute| Value::Attribute(attribute, bytes.clone());
    let of = |of: MetadataOf| Attribute::Metadata { of, filter: "f".into(), path: vec!["p".into()] };
    let values = [
        Value::Text(bytes.clone()),
        Value::Address(bytes.clone()),
        Value::Literal(bytes.clone()),
        attribute(of(MetadataOf::Request)),
        attribute(of(MetadataOf::Route)),
        attribute(of(MetadataOf::VirtualHost)),
        attribute(metadata("g", &["p"])),
        attribute(metadata("f", &["q"])),
        attribute(metadata("f", &["p", "q"])),
        attribute(Attribute::FilterState("p".into())),
        attribute(Attribute::Peer(PeerName::UriSan)),
        attribute(Attribute::Peer(PeerName::DnsSan)),
        attribute(Attribute::Peer(PeerName::Subject)),
        attribute(Attribute::RouteName),
    ];
    let digests: std::collections::BTreeSet<_> = values
        .iter()
        .map(|value| {
            let hash_key = crate::key::HashKey::new(b"k");
            let mut digester = hash_key.digest("test");
            value.digest(&mut digester);
            digester.finish()
        })
        .collect();
    assert_eq!(digests.len(), values.len());
}

#[test]
fn a_fact_is_asked_for_once_and_only_when_it_is_needed() {
    use core::cell::RefCell;
    struct Counting(RefCell<Vec<String>>);
    impl Counting {
        fn note(&self, what: impl Into<String>) -> Vec<u8> {
            self.0.borrow_mut().push(what.into());
            b"/?a=b".to_vec()
        }
    }
    impl Facts for Counting {
        fn method(&self) -> Vec<u8> {
            self.note("method")
        }
        fn path(&self) -> Vec<u8> {
            self.note("path")
        }
        fn header(&self, name: &str) -> Header {
            Header::One(self.note(name))
        }
        fn client_address(&self) -> Vec<u8> {
            self.note("address")
        }
        fn attribute(&self, _: &Attribute) -> Option<Vec<u8>> {
            Some(self.note("attribute"))
        }
    }
    let counting = Counting(RefCell::default());
    let once = Once::new(&counting);
    for _ in 0..3 {
        once.method();
        once.path();
        once.header("x-a");
        once.header("x-b");
        once.attribute(&Attribute::RouteName);
    }
    assert_eq!(counting.0.into_inner(), ["method", "path", "x-a", "x-b", "attribute"]);
}

#[test]
fn whitespace_around_a_header_is_no_part_of_its_value() {
    for value in ["a b", " a b", "a b ", "\ta b\t", "  a b \t "] {
        let request = Request::default().with("x-key", value).with("content-length", value);
        let once = Once::new(&request);
        assert_eq!(once.header("x-key"), Header::One(b"a b".to_vec()), "{value:?}");
        assert_eq!(once.header("x-key"), once.content_length());
    }
    let request = Request::default().with("x-key", " \t");
    assert_eq!(Source::Header("x-key".into()).find(&Once::new(&request)), Found::Absent);
}
