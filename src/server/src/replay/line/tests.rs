use super::*;
use clap::Parser;
use tollgate_core::facts::{Facts, Header};

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Cli {
    #[command(flatten)]
    fields: FieldArgs,
}

fn fields(words: &[&str]) -> Result<Fields, String> {
    Fields::new(&Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).fields)
}

fn read(line: &str) -> Entry {
    Fields::default().read(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn header(request: &Request, name: &str) -> Option<String> {
    match request.header(name) {
        Header::One(value) => Some(String::from_utf8(value).expect("text")),
        Header::Absent => None,
        Header::Several => panic!("several lines of {name}"),
    }
}

/// 2026-12-02T10:00:00Z
const TEN: u64 = 1_796_205_600_000_000;

#[test]
fn every_form_of_a_log_tells_the_request() {
    let lines = [
        r#"{"start_time":"2026-12-02T10:00:00.000Z","method":"PUT","path":"/a?b=1","authority":"api.example","downstream_remote_address":"203.0.113.9:4711","user_agent":"me/1","bytes_received":12}"#,
        r#"[2026-12-02T10:00:00.000Z] "PUT /a?b=1 HTTP/1.1" 200 - 12 30 5 4 "203.0.113.9" "me/1" "1-2" "api.example" "10.0.0.1:80""#,
        r#"[2026-12-02T10:00:00.000Z] "PUT /a?b=1 HTTP/2" 200 - via_upstream - "-" 12 30 5 4 "-" "me/1" "1-2" "api.example" "10.0.0.1:80" outbound|80||a 10.0.0.2:1 10.0.0.3:2 203.0.113.9:4711 - default"#,
        r#"203.0.113.9 - alice [02/Dec/2026:11:00:00 +0100] "PUT /a?b=1 HTTP/1.1" 200 30 "https://from.example/" "me/1""#,
        r#"203.0.113.9 - - [02/Dec/2026:10:00:00 +0000] "PUT https://api.example/a?b=1 HTTP/1.1" 200 30"#,
    ];
    for (place, line) in lines.into_iter().enumerate() {
        let Entry { at, request } = read(line);
        assert_eq!(at, Micros::new(TEN), "{line}");
        assert_eq!((request.method.as_str(), request.path.as_str()), ("PUT", "/a?b=1"), "{line}");
        let client = request.client.as_deref().unwrap_or_default();
        assert_eq!(client.split(':').next(), Some("203.0.113.9"), "{line}");
        assert_eq!(request.host, if place == 3 { "" } else { "api.example" }, "{line}");
        let (has_agent, has_length) = (place < 4, place < 3);
        assert_eq!(header(&request, "user-agent").as_deref(), has_agent.then_some("me/1"), "{line}");
        let length = if has_length { "12" } else { "0" };
        assert_eq!(request.content_length(), Header::One(length.into()), "{line}");
    }
    let forwarded = read(lines_with_forwarded());
    assert_eq!(header(&forwarded.request, "x-forwarded-for").as_deref(), Some("198.51.100.1, 203.0.113.9"));
    assert_eq!(forwarded.request.client.as_deref(), Some("203.0.113.9"), "what Envoy has added");
}

fn lines_with_forwarded() -> &'static str {
    r#"[2026-12-02T10:00:00Z] "GET / HTTP/1.1" 200 - 0 3 5 4 "198.51.100.1, 203.0.113.9" "-" "1-2" "a" "-""#
}

#[test]
fn fields_of_a_json_line_are_headers() {
    let line = r#"{"ts":1796205600.5,"request_method":"GET","uri":"/","x_api_key":"k1","X-Tenant":"t","headers":{"cookie":["a=1","b=2"]},"none":"-","nothing":null}"#;
    let Entry { at, request } = read(line);
    assert_eq!(at, Micros::new(TEN + 500_000));
    assert_eq!(header(&request, "x-api-key").as_deref(), Some("k1"));
    assert_eq!(header(&request, "x-tenant").as_deref(), Some("t"));
    assert_eq!(header(&request, "cookie").as_deref(), Some("a=1; b=2"));
    assert_eq!((header(&request, "none"), header(&request, "nothing")), (None, None));
}

#[test]
fn options_say_where_a_line_has_what() {
    let options = [
        "--header",
        "X-Api-Key=who.key.id",
        "--metadata",
        "jwt:payload.tenant=jwt.tenant",
        "--metadata",
        "jwt:level=level",
        "--filter-state",
        "who=state",
        "--peer",
        "uri_san=peer",
        "--envoy-route",
        "route.name",
    ];
    let fields = fields(&options).unwrap_or_else(|error| panic!("{error}"));
    let line = r#"{"time":1796205600000,"method":"GET","path":"/","x_api_key":"another","who":{"key":{"id":"k"}},"jwt.tenant":"acme","level":3,"state":"s","peer":"spiffe://a","route.name":"r"}"#;
    let Entry { at, request } = fields.read(line).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(at, Micros::new(TEN));
    assert_eq!(header(&request, "x-api-key").as_deref(), Some("k"), "in the place of what has its name");
    let metadata = |path: &[&str]| Attribute::Metadata {
        of: MetadataOf::Request,
        filter: "jwt".into(),
        path: path.iter().map(ToString::to_string).collect(),
    };
    let known = [
        (metadata(&["payload", "tenant"]), b"acme".to_vec()),
        (metadata(&["level"]), 3_f64.to_le_bytes().to_vec()),
        (Attribute::FilterState("who".into()), b"s".to_vec()),
        (Attribute::Peer(tollgate_core::facts::PeerName::UriSan), b"spiffe://a".to_vec()),
        (Attribute::RouteName, b"r".to_vec()),
    ];
    for (attribute, value) in known {
        assert_eq!(request.attribute(&attribute), Some(value), "{attribute:?}");
    }
    let text = fields.read(lines_with_forwarded()).expect_err("it has no fields");
    assert!(text.contains("a line of text has none"), "{text}");
}

#[test]
fn an_option_that_is_not_of_its_form_is_refused() {
    for (words, form) in [
        (["--header", "x-api-key"], "NAME=FIELD"),
        (["--header", "x api=a"], "NAME=FIELD"),
        (["--header", "x="], "NAME=FIELD"),
        (["--metadata", "jwt=a"], "FILTER:NAME.NAME=FIELD"),
        (["--peer", "cn=a"], "subject=FIELD"),
        (["--filter-state", "who"], "NAME=FIELD"),
    ] {
        let error = fields(&words).expect_err("it is refused");
        assert!(error.starts_with(words[0]) && error.ends_with(form), "{words:?}: {error}");
    }
}

#[test]
fn a_line_that_is_no_request_says_why_and_nothing_of_what_is_in_it() {
    for (line, why) in [
        ("s3cret", "neither JSON nor a form of text"),
        ("[s3cret]", "neither JSON nor a form of text"),
        (r#"[s3cret] "GET /""#, "the time is none"),
        (r#"[2026-12-02T10:00:00Z] "s3cret""#, "METHOD path"),
        (r#"[2026-12-02T10:00:00Z] """#, "METHOD path"),
        (r#"{"s3cret""#, "no JSON object"),
        (r#"{"method":"GET","path":"/s3cret"}"#, "there is no time: none of start_time"),
        (r#"{"time":"s3cret","method":"GET","path":"/"}"#, "the time is none"),
        (r#"{"time":-5,"method":"GET","path":"/"}"#, "the time is none"),
        (r#"{"time":"1969-12-31T23:59:59Z","method":"GET","path":"/"}"#, "the time is none"),
        (r#"{"time":1e300,"method":"GET","path":"/"}"#, "the time is none"),
        (r#"{"time":1,"path":"/s3cret"}"#, "there is no method"),
        (r#"{"time":1,"method":"GET"}"#, "there is no path"),
    ] {
        let error = Fields::default().read(line).expect_err(line);
        assert!(error.contains(why) && !error.contains("s3cret"), "{line}: {error}");
    }
    assert_eq!(read(r#"{"time":1,"method":"CONNECT","authority":"a:443"}"#).request.path, "");
}

#[test]
fn times_are_of_any_usual_form() {
    for time in [
        r#""2026-12-02T10:00:00Z""#,
        r#""2026-12-02T12:00:00.000+02:00""#,
        r#""02/Dec/2026:10:00:00 +0000""#,
        "1796205600",
        "1796205600.000",
        r#""1796205600""#,
        "1796205600000",
        "1796205600000000",
        "1796205600000000000",
    ] {
        let line = format!(r#"{{"time":{time},"method":"GET","path":"/"}}"#);
        assert_eq!(read(&line).at, Micros::new(TEN), "{time}");
    }
}

#[test]
fn quotes_within_quotes_are_part_of_the_text() {
    let line = r#"203.0.113.9 - - [02/Dec/2026:10:00:00 +0000] "GET /\x22a\"b HTTP/1.1" 200 3 "\\" "x\x""#;
    let Entry { request, .. } = read(line);
    assert_eq!(request.path, r#"/"a"b"#);
    assert_eq!(header(&request, "referer").as_deref(), Some(r"\"));
    assert_eq!(header(&request, "user-agent").as_deref(), Some(r"x\x"));
}

proptest::proptest! {
    #[test]
    fn no_line_is_too_strange_to_be_read_or_refused(line in r#"(\PC|["\[\]{}\\: -]|2026-12-02T10:00:00Z){0,60}"#) {
        let _ = Fields::default().read(&line);
    }
}
