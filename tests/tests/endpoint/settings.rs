use crate::{Program, Scratch, ask};
use serde_json::Value;
use tollgate_tests::{Client, send};

/// What it says about itself at the start, as JSON.
async fn start(args: &[&str], variables: &[(&str, &str)]) -> (Program, Vec<Value>) {
    let mut program = Program::start(args, variables);
    program.address().await;
    let log = program.process.log();
    let lines = log.lines().filter(|line| !line.starts_with("listening on"));
    let lines = lines.map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")));
    let lines = lines.collect();
    (program, lines)
}

#[tokio::test]
async fn a_flag_goes_before_a_variable_and_a_variable_before_the_file() {
    let file = Scratch::file("listen: 127.0.0.3:0\nstore: redis://127.0.0.1:1\nlog_format: json\n");
    let config = ("TOLLGATE_CONFIG", file.path());
    let listen = ("TOLLGATE_LISTEN", "127.0.0.2:0");
    for (args, variables, expected) in [
        (&["--listen", "127.0.0.1:0"][..], &[config, listen][..], "127.0.0.1"),
        (&[], &[config, listen], "127.0.0.2"),
        (&["--config", file.path()], &[], "127.0.0.3"),
    ] {
        let (mut program, lines) = start(args, variables).await;
        assert_eq!(program.address().await.ip().to_string(), expected);
        let line = lines.iter().find(|line| line["message"] == "listening").expect("a line");
        assert_eq!((line["level"].as_str(), line["store"].as_str()), (Some("INFO"), Some("redis 127.0.0.1:1")));
    }
}

#[tokio::test]
async fn tokens_follow_the_same_order() {
    let [flag, variable, inner] = ["the-token-of-a-flag", "the-token-of-a-variable", "the-token-of-a-file"];
    let (of_flag, of_file) = (Scratch::file(flag), Scratch::file(inner));
    let config = Scratch::file(&format!("listen: 127.0.0.1:0\nauth_token_file: {}\n", of_file.path()));
    let args = ["--config", config.path(), "--auth-token-file", of_flag.path()];
    for (args, variables, expected) in [
        (&args[..], &[("TOLLGATE_AUTH_TOKENS", variable)][..], flag),
        (&args[..2], &[("TOLLGATE_AUTH_TOKENS", variable)], variable),
        (&args[..2], &[], inner),
    ] {
        let mut program = Program::start(args, variables);
        let address = program.address().await;
        for token in [flag, variable, inner] {
            let status = send(ask(address).bearer_auth(token)).await.status;
            assert_eq!(status, if token == expected { 200 } else { 401 }, "{token} where {expected} is valid");
        }
    }
}

#[tokio::test]
async fn a_wrong_file_is_refused_with_its_name_the_line_and_the_field() {
    let file = Scratch::file("store: redis://user:s3cret-password@host\nmax_in_flight: 0\n");
    let log = Program::start(&["--config", file.path()], &[]).end().await;
    let expected = format!("{}:2:16: max_in_flight: must be between 1 and 65536, is 0", file.path());
    assert!(log.contains(&expected) && !log.contains("s3cret"), "{log}");
    let log = Program::start(&["--config", "/nowhere/at-all.yaml"], &[]).end().await;
    assert!(log.contains("--config: /nowhere/at-all.yaml: cannot be read: "), "{log}");
}

#[tokio::test]
async fn the_log_level_is_chosen() {
    let args = ["--listen", "127.0.0.1:0", "--log-format", "json", "--log"];
    let (_, lines) = start(&[&args[..], &["warn"]].concat(), &[]).await;
    assert!(lines.is_empty(), "{lines:?}");
    let (mut program, lines) = start(&args[..4], &[("TOLLGATE_LOG", "debug")]).await;
    assert!(!lines.is_empty());
    assert_eq!(Client::new(program.address().await).get("/healthz").await.status, 200);
}
