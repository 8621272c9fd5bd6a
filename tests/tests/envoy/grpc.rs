//! A real gRPC client and a real gRPC server, with Envoy and the filter between them.

use axum::Router;
use axum::body::Body;
use axum::extract::Request as HttpRequest;
use axum::http::uri::PathAndQuery;
use futures_util::stream;
use serde_json::json;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tollgate_tests::{Endpoint, EnvoyBuilder, config, global};
use tonic::client::Grpc;
use tonic::server::StreamingService;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

type Codec = ProstCodec<String, String>;

/// Sends back what it gets.
struct Echo;

impl StreamingService<String> for Echo {
    type Response = String;
    type ResponseStream = Streaming<String>;
    type Future = Ready<Result<Response<Streaming<String>>, Status>>;

    fn call(&mut self, request: Request<Streaming<String>>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

async fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let answer =
        async |request: HttpRequest<Body>| tonic::server::Grpc::new(Codec::default()).streaming(Echo, request).await;
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await });
    address
}

/// One call with so many messages: those that came back.
async fn call(channel: &Channel, key: &str, messages: usize) -> Result<Vec<String>, Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.expect("a connection");
    let mut request = Request::new(stream::iter((0..messages).map(|number| format!("message {number}"))));
    request.metadata_mut().insert("x-api-key", key.parse().expect("text"));
    let path = PathAndQuery::from_static("/echo.Echo/Echo");
    let mut replies = client.streaming(request, path, Codec::default()).await?.into_inner();
    let mut all = Vec::new();
    while let Some(reply) = replies.message().await? {
        all.push(reply);
    }
    Ok(all)
}

#[tokio::test]
async fn a_grpc_client_is_told_in_its_own_words_and_a_stream_costs_one() {
    // F66
    let (upstream, mut endpoint) = (server().await, Endpoint::start("memory").await);
    let mut policy = config(&[global("per-key", 2, "1/5s", json!("closed"))]);
    policy["routes"] = json!([{"name": "echo", "path": "/echo.Echo/{method}"}]);
    let builder = EnvoyBuilder::new(policy, upstream).endpoint(endpoint.address).http2_upstream();
    let mut envoy = builder.start().await;
    let channel = Channel::from_shared(format!("http://{}", envoy.address)).expect("an address").connect_lazy();
    assert_eq!(call(&channel, "k", 1).await.expect("a reply"), ["message 0"]);
    assert_eq!(call(&channel, "k", 200).await.expect("replies").len(), 200);
    let status = call(&channel, "k", 1).await.expect_err("nothing is left");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "The per-key policy has no capacity left.");
    let pushback = status.metadata().get("grpc-retry-pushback-ms").expect("a time").to_str().expect("text");
    assert!(pushback.parse::<u64>().is_ok_and(|pushback| (1..=5000).contains(&pushback)), "{pushback}");
    // A google.rpc.Status with one detail, whose type is named.
    assert!(status.details().windows(9).any(|part| part == b"RetryInfo"), "{:?}", status.details());
    assert_eq!(envoy.count("requests.echo.allowed").await, 2);
    assert_eq!(envoy.count("requests.echo.denied").await, 1);
    endpoint.process.kill();
    assert_eq!(call(&channel, "other", 1).await.expect_err("closed").code(), Code::Unavailable);
    envoy.assert_sound();
}
