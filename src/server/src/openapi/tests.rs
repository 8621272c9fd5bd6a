use super::*;
use crate::admit;
use crate::api::tests::{Declared, endpoint_over, send, text};
use crate::store::FaultKind;
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tollgate_core::limit::{CalendarUnit, ZoneName};
use tollgate_core::wire::{ADMIT_PATH, AdmitAnswer, MAX_BODY};

const LIMITS: [&str; 5] = ["token_bucket", "gcra", "fixed_window", "sliding_window", "sliding_log"];

fn document_value() -> Value {
    serde_json::from_str(DOCUMENT).unwrap()
}

fn schema<'a>(document: &'a Value, path: &str) -> &'a Value {
    document.pointer(&format!("/components/schemas/{path}")).unwrap_or_else(|| panic!("no schema {path}"))
}

fn examples(document: &Value, path: &str) -> Vec<Value> {
    let operation = &document["paths"][ADMIT_PATH]["post"];
    let examples = operation.pointer(path).and_then(|content| content["application/json"]["examples"].as_object());
    examples.expect("examples").values().map(|example| example["value"].clone()).collect()
}

fn parse(request: &Value) -> Result<(), String> {
    admit::parse(request.to_string().as_bytes()).map(drop)
}

/// A request with one charge, under that limit.
fn request(limit: &str) -> Value {
    let name = "0".repeat(32);
    let numbers = match limit {
        "token_bucket" | "gcra" => json!({"capacity": 10, "refill": 1, "per_us": 2_592_000_000_000_u64}),
        _ => json!({"capacity": 10, "window_us": 1_000_000}),
    };
    json!({"decisions": [{"charges": [{"policy": "p", "key": name, "group": name, "cost": 1, limit: numbers}]}]})
}

#[test]
fn every_example_of_a_request_is_taken_and_every_limit_has_one() {
    let document = document_value();
    let examples = examples(&document, "/requestBody/content");
    for example in &examples {
        parse(example).unwrap();
    }
    let all = Value::from(examples).to_string();
    for limit in LIMITS {
        assert!(all.contains(&format!("\"{limit}\"")), "{limit}");
        assert_eq!(
            document["components"]["schemas"]["Charge"]["properties"][limit]["$ref"],
            format!("#/components/schemas/{limit}")
        );
    }
}

#[test]
fn every_example_of_an_answer_is_one() {
    for example in examples(&document_value(), "/responses/200/content") {
        let answer: AdmitAnswer = serde_json::from_value(example.clone()).unwrap();
        assert_eq!(serde_json::to_value(answer).unwrap(), example, "nothing is added, and nothing is ignored");
    }
}

#[test]
fn every_kind_of_failure_is_described_and_no_other() {
    let known: BTreeSet<String> = FaultKind::ALL
        .iter()
        .map(|kind| serde_json::to_value(kind.failure()).unwrap().as_str().unwrap().to_owned())
        .collect();
    let document = document_value();
    let described = schema(&document, "Failure/enum").as_array().unwrap();
    let described: BTreeSet<String> = described.iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    assert_eq!(known, described);
}

/// The value at the bound is taken, and the next one is not.
fn assert_bounds(what: &str, schema: &Value, with: impl Fn(Value) -> Value) {
    let [least, most] = ["minimum", "maximum"].map(|bound| schema[bound].as_u64().expect(what));
    for (value, taken) in [(least, true), (most, true), (least - 1, false), (most + 1, false)] {
        let result = parse(&with(value.into()));
        assert_eq!(result.is_ok(), taken, "{what}: {value}: {result:?}");
    }
}

#[test]
fn the_bounds_of_every_number_are_those_of_the_parser() {
    let document = document_value();
    assert_bounds("cost", schema(&document, "Charge/properties/cost"), |value| {
        let mut request = request("gcra");
        request["decisions"][0]["charges"][0]["cost"] = value;
        request
    });
    for limit in LIMITS {
        let properties = schema(&document, &format!("{limit}/properties")).as_object().unwrap();
        for (field, schema) in properties.iter().filter(|(_, schema)| schema["type"] == "integer") {
            assert_bounds(&format!("{limit}.{field}"), schema, |value| {
                let mut request = request(limit);
                request["decisions"][0]["charges"][0][limit][field] = value;
                request
            });
        }
        for field in schema(&document, &format!("{limit}/required")).as_array().unwrap() {
            let mut request = request(limit);
            request["decisions"][0]["charges"][0][limit].as_object_mut().unwrap().remove(field.as_str().unwrap());
            assert!(parse(&request).is_err(), "{limit}.{field} is required");
        }
        let required = schema(&document, &format!("{limit}/required")).as_array().unwrap().len();
        let optional = usize::from(limit == "token_bucket");
        assert!(limit == "fixed_window" || properties.len() == required + optional, "{limit}");
    }
}

