//! From a [`Tree`] to a [`PolicySet`]: every field, its bounds, and what fits together.

mod budget;
mod identity;
mod limit;
mod responses;
mod route;

use super::bounds::{
    MAX_BREAKER_TIME, MAX_FAILURES, MAX_HEADER_NAME, MAX_IN_FLIGHT, MAX_POLICIES, MIN_SECRET, MIN_SPAN,
};
use super::node::{Fields, Issues, Node, PolicyErrors};
use super::{AuthToken, Endpoint, MAX_TIMEOUT, PolicySet, Responses};
use crate::breaker::Breaker;
use crate::key::HashKey;
use crate::tree::Tree;
use crate::units::Micros;
use budget::Names;

/// A request that waits longer than this for its verdict is hardly worth waiting for.
const LONG_TIMEOUT: Micros = Micros::from_secs(1);

type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(super) fn policy_set(bytes: &[u8], env: Env<'_>) -> Result<PolicySet, PolicyErrors> {
    let tree = Tree::read(bytes).map_err(PolicyErrors::whole)?;
    let issues = Issues::default();
    let set = Node::root(&tree, &issues)
        .fields(&[
            "version",
            "hash_key",
            "namespace",
            "endpoint",
            "identities",
            "routes",
            "policies",
            "responses",
            "logs",
        ])
        .and_then(|fields| read_set(&fields, env));
    let Issues { errors, warnings } = issues;
    let errors = errors.into_inner();
    match set {
        Some(set) if errors.is_empty() => Ok(PolicySet { warnings: warnings.into_inner(), ..set }),
        _ if errors.is_empty() => Err(PolicyErrors::whole("the configuration cannot be used".into())),
        _ => Err(PolicyErrors::new(errors)),
    }
}

/// Reads all parts, even when one is wrong, so that all errors are found.
fn read_set(fields: &Fields<'_>, env: Env<'_>) -> Option<PolicySet> {
    let version = fields.get("version").and_then(|node| node.text()).map(String::from);
    let secrets = fields.get("hash_key").map(|node| hash_keys(&node, env));
    let namespace = fields.get("namespace").map(|node| node.name());
    let endpoint = fields.get("endpoint").map(|node| endpoint(&node, env));
    let identities = fields.get("identities").map_or_else(Vec::new, |node| identity::identities(&node));
    let routes = fields.get("routes").map_or_else(Vec::new, |node| route::routes(&node));
    let hash_keys = match secrets {
        Some(secrets) => secrets,
        None if identities.is_empty() => Some(vec![HashKey::new(b"")]),
        None => {
            let purpose = "identities leave the proxy only as keyed hashes; write {env: TOLLGATE_HASH_KEY}, with the same \
                           secret for every proxy";
            fields.required("hash_key", purpose).and(None)
        }
    };
    let hash_keys: Option<Vec<HashKey>> = match namespace {
        None => hash_keys,
        Some(name) => name.zip(hash_keys).map(|(name, keys)| keys.iter().map(|key| key.within(name)).collect()),
    };
    let names = Names { identities: &identities, routes: &routes };
    let first_key = hash_keys.as_ref().and_then(|keys| keys.first());
    let (policies, is_global) = fields
        .required("policies", "a list of budgets")
        .map_or_else(Default::default, |node| budget::policies(&node, &names, first_key.unwrap_or(&HashKey::new(b""))));
    let responses =
        fields.get("responses").map_or_else(|| Some(Responses::default()), |node| responses::responses(&node));
    let logged_rejections = fields.get("logs").map_or(Some(100), |node| {
        node.fields(&["rejections"])?.get("rejections").map_or(Some(100), |node| node.percentage())
    });
    match fields.get("endpoint") {
        None if is_global => {
            fields.required("endpoint", "a policy of scope global needs {cluster: …}, an Envoy cluster");
        }
        Some(node) if !is_global => node.warn("no policy is of scope global, so the endpoint is never asked"),
        _ => {}
    }
    if hash_keys.as_ref().is_some_and(|keys| keys.len() > 1)
        && policies.len().saturating_mul(2) > MAX_POLICIES
        && let Some(node) = fields.get("policies")
    {
        node.refuse::<()>(format!(
            "while hash_key has a previous one each policy counts twice, so there can be {} of them",
            MAX_POLICIES / 2
        ));
    }
    budget::warn_of_idle(fields, &policies, &names);
    Some(PolicySet {
        version,
        endpoint: endpoint.flatten(),
        responses: responses?,
        logged_rejections: logged_rejections?,
        hash_keys: hash_keys?,
        identities,
        routes,
        policies,
        warnings: Vec::new(),
    })
}

