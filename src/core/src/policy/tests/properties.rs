//! What holds for every policy and every request.

use super::generate::{Choices, configuration};
use super::print::print;
use super::*;
use crate::path::NormalPath;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

fn choices() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..200)
}

/// The bytes of a protobuf `Struct`, as Envoy hands YAML on.
mod protobuf {
    use serde_json::{Map, Value};

    pub(super) fn structure(map: &Map<String, Value>) -> Vec<u8> {
        let entry = |(name, value): (&String, &Value)| {
            field(1, &[field(1, name.as_bytes()), field(2, &self::value(value))].concat())
        };
        map.iter().flat_map(entry).collect()
    }

    fn value(value: &Value) -> Vec<u8> {
        match value {
            Value::Null => vec![1 << 3, 0],
            Value::Number(number) => [&[2 << 3 | 1][..], &number.as_f64().expect("a double").to_le_bytes()].concat(),
            Value::String(text) => field(3, text.as_bytes()),
            Value::Bool(one) => vec![4 << 3, u8::from(*one)],
            Value::Object(map) => field(5, &structure(map)),
            Value::Array(list) => {
                field(6, &list.iter().flat_map(|one| field(1, &self::value(one))).collect::<Vec<u8>>())
            }
        }
    }

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let (mut bytes, mut length) = (vec![number << 3 | 2], content.len());
        while length >= 0x80 {
            bytes.push(u8::try_from(length & 0x7f).expect("seven bits") | 0x80);
            length >>= 7;
        }
        bytes.push(u8::try_from(length).expect("seven bits"));
        [&bytes, content].concat()
    }
}

/// Puts something else in one place of a configuration, or takes it out.
fn spoil(value: &mut Value, choices: &mut Choices<'_>) {
    let inner: Vec<&mut Value> = match value {
        Value::Object(map) if choices.number().is_multiple_of(8) && !map.is_empty() => {
            let name = map.keys().nth(choices.number() % map.len()).cloned().expect("a name");
            let taken = map.remove(&name).expect("a value");
            let other = choices.one(&["", "name", "limit", "\u{e4}", "by", "env"]);
            map.insert(other.into(), taken);
            return;
        }
        Value::Object(map) => map.values_mut().collect(),
        Value::Array(list) => list.iter_mut().collect(),
        _ => Vec::new(),
    };
    let count = inner.len();
    match inner.into_iter().nth(choices.number() % (count + 1)) {
        Some(inner) => spoil(inner, choices),
        None => {
            *value = choices.one(&[
                json!(null),
                json!(0),
                json!(-1),
                json!(0.5),
                json!(1e300),
                json!(u64::MAX),
                json!(""),
                json!("local"),
                json!("{x"),
                json!("[z-a"),
                json!("1/0s"),
                json!("99999999999999999999d"),
                json!("\u{0}\u{fffd}%"),
                json!([]),
                json!([[], {}]),
                json!({}),
                json!({"": {"a": []}}),
                json!(true),
            ]);
        }
    }
}

/// A policy that is right.
fn reread(bytes: &[u8]) -> Result<PolicySet, TestCaseError> {
    let text = || String::from_utf8_lossy(bytes);
    PolicySet::read(bytes, &env).map_err(|errors| TestCaseError::fail(format!("{errors}\n{}", text())))
}

/// Reads, and where that is a policy, looks at a request through it.
fn read_and_plan(bytes: &[u8], request: &Request) {
    match PolicySet::read(bytes, &env) {
        Ok(set) => drop(set.plan(request)),
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
}

fn any_request() -> impl Strategy<Value = Request> {
    let value =
        || prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(&b"ab=;,\"% .:[]0129"[..])], 0..20);
    let headers = prop::collection::vec(
        (
            prop::sample::select(
                &["x-a", "x-b", "authorization", "cookie", "x-forwarded-for", "x-rows", "content-length", "x-plan"][..],
            ),
            value(),
        ),
        0..6,
    );
    let method = prop::sample::select(&["GET", "HEAD", "POST", "get", ""][..]);
    let host = prop::sample::select(&["", "api.example.com", "x.EXAMPLE.com:80", "[::1]:8", ":::"][..]);
    (method, "[/a-e%.;?x0-9:&=k]{0,24}", host, headers, "[0-9a-f.:%\\[\\]]{0,20}").prop_map(
        |(method, path, host, headers, client)| Request { method, path, host, headers, client, attributes: Vec::new() },
    )
}

