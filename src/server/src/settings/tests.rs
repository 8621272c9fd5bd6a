use super::*;
use clap::{CommandFactory, FromArgMatches, Parser};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ServeArgs,
}

fn resolve(args: &[&str], auth_tokens: Option<&str>) -> Result<Settings, String> {
    let matches =
        Cli::command().try_get_matches_from(["serve"].iter().chain(args)).map_err(|error| error.to_string())?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.to_string())?;
    Settings::resolve(cli.args, &matches, Secrets { auth_tokens: auth_tokens.map(Into::into), ..Secrets::default() })
}

#[test]
fn other_machines_are_listened_to_only_with_tokens_or_when_told() {
    const EVERYWHERE: [&str; 2] = ["--listen", "0.0.0.0:0"];
    for refused in ["--allow-remote=false", "--log=info"] {
        let error = resolve(&[&EVERYWHERE[..], &[refused]].concat(), None).err().unwrap();
        assert!(error.contains("0.0.0.0:0 can be reached from other machines"), "{error}");
    }
    assert!(resolve(&EVERYWHERE, Some("a-token-of-16-bytes")).is_ok());
    assert!(resolve(&[&EVERYWHERE[..], &["--allow-remote"]].concat(), None).is_ok());
    for local in ["127.0.0.1:0", "127.8.8.8:0", "[::1]:0"] {
        assert!(resolve(&["--listen", local], None).is_ok(), "{local}");
    }
}

#[test]
fn tokens_that_are_set_but_empty_are_an_error_and_not_an_open_door() {
    assert_eq!(resolve(&[], Some("")).err().unwrap(), "TOLLGATE_AUTH_TOKENS: there is no token: write 1 or 2");
    let error = resolve(&["--auth-token-file", "/dev/null"], None).err().unwrap();
    assert_eq!(error, "--auth-token-file: /dev/null: there is no token: write 1 or 2");
}

#[test]
fn a_wrong_url_is_refused_without_showing_its_password() {
    let error = resolve(&["--otlp-endpoint", "http://user:secret-password@host:4318"], None).err().unwrap();
    assert!(error.starts_with("--otlp-endpoint (or TOLLGATE") && !error.contains("secret-password"), "{error}");
    for store in ["rediss//:secret-password@host", "redis://user:secret-password@host:port"] {
        let error = resolve(&["--store", store], None).err().unwrap();
        assert!(error.starts_with("--store (or TOLLGATE_STORE): ") && !error.contains("secret-password"), "{error}");
    }
}

#[test]
fn what_has_bounds_is_refused_with_them() {
    for (args, expected) in [
        (["--max-in-flight", "0"], "must be between 1 and 65536, is 0"),
        (["--max-in-flight", "many"], "write a whole number between 1 and 65536"),
        (["--memory-keys", "999"], "must be between 1000 and 4294967295, is 999"),
        (["--store-timeout", "11s"], "must be between 1ms and 10s"),
        (["--store-timeout", "20"], "such as 20ms"),
        (["--log", "loud=very"], "write off, error, warn, info, debug or trace"),
        (["--otlp-sample", "1.5"], "must be between 0 and 1, is 1.5"),
        (["--otlp-sample", "NaN"], "must be between 0 and 1"),
        (["--otlp-endpoint", "https://collector:4318"], "write http://host:port"),
        (["--log-format", "xml"], "[possible values: text, json]"),
    ] {
        let error = resolve(&args, None).err().unwrap();
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn the_help_names_every_setting_of_the_file() {
    let command = Cli::command();
    let flags: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
    let Err(error) = File::parse("unknown: 1") else { panic!("an unknown field is taken") };
    for flag in flags.into_iter().filter(|flag| *flag != "config") {
        assert!(error.contains(&flag.replace('-', "_")), "{flag}: {error}");
    }
}
