use super::*;

fn only(source: &str) -> Node {
    let mut documents = parse(source).unwrap_or_else(|error| panic!("{}", error.message)).documents;
    assert_eq!(documents.len(), 1);
    documents.remove(0)
}

fn json(source: &str, dialect: Dialect) -> serde_json::Value {
    serde_json::from_str(&only(source).to_json(dialect)).expect("JSON")
}

/// As Envoy 1.40 shows it for the same text under `node.metadata`, at `/server_info`.
#[test]
fn values_without_quotes_are_what_envoy_takes_them_for() {
    let plain = "[010, 5000000000, no, on, 1.5, ~, 1e3, y, 0x10, Null, null, NULL, nULL, 08, +5, -5, OFF, oN, 1_000, \
                 .inf, 0o10, 2147483647, 2147483648, 18446744073709551615, 0b11, TRUE, tRUE, N, Yes, yEs, 0X1F, -0x10, \
                 -010, 00, 1., \"12\", '12', 9223372036854775808, -2147483649, 0x100000000]";
    let envoy = serde_json::json!([
        8,
        "5000000000",
        false,
        true,
        "1.5",
        null,
        "1e3",
        true,
        16,
        null,
        null,
        null,
        "nULL",
        "08",
        5,
        -5,
        false,
        "oN",
        "1_000",
        ".inf",
        "0o10",
        2147483647,
        "2147483648",
        "18446744073709551615",
        "0b11",
        true,
        "tRUE",
        false,
        true,
        "yEs",
        31,
        -16,
        -8,
        0,
        "1.",
        "12",
        "12",
        "9223372036854775808",
        "-2147483649",
        "4294967296"
    ]);
    assert_eq!(json(plain, Dialect::Envoy), envoy);
    let tagged = "[!!str 5, !!int \"7\", ! 5, !!bool \"true\", !!str true, !!null x, !foo 5, !!str ~, !!str \"on\"]";
    let envoy = serde_json::json!([5, 7, "5", true, true, "x", 5, "~", true]);
    assert_eq!(json(tagged, Dialect::Envoy), envoy);
    let blocks = "empty:\nliteral: |\n  12\nfolded: >-\n  true\nnumber: 12   \n";
    let envoy = serde_json::json!({"empty": null, "literal": "12\n", "folded": "true", "number": 12});
    assert_eq!(json(blocks, Dialect::Envoy), envoy);
}

/// As go-yaml v2 takes them, through which everything goes that is sent to a Kubernetes API server.
#[test]
fn values_without_quotes_are_what_kubernetes_takes_them_for() {
    let plain = "[010, 5000000000, no, on, 1.5, ~, 1e3, 0x10, 08, 1_000, \"12\", !!str 5, x]";
    let kubernetes =
        serde_json::json!([8, 5_000_000_000_i64, false, true, 1.5, null, 1000, 16, 8, 1000, "12", "5", "x"]);
    assert_eq!(json(plain, Dialect::Kubernetes), kubernetes);
}

#[test]
fn json_is_what_it_says() {
    let text = r#"{"a": [1, 1e3, -0.5, true, null, "no", "\ud834\udd1e\/"], "b": {}}"#;
    assert_eq!(json(text, Dialect::Json), serde_json::from_str::<serde_json::Value>(text).expect("JSON"));
}

#[test]
fn a_value_is_found_by_the_path_that_the_policy_reader_gives() {
    let source = "policies:\n  - name: guard\n    limit: {token_bucket: {capacity: 5}}\na.b:\n  c[0]: x\n";
    let root = only(source);
    for (path, expected) in
        [("policies[0].limit.token_bucket.capacity", "5"), ("policies[0].name", "guard"), ("a.b.c[0]", "x")]
    {
        let (node, entry) = root.find(path);
        assert_eq!(&source[node.span.clone()], expected, "{path}");
        assert!(entry.is_some());
    }
    let (_, entry) = root.find("policies[0].limit");
    assert_eq!(entry.map(|entry| &source[entry.name_span.clone()]), Some("limit"));
    assert_eq!(root.find("policies[7].nothing").0.span, root.span, "what is not there is the whole");
}

#[test]
fn the_last_of_two_fields_with_one_name_counts_and_both_are_told() {
    let documents = parse("a: 1\nb: {c: 1, c: 2}\na: {d: 3}\n").expect("YAML");
    assert_eq!(documents.documents[0].to_json(Dialect::Envoy), r#"{"b":{"c":2},"a":{"d":3}}"#);
    let repeated: Vec<(&str, usize, usize)> =
        documents.repeated.iter().map(|one| (one.name.as_str(), one.earlier.start, one.span.start)).collect();
    assert_eq!(repeated, [("c", 9, 15), ("a", 0, 21)]);
}

#[test]
fn places_within_a_text_are_places_in_the_file() {
    for (source, expected) in [
        ("value: |\n  {\n    \"a\": [1,\n      22]}\n", Some("22")),
        ("value: |-\n\n  {\"a\": [1, 22]}\n", Some("22")),
        ("value: '{\"a\": [1, 22]}'\n", Some("22")),
        // Written with escapes, or folded: the whole stands for its parts.
        ("value: \"{\\\"a\\\": [1, 22]}\"\n", Some("\"{\\\"a\\\": [1, 22]}\"")),
        ("value: >\n  {\"a\":\n  [1, 22]}\n", None),
    ] {
        let root = only(source);
        let value = root.field("value").expect("a value");
        let inner = parse_within(source, &value.span, value.text().expect("text"), Dialect::Json).expect("JSON");
        let found = inner.documents[0].find("a[1]").0.span.clone();
        match expected {
            Some(expected) => assert_eq!(&source[found], expected, "{source}"),
            None => assert_eq!(found, value.span),
        }
    }
    let source = "value: |\n  {\"a\": 1,\n   b}\n";
    let value = only(source).field("value").cloned().expect("a value");
    let error = parse_within(source, &value.span, value.text().expect("text"), Dialect::Json).expect_err("not JSON");
    assert_eq!(
        (error.message.as_str(), &source[error.span.start..error.span.start + 1]),
        ("not valid JSON: key must be a string", "b")
    );
}

#[test]
fn merge_keys_are_merged_where_they_are_known() {
    let source = "base: &base {a: 1, b: 2}\none: {<<: *base, b: 3}\ntwo: {<<: [*base, {c: 4}]}\n";
    let mut root = only(source);
    assert!(root.to_json(Dialect::Envoy).contains("\"<<\""));
    root.merge();
    let json: serde_json::Value = serde_json::from_str(&root.to_json(Dialect::Kubernetes)).expect("JSON");
    assert_eq!(json["one"], serde_json::json!({"a": 1, "b": 3}));
    assert_eq!(json["two"], serde_json::json!({"a": 1, "b": 2, "c": 4}));
}

#[test]
fn what_would_grow_without_bound_is_refused() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..10 {
        let before = format!("*a{}, ", level - 1).repeat(10);
        bomb += &format!("a{level}: &a{level} [{before}]\n");
    }
    for source in [bomb.as_str(), "&a [*a]", "? {a: b}\n: c\n", &"[".repeat(100_000), "a: *b"] {
        assert!(parse(source).is_err());
    }
}