/// A path, and another way to write it that every server reads as the same.
fn respelled() -> impl Strategy<Value = (String, String)> {
    let letter = prop::sample::select(&b"abcXYZ019-._~!$&'()*+,=:@"[..]);
    let segment = prop::collection::vec(letter, 1..6)
        .prop_map(|bytes| String::from_utf8(bytes).expect("ASCII"))
        .prop_filter("no dot segment", |segment| segment != "." && segment != "..");
    let before = prop::sample::select(&["", "", "./", "%2e/", "junk/../", "j%75nk/x/%2E./../", "junk;a=b/../"][..]);
    let after = prop::sample::select(&["", "", ";v=1", ";"][..]);
    let encoded = prop::collection::vec(0_u8..3, 6);
    let end = prop::sample::select(&["", "/", "//", "/.", "/junk/..", "/%2e", "?", "?a=/../b", "/?x", "#f"][..]);
    (prop::collection::vec((segment, before, after, encoded, any::<bool>()), 1..5), end).prop_map(|(segments, end)| {
        let (mut plain, mut other) = (String::new(), String::new());
        for (segment, before, after, encoded, twice) in segments {
            plain = plain + "/" + &segment;
            // Two slashes before a segment that no `..` follows.
            other = other + if twice && before.is_empty() { "//" } else { "/" } + before;
            for (byte, how) in segment.bytes().zip(encoded) {
                match how {
                    0 => other.push(byte.into()),
                    1 => other += &format!("%{byte:02x}"),
                    _ => other += &format!("%{byte:02X}"),
                }
            }
            other += after;
        }
        (plain, other + end)
    })
}

