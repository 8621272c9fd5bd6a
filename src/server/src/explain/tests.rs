use super::*;
use clap::Parser;
use proptest::prelude::*;
use tollgate_core::facts::Facts;

const POLICY: &str = r#"
version: v7
hash_key: {env: KEY, previous: {env: OLD_KEY}}
endpoint: {cluster: tollgate}
identities:
  tenant:
    sources: [{metadata: {filter: jwt, path: [payload, tenant.id]}}, {header: x-tenant-id}]
    pattern: "[a-z0-9-]{1,64}"
  credential: {sources: [{header: authorization, scheme: Bearer}, {cookie: session}]}
  client: {sources: [{client_address: {trusted_hops: 1}}]}
  service: {sources: [{peer: uri_san}, {filter_state: who}, {literal: nobody}]}
routes:
  - {name: health, path: /healthz, exempt: true}
  - {name: reports, methods: [GET], path: "/v1/reports/{id}", cost: 5}
  - {name: export, path: "/v1/export/**", cost: {from: {header: x-rows}, per: 1000, max: 50}}
  - {name: internal, envoy_route: internal}
policies:
  - {name: guard, scope: local, key: [client, route], limit: {token_bucket: {capacity: 200, refill: 50/s}}}
  - name: per-tenant
    scope: global
    key: [tenant]
    limit: {token_bucket: {capacity: 1000, refill: 100/s}}
    plans:
      by: {metadata: {filter: jwt, path: [plan]}}
      gold: {token_bucket: {capacity: 9000, refill: 900/s}}
      banned: deny
      internal: unlimited
    on_failure: open
  - {name: exports, scope: global, key: [credential], match: {routes: [export]}, on_missing: reject, on_failure: closed,
     limit: {fixed_window: {capacity: 1000, window: day}}}
  - {name: trial, scope: global, key: [service], on_missing: skip, enforce: shadow, on_failure: open,
     limit: {gcra: {burst: 100, rate: 10/s}}}
  - {name: share, scope: local, key: [credential], on_missing: skip, enforce: 50%, limit: {token_bucket: {capacity: 60, refill: 1/s}}}
"#;

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Cli {
    #[command(flatten)]
    args: ExplainArgs,
}

fn args(words: &[&str]) -> ExplainArgs {
    Cli::try_parse_from(["policy.yaml"].iter().chain(words)).unwrap_or_else(|error| panic!("{error}")).args
}

fn keys(name: &str) -> Option<String> {
    ["KEY", "OLD_KEY"].contains(&name).then(|| format!("0123456789abcdef-{name}"))
}

fn nothing(_: &str) -> Option<String> {
    None
}

/// Text and JSON.
fn explained(words: &[&str], env: &dyn Fn(&str) -> Option<String>) -> (String, String) {
    let source = Source { name: "policy.yaml".into(), text: POLICY.into() };
    let (report, held) = check::examine(&source, env);
    assert!(!held.is_empty(), "{}", report.text(&Renderer::plain()));
    let request = args(words).request().unwrap_or_else(|error| panic!("{error}"));
    let explanations: Vec<Explanation> = held.iter().map(|held| Explanation::new(held, &request)).collect();
    (text("policy.yaml", &held, &explanations), serde_json::to_string(&explanations).expect("JSON"))
}

const FULL: &[&str] = &[
    "--path",
    "/v1/export/a?q=s3cret-query",
    "-H",
    "Authorization: bearer s3cret-token",
    "-H",
    "x-rows: 12000",
    "-H",
    "x-forwarded-for: 10.9.9.9, 2001:db8::5",
    "--metadata",
    "jwt:payload.tenant.id=s3cret-tenant",
    "--metadata",
    "jwt:plan=gold",
    "--peer",
    "uri_san=spiffe://s3cret",
    "--filter-state",
    "other=s3cret",
];

#[test]
fn a_request_of_many_facts() {
    insta::assert_snapshot!(explained(FULL, &keys).0);
}

#[test]
fn a_request_that_lacks_most_and_a_hash_key_that_is_not_here() {
    let (text, json) = explained(&["--path", "//v1/./export/a", "-H", "x-tenant-id: ACME", "-X", "POST"], &nothing);
    insta::assert_snapshot!(text);
    assert!(!json.contains("digest\""), "what is no digest of the proxies' is none: {json}");
}

#[test]
fn programs_get_the_same_as_people() {
    let json: serde_json::Value = serde_json::from_str(&explained(FULL, &keys).1).expect("JSON");
    insta::assert_snapshot!(format!("{json:#}"));
}