/// The hash key, and the one before it.
fn hash_keys(node: &Node<'_>, env: Env<'_>) -> Option<Vec<HashKey>> {
    let hash_key = |text: &str| HashKey::new(text.as_bytes());
    let secret = self::secret(node, &["previous"], env);
    let previous = match secret {
        Some(_) => node.fields(&["env", "value", "previous"])?.get("previous"),
        None => node.peek("previous"),
    };
    let Some(previous) = previous else { return Some(vec![hash_key(&secret?.0)]) };
    let before = self::secret(&previous, &[], env);
    let ((secret, _), (before, place)) = (secret?, before?);
    if before == secret {
        return place.refuse("is the same secret as the hash key itself: leave `previous` out");
    }
    Some(vec![hash_key(&secret), hash_key(&before)])
}

/// A secret from the environment or as it stands, and where it stands.
fn secret<'a>(node: &Node<'a>, beside: &[&str], env: Env<'_>) -> Option<(String, Node<'a>)> {
    let (kind, value) = node.choice_beside(&["env", "value"], beside, "{env: TOLLGATE_HASH_KEY}")?;
    let text = value.text()?;
    let secret = if kind == "env" {
        match env(text) {
            Some(secret) => secret,
            None => {
                return value.refuse(format!(
                    "the environment variable {text} is not set; Envoy passes on only those listed in \
                     vm_config.environment_variables.host_env_keys"
                ));
            }
        }
    } else {
        text.into()
    };
    if secret.len() < MIN_SECRET {
        return value.refuse(format!("the secret must have at least {MIN_SECRET} bytes, has {}", secret.len()));
    }
    Some((secret, value))
}

fn endpoint(node: &Node<'_>, env: Env<'_>) -> Option<Endpoint> {
    let fields = node.fields(&["cluster", "timeout", "auth_token", "max_in_flight", "breaker"])?;
    let cluster = fields
        .required("cluster", "the name of an Envoy cluster")
        .and_then(|node| node.filled_text().map(String::from));
    let timeout = fields.get("timeout").map_or(Some(Micros::from_millis(50)), |node| {
        let timeout = node.duration(MIN_SPAN, MAX_TIMEOUT)?;
        if timeout > LONG_TIMEOUT {
            node.warn(format!("a request waits up to {timeout} before the fail mode applies: 50ms is usual"));
        }
        Some(timeout)
    });
    let max_in_flight = fields.get("max_in_flight").map_or(Some(256), |node| node.whole(1, MAX_IN_FLIGHT));
    let auth_token = fields.optional("auth_token", |node| auth_token(node, env));
    let breaker = fields.get("breaker").map_or(Some(Some(Breaker::default())), |node| breaker(&node));
    Some(Endpoint {
        breaker: breaker?,
        cluster: cluster?,
        timeout: timeout?,
        auth_token: auth_token?,
        max_in_flight: u32::try_from(max_in_flight?).ok()?,
    })
}

/// `none`, or `{failures: 5, within: 10s, open_for: 2s}`.
fn breaker(node: &Node<'_>) -> Option<Option<Breaker>> {
    if node.as_word().is_some() {
        return node.word(&[("none", None)]);
    }
    let fields = node.fields(&["failures", "within", "open_for"])?;
    let usual = Breaker::default();
    let time = |name: &str, usual: Micros| {
        fields.get(name).map_or(Some(usual), |node| node.duration(MIN_SPAN, MAX_BREAKER_TIME))
    };
    let failures = fields
        .get("failures")
        .map_or(Some(usual.failures), |node| node.whole(1, MAX_FAILURES).and_then(|count| u32::try_from(count).ok()));
    let (within, open_for) = (time("within", usual.within), time("open_for", usual.open_for));
    Some(Some(Breaker { failures: failures?, within: within?, open_for: open_for? }))
}

/// A bearer token, as a header can carry it (RFC 6750 §2.1).
fn auth_token(node: &Node<'_>, env: Env<'_>) -> Option<AuthToken> {
    let (secret, value) = secret(node, &[], env)?;
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b);
    if !secret.bytes().all(legal) {
        return value.refuse("a bearer token has letters, digits and -._~+/= alone");
    }
    Some(AuthToken(format!("Bearer {secret}")))
}

/// What each item reads as. One that is there already is refused.
fn without_repeats<T: PartialEq>(list: &[Node<'_>], read: impl Fn(&Node<'_>) -> Option<T>) -> Vec<T> {
    let mut known = Vec::new();
    for node in list {
        let Some(item) = read(node) else { continue };
        if known.contains(&item) {
            node.refuse::<()>("is in the list already");
        }
        known.push(item);
    }
    known
}

/// What all items read as; `None` when one of them is wrong. One that is there already is refused.
fn all<T: PartialEq>(list: &[Node<'_>], read: impl Fn(&Node<'_>) -> Option<T>) -> Option<Vec<T>> {
    let items = without_repeats(list, read);
    (items.len() == list.len()).then_some(items)
}

/// A header's name, in lower case.
fn header_name(node: &Node<'_>) -> Option<String> {
    let name = node.text()?;
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || name.len() > MAX_HEADER_NAME || !name.bytes().all(token) {
        return node.refuse(format!("{name:?} is not a header name"));
    }
    Some(name.to_ascii_lowercase())
}