const LIMIT: &str = r#"{"token_bucket": {"capacity": 10, "refill": "1/s"}}"#;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    /// What is read and written down again reads as the same, as JSON and as Envoy hands YAML on.
    #[test]
    fn a_policy_that_is_written_down_again_is_the_same(choices in choices()) {
        let value = configuration(&mut Choices::new(&choices));
        let set = reread(value.to_string().as_bytes())?;
        let printed = print(&set);
        let again = reread(printed.to_string().as_bytes())?;
        prop_assert_eq!(format!("{again:#?}"), format!("{set:#?}"));
        prop_assert_eq!(print(&again), printed);
        let by_envoy = reread(&protobuf::structure(value.as_object().expect("a map")))?;
        prop_assert_eq!(format!("{by_envoy:#?}"), format!("{set:#?}"));
    }

    /// No configuration and no request makes it panic: right, spoilt in some places, or cut and changed as bytes.
    #[test]
    fn nothing_that_is_read_makes_it_panic(
        choices in choices(),
        spoilt in choices(),
        request in any_request(),
        at in any::<prop::sample::Index>(),
    ) {
        let mut value = configuration(&mut Choices::new(&choices));
        read_and_plan(value.to_string().as_bytes(), &request);
        let mut spoilt = Choices::new(&spoilt);
        for _ in 0..=spoilt.number() % 3 {
            spoil(&mut value, &mut spoilt);
        }
        read_and_plan(value.to_string().as_bytes(), &request);
        let mut bytes = protobuf::structure(value.as_object().unwrap_or(&Map::new()));
        read_and_plan(&bytes, &request);
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = bytes[at].wrapping_add(1);
            read_and_plan(&bytes, &request);
            read_and_plan(&bytes[..at], &request);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        text in "[\\[\\]{}\":,a-z0-9. \n]{0,80}",
        request in any_request(),
    ) {
        read_and_plan(&bytes, &request);
        read_and_plan(text.as_bytes(), &request);
    }

    /// F16, F18: the same class, cost and buckets, however a path is written.
    #[test]
    fn a_respelled_path_is_limited_like_its_plain_form(
        (plain, other) in respelled(),
        template in prop::collection::vec(0_u8..4, 1..5),
    ) {
        let readings = NormalPath::readings(other.as_bytes());
        prop_assert_eq!(readings, [NormalPath::new(plain.as_bytes())], "{} {}", plain, other);
        // A template that the path is of.
        let part = |(segment, how): (&str, &u8)| match how {
            0 => "{x}".into(),
            1 => "*".into(),
            _ => segment.bytes().map(|byte| format!("%{byte:02x}")).collect(),
        };
        let mut parts: Vec<String> = plain.split('/').skip(1).zip(&template).map(part).collect();
        parts.push("**".into());
        let routes = format!(
            r#"{{"name": "one", "path": "/{}", "cost": 5}}, {{"name": "two", "path": "/**", "cost": 3}}"#,
            parts.join("/")
        );
        let set = read(&small(&who(r#"{"header": "x"}"#), &routes, r#", "key": ["who", "route"]"#));
        let plan = |path: &str| set.plan(&Request::get(path).with("x", "acme"));
        prop_assert_eq!(plan(&other), plan(&plain), "{} {}", plain, other);
        prop_assert_eq!(set.route_name(plan(&plain).route), "one");
    }

    /// Two requests have one bucket of a policy only when they agree in all that its key is of; and no two policies have
    /// one.
    #[test]
    fn key_tuples_never_collide(
        requests in prop::collection::vec(prop::collection::vec(prop::option::of("[ab:,\"|]{0,3}"), 3), 1..12),
    ) {
        const KEYS: [&[&str]; 6] = [&["a"], &["b"], &["a", "b"], &["b", "a"], &["a", "b", "c"], &["a", "route"]];
        let keys = KEYS.iter().enumerate().map(|(number, key)| {
            format!(r#"{{"name": "p{number}", "scope": "local", "key": {}, "limit": {LIMIT}}}"#, json!(key))
        });
        let keys = keys.collect::<Vec<_>>().join(",");
        let identity = |name: &str| format!(r#""{name}": {{"sources": [{{"header": "x-{name}"}}]}}"#);
        let set = read(&format!(
            r#"{{"hash_key": {{"value": "{SECRET}"}}, "identities": {{{}}}, "routes": [{{"name": "r", "path": "/r"}}],
                "policies": [{keys}]}}"#,
            ["a", "b", "c"].map(identity).join(",")
        ));
        let mut known: BTreeMap<Digest, (usize, Vec<Option<String>>)> = BTreeMap::new();
        for (values, path) in requests.iter().flat_map(|values| [(values, "/r"), (values, "/s")]) {
            let mut request = Request::get(path);
            for (name, value) in ["x-a", "x-b", "x-c"].into_iter().zip(values) {
                request = value.iter().fold(request, |request, value| request.with(name, value));
            }
            let plan = set.plan(&request);
            prop_assert_eq!(plan.charges.len(), KEYS.len());
            for charge in plan.charges {
                let part = |part: &&str| match *part {
                    "route" => Some(path.into()),
                    // What is empty is absent.
                    name => values[usize::from(name.as_bytes()[0] - b'a')].clone().filter(|text| !text.is_empty()),
                };
                let tuple = (charge.policy, KEYS[charge.policy].iter().map(part).collect::<Vec<Option<String>>>());
                let first = known.entry(charge.key).or_insert_with(|| tuple.clone());
                prop_assert_eq!(first, &tuple);
            }
        }
        let tuples: std::collections::BTreeSet<_> = known.values().collect();
        prop_assert_eq!(tuples.len(), known.len(), "one tuple has one bucket");
    }
}
