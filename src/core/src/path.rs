//! Paths: one plain form for every spelling, and the templates that are matched against it.

/// A path in its plain form, as segments.
///
/// The query is cut, percent-encoding undone (but for the delimiters `/ \ ; ? #` and `%` itself, so that nothing is
/// undone twice), `;parameters` cut, dot segments removed, then repeated and trailing slashes, and `\` is taken for `/`
/// (as Envoy's own normalisation takes it). Case is kept. So a respelled path has the segments of its plain form
/// (RFC 3986 §6.2.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NormalPath(Vec<Vec<u8>>);

/// What servers do not agree on, each in its own way.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Dialect {
    /// Slashes are merged before dots are removed, so `//..` removes a named segment. By RFC 3986 §5.2.4, and in Envoy, it
    /// removes the empty one.
    merges_slashes: bool,
    /// Parameters are cut before dots are removed, so `..;x` removes a segment. By RFC 3986 it is a name like others.
    cuts_parameters: bool,
}

impl Dialect {
    /// All of them; that of RFC 3986 comes first.
    const ALL: [Self; 4] = [
        Self { merges_slashes: false, cuts_parameters: false },
        Self { merges_slashes: true, cuts_parameters: true },
        Self { merges_slashes: true, cuts_parameters: false },
        Self { merges_slashes: false, cuts_parameters: true },
    ];
}

impl NormalPath {
    /// Any bytes have a plain form: that of RFC 3986.
    #[must_use]
    pub fn new(raw: &[u8]) -> Self {
        Self::read(raw, Dialect::default())
    }

    /// How many readings a path can have.
    pub const MAX_READINGS: usize = Dialect::ALL.len();

    /// The plain form, and then those of servers which read dots differently, where they are others.
    #[must_use]
    pub fn readings(raw: &[u8]) -> Vec<Self> {
        let mut readings = vec![Self::new(raw)];
        // Only dot segments are read differently, and few paths have anything that could be one.
        let mut segments = raw.split(|byte| matches!(byte, b'/' | b'\\'));
        if segments.any(|segment| matches!(segment, [b'.' | b'%', ..])) {
            for dialect in Dialect::ALL.into_iter().skip(1) {
                let reading = Self::read(raw, dialect);
                if !readings.contains(&reading) {
                    readings.push(reading);
                }
            }
        }
        readings
    }

    fn read(raw: &[u8], dialect: Dialect) -> Self {
        let path = raw.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or_default();
        let path = path.strip_prefix(b"/").or_else(|| path.strip_prefix(b"\\")).unwrap_or(path);
        let mut segments: Vec<Vec<u8>> = Vec::new();
        for raw in path.split(|byte| matches!(byte, b'/' | b'\\')) {
            let name = raw.split(|byte| *byte == b';').next().unwrap_or_default();
            let segment = decode(name);
            let has_parameters = name.len() < raw.len();
            match segment.as_slice() {
                b"" if dialect.merges_slashes => {}
                b"." | b".." if has_parameters && !dialect.cuts_parameters => {
                    // A name, and written so that it stays one.
                    segments.push([segment.as_slice(), b";"].concat());
                }
                b"." => {}
                b".." => {
                    segments.pop();
                }
                _ => segments.push(segment),
            }
        }
        segments.retain(|segment| !segment.is_empty());
        Self(segments)
    }
}

/// Undoes percent-encoding, but for the delimiters and `%`, which keep it, with upper-case hexadecimal digits. A `%` that
/// encodes nothing stands for itself, and is encoded: with what is undone behind it, it could come to encode something.
fn decode(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if let (b'%', [high, low, tail @ ..]) = (*byte, after)
            && let (Some(high_value), Some(low_value)) = (hex(*high), hex(*low))
        {
            let decoded = high_value << 4 | low_value;
            rest = tail;
            if matches!(decoded, b'/' | b'\\' | b';' | b'?' | b'#' | b'%') {
                out.extend([b'%', high.to_ascii_uppercase(), low.to_ascii_uppercase()]);
            } else {
                out.push(decoded);
            }
        } else if *byte == b'%' {
            out.extend(b"%25");
        } else {
            out.push(*byte);
        }
    }
    out
}

