//! Something that speaks like Redis and says what Redis never would.

use super::*;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Answers every script call with these bytes, and all else as Redis does.
async fn impostor(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(talk(stream, answer));
        }
    });
    address
}

async fn talk(mut stream: TcpStream, answer: &'static [u8]) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let text = String::from_utf8_lossy(&buffer[..count]).to_ascii_uppercase();
        // A pipeline of commands: one reply for each array.
        for command in text.split("\r\n").filter(|line| !line.starts_with(['*', '$']) && !line.is_empty()) {
            let reply: &[u8] = match command {
                "HELLO" => b"%1\r\n+proto\r\n:3\r\n",
                "CLIENT" => b"+OK\r\n",
                "PING" => b"+PONG\r\n",
                "SET" => b"+OK\r\n",
                "GET" => b"$3\r\nm:0\r\n",
                "EVALSHA" | "EVAL" => answer,
                _ => continue,
            };
            if stream.write_all(reply).await.is_err() {
                return;
            }
        }
    }
}

#[tokio::test]
async fn a_reply_that_is_none_is_a_failure_and_never_an_admission() {
    // F52
    for (kind, answer) in [
        ("bad_reply", &b"+OK\r\n"[..]),
        ("bad_reply", b":1\r\n"),
        ("bad_reply", b"$-1\r\n"),
        ("bad_reply", b"_\r\n"),
        ("bad_reply", b"*0\r\n"),
        ("bad_reply", b"*2\r\n:0\r\n:1\r\n"),
        ("bad_reply", b"*3\r\n:0\r\n:-1\r\n:0\r\n"),
        ("bad_reply", b"*3\r\n:4\r\n:1\r\n:0\r\n"),
        ("bad_reply", b"*3\r\n:1\r\n:1\r\n:-5\r\n"),
        ("bad_reply", b"*3\r\n+a\r\n:1\r\n:0\r\n"),
        ("bad_reply", b"*6\r\n:0\r\n:1\r\n:0\r\n:0\r\n:1\r\n:0\r\n"),
        ("bad_reply", b"#t\r\n"),
        // What is not the protocol ends the connection.
        ("unreachable", b"<html>\r\n"),
        ("unreachable", b"\x00\xff\x00\xff\r\n"),
        ("other", b"-ERR what\r\n"),
        ("read_only", b"-READONLY You can't write against a read only replica.\r\n"),
        ("master_down", b"-MASTERDOWN Link with MASTER is down\r\n"),
        ("cluster_down", b"-CLUSTERDOWN Hash slot not served\r\n"),
        ("moving", b"-MOVED 1 127.0.0.1:1\r\n"),
        ("not_writable", b"-MISCONF Redis is configured to save RDB snapshots\r\n"),
        ("out_of_memory", b"-OOM command not allowed\r\n"),
        ("timeout", b"*3\r\n:0\r\n"),
        ("timeout", b""),
    ] {
        let address = impostor(answer).await;
        let spender = Spender::over(&format!("redis://{address}"), &[]).await;
        println!("{kind}: {:?}", String::from_utf8_lossy(answer));
        spender.fails_by(1, kind).await;
    }
}

#[tokio::test]
async fn what_is_not_redis_at_all_is_a_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let spender = Spender::over(&format!("redis://{address}"), &[]).await;
    for _ in 0..20 {
        assert_eq!(spender.spend(1).await, None);
    }
    let ready = spender.client.get("/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.took < DEADLINE + GRACE);
}
