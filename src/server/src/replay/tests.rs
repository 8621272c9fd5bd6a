use super::report::Bins;
use super::*;

const POLICY: &str = r#"
version: v7
hash_key: {env: KEY}
endpoint: {cluster: tollgate}
identities:
  key: {sources: [{header: x-api-key}]}
  client: {sources: [{client_address: {}}]}
routes:
  - {name: health, path: /healthz, exempt: true}
  - {name: export, path: /export, cost: 5}
policies:
  - {name: guard, scope: local, key: [client], limit: {token_bucket: {capacity: 1000, refill: 1/s}}}
  - {name: per-key, scope: global, key: [key], on_failure: closed, MODE limit: {token_bucket: {capacity: 10, refill: 1/s}}}
  - {name: trial, scope: global, key: [key], on_failure: open, enforce: shadow, limit: {fixed_window: {capacity: 5, window: minute}}}
"#;

/// 2026-12-02T10:00:00Z
const TEN: u64 = 1_796_205_600_000;

fn line(millis: u64, path: &str, key: &str) -> String {
    format!(r#"{{"ts":{},"method":"GET","path":"{path}","x_api_key":"{key}","client_ip":"203.0.113.9"}}"#, TEN + millis)
}

fn hash_key(_: &str) -> Option<String> {
    Some("0123456789abcdef".into())
}

/// The reports of logs with these lines.
fn replayed(policy: &str, logs: &[Vec<String>], env: &dyn Fn(&str) -> Option<String>) -> Result<Report, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let names: Vec<String> = (0..logs.len()).map(|log| format!("{}/{log}.log", folder.path().display())).collect();
    for (name, lines) in names.iter().zip(logs) {
        std::fs::write(name, lines.join("\n")).expect("written");
    }
    let source = Source { name: "policy.yaml".into(), text: policy.into() };
    let (report, held) = check::examine(&source, env);
    assert!(!held.is_empty(), "{}", report.text(&Renderer::plain()));
    let mut report = replay(&held, &names, &Fields::default())?.remove(0);
    // Where it is differs from run to run.
    let bare = |text: &mut String| *text = text.replace(&format!("{}/", folder.path().display()), "");
    report.logs.iter_mut().for_each(bare);
    report.notes.iter_mut().for_each(bare);
    report.policies.iter_mut().flat_map(|policy| &mut policy.most_rejected).for_each(|key| bare(&mut key.place));
    Ok(report)
}

fn exact() -> String {
    POLICY.replace("MODE", "mode: exact,")
}

#[test]
fn what_is_rejected_is_what_the_limits_say() {
    // Ten at once, then one each second; the class that costs five; an exempt one; another key.
    let mut log: Vec<String> = (0..15).map(|_| line(0, "/", "s3cret-a")).collect();
    log.extend([999, 1000, 1001].map(|at| line(at, "/", "s3cret-a")));
    log.push(line(2000, "/export", "s3cret-b"));
    log.push(line(2000, "/export", "s3cret-b"));
    log.push(line(2999, "/export", "s3cret-b"));
    log.push(line(3000, "/healthz", "s3cret-b"));
    let report = replayed(&exact(), &[log], &hash_key).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((report.requests, report.exempt, report.rejected, report.admitted), (22, 1, 8, 14));
    let policy = |name: &str| report.policies.iter().find(|policy| policy.name == name).expect("a policy");
    // Nine hundred and ninety-nine milliseconds are not one unit.
    assert_eq!((policy("per-key").requests, policy("per-key").rejected), (21, 8));
    assert_eq!((policy("guard").rejected, policy("guard").outcomes["not_charged"]), (0, 8));
    // A policy in shadow is asked whatever the others say: 5 of 18 of one key, and one of the export.
    let trial = policy("trial");
    assert_eq!((trial.rejected, trial.shadow_denied, trial.outcomes["shadow_allowed"]), (0, 15, 6));
    let worst = &policy("per-key").most_rejected[0];
    assert_eq!((worst.requests, worst.rejected, worst.place.as_str()), (18, 7, "0.log:11"));
    assert_eq!(worst.first_rejected, "2026-12-02T10:00:00Z");
    insta::assert_snapshot!(report.to_string());
}

#[test]
fn leases_admit_no_more_than_the_limit() {
    // Twenty a second for a minute, of a bucket of ten and one a second.
    let log: Vec<String> = (0..1200).map(|place| line(place * 50, "/", "a")).collect();
    let exact = replayed(&exact(), std::slice::from_ref(&log), &hash_key).expect("replayed");
    let leased = replayed(&POLICY.replace("MODE", "mode: leased,"), &[log], &hash_key).expect("replayed");
    assert_eq!(exact.admitted, 69, "ten, and one for each second that has passed");
    assert!((60..=69).contains(&leased.admitted), "{}", leased.admitted);
}

