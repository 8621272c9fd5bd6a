//! The alerts and the dashboard: every metric in them, and every label and value that they select by, is one that a real
//! Envoy and a real endpoint show.

use crate::envoy::Site;
use crate::files::{path, text, yaml};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use tollgate_tests::skip;

/// What Prometheus itself adds to each series, and what a bucket is for.
const ADDED: [&str; 2] = ["instance", "le"];

#[test]
fn the_alerts_fire_for_what_they_are_for() {
    let promtool = std::env::var_os("PROMTOOL_BIN").unwrap_or_default();
    if !Path::new(&promtool).exists() {
        return skip("the_alerts_fire_for_what_they_are_for", "there is no promtool: tools/setup promtool says why");
    }
    for args in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]] {
        let output =
            Command::new(&promtool).args(args).current_dir(path("prometheus")).output().expect("promtool runs");
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    }
    let rules = yaml(&text("prometheus/alerts.yaml"));
    let tests = text("prometheus/alerts_test.yaml");
    for rule in rules["groups"][0]["rules"].as_array().expect("rules") {
        let name = rule["alert"].as_str().expect("a name");
        let times = tests.matches(&format!("alertname: {name}")).count();
        assert!(times >= 2, "{name} is not tested both when it fires and when it does not");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_of_the_alerts_and_the_dashboard_is_real() {
    // What is shown of a policy depends on it: this one can fail open, rejects, and is half in shadow.
    let half = json!({"name": "half", "scope": "global", "key": ["tenant"], "on_failure": "open", "enforce": "50%", "on_missing": "reject",
                      "limit": {"token_bucket": {"capacity": 10, "refill": "1/s"}}});
    let site = Site::start_with("edge.internal", &[half]).await;
    let series = Series::read(&[site.proxy_metrics().await, site.endpoint_metrics().await]);
    let mut selectors = 0;
    for (place, expression) in expressions() {
        for selector in Selector::all(&expression) {
            series.has(&place, &selector);
            selectors += 1;
        }
    }
    assert!(selectors > 50, "{selectors}");
    // It would be seen.
    let wrong = Selector::all("rate(tollgate_requests{outcome=\"alowed\"}[5m]) + tollgate_request");
    assert_eq!(wrong.len(), 2);
    assert!(wrong.iter().all(|selector| series.lacks(selector).is_some()));
}

/// The expressions of the alerts and of the dashboard's panels and variables.
fn expressions() -> Vec<(String, String)> {
    let mut all = Vec::new();
    let rules = yaml(&text("prometheus/alerts.yaml"));
    for rule in rules["groups"][0]["rules"].as_array().expect("rules") {
        all.push((rule["alert"].to_string(), rule["expr"].as_str().expect("an expression").to_owned()));
    }
    let dashboard: Value = serde_json::from_str(&text("grafana/tollgate.json")).expect("JSON");
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "$datasource");
            all.push((panel["title"].to_string(), target["expr"].as_str().expect("an expression").to_owned()));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        if let Some(query) = variable["query"]["query"].as_str() {
            all.push((variable["name"].to_string(), query.to_owned()));
        }
    }
    all
}

/// A metric's name, and what its labels are to be.
#[derive(Debug)]
struct Selector {
    name: String,
    /// Labels with the values that are spoken of.
    labels: Vec<(String, Vec<String>)>,
}

impl Selector {
    /// All that an expression selects: each name that begins as ours do.
    fn all(expression: &str) -> Vec<Self> {
        let mut found = Vec::new();
        let mut rest = expression;
        let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
        while let Some(start) = rest.find(is_name) {
            let end = rest[start..].find(|character| !is_name(character)).map_or(rest.len(), |length| start + length);
            let name = &rest[start..end];
            rest = &rest[end..];
            if name.starts_with("tollgate_") || name.starts_with("envoy_") {
                let inner = rest.strip_prefix('{').map(|inner| inner.split_once('}').expect("a brace").0);
                found.push(Self { name: name.to_owned(), labels: inner.map(labels).unwrap_or_default() });
            }
        }
        found
    }
}

/// `a="x", b=~"y|z.*"`
fn labels(text: &str) -> Vec<(String, Vec<String>)> {
    let pairs = text.split("\", ").map(|pair| pair.trim_end_matches('"').split_once('"').expect("a quoted value"));
    let split = pairs.map(|(name, value)| {
        let name = name.trim_end_matches(['=', '~', '!']).to_owned();
        (name, value.split('|').map(str::to_owned).collect())
    });
    split.collect()
}

/// What is shown: metrics with the values of their labels.
struct Series(BTreeMap<String, BTreeMap<String, Vec<String>>>);

impl Series {
    fn read(pages: &[String]) -> Self {
        let mut all = BTreeMap::<String, BTreeMap<String, Vec<String>>>::new();
        for line in pages.iter().flat_map(|page| page.lines()).filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().expect("a name");
            let found = all.entry(name.to_owned()).or_default();
            let Some((inner, _)) = line.split_once('{').and_then(|(_, rest)| rest.split_once('}')) else { continue };
            for pair in inner.split(',').filter_map(|pair| pair.split_once('=')) {
                found.entry(pair.0.to_owned()).or_default().push(pair.1.trim_matches('"').to_owned());
            }
        }
        Self(all)
    }

    fn has(&self, place: &str, selector: &Selector) {
        if let Some(lack) = self.lacks(selector) {
            panic!("{place}: {lack}");
        }
    }

    fn lacks(&self, selector: &Selector) -> Option<String> {
        let name = &selector.name;
        let Some(labels) = self.0.get(name) else { return Some(format!("nothing shows {name}")) };
        for (label, values) in &selector.labels {
            if ADDED.contains(&label.as_str()) {
                continue;
            }
            let Some(known) = labels.get(label) else { return Some(format!("{name} has no label {label}")) };
            for value in values.iter().filter(|value| !value.starts_with('$')) {
                let fits = match value.strip_suffix(".*") {
                    Some(prefix) => known.iter().any(|one| one.starts_with(prefix)),
                    None => known.contains(value),
                };
                if !fits {
                    return Some(format!("{name} has no {label} {value}, but {known:?}"));
                }
            }
        }
        None
    }
}
