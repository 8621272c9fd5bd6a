use super::*;
use crate::store::{Access, StoreUrl};
use axum::http::Request;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use tower::ServiceExt;

const PLACES: usize = 2;

fn endpoint(tokens: Option<&str>) -> Arc<Endpoint> {
    endpoint_over("memory", tokens, PLACES)
}

pub fn endpoint_over(store: &str, tokens: Option<&str>, places: usize) -> Arc<Endpoint> {
    let store: StoreUrl = store.parse().unwrap();
    let store = store.open(&Access::default(), Duration::from_millis(20), 1000).unwrap();
    let tokens = tokens.map(|list| BearerTokens::parse_list(list).unwrap());
    Arc::new(Endpoint::new(store, tokens, places))
}

pub async fn send(endpoint: &Arc<Endpoint>, request: Request<Body>) -> Response {
    service(Arc::clone(endpoint)).oneshot(request).await.unwrap()
}

pub async fn text(response: Response) -> String {
    let body = axum::body::to_bytes(response.into_body(), MAX_BODY).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

async fn answer_to(body: impl Into<Body>) -> (StatusCode, String) {
    let response = send(&endpoint(None), Request::post(ADMIT_PATH).body(body.into()).unwrap()).await;
    (response.status(), text(response).await)
}

/// A problem document's detail, when it is one for that status.
async fn detail(response: Response, status: StatusCode) -> String {
    assert_eq!(response.status(), status);
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
    let problem: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(problem["status"], status.as_u16());
    problem["detail"].as_str().unwrap().to_owned()
}

const REQUEST: &str = r#"{"decisions":[{"charges":[{"policy":"p","key":"00000000000000000000000000000001",
    "group":"00000000000000000000000000000002","cost":5,"token_bucket":{"capacity":20,"refill":5,"per_us":1000000}}]}]}"#;

