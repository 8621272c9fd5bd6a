//! What the file around a policy says about it: how the filter is run, and whether what the policy needs is there.

use crate::check::find::{Found, Host, span_of};
use crate::check::report::Finding;
use crate::document::{Dialect, Node};
use tollgate_core::policy::PolicySet;
use tollgate_core::units::Micros;

/// What the filter calls and what it is called by. Without the first ones it does not start; without others it does, and
/// decides nothing, or says nothing of what it has decided.
pub const CALLS: &[&str] = &[
    // WASI
    "clock_time_get",
    "environ_get",
    "environ_sizes_get",
    "random_get",
    // The host's
    "proxy_continue_stream",
    "proxy_define_metric",
    "proxy_dequeue_shared_queue",
    "proxy_enqueue_shared_queue",
    "proxy_get_buffer_bytes",
    "proxy_get_header_map_pairs",
    "proxy_get_property",
    "proxy_get_shared_data",
    "proxy_http_call",
    "proxy_increment_metric",
    "proxy_log",
    "proxy_record_metric",
    "proxy_register_shared_queue",
    "proxy_replace_header_map_value",
    "proxy_send_local_response",
    "proxy_set_effective_context",
    "proxy_set_property",
    "proxy_set_shared_data",
    "proxy_set_tick_period_milliseconds",
    // The filter's own, which the host calls
    "proxy_on_configure",
    "proxy_on_context_create",
    "proxy_on_delete",
    "proxy_on_done",
    "proxy_on_http_call_response",
    "proxy_on_log",
    "proxy_on_queue_ready",
    "proxy_on_request_body",
    "proxy_on_request_headers",
    "proxy_on_request_trailers",
    "proxy_on_response_headers",
    "proxy_on_tick",
    "proxy_on_vm_start",
];

/// The variables of the environment that a policy names, where it names them.
pub struct Variables<'a>(pub Vec<(&'a Node, &'a str)>);

impl<'a> Variables<'a> {
    pub fn of(policy: &'a Node) -> Self {
        let mut variables = Vec::new();
        collect(policy, &mut variables);
        Self(variables)
    }
}

/// `env: NAME` at any depth.
fn collect<'a>(node: &'a Node, variables: &mut Vec<(&'a Node, &'a str)>) {
    if let Some(entry) = node.entry("env")
        && let Some(name) = entry.node.text()
    {
        variables.push((&entry.node, name));
    }
    node.items().iter().chain(node.entries().iter().map(|entry| &entry.node)).for_each(|node| collect(node, variables));
}

/// What is wrong around a policy, whether or not it is right itself.
pub fn check(found: &Found<'_>, set: Option<&PolicySet>) -> Vec<Finding> {
    let mut findings = Vec::new();
    match &found.host {
        Host::None => {}
        Host::Envoy { plugin, manager, root } => {
            envoy_plugin(plugin, &mut findings);
            environment(found, &envoy_environment(plugin), ENVOY_LIST, &mut findings);
            if let Some(manager) = manager {
                paths(manager, found.dialect, &mut findings);
            }
            if let Some(set) = set {
                cluster(found, set, root, &mut findings);
                timeouts(found, set, manager.unwrap_or(root), &mut findings);
            }
        }
        Host::Istio(spec) => {
            let names = spec.at(&["vm_config", "env"]).map(Node::items).unwrap_or_default();
            let names = names.iter().filter_map(|one| one.field("name")?.text()).collect::<Vec<&str>>();
            environment(found, &names, "vmConfig.env (with `valueFrom: HOST`)", &mut findings);
            let strategy = spec.field("fail_strategy").and_then(Node::text);
            if strategy != Some("FAIL_RELOAD") {
                findings.push(Finding::warning(
                    &span_of(spec, "fail_strategy"),
                    "set `failStrategy: FAIL_RELOAD`: should the filter ever trap, it is loaded again; by the default, \
                     FAIL_CLOSE, every request then fails, and with FAIL_OPEN every request passes unlimited",
                ));
            }
        }
        Host::EnvoyGateway(wasm) => {
            let names = wasm.at(&["env", "host_keys"]).map(Node::items).unwrap_or_default();
            environment(
                found,
                &names.iter().filter_map(Node::text).collect::<Vec<&str>>(),
                "env.hostKeys",
                &mut findings,
            );
            if let Some(open) = wasm.field("fail_open").filter(|open| open.is_true(found.dialect)) {
                findings.push(Finding::warning(
                    &open.span,
                    "with `failOpen: true` every request passes unlimited should the filter ever fail to load or trap",
                ));
            }
        }
    }
    findings
}

fn envoy_plugin(plugin: &Node, findings: &mut Vec<Finding>) {
    if plugin.field("failure_policy").and_then(Node::text) != Some("FAIL_RELOAD") {
        findings.push(Finding::warning(
            &span_of(plugin, "failure_policy"),
            "set `failure_policy: FAIL_RELOAD`: should the filter ever trap, it is loaded again; by the default, \
             FAIL_CLOSED, every request then fails, and with FAIL_OPEN every request passes unlimited",
        ));
    }
    // Beside vm_config it is deprecated since Envoy 1.40, and still holds.
    let places: [&[&str]; 2] = [
        &["vm_config", "capability_restriction_config", "allowed_capabilities"],
        &["capability_restriction_config", "allowed_capabilities"],
    ];
    for allowed in places.iter().filter_map(|place| plugin.at(place)) {
        capabilities(allowed, findings);
    }
}