#[test]
fn lines_that_are_out_of_order_are_put_in_order() {
    let mut log: Vec<String> = (0..30).map(|place| line(place * 100, "/", "a")).collect();
    let sorted = replayed(&exact(), &[log.clone()], &hash_key).expect("replayed");
    log.reverse();
    let (later, earlier) = log.split_at(15);
    let other = replayed(&exact(), &[later.to_vec(), earlier.to_vec()], &hash_key).expect("replayed");
    assert_eq!((sorted.admitted, sorted.rejected), (other.admitted, other.rejected));
    assert_eq!(sorted.timeline.requests, other.timeline.requests);
    assert_eq!(other.notes, [""; 0]);
}

#[test]
fn what_is_further_out_of_order_is_counted() {
    let mut log: Vec<String> = (0..70_000).map(|place| line(10_000 + place, "/healthz", "a")).collect();
    log.push(line(0, "/healthz", "a"));
    let report = replayed(&exact(), &[log], &hash_key).expect("replayed");
    assert!(report.notes[0].starts_with("1 requests are too far out of order"), "{:?}", report.notes);
}

#[test]
fn what_cannot_be_believed_is_noted() {
    let log = vec![
        String::from("s3cret"),
        String::new(),
        r#"203.0.113.9 - - [02/Dec/2026:10:00:00 +0000] "GET /?q=s3cret HTTP/1.1" 200 30"#.into(),
        "y".repeat(3 << 20),
        line(0, "/", "-"),
    ];
    let report = replayed(&exact(), &[log], &|_| None).expect("replayed");
    assert_eq!(report.requests, 2);
    let [lines, identity, hash_key] = &report.notes[..] else { panic!("{:?}", report.notes) };
    assert!(lines.starts_with("2 lines are no requests, and were left out; the first is 0.log:1: this is"), "{lines}");
    assert!(
        identity.ends_with("no request has a key: if the log has it, say where by --header x-api-key=FIELD"),
        "{identity}"
    );
    assert!(hash_key.starts_with("KEY is not set here"), "{hash_key}");
}

#[test]
fn logs_without_a_request_are_an_error() {
    let error = |logs: &[Vec<String>]| replayed(&exact(), logs, &hash_key).err().expect("an error");
    assert!(error(&[vec![]]).ends_with("is a request: they are empty"), "{}", error(&[vec![]]));
    let wrong = error(&[vec!["s3cret".into()]]);
    assert!(wrong.contains("0.log:1: this is neither JSON nor") && !wrong.contains("s3cret"), "{wrong}");
    let none = replay(&[], &["/nowhere".into()], &Fields::default()).err().expect("an error");
    assert!(none.starts_with("/nowhere: cannot be read: "), "{none}");
    let folder = replay(&[], &["/".into()], &Fields::default()).err().expect("an error");
    assert_eq!(folder, "/: cannot be read: it is a directory");
}

#[test]
fn the_page_needs_nothing_else_and_tells_no_value() {
    let log = (0..40).map(|place| line(place * 3_600_000, "/?q=s3cret", "s3cret-key")).collect();
    let report = replayed(&exact(), &[log], &hash_key).expect("replayed");
    let page = page::page("<i>&policy.yaml", &[report]);
    assert!(page.contains("&lt;i&gt;&amp;policy.yaml") && !page.contains("<i>"), "names are text");
    assert_eq!(page.matches("<svg").count(), 2);
    let linked = page.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http", "src=", "href=", "@import", "url(", "<script", "s3cret", "There is no plot"] {
        assert!(!linked.contains(outside), "{outside}");
    }
}

#[test]
fn a_long_log_has_a_short_timeline() {
    let log: Vec<String> = (0..2000).map(|place| line(place * 60_000, "/healthz", "a")).collect();
    let report = replayed(&exact(), &[log], &hash_key).expect("replayed");
    let Bins { seconds, requests, .. } = &report.timeline;
    assert!((120..=240).contains(&requests.len()), "{}", requests.len());
    assert_eq!(requests.iter().sum::<u64>(), 2000);
    assert!(*seconds * requests.len() as f64 >= 1999.0 * 60.0);
}

#[test]
fn the_page_is_written_over_nothing_that_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("access.log"), "").expect("written");
    let may_write = |page: String| {
        let args = ReplayArgs {
            file: path("policy.yaml"),
            logs: vec![path("access.log")],
            fields: FieldArgs::default(),
            format: Format::Text,
            html: Some(page.into()),
        };
        args.may_write()
    };
    assert_eq!(may_write(path("new.html")), Ok(()));
    assert_eq!(may_write("new.html".into()), Ok(()));
    for (page, why) in [
        (path("."), "it is a directory"),
        (path("none/new.html"), "there is no such directory"),
        (path("./access.log"), "it would be written over what is read"),
    ] {
        let error = may_write(page).expect_err("it is refused");
        assert!(error.starts_with("--html ") && error.ends_with(why), "{error}");
    }
}
