//! Route classes: the only form in which a request's path, host and headers reach a key or a label.

use super::cost::CostRule;
use crate::facts::{Attribute, Facts, Header};
use crate::path::{NormalPath, Template};
use core::cell::{Cell, OnceCell};

/// A request's route class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The one at this place in the list.
    Listed(usize),
    /// None of them.
    Other,
}

/// What is known of the requests of one class. All that is there has to match.
#[derive(Debug)]
pub struct RouteClass {
    /// Unique in its set; used in keys and metrics.
    pub name: String,
    /// Methods in capitals, where GET is HEAD too.
    pub methods: Option<Vec<String>>,
    /// The host that is asked for.
    pub host: Option<HostPattern>,
    /// The path.
    pub path: Option<Template>,
    /// Headers.
    pub headers: Vec<HeaderMatch>,
    /// The name of Envoy's route.
    pub envoy_route: Option<String>,
    /// No policy applies.
    pub exempt: bool,
    /// What one request costs.
    pub cost: CostRule,
}

/// A host: `api.example.com`, or `*.example.com` for every name below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern(String);

/// What a header has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    /// In lower case.
    pub name: String,
    /// What its value has to be.
    pub value: ValueMatch,
}

/// What a value has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueMatch {
    /// Sent, or not sent.
    Present(bool),
    /// Sent once, and just this.
    Exact(String),
    /// Sent once, and beginning with this.
    Prefix(String),
}

impl HostPattern {
    /// # Errors
    /// Says what is wrong: a port, a scheme, or a `*` elsewhere than in front.
    pub fn new(text: &str) -> Result<Self, String> {
        let name = text.strip_prefix("*.").unwrap_or(text);
        if text.contains('/') {
            return Err(format!("{text:?} is a URL: write the host alone, such as api.example.com"));
        }
        if name.contains('*') {
            return Err(format!("{text:?}: a * stands for the front of a host alone, as in *.example.com"));
        }
        if without_port(name.as_bytes()).len() < name.len() && !name.ends_with('.') {
            return Err(format!("{text:?}: the port takes no part, so leave it out"));
        }
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
        if name.is_empty() || !name.bytes().all(legal) {
            return Err(format!("{text:?} is not a host, such as api.example.com or *.example.com"));
        }
        Ok(Self(text.trim_end_matches('.').to_ascii_lowercase()))
    }

    /// As it was written, in lower case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn matches(&self, host: &[u8]) -> bool {
        match self.0.strip_prefix('*') {
            // With its dot: `*.example.com` is not `example.com`, nor `badexample.com`.
            Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix.as_bytes()),
            None => host == self.0.as_bytes(),
        }
    }

    fn covers(&self, other: &Self) -> bool {
        self == other || (self.0.starts_with('*') && self.matches(other.0.trim_start_matches('*').as_bytes()))
    }
}

/// A host without its port, and without the dot that may end a name.
fn without_port(host: &[u8]) -> &[u8] {
    let digits = host.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (front, _) = host.split_at(host.len().saturating_sub(digits));
    let name = match front {
        // Of an address such as [::1] the colons within the brackets are no port's.
        [name @ .., b':'] if !name.contains(&b':') || name.ends_with(b"]") => name,
        _ => host,
    };
    name.strip_suffix(b".").unwrap_or(name)
}

/// A request as route classes look at it: each fact once, when the first class needs it.
pub(super) struct Subject<'a> {
    facts: &'a dyn Facts,
    method: OnceCell<Vec<u8>>,
    host: OnceCell<Vec<u8>>,
    /// The plain path, and then those of servers which read it differently, where they are others.
    paths: OnceCell<Vec<NormalPath>>,
    /// Whether a header was looked at that was sent several times.
    repeated: Cell<bool>,
}

/// One way to take a request that can be taken in several.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    /// Which of the path's readings it is.
    path: usize,
    /// Whether a header that was sent several times has the value that is looked for.
    repeated_header: bool,
}

impl Reading {
    /// The one that is always there.
    pub(super) const PLAIN: Self = Self { path: 0, repeated_header: false };

    /// All that there can be; the first is the plain one.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..NormalPath::MAX_READINGS)
            .flat_map(|path| [false, true].map(|repeated_header| Self { path, repeated_header }))
    }
}

impl<'a> Subject<'a> {
    pub(super) const fn new(facts: &'a dyn Facts) -> Self {
        Self {
            facts,
            method: OnceCell::new(),
            host: OnceCell::new(),
            paths: OnceCell::new(),
            repeated: Cell::new(false),
        }
    }

    /// Whether another reading than the plain one can lead elsewhere, by what has been looked at so far.
    pub(super) fn can_be_read(&self, reading: Reading) -> bool {
        let paths = self.paths.get().map_or(1, Vec::len);
        reading.path < paths && (!reading.repeated_header || self.repeated.get())
    }

    fn path(&self, reading: Reading) -> Option<&NormalPath> {
        self.paths.get_or_init(|| NormalPath::readings(&self.facts.path())).get(reading.path)
    }

