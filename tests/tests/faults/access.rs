//! Who the endpoint is to Redis: passwords, ACL users, TLS.

use super::*;
use std::io::Write;
use tempfile::NamedTempFile;
use tollgate_tests::{Authority, Redis, free_port};

fn secret(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a file");
    writeln!(file, "{text}").expect("a line");
    file
}

fn path(file: &NamedTempFile) -> &str {
    file.path().to_str().expect("text")
}

#[tokio::test]
async fn a_wrong_password_is_a_fault_until_it_is_right_and_is_never_shown() {
    let redis = Redis::start_as(&["--requirepass", "right"], Some(("default", "right"))).await;
    let password = secret("s3cret");
    let spender = Spender::over(&redis.url(), &["--redis-password-file", path(&password)]).await;
    spender.fails_by(1, "login").await;
    redis.run::<()>("CONFIG SET requirepass s3cret").await;
    assert_eq!(spender.recovers(1).await, 99);
    let log = spender.endpoint.process.log();
    assert!(log.contains("kind=\"login\"") && !log.contains("s3cret"), "{log}");
}

#[tokio::test]
async fn a_missing_password_is_a_fault() {
    let redis = Redis::start_as(&["--requirepass", "right"], Some(("default", "right"))).await;
    let spender = Spender::over(&redis.url(), &[]).await;
    spender.fails_by(1, "login").await;
}

#[tokio::test]
async fn a_user_needs_few_rights_and_losing_them_is_a_fault() {
    const RULES: &str = "ACL SETUSER tollgate on >pw resetkeys ~tollgate* resetchannels -@all \
                         +eval +evalsha +ping +get +set +del +lrange +ltrim +lrem +rpush +pexpire +time";
    let redis = Redis::start().await;
    redis.run::<()>(RULES).await;
    let password = secret("pw");
    let flags = ["--redis-user", "tollgate", "--redis-password-file", path(&password)];
    let spender = Spender::over(&redis.url(), &flags).await;
    // Every algorithm, and an id.
    let window = json!({"capacity": 100, "window_us": 60_000_000});
    let mut charges = vec![charge(1)];
    for (name, algorithm) in (2..).zip(["fixed_window", "sliding_window", "sliding_log"]) {
        let mut other = charge(name);
        other.as_object_mut().expect("a map").remove("token_bucket");
        other[algorithm] = window.clone();
        charges.push(other);
    }
    let body = json!({"decisions": [{"id": "1", "charges": charges}]}).to_string();
    let reply = eventually("a decision", async || {
        let reply = send(spender.client.request(Method::POST, "/v1/admit").body(body.clone())).await;
        if reply.body.contains("failed") { Err(reply.body) } else { Ok(reply.body) }
    })
    .await;
    assert!(reply.contains("admitted"), "{reply}");

    redis.run::<()>("ACL SETUSER tollgate -evalsha -eval").await;
    spender.fails_by(1, "permission").await;
    redis.run::<()>(RULES).await;
    assert_eq!(spender.recovers(1).await, 98);
    redis.run::<()>("ACL SETUSER tollgate -set").await;
    spender.fails_by(1, "permission").await;
    redis.run::<()>("ACL SETUSER tollgate +set resetkeys ~other*").await;
    spender.fails_by(1, "permission").await;
    redis.run::<()>(RULES).await;
    assert_eq!(spender.recovers(1).await, 97);
    // Whose user is gone is thrown out.
    redis.run::<()>("ACL DELUSER tollgate").await;
    spender.fails_by(1, "login").await;
    redis.run::<()>(RULES).await;
    assert_eq!(spender.recovers(1).await, 96);
}

#[tokio::test]
async fn over_tls_both_sides_show_who_they_are() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (certificate, key) = ours.issue("server", &["127.0.0.1"]);
    let (client_certificate, client_key) = ours.issue("client", &["tollgate"]);
    let (strange_certificate, strange_key) = theirs.issue("client", &["tollgate"]);
    let port = free_port().to_string();
    let (ca, other_ca) = (ours.ca(), theirs.ca());
    let tls = ["--tls-port", &port, "--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let redis = Redis::start_with(&tls).await;
    let (secure, plain) = (format!("rediss://127.0.0.1:{port}"), redis.url());

    let trusted = ["--redis-ca-file", &ca];
    let known = [&trusted[..], &["--redis-cert-file", &client_certificate, "--redis-key-file", &client_key]].concat();
    let spender = Spender::over(&secure, &known).await;
    assert_eq!(spender.recovers(1).await, 99);

    let strange =
        [&trusted[..], &["--redis-cert-file", &strange_certificate, "--redis-key-file", &strange_key]].concat();
    for (what, kind, url, flags) in [
        ("an authority that is not trusted", "tls", secure.clone(), vec!["--redis-ca-file", &other_ca]),
        ("no certificate of one's own", "tls", secure.clone(), trusted.to_vec()),
        ("a certificate of a strange authority", "tls", secure.clone(), strange),
        ("another name", "tls", format!("rediss://localhost:{port}"), known.clone()),
        // Redis waits for the end of a command that never comes.
        ("TLS where there is none", "timeout", plain.replace("redis:", "rediss:"), known.clone()),
        ("no TLS where there is", "unreachable", secure.replace("rediss:", "redis:"), Vec::new()),
    ] {
        println!("{what}");
        let spender = Spender::over(&url, &flags).await;
        spender.fails_by(1, kind).await;
    }
}