#[test]
fn what_becomes_of_a_request() {
    let outcome = |words: &[&str]| {
        let text = explained(words, &keys).0;
        text.lines().find_map(|line| line.strip_prefix("  outcome: ")).expect("an outcome").to_owned()
    };
    let with_plan = |plan: &str| outcome(&["--path", "/", "--metadata", &format!("jwt:plan={plan}")]);
    assert_eq!(outcome(&["--path", "/healthz"]), "admitted: the route class is exempt");
    assert_eq!(outcome(&["--path", "/v1/export/x"]), "rejected with 403 by exports");
    assert_eq!(with_plan("banned"), "rejected with 429 by per-tenant");
    assert_eq!(with_plan("internal"), "admitted if there is enough left in guard; else rejected with 429");
    let both = "admitted if there is enough left in guard, per-tenant; else rejected with 429";
    for plan in ["gold", "unheard-of"] {
        assert_eq!(with_plan(plan), both);
    }
}

#[test]
fn of_a_request_that_is_rejected_as_it_stands_nothing_is_charged_but_what_always_is() {
    let words = ["--path", "/", "--metadata", "jwt:plan=banned", "-H", "cookie: session=x"];
    let (text, json) = explained(&words, &keys);
    let (share, guard) =
        ("policy share: would apply to this credential, and is not asked", "policy guard: would apply");
    assert!(text.contains(share) && text.contains(guard) && json.contains("\"not_asked\""), "{text}");
    assert!(text.contains("policy trial: applies to this service; in shadow"), "{text}");
    let always =
        POLICY.replace("scope: local, key: [client, route]", "scope: local, charge: always, key: [client, route]");
    let (_, held) = check::examine(&Source { name: "policy.yaml".into(), text: always }, &keys);
    let request = args(&words).request().expect("a request");
    assert!(Explanation::new(&held[0], &request).to_string().contains("policy guard: applies to this client"));
}

#[test]
fn a_request_that_reads_several_ways_is_shown_with_the_buckets_of_all() {
    let of = |path: &str| explained(&["--path", path, "-H", "authorization: Bearer x", "-H", "x-rows: 3000"], &keys);
    let (text, json) = of("/v1/export/..;/reports/7");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1], "  route class: export and reports (it can be read in several ways)");
    assert_eq!(lines[2], "  cost: 5 (the most that a route class of the request's asks for)");
    let guard = lines
        .iter()
        .position(|line| *line == "  policy guard: applies to this client, the route class export and reports");
    let buckets: Vec<&str> =
        lines[guard.expect("guard") + 2..][..4].iter().map(|line| line.rsplit_once(' ').expect("a digest").0).collect();
    let (by_this, by_previous) = ("    bucket of route class", "    bucket by the previous hash key of route class");
    let expected = [(by_this, "export"), (by_previous, "export"), (by_this, "reports"), (by_previous, "reports")];
    let expected =
        expected.map(|(bucket, route)| format!("{bucket} {route}, cost {},", if route == "export" { 3 } else { 5 }));
    assert_eq!(buckets, expected);
    assert!(json.contains("\"routes\":[\"export\",\"reports\"]"), "{json}");
    let (text, _) = of("/v1/export/../../healthz/..;/../v1/export/a");
    assert!(!text.contains("exempt"), "what is exempt by one reading alone is not: {text}");
}

#[test]
fn what_only_envoy_or_the_body_can_tell_is_asked_for() {
    let policy = "{identities: {a: {sources: [{client_address: {}}]}}, hash_key: {env: KEY}, \
                  routes: [{name: up, path: /up, cost: {from: content_length, per: 1000, max: 9}}], policies: \
                  [{name: a, scope: local, key: [a], limit: {token_bucket: {capacity: 9, refill: 1/s}}}]}";
    let (_, held) = check::examine(&Source { name: "policy.yaml".into(), text: policy.into() }, &keys);
    let said = |words: &[&str]| Explanation::new(&held[0], &args(words).request().expect("a request")).to_string();
    let upload = said(&["--curl", "curl -T file a.com/up"]);
    assert!(
        upload.contains("note: the length of the body is not known here") && upload.contains("cost: 9"),
        "{upload}"
    );
    assert!(upload.contains("note: without --client the client's address is taken to be 192.0.2.1"), "{upload}");
    let known = said(&["--curl", "curl -T file -H 'content-length: 1001' a.com/up", "--client", "203.0.113.1"]);
    assert!(!known.contains("note:") && known.contains("cost: 2"), "{known}");
}