#[tokio::test]
async fn a_decision_is_answered() {
    assert_eq!(answer_to(REQUEST).await, (StatusCode::OK, r#"{"decisions":[{"admitted":[{"remaining":15}]}]}"#.into()));
}

#[tokio::test]
async fn bad_input_is_a_400_that_names_the_field() {
    for (from, to, expected) in [
        ("\"cost\":5", "\"cost\":-5", "decisions[0].charges[0].cost: invalid value: integer `-5`"),
        ("\"cost\":5", "\"cost\":0", "decisions[0].charges[0].cost: must be between 1 and 999999999999, is 0"),
        (
            "\"capacity\":20",
            "\"capacity\":\"20\"",
            "decisions[0].charges[0].token_bucket.capacity: invalid type: string",
        ),
        (
            "\"refill\":5",
            "\"refill\":0",
            "decisions[0].charges[0].token_bucket: refill: the number of units must be at least 1",
        ),
        (
            "00000000000000000000000000000001",
            "xyz",
            "decisions[0].charges[0].key: must be 32 lower-case hexadecimal digits",
        ),
        ("\"p\"", "\"a:b\"", "decisions[0].charges[0].policy: must be 1 to 64 letters"),
        ("[{\"policy\"", "[], \"x\": [{\"policy\"", "decisions[0].charges: must have 1 to 64 items, has 0"),
        ("{\"decisions\"", "{\"decisons\"", "missing field `decisions`"),
    ] {
        let body = REQUEST.replacen(from, to, 1);
        assert_ne!(body, REQUEST);
        let (status, text) = answer_to(body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{from} -> {to}");
        let problem: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(problem["detail"].as_str().unwrap().contains(expected), "{from} -> {to}: {text}");
    }
}

#[tokio::test]
async fn a_calendar_window_needs_a_time_zone_that_there_is() {
    let bucket = r#""token_bucket":{"capacity":20,"refill":5,"per_us":1000000}"#;
    for unit in ["minute", "hour", "day", "month"] {
        let window = format!(r#""fixed_window":{{"capacity":20,"calendar":"{unit}","time_zone":"Europe/Berlin"}}"#);
        let answer = answer_to(REQUEST.replacen(bucket, &window, 1)).await;
        assert_eq!(answer, (StatusCode::OK, r#"{"decisions":[{"admitted":[{"remaining":15}]}]}"#.into()));
    }
    // One that there is not fails by itself, wherever it stands among the decisions of others.
    let one = |zone: &str| {
        let window = format!(r#""fixed_window":{{"capacity":20,"calendar":"day","time_zone":"{zone}"}}"#);
        let request = REQUEST.replacen(bucket, &window, 1);
        request.strip_prefix(r#"{"decisions":["#).unwrap().strip_suffix("]}").unwrap().to_owned()
    };
    let zones = ["Europe/Berln", "UTC", "Nowhere", "Asia/Tokyo", "Mars/Base"];
    let batch = format!(r#"{{"decisions":[{}]}}"#, zones.map(one).join(","));
    let (status, answer) = answer_to(batch).await;
    let (unknown, known) = (r#"{"failed":"unknown_time_zone"}"#, r#"{"admitted":[{"remaining":15}]}"#);
    let known_later = known.replace("15", "10");
    let expected = [unknown, known, unknown, &known_later, unknown].join(",");
    assert_eq!((status, answer), (StatusCode::OK, format!(r#"{{"decisions":[{expected}]}}"#)));
    let at = "decisions[0].charges[0].fixed_window";
    for (window, expected) in [
        (
            r#""calendar":"day","time_zone":"+01:00""#,
            format!(r#"{at}.time_zone: "+01:00" is not the name of a time zone: write one of the IANA database"#),
        ),
        (r#""calendar":"week""#, format!("{at}.calendar: unknown variant `week`, expected one of `minute`, `hour`")),
        (r#""window_us":60000000,"time_zone":"UTC""#, format!("{at}: time_zone is for calendar windows")),
        (r#""window_us":60000000,"calendar":"day""#, format!("{at}: must have exactly one of the fields window_us")),
    ] {
        let body = REQUEST.replacen(bucket, &format!(r#""fixed_window":{{"capacity":20,{window}}}"#), 1);
        let response = send(&endpoint(None), Request::post(ADMIT_PATH).body(body.into()).unwrap()).await;
        let detail = detail(response, StatusCode::BAD_REQUEST).await;
        assert!(detail.starts_with(&expected), "{window}: {detail}");
    }
}

#[tokio::test]
async fn one_bucket_twice_in_a_decision_is_refused() {
    let charge = &REQUEST[REQUEST.find("{\"policy\"").unwrap()..REQUEST.len() - 4];
    let (status, text) = answer_to(REQUEST.replacen(charge, &format!("{charge},{charge}"), 1)).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{text}");
    assert!(text.contains("decisions[0].charges[1]: the same bucket as charges[0]"), "{text}");
}

#[tokio::test]
async fn what_is_too_large_is_refused() {
    assert_eq!(answer_to(" ".repeat(MAX_BODY + 1)).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let decision = &REQUEST[REQUEST.find("{\"charges\"").unwrap()..REQUEST.len() - 2];
    let many = format!("{{\"decisions\":[{}]}}", vec![decision; 129].join(","));
    let (status, text) = answer_to(many).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(text.contains("decisions: must have 1 to 128 items, has 129"), "{text}");
    assert_eq!(answer_to("[".repeat(100_000)).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn only_callers_with_a_token_are_answered() {
    let endpoint = endpoint(Some("the-old-token-0123,the-new-token-0123"));
    let ask = async |token: Option<&str>| {
        let request = token.into_iter().fold(Request::post(ADMIT_PATH), |request, token| {
            request.header(header::AUTHORIZATION, format!("Bearer {token}"))
        });
        send(&endpoint, request.body(REQUEST.into()).unwrap()).await
    };
    for token in ["the-old-token-0123", "the-new-token-0123"] {
        assert_eq!(ask(Some(token)).await.status(), StatusCode::OK, "{token}");
    }
    for token in [None, Some("another-token-0123")] {
        let response = ask(token).await;
        assert_eq!(response.headers()[header::WWW_AUTHENTICATE], "Bearer");
        let detail = detail(response, StatusCode::UNAUTHORIZED).await;
        assert!(detail.contains("Authorization: Bearer TOKEN") && !detail.contains("0123"), "{detail}");
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(send(&endpoint, Request::get(path).body(Body::empty()).unwrap()).await.status(), StatusCode::OK);
    }
}

/// A body that declares so many bytes and never sends one.
pub struct Declared(pub u64);

impl HttpBody for Declared {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Pending
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}

/// A body that may be of any length, and never sends a byte.
struct Undeclared;

impl HttpBody for Undeclared {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Pending
    }
}

fn endless() -> Body {
    Body::new(Declared(10))
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let endpoint = endpoint(None);
    let start = tokio::time::Instant::now();
    let response = send(&endpoint, Request::post(ADMIT_PATH).body(endless()).unwrap()).await;
    assert_eq!(detail(response, StatusCode::REQUEST_TIMEOUT).await, "the body was not there within 5s");
    assert_eq!(start.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_request_too_many_is_refused_at_once_and_its_body_is_not_read() {
    let endpoint = endpoint(None);
    let held: Vec<_> = (0..PLACES)
        .map(|_| {
            let endpoint = Arc::clone(&endpoint);
            tokio::spawn(async move { send(&endpoint, Request::post(ADMIT_PATH).body(endless()).unwrap()).await })
        })
        .collect();
    tokio::task::yield_now().await;
    let start = tokio::time::Instant::now();
    let response = send(&endpoint, Request::post(ADMIT_PATH).body(endless()).unwrap()).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    assert!(detail(response, StatusCode::SERVICE_UNAVAILABLE).await.contains("--max-in-flight"));
    let health = send(&endpoint, Request::get("/readyz").body(Body::empty()).unwrap()).await;
    assert_eq!(health.status(), StatusCode::OK, "an overloaded endpoint is not a sick one");

    for held in held {
        assert_eq!(held.await.unwrap().status(), StatusCode::REQUEST_TIMEOUT);
    }
    assert_eq!(send(&endpoint, Request::post(ADMIT_PATH).body(REQUEST.into()).unwrap()).await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn large_bodies_have_a_bound_together_and_small_ones_do_not_wait_for_them() {
    let endpoint = endpoint_over("memory", None, 1000);
    let ask = |body: Body| {
        let endpoint = Arc::clone(&endpoint);
        async move { send(&endpoint, Request::post(ADMIT_PATH).body(body).unwrap()).await }
    };
    let held: Vec<_> =
        (0..LARGE_BODIES / MAX_BODY).map(|_| tokio::spawn(ask(Body::new(Declared(MAX_BODY as u64))))).collect();
    tokio::task::yield_now().await;
    for body in [Body::new(Declared(SMALL + 1)), Body::new(Undeclared)] {
        let response = ask(body).await;
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        assert!(detail(response, StatusCode::SERVICE_UNAVAILABLE).await.contains("large bodies"));
    }
    assert_eq!(ask(REQUEST.into()).await.status(), StatusCode::OK);
    for held in held {
        assert_eq!(held.await.unwrap().status(), StatusCode::REQUEST_TIMEOUT);
    }
    assert_eq!(ask(Body::new(Declared(SMALL + 1))).await.status(), StatusCode::REQUEST_TIMEOUT, "there is room again");
}

#[tokio::test]
async fn what_is_declared_too_large_is_refused_before_it_is_read() {
    let body = Body::new(Declared(MAX_BODY as u64 + 1));
    let response = send(&endpoint(None), Request::post(ADMIT_PATH).body(body).unwrap()).await;
    assert_eq!(detail(response, StatusCode::PAYLOAD_TOO_LARGE).await, "a body has 2097152 bytes at the most");
}

#[tokio::test]
async fn other_paths_and_methods_are_problems_too() {
    let endpoint = endpoint(None);
    let ask = async |method: &str, path: &str| {
        send(&endpoint, Request::builder().method(method).uri(path).body(Body::empty()).unwrap()).await
    };
    assert!(detail(ask("GET", "/").await, StatusCode::NOT_FOUND).await.contains("/v1/admit"));
    let response = ask("GET", ADMIT_PATH).await;
    assert_eq!(response.headers()[header::ALLOW], "POST");
    assert!(detail(response, StatusCode::METHOD_NOT_ALLOWED).await.contains("POST"));
}

#[tokio::test]
async fn metrics_show_what_happened_to_callers_with_a_token() {
    let endpoint = endpoint(Some("the-valid-token-0123"));
    let ask = async |request: axum::http::request::Builder, body: &'static str| {
        let request = request.header(header::AUTHORIZATION, "Bearer the-valid-token-0123");
        send(&endpoint, request.body(body.into()).unwrap()).await
    };
    ask(Request::post(ADMIT_PATH), REQUEST).await;
    ask(Request::post(ADMIT_PATH), "{}").await;
    let response = send(&endpoint, Request::get("/metrics").body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    let response = ask(Request::get("/metrics"), "").await;
    assert_eq!(response.headers()[header::CONTENT_TYPE], metrics::CONTENT_TYPE);
    let page = text(response).await;
    for line in [
        "tollgate_decisions_total{outcome=\"admitted\"} 1",
        "tollgate_requests_total{code=\"200\"} 1",
        "tollgate_requests_total{code=\"400\"} 1",
        "tollgate_requests_total{code=\"401\"} 1",
        "tollgate_refused_total{reason=\"bad_request\"} 1",
        "tollgate_refused_total{reason=\"unauthorized\"} 1",
        "tollgate_stage_duration_seconds_count{stage=\"parse\"} 1",
        "tollgate_stage_duration_seconds_count{stage=\"store\"} 1",
        "tollgate_stage_duration_seconds_count{stage=\"total\"} 1",
    ] {
        assert!(page.lines().any(|there| there == line), "{line}\n{page}");
    }
}
