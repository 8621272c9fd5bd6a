use crate::{Program, Scratch, ask};
use reqwest::Method;
use std::net::Ipv4Addr;
use tollgate_tests::{Client, Endpoint, send};

const OLD: &str = "the-old-token-0123";
const NEW: &str = "the-new-token-4567";

#[tokio::test]
async fn a_caller_without_a_valid_token_is_refused_and_both_tokens_are_valid() {
    let tokens = Scratch::file(&format!("{OLD}\n{NEW}\n"));
    let endpoint = Endpoint::start_with(&["--auth-token-file", tokens.path(), "--log", "trace"]).await;
    for token in [OLD, NEW] {
        assert_eq!(send(ask(endpoint.address).bearer_auth(token)).await.status, 200, "{token}");
        let http2 = Client::http2(endpoint.address).request(Method::GET, "/metrics").bearer_auth(token);
        assert_eq!(send(http2).await.status, 200, "{token}");
    }
    for request in [ask(endpoint.address), ask(endpoint.address).bearer_auth("a-wrong-token-8901")] {
        let reply = send(request).await;
        assert_eq!((reply.status, reply.header("www-authenticate")), (401, Some("Bearer")));
        assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    }
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        assert_eq!(Client::new(endpoint.address).get(path).await.status, 200, "{path}");
    }
    // F08
    let log = endpoint.process.log();
    assert!(log.contains("TRACE") && log.contains("a caller without a valid token was refused"), "{log}");
    for token in [OLD, NEW, "a-wrong-token-8901"] {
        assert!(!log.contains(token), "{log}");
    }
}

#[tokio::test]
async fn without_tokens_only_this_machine_is_listened_to() {
    let tokens = Scratch::file(OLD);
    let everywhere = |args: &[&str]| Program::start(&[&["--listen", "0.0.0.0:0"], args].concat(), &[]);
    let log = everywhere(&[]).end().await;
    assert!(log.contains("can be reached from other machines, and callers are not authenticated"), "{log}");
    for args in [&["--auth-token-file", tokens.path()][..], &["--allow-remote"]] {
        let mut program = everywhere(args);
        let port = program.address().await.port();
        let reply = send(ask((Ipv4Addr::LOCALHOST, port).into()).bearer_auth(OLD)).await;
        assert_eq!(reply.status, 200, "{args:?}");
    }
}

#[tokio::test]
async fn a_token_that_would_open_the_door_is_refused_without_showing_it() {
    let refusal = async |tokens: &str| Program::start(&[], &[("TOLLGATE_AUTH_TOKENS", tokens)]).end().await;
    let log = refusal("").await;
    assert!(log.contains("TOLLGATE_AUTH_TOKENS: there is no token"), "{log}");
    let log = refusal("s3cret").await;
    assert!(log.contains("token 1: a token has 16 bytes or more") && !log.contains("s3cret"), "{log}");
}