#[test]
fn the_forms_of_a_fixed_window_are_those_of_the_parser() {
    let document = document_value();
    let property = |path: &str| schema(&document, &format!("fixed_window/properties/{path}")).clone();
    assert_eq!(property("calendar/enum"), json!(CalendarUnit::WORDS.map(|(word, _)| word)));
    assert_eq!(property("time_zone/default"), ZoneName::default().as_str());
    let parse = |window: Value| {
        let mut request = request("fixed_window");
        request["decisions"][0]["charges"][0]["fixed_window"] = window;
        parse(&request)
    };
    let forms = schema(&document, "fixed_window/oneOf").as_array().unwrap();
    let fields = [("window_us", json!(1_000_000)), ("calendar", json!("day")), ("time_zone", json!("Europe/Berlin"))];
    for choice in 0..8 {
        let mut window = json!({"capacity": 10});
        for (bit, (field, value)) in fields.iter().enumerate() {
            if choice & (1 << bit) != 0 {
                window[field] = value.clone();
            }
        }
        let has = |field: &str| !window[field].is_null();
        let matches = |form: &&Value| {
            let required = form["required"].as_array().unwrap().iter().all(|field| has(field.as_str().unwrap()));
            let mut ruled_out = form["properties"].as_object().unwrap().iter().filter(|(_, schema)| **schema == false);
            required && !ruled_out.any(|(field, _)| has(field))
        };
        assert_eq!(parse(window.clone()).is_ok(), forms.iter().filter(matches).count() == 1, "{window}");
    }
    for (word, _) in CalendarUnit::WORDS {
        parse(json!({"capacity": 10, "calendar": word})).unwrap();
    }
    assert_eq!(property("time_zone/pattern"), "^[A-Za-z][A-Za-z0-9_+/-]{0,39}$");
    for (name, formed) in [
        ("Etc/GMT+12", true),
        ("America/Port-au-Prince", true),
        (&"z".repeat(40), true),
        (&"z".repeat(41), false),
        ("1", false),
        ("", false),
        ("a b", false),
    ] {
        assert_eq!(ZoneName::new(name).is_some(), formed, "{name}");
    }
}

#[test]
fn the_bounds_of_every_list_are_those_of_the_parser() {
    let document = document_value();
    let decisions = |count: usize| json!({"decisions": vec![request("gcra")["decisions"][0].clone(); count]});
    let charges = |count: usize| {
        let charge = |index| {
            let mut charge = request("gcra")["decisions"][0]["charges"][0].clone();
            charge["policy"] = format!("p{index}").into();
            charge
        };
        json!({"decisions": [{"charges": (0..count).map(charge).collect::<Vec<Value>>()}]})
    };
    let bounds = |path: &str| {
        let list = schema(&document, path);
        ["minItems", "maxItems"].map(|bound| usize::try_from(list[bound].as_u64().unwrap()).unwrap())
    };
    for (what, list) in [
        ("AdmitRequest/properties/decisions", &decisions as &dyn Fn(usize) -> Value),
        ("Decision/properties/charges", &charges),
    ] {
        let [least, most] = bounds(what);
        for (count, taken) in [(least, true), (most, true), (least - 1, false), (most + 1, false)] {
            assert_eq!(parse(&list(count)).is_ok(), taken, "{what}: {count}");
        }
    }
    assert_eq!(bounds("AdmitAnswer/properties/decisions"), bounds("AdmitRequest/properties/decisions"));
    for list in ["admitted", "denied"] {
        assert_eq!(bounds(&format!("Result/properties/{list}")), bounds("Decision/properties/charges"));
    }
}