#[test]
fn the_digests_are_those_of_the_decision() {
    let (_, held) = check::examine(&Source { name: "policy.yaml".into(), text: POLICY.into() }, &keys);
    let request = args(FULL).request().expect("a request");
    let plan = held[0].set.plan(&request);
    let text = explained(FULL, &keys).0;
    assert!(plan.charges.len() > 3);
    for charge in plan.charges.iter().chain(&plan.shadows) {
        assert!(text.contains(&format!("{}", charge.key)));
    }
    let group = plan.charges.iter().find(|charge| charge.policy == 1).expect("per-tenant").group;
    assert!(text.contains(&format!("    digest {group}")), "the identity's digest names the group: {text}");
}

#[test]
fn no_value_of_the_request_is_shown() {
    for env in [&keys as &dyn Fn(&str) -> Option<String>, &nothing] {
        let (text, json) = explained(FULL, env);
        for secret in ["s3cret", "10.9.9.9", "2001:db8"] {
            assert!(!text.contains(secret) && !json.contains(secret), "{text}");
        }
    }
    for (words, _) in WRONG {
        let error = args(words).request().map(drop).expect_err("an error");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

const WRONG: &[(&[&str], &str)] = &[
    (&["--path", "v1"], "--path: a path begins with /; for a whole URL there is --curl"),
    (&["--path", "/", "-H", "s3cret"], "-H: a header is written as 'name: value'"),
    (&["--path", "/", "-H", "x y: s3cret"], "-H: a header is written as 'name: value'"),
    (&["--path", "/", "--metadata", "s3cret"], "--metadata: write FILTER:NAME.NAME=TEXT, or FILTER:NAME.NAME:=NUMBER"),
    (
        &["--path", "/", "--metadata", "f:p:=s3cret"],
        "--metadata: write FILTER:NAME.NAME=TEXT, or FILTER:NAME.NAME:=NUMBER",
    ),
    (&["--path", "/", "--filter-state", "s3cret"], "--filter-state: write NAME=TEXT"),
    (&["--path", "/", "--peer", "san=s3cret"], "--peer: write uri_san=…, dns_san=… or subject=…"),
    (&["--curl", "curl -H 'x: s3cret"], "--curl: a quote is not closed"),
];

#[test]
fn what_cannot_be_read_is_told() {
    for (words, error) in WRONG {
        assert_eq!(args(words).request().map(drop).expect_err("an error"), *error, "{words:?}");
    }
}

#[test]
fn a_number_in_metadata_is_another_value_than_its_text() {
    let of = |text: &str| {
        let given = Given::metadata(MetadataOf::Request, text).expect("metadata");
        let request = Request { given: vec![given], ..Request::default() };
        let path = vec!["a".into(), "b.c".into()];
        request.attribute(&Attribute::Metadata { of: MetadataOf::Request, filter: "f".into(), path })
    };
    assert_eq!(of("f:a.b.c=5"), Some(b"5".to_vec()));
    assert_eq!(of("f:a.b.c:=5"), Some(5_f64.to_le_bytes().to_vec()));
    assert_eq!(of("f:a.b=5"), None);
}

#[test]
fn a_command_line_that_cannot_be_read_is_told_without_its_words() {
    for (words, expected) in [
        (
            vec!["--path", "/", "-H", "x-api-key:", "s3cret"],
            "there is a word too many, or an option that there is not: are the values in quotes?",
        ),
        (
            vec!["--path", "/", "--s3cret"],
            "there is a word too many, or an option that there is not: are the values in quotes?",
        ),
        (vec!["--pth", "/s3cret"], "there is a word too many, or an option that there is not: did you mean --path?"),
        (vec!["--path", "/s3cret", "-H"], "--header <LINE> lacks its value"),
        (vec!["--path", "/s3cret", "--format", "s3cret"], "--format <FORMAT> is one of text, json"),
        (vec!["-H", "s3cret"], "there is no --path <PATH>, or --curl <LINE>"),
        (vec!["--curl", "s3cret", "--path", "/s3cret"], "--curl <LINE> and --path <PATH> exclude each other"),
        (vec!["--path", "/s3cret", "--path", "/"], "--path <PATH> is there twice"),
    ] {
        let error = Cli::try_parse_from(["policy.yaml"].iter().chain(&words)).map(drop).expect_err("an error");
        assert_eq!(refuse(&error), expected, "{words:?}");
    }
    let words = |text: &str| text.split(' ').map(std::ffi::OsString::from).collect::<Vec<_>>().into_iter();
    assert!(may_hold_secrets(words("tollgate explain --s3cret")) && !may_hold_secrets(words("tollgate check explain")));
}

/// All that is said of a request, or of why there is none.
fn all_said(words: &[String], env: &dyn Fn(&str) -> Option<String>) -> String {
    let args = match Cli::try_parse_from(["policy.yaml"].into_iter().chain(words.iter().map(String::as_str))) {
        Ok(cli) => cli.args,
        Err(error) => return refuse(&error),
    };
    let request = match args.request() {
        Ok(request) => request,
        Err(error) => return error,
    };
    let (report, held) = check::examine(&Source { name: "policy.yaml".into(), text: POLICY.into() }, env);
    let explanations: Vec<Explanation> = held.iter().map(|held| Explanation::new(held, &request)).collect();
    let json = serde_json::to_string(&explanations).expect("JSON");
    text("policy.yaml", &held, &explanations) + &json + &report.text(&Renderer::plain()) + &report.json().to_string()
}

/// Every option with a value, wherever `?` stands.
const WITH_SECRETS: &[&str] = &[
    "--path",
    "/v1/export/a?key=?&b=?",
    "--host",
    "?",
    "-X",
    "?",
    "-H",
    "authorization: Bearer ?",
    "-H",
    "x-tenant-id: ?",
    "-H",
    "x-rows: ?",
    "-H",
    "x-?: ?",
    "-H",
    "cookie: session=?; a=?",
    "-H",
    "x-forwarded-for: ?, 1.2.3.4",
    "--client",
    "?",
    "--metadata",
    "jwt:payload.tenant.id=?",
    "--metadata",
    "jwt:plan=?",
    "--metadata",
    "?:?=?",
    "--route-metadata",
    "a:b=?",
    "--virtual-host-metadata",
    "a:b:=?",
    "--filter-state",
    "who=?",
    "--filter-state",
    "?=?",
    "--peer",
    "uri_san=?",
    "--peer",
    "?=?",
    "--envoy-route",
    "?",
];

const CURL_WITH_SECRETS: &[&str] = &[
    "curl",
    "'https://?:?@api.example.com/v1/export/?key=?'",
    "-X",
    "?",
    "-u",
    "?:?",
    "-H",
    "'authorization: Bearer ?'",
    "--header",
    "\"x-tenant-id: ?\"",
    "-b",
    "session=?",
    "--oauth2-bearer",
    "?",
    "-A",
    "?",
    "-d",
    "?",
    "--data-raw",
    "$'?\\'?'",
    "--json",
    "'{\"?\": 1}'",
    "-Hx-rows:?",
    "--url-query",
    "a=?",
    "-e",
    "?",
    "-o",
    "?",
    "--cert",
    "?",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is mistyped: words that are lost, doubled, cut in two or in another place.
    #[test]
    fn no_secret_is_shown_whatever_becomes_of_the_line(
        is_curl: bool,
        keys_are_set: bool,
        changes in prop::collection::vec((0_u8..6, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..6),
        odd in "[-'\"\\\\$&|;@=: ]{1,2}",
    ) {
        let template = if is_curl { CURL_WITH_SECRETS } else { WITH_SECRETS };
        let mut words: Vec<String> = template.iter().map(|word| word.replace('?', "s3cret")).collect();
        for (change, at, to) in changes {
            let index = at.index(words.len());
            let word = words[index].clone();
            let (cut, place) = (to.index(word.len() + 1), to.index(words.len()));
            match change {
                _ if !word.is_char_boundary(cut) => {}
                0 => drop(words.remove(index)),
                1 => words.insert(place, word),
                2 => words.swap(index, place),
                // Without quotes.
                3 => drop(words.splice(index..=index, word.split(' ').map(String::from))),
                4 => words[index].insert_str(cut, &odd),
                _ => words[index].replace_range(..cut, ""),
            }
            if words.is_empty() {
                break;
            }
        }
        if is_curl {
            words = vec!["--curl".into(), words.join(" ")];
        }
        let said = all_said(&words, if keys_are_set { &keys } else { &nothing });
        prop_assert!(!said.contains("s3cret") && !said.contains("0123456789abcdef"), "{words:?}\n{said}");
    }

    /// Whatever is pasted, it is explained or refused.
    #[test]
    fn no_line_is_too_odd(
        line in "curl( (-[HXbdAueTGIks]|--(url|json|header|data|user)|'[ -~]{0,9}'|https?://[ -~ä]{0,12}|[ -~ä]{0,6})){0,6}",
        path in "/[ -~ä]{0,20}",
        header in "[ -~ä]{0,20}",
    ) {
        for words in [vec!["--curl", line.as_str()], vec!["--path", &path, "-H", &header]] {
            if let Ok(request) = args(&words).request() {
                let source = Source { name: "policy.yaml".into(), text: POLICY.into() };
                let (_, held) = check::examine(&source, &keys);
                let explanation = Explanation::new(&held[0], &request);
                prop_assert!(explanation.to_string().contains("outcome"));
            }
        }
    }
}