    fn host(&self) -> &[u8] {
        self.host.get_or_init(|| without_port(&self.facts.host()).to_ascii_lowercase())
    }

    fn method(&self) -> &[u8] {
        self.method.get_or_init(|| self.facts.method())
    }
}

impl RouteClass {
    pub(super) fn matches(&self, request: &Subject<'_>, reading: Reading) -> bool {
        // HEAD is answered like GET (RFC 9110 §9.3.2), so it is limited like GET.
        let is =
            |listed: &String| listed.as_bytes() == request.method() || (listed == "GET" && request.method() == b"HEAD");
        let named = |name: &String| request.facts.attribute(&Attribute::RouteName).as_deref() == Some(name.as_bytes());
        self.methods.as_ref().is_none_or(|methods| methods.iter().any(is))
            && self.host.as_ref().is_none_or(|host| host.matches(request.host()))
            && self.path.as_ref().is_none_or(|path| request.path(reading).is_some_and(|given| path.matches(given)))
            && self.headers.iter().all(|header| header.matches(request, reading))
            && self.envoy_route.as_ref().is_none_or(named)
    }

    /// Whether every request of the other class is of this one.
    pub(super) fn takes_all_of(&self, other: &Self) -> bool {
        let methods = covers(self.methods.as_ref(), other.methods.as_ref(), |own, its| {
            its.iter().all(|method| own.contains(method))
        });
        methods
            && covers(self.host.as_ref(), other.host.as_ref(), HostPattern::covers)
            && self.takes_all_paths_of(other)
            && self.headers.iter().all(|header| other.headers.contains(header))
            && covers(self.envoy_route.as_ref(), other.envoy_route.as_ref(), |own, its| own == its)
    }

    /// Whether every request is of this class.
    pub(super) fn takes_all(&self) -> bool {
        self.methods.is_none()
            && self.host.is_none()
            && self.path.as_ref().is_none_or(Template::takes_all)
            && self.headers.is_empty()
            && self.envoy_route.is_none()
    }

    /// Whether a client can get into this class by what it writes into a header alone.
    pub(super) fn can_be_claimed(&self) -> bool {
        !self.headers.is_empty() && self.path.as_ref().is_none_or(Template::takes_all) && self.envoy_route.is_none()
    }

    fn takes_all_paths_of(&self, other: &Self) -> bool {
        match (&self.path, &other.path) {
            (Some(own), Some(its)) => own.covers(its),
            (Some(own), None) => own.takes_all(),
            (None, _) => true,
        }
    }
}

fn covers<T>(own: Option<&T>, its: Option<&T>, all: impl FnOnce(&T, &T) -> bool) -> bool {
    match (own, its) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(own), Some(its)) => all(own, its),
    }
}

impl HeaderMatch {
    fn matches(&self, request: &Subject<'_>, reading: Reading) -> bool {
        match (&self.value, request.facts.header(&self.name)) {
            (ValueMatch::Present(wanted), header) => *wanted == (header != Header::Absent),
            (_, Header::Several) => {
                request.repeated.set(true);
                reading.repeated_header
            }
            (ValueMatch::Exact(text), Header::One(value)) => value == text.as_bytes(),
            (ValueMatch::Prefix(text), Header::One(value)) => value.starts_with(text.as_bytes()),
            (_, Header::Absent) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_host_is_compared_without_case_port_and_final_dot() {
        let matches = |pattern: &str, host: &str| {
            let host = without_port(host.as_bytes()).to_ascii_lowercase();
            HostPattern::new(pattern).unwrap().matches(&host)
        };
        for same in ["api.example.com", "API.Example.com:8443", "api.example.com.", "api.example.com.:80"] {
            assert!(matches("api.Example.com", same), "{same}");
            assert!(matches("*.example.com", same), "{same}");
        }
        for other in ["example.com", "badexample.com", "api.example.com.evil.org", "", ":80", ".", "api.example.comx"] {
            assert!(!matches("*.example.com", other), "{other}");
        }
        assert!(matches("*.example.com", "a.b.example.com"));
        assert!(matches("[::1]", "[::1]:8080") && matches("[::1]", "[::1]"));
        assert!(matches("localhost", "localhost:1") && matches("127.0.0.1", "127.0.0.1:1"));
        for (text, reason) in [
            ("https://example.com", "is a URL"),
            ("example.com/x", "is a URL"),
            ("api.*.com", "the front of a host alone"),
            ("*", "the front of a host alone"),
            ("example.com:443", "leave it out"),
            ("", "is not a host"),
            ("a b", "is not a host"),
        ] {
            let error = HostPattern::new(text).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_host_covers_those_below_it() {
        let covers = |one: &str, other: &str| HostPattern::new(one).unwrap().covers(&HostPattern::new(other).unwrap());
        assert!(covers("*.example.com", "api.example.com") && covers("*.example.com", "*.api.example.com"));
        assert!(covers("a.example.com", "a.example.com") && covers("*.example.com", "*.example.com"));
        assert!(!covers("a.example.com", "*.example.com") && !covers("*.api.example.com", "*.example.com"));
        assert!(!covers("*.example.com", "example.com"));
    }
}