#[test]
fn the_patterns_of_every_text_are_those_of_the_parser() {
    let document = document_value();
    let pattern = |field: &str| schema(&document, &format!("Charge/properties/{field}/pattern")).clone();
    assert_eq!(pattern("policy"), "^[A-Za-z0-9_.-]{1,64}$");
    assert_eq!(pattern("key"), "^[0-9a-f]{32}$");
    assert_eq!(pattern("group"), "^[0-9a-f]{32}$");
    let digest = "0123456789abcdef".repeat(2);
    for (field, value, taken) in [
        ("policy", "AZaz09_.-", true),
        ("policy", &"p".repeat(64), true),
        ("policy", &"p".repeat(65), false),
        ("policy", "", false),
        ("policy", "a b", false),
        ("policy", "é", false),
        ("key", &digest, true),
        ("group", &digest, true),
        ("key", &digest[1..], false),
        ("group", &format!("{digest}0"), false),
        ("key", &digest.to_uppercase(), false),
    ] {
        let mut request = request("gcra");
        request["decisions"][0]["charges"][0][field] = value.into();
        assert_eq!(parse(&request).is_ok(), taken, "{field}: {value}");
    }
    assert_eq!(*schema(&document, "Decision/properties/id/pattern"), "^[!-~]{1,64}$");
    for (id, taken) in [("!~", true), (&"i".repeat(64), true), (&"i".repeat(65), false), ("", false), ("a b", false)] {
        let mut request = request("gcra");
        request["decisions"][0]["id"] = id.into();
        assert_eq!(parse(&request).is_ok(), taken, "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_statuses_of_every_path_are_those_of_the_router() {
    const TOKEN: &str = "a-token-of-16-bytes";
    let fine = endpoint_over("memory", Some(TOKEN), 1);
    let full = endpoint_over("memory", None, 0);
    let broken = endpoint_over("redis://127.0.0.1:1", None, 1);
    let post =
        |body: Body| Request::post(ADMIT_PATH).header(header::AUTHORIZATION, format!("Bearer {TOKEN}")).body(body);
    let get =
        |path: &str| Request::get(path).header(header::AUTHORIZATION, format!("Bearer {TOKEN}")).body(Body::empty());
    let mut given = BTreeSet::new();
    for (endpoint, request) in [
        (&fine, post(request("gcra").to_string().into())),
        (&fine, post("{}".into())),
        (&fine, Request::post(ADMIT_PATH).body(Body::empty())),
        (&fine, post(Body::new(Declared(10)))),
        (&fine, post(Body::new(Declared(MAX_BODY as u64 + 1)))),
        (&full, post(Body::empty())),
        (&fine, get("/healthz")),
        (&fine, get("/readyz")),
        (&broken, get("/readyz")),
        (&fine, get("/metrics")),
        (&fine, Request::get("/metrics").body(Body::empty())),
        (&fine, get("/openapi.json")),
    ] {
        let request = request.unwrap();
        let (path, method) = (request.uri().path().to_owned(), request.method().as_str().to_lowercase());
        let response = send(endpoint, request).await;
        let status = response.status().as_u16();
        let described = document_value()["paths"][&path][&method]["responses"][status.to_string()].clone();
        let content = response.headers()[header::CONTENT_TYPE].to_str().unwrap().split(';').next().unwrap().to_owned();
        assert!(described["content"][&content].is_object(), "{method} {path} {status} {content}");
        for (name, header) in described["headers"].as_object().into_iter().flatten() {
            assert_eq!(response.headers()[name], header["schema"]["const"].as_str().unwrap(), "{path} {status}");
        }
        let example = &described["content"][&content]["example"];
        if content == "application/problem+json" {
            let problem: Value = serde_json::from_str(&text(response).await).unwrap();
            assert_eq!((&problem["title"], &problem["status"]), (&example["title"], &example["status"]), "{path}");
        }
        given.insert((path, method, status.to_string()));
    }

    let document = document_value();
    let mut described = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            for status in operation["responses"].as_object().unwrap().keys() {
                described.insert((path.clone(), method.clone(), status.clone()));
            }
        }
    }
    assert_eq!(given, described);
}

#[test]
fn where_there_are_tokens_it_asks_for_one() {
    let [without, with] =
        [false, true].map(|tokens| serde_json::from_slice::<Value>(&Document::new(tokens).0).unwrap());
    for (path, method, asked) in
        [(ADMIT_PATH, "post", true), ("/metrics", "get", true), ("/healthz", "get", false), ("/readyz", "get", false)]
    {
        let security = |document: &Value| document["paths"][path][method]["security"].clone();
        let [token, nothing] = [json!({"bearer": []}), json!({})];
        assert_eq!(security(&with), if asked { json!([token]) } else { json!([]) }, "{path}");
        assert_eq!(security(&without), if asked { json!([token, nothing]) } else { json!([]) }, "{path}");
    }
    assert_eq!(with["components"], without["components"]);
}

#[test]
fn it_is_of_this_version() {
    assert_eq!(document_value()["info"]["version"], env!("CARGO_PKG_VERSION"));
}