fn capabilities(allowed: &Node, findings: &mut Vec<Finding>) {
    let missing: Vec<&str> =
        CALLS.iter().copied().filter(|call| allowed.entries().iter().all(|entry| entry.name != *call)).collect();
    // An empty list restricts nothing.
    if !allowed.entries().is_empty() && !missing.is_empty() {
        let message = format!(
            "without these capabilities the filter does not start, or limits nothing: add {}",
            missing.join(", ")
        );
        findings.push(Finding::error(&allowed.span, message));
    }
}

const ENVOY_LIST: &str = "vm_config.environment_variables.host_env_keys";

fn envoy_environment(plugin: &Node) -> Vec<&str> {
    let Some(variables) = plugin.at(&["vm_config", "environment_variables"]) else { return Vec::new() };
    let of_host = variables.field("host_env_keys").map(Node::items).unwrap_or_default();
    let given = variables.field("key_values").map(Node::entries).unwrap_or_default();
    of_host.iter().filter_map(Node::text).chain(given.iter().map(|entry| entry.name.as_str())).collect()
}

/// The host passes on only the variables that it is told to.
fn environment(found: &Found<'_>, passed: &[&str], list: &str, findings: &mut Vec<Finding>) {
    for (node, name) in Variables::of(&found.policy).0 {
        if !passed.contains(&name) {
            let message =
                format!("the filter cannot see the variable {name}, and refuses the policy: add it to {list}");
            findings.push(Finding::error(&node.span, message));
        }
    }
}

/// Paths that a service reads otherwise than the limits do.
fn paths(manager: &Node, dialect: Dialect, findings: &mut Vec<Finding>) {
    let missing: Vec<&str> = ["normalize_path", "merge_slashes"]
        .into_iter()
        .filter(|name| !manager.field(name).is_some_and(|value| value.is_true(dialect)))
        .collect();
    if !missing.is_empty() {
        let at = manager.entries().iter().find(|entry| missing.contains(&entry.name.as_str()));
        let filters =
            manager.entries().iter().find(|entry| entry.name == "http_filters" || entry.name == "httpFilters");
        let span = at.or(filters).map_or(&manager.span, |entry| &entry.name_span);
        findings.push(Finding::warning(
            span,
            format!(
                "set {} on this connection manager: else a service may read a path otherwise than the limits do",
                missing.iter().map(|name| format!("`{name}: true`")).collect::<Vec<String>>().join(" and ")
            ),
        ));
    }
}

/// The endpoint's cluster, where the file holds all clusters.
fn cluster(found: &Found<'_>, set: &PolicySet, root: &Node, findings: &mut Vec<Finding>) {
    let Some(endpoint) = &set.endpoint else { return };
    let Some(clusters) = root.at(&["static_resources", "clusters"]).map(Node::items) else { return };
    if root.at(&["dynamic_resources", "cds_config"]).is_some()
        || root.at(&["dynamic_resources", "ads_config"]).is_some()
    {
        return;
    }
    let names: Vec<&str> = clusters.iter().filter_map(|cluster| cluster.field("name")?.text()).collect();
    if !names.contains(&endpoint.cluster.as_str()) {
        let meant = tollgate_core::policy::nearest(&endpoint.cluster, &names);
        let rest =
            meant.map_or_else(|| format!("there are {}", names.join(", ")), |name| format!("did you mean {name:?}?"));
        let (node, _) = found.policy.find("endpoint.cluster");
        let message = format!("there is no cluster {:?} in this file, so every call fails: {rest}", endpoint.cluster);
        findings.push(Finding { path: "endpoint.cluster".into(), ..Finding::warning(&node.span, message) });
    }
}

/// A request that waits for the endpoint longer than its route allows.
fn timeouts(found: &Found<'_>, set: &PolicySet, within: &Node, findings: &mut Vec<Finding>) {
    let Some(endpoint) = &set.endpoint else { return };
    let mut shortest: Option<(Micros, &Node)> = None;
    route_timeouts(within, &mut shortest);
    if let Some((timeout, node)) = shortest.filter(|(timeout, _)| endpoint.timeout >= *timeout) {
        let (own, _) = found.policy.find("endpoint.timeout");
        let written = node.text().unwrap_or_default();
        let message = format!(
            "a request may wait {} for its verdict, and a route gives it {written} in all: make this shorter than {timeout}",
            endpoint.timeout
        );
        findings.push(Finding { path: "endpoint.timeout".into(), ..Finding::warning(&own.span, message) });
    }
}

/// The shortest `route: {timeout: …}`, at any depth; 0 stands for none.
fn route_timeouts<'a>(node: &'a Node, shortest: &mut Option<(Micros, &'a Node)>) {
    if let Some(timeout) = node.at(&["route", "timeout"])
        && let Some(span) = timeout.text().and_then(seconds).filter(|span| *span > Micros::ZERO)
        && shortest.is_none_or(|(known, _)| span < known)
    {
        *shortest = Some((span, timeout));
    }
    node.items()
        .iter()
        .chain(node.entries().iter().map(|entry| &entry.node))
        .for_each(|node| route_timeouts(node, shortest));
}

/// A protobuf duration, such as `0.05s`.
fn seconds(text: &str) -> Option<Micros> {
    let seconds: f64 = text.strip_suffix('s')?.parse().ok()?;
    (seconds.is_finite() && seconds >= 0.0).then(|| Micros::new((seconds * 1e6) as u64))
}