/// Undoes the encoding of a name or a value in a query, as forms write it: `+` is a space.
pub(crate) fn decode_query(raw: &[u8]) -> Vec<u8> {
    undo_percent(&raw.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect::<Vec<u8>>())
}

/// Undoes all percent-encoding; a `%` that encodes nothing stands for itself.
pub(crate) fn undo_percent(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if let (b'%', [high, low, tail @ ..]) = (*byte, after)
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            rest = tail;
            out.push(high << 4 | low);
        } else {
            out.push(*byte);
        }
    }
    out
}

const fn hex(digit: u8) -> Option<u8> {
    Some(match digit {
        b'0'..=b'9' => digit.wrapping_sub(b'0'),
        b'a'..=b'f' => digit.wrapping_sub(b'a').wrapping_add(10),
        b'A'..=b'F' => digit.wrapping_sub(b'A').wrapping_add(10),
        _ => return None,
    })
}

/// A path template: literal segments, `{name}` or `*` for any one segment, and `**` at the end for any rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    text: String,
    segments: Vec<Segment>,
    /// Ends in `**`: any number of further segments, none included.
    open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(Vec<u8>),
    Any,
}

impl Template {
    /// # Errors
    /// Says what is wrong: no `/` at the start, a `**` before the end, or a segment that is partly a placeholder.
    pub fn new(text: &str) -> Result<Self, String> {
        let is_regular = text.as_bytes().windows(2).any(|pair| matches!(pair, b".*" | b"[^"));
        if text.starts_with('^') || is_regular {
            return Err(
                "is matched as it stands and not as a regular expression: {name} or * stands for one segment, \
                        ** for the rest"
                    .into(),
            );
        }
        let Some(body) = text.strip_prefix('/') else {
            return Err(format!("a path template starts with '/': \"/{text}\""));
        };
        let mut template = Self { text: text.into(), segments: Vec::new(), open: false };
        for part in body.split('/').filter(|part| !part.is_empty()) {
            if template.open {
                return Err("`**` stands for all the rest, so it can only come last".into());
            }
            match part {
                "**" => template.open = true,
                "*" => template.segments.push(Segment::Any),
                _ if is_placeholder(part) => template.segments.push(Segment::Any),
                _ if let Some(name) = placeholder_elsewhere(part) => {
                    return Err(format!(
                        "{part:?} is a placeholder elsewhere, and that very text here: write {{{name}}} for any one \
                         segment"
                    ));
                }
                _ if part.contains(['{', '}', '*']) => {
                    return Err(format!("{part:?}: a placeholder is a whole segment: {{name}}, * or, at the end, **"));
                }
                _ if part.contains(['?', '#', ';']) => {
                    return Err(format!("{part:?}: a template is matched without query and parameters"));
                }
                _ => match NormalPath::new(part.as_bytes()).0.as_slice() {
                    [plain] => template.segments.push(Segment::Literal(plain.clone())),
                    _ => return Err(format!("{part:?}: dot segments are removed before matching")),
                },
            }
        }
        Ok(template)
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether every path is of this form.
    #[must_use]
    pub const fn takes_all(&self) -> bool {
        self.open && self.segments.is_empty()
    }

    /// Whether every path of the other's form is of this form.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let lengths = if self.open {
            self.segments.len() <= other.segments.len()
        } else {
            !other.open && self.segments.len() == other.segments.len()
        };
        lengths && self.segments.iter().zip(&other.segments).all(|(own, its)| *own == Segment::Any || own == its)
    }

    /// Whether the path is of this form. Linear in the number of segments.
    #[must_use]
    pub fn matches(&self, path: &NormalPath) -> bool {
        let long_enough = path.0.len() >= self.segments.len();
        long_enough
            && (self.open || path.0.len() == self.segments.len())
            && self.segments.iter().zip(&path.0).all(|(segment, given)| match segment {
                Segment::Literal(literal) => literal == given,
                Segment::Any => true,
            })
    }
}

fn is_placeholder(part: &str) -> bool {
    part.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).is_some_and(is_placeholder_name)
}

/// The name in a segment such as `:id` or `<id>`. Text that begins with a colon can be written with `%3A`.
fn placeholder_elsewhere(part: &str) -> Option<&str> {
    let bracketed = || part.strip_prefix('<')?.strip_suffix('>')?.rsplit(':').next();
    part.strip_prefix(':').or_else(bracketed).filter(|name| is_placeholder_name(name))
}

fn is_placeholder_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn matches(template: &str, path: &str) -> bool {
        Template::new(template).unwrap().matches(&NormalPath::new(path.as_bytes()))
    }

    #[test]
    fn a_respelled_path_has_the_form_of_its_plain_one() {
        // F16, F18
        let plain = NormalPath::new(b"/api/login");
        for same in [
            "//api/login",
            "/api//login",
            "/./api/login",
            "/x/../api/login",
            "/api/%6cogin",
            "/api/%6Cogin",
            "/api/login/",
            "/api/login?x=1",
            "/api/login/?x=2",
            "/api/login?",
            "/api/login#x",
            "/api;v=1/login;a",
            "/%61pi/login",
            "/../../api/login",
            "/api/x/%2e%2e/login",
            "/api/x/.%2E/login",
            "/api\\login",
            "api/login",
        ] {
            assert_eq!(NormalPath::new(same.as_bytes()), plain, "{same}");
        }
        for other in ["/API/login", "/api/login%20", "/api%2Flogin", "/api/login%3Fx=1", "/api/login/x", "/api%5Clogin"]
        {
            assert_ne!(NormalPath::new(other.as_bytes()), plain, "{other}");
        }
        assert_eq!(NormalPath::new(b"/a%2fb"), NormalPath::new(b"/a%2Fb"));
    }

    #[test]
    fn every_character_may_be_written_in_two_ways() {
        for (plain, encoded) in [
            ("/v1/items:batch", "/v1/items%3Abatch"),
            ("/caf\u{e9}", "/caf%C3%a9"),
            ("/a b", "/a%20b"),
            ("/100%", "/100%25"),
            ("/%2%32", "/%252%32"),
            ("/a+b", "/a%2bb"),
            ("/%2F", "/%2f"),
            ("/a!$&'()*,=@", "/a%21%24%26%27%28%29%2a%2c%3d%40"),
        ] {
            assert_eq!(NormalPath::new(plain.as_bytes()), NormalPath::new(encoded.as_bytes()), "{encoded}");
        }
    }

    #[test]
    fn a_path_that_servers_read_in_several_ways_has_all_readings() {
        for (path, readings) in [
            ("/static//../v1/reports/7", &["/static/v1/reports/7", "/v1/reports/7"][..]),
            ("/v1/reports//..//..//../healthz", &["/v1/reports/healthz", "/healthz"]),
            ("/static/..;/v1/reports/7", &["/static/..;/v1/reports/7", "/v1/reports/7"]),
            ("/v1/reports/..;x=1/..;/../healthz", &["/v1/reports/..;/healthz", "/healthz"]),
            // Slashes and parameters are two questions.
            ("/health/x//../../paid/..;/../health", &["/health/paid/health", "/health", "/paid/health"]),
            ("/a//../..;/b", &["/a/..;/b", "/b", "/..;/b"]),
            ("/a/b", &["/a/b"]),
            ("//a//b/", &["/a/b"]),
            ("/a/../b", &["/b"]),
            ("/a;x/b", &["/a/b"]),
            ("/a/%2e%2e/b", &["/b"]),
        ] {
            let written = |path: &NormalPath| String::from_utf8([&b"/"[..], &path.0.join(&b'/')].concat()).unwrap();
            let found: Vec<String> = NormalPath::readings(path.as_bytes()).iter().map(written).collect();
            assert_eq!(found, readings, "{path}");
        }
    }

    #[test]
    fn any_bytes_have_a_plain_form() {
        for odd in [&b"/%"[..], b"/%f", b"/%zz", b"/\xff\x80", b"", b"*", b"/%25%32%65", b"?", b"/..;/.."] {
            let _ = NormalPath::new(odd);
        }
        // Decoded once, never twice: "%252e" is a literal "%2e", not a dot.
        assert_ne!(NormalPath::new(b"/a/%252e%252e/b"), NormalPath::new(b"/b"));
    }

    #[test]
    fn placeholders_stand_for_one_segment_and_two_stars_for_the_rest() {
        assert!(matches("/v1/tenants/{tenant}/reports", "/v1/tenants/acme/reports"));
        assert!(!matches("/v1/tenants/{tenant}/reports", "/v1/tenants/reports"));
        assert!(!matches("/v1/tenants/{tenant}/reports", "/v1/tenants/a/b/reports"));
        assert!(matches("/v1/*/x", "/v1/anything/x"));
        for (path, expected) in
            [("/v1/export", true), ("/v1/export/", true), ("/v1/export/a/b", true), ("/v1/exports", false)]
        {
            assert_eq!(matches("/v1/export/**", path), expected, "{path}");
        }
        assert!(matches("/v1/%3Aid", "/v1/:id") && matches("/items:batch", "/items%3abatch"), "a colon can be meant");
        assert!(matches("/", "/") && matches("/", "//") && !matches("/", "/a") && matches("/**", "/a/b"));
    }

    #[test]
    fn a_wider_template_covers_a_narrower_one() {
        let covers = |one: &str, other: &str| Template::new(one).unwrap().covers(&Template::new(other).unwrap());
        for (one, other) in [
            ("/**", "/a"),
            ("/**", "/**"),
            ("/a/**", "/a"),
            ("/a/**", "/a/{x}/**"),
            ("/a/{x}", "/a/b"),
            ("/a", "/a/"),
            ("/a/*", "/a/{x}"),
        ] {
            assert!(covers(one, other), "{one} {other}");
        }
        for (one, other) in
            [("/a", "/b"), ("/a/b", "/a/{x}"), ("/a/{x}", "/a/**"), ("/a/{x}", "/a"), ("/a/b/**", "/a/**")]
        {
            assert!(!covers(one, other), "{one} {other}");
        }
    }

    #[test]
    fn a_template_that_cannot_match_is_refused() {
        for (text, reason) in [
            ("v1", "starts with '/'"),
            ("^/v1/.*", "not as a regular expression"),
            ("/a/**/b", "come last"),
            ("/a/x{id}", "whole segment"),
            ("/a/{}", "whole segment"),
            ("/a/b*", "whole segment"),
            (
                "/v1/:id/x",
                "\":id\" is a placeholder elsewhere, and that very text here: write {id} for any one segment",
            ),
            ("/v1/<id>", "write {id} for any one segment"),
            ("/v1/<int:id>", "write {id} for any one segment"),
            ("/a?b=c", "without query"),
            ("/a/../b", "dot segments"),
        ] {
            let error = Template::new(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[cfg(not(target_arch = "wasm32"))]
    mod properties {
        use super::*;
        use proptest::prelude::*;

        proptest! {
            #![proptest_config(ProptestConfig::with_cases(10_000))]

            /// Writing the plain form out and normalising it again changes nothing: there is one plain form.
            #[test]
            fn the_plain_form_is_a_fixed_point(
                raw in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(&b"/.;%2eEfF5cC\\?#a"[..])], 0..60),
            ) {
                let plain = NormalPath::new(&raw);
                let mut written = vec![b'/'];
                written.extend(plain.0.join(&b'/'));
                prop_assert_eq!(NormalPath::new(&written), plain);
            }

            /// There is another reading whenever it is another path.
            #[test]
            fn no_other_reading_is_overlooked(
                raw in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(&b"/.;%2eE\\?#a"[..])], 0..30),
            ) {
                let readings = NormalPath::readings(&raw);
                prop_assert_eq!(&readings[0], &NormalPath::new(&raw));
                for dialect in Dialect::ALL {
                    prop_assert!(readings.contains(&NormalPath::read(&raw, dialect)));
                }
            }
        }
    }
}
