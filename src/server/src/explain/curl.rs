//! The request that a curl command line sends.

use super::request::{Body, Request};
use super::shell;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tollgate_core::policy::nearest;

/// What an option is to the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Method,
    Header,
    Cookie,
    Agent,
    Referer,
    User,
    Bearer,
    Range,
    Data,
    DataRaw,
    DataUrlencode,
    Json,
    Form,
    Upload,
    Get,
    Head,
    Compressed,
    Http2,
    Url,
    UrlQuery,
    Target,
    /// Nothing.
    Switch,
    /// Nothing, and it has a value.
    Setting,
    /// What it does cannot be known here.
    Refused(&'static str),
}

use Kind::{
    Agent, Bearer, Compressed, Cookie, Data, DataRaw, DataUrlencode, Form, Get, Head, Header, Http2, Json, Method,
    Range, Referer, Refused, Setting, Switch, Target, Upload, Url, UrlQuery, User,
};

const WORKED_OUT: &str = "works the authorization out with the server: write -H 'authorization: …'";
const FROM_FILE: &str = "reads from a file: write what is in it";

const OPTIONS: &[(&str, Option<char>, Kind)] = &[
    ("request", Some('X'), Method),
    ("header", Some('H'), Header),
    ("cookie", Some('b'), Cookie),
    ("user-agent", Some('A'), Agent),
    ("referer", Some('e'), Referer),
    ("user", Some('u'), User),
    ("oauth2-bearer", None, Bearer),
    ("range", Some('r'), Range),
    ("data", Some('d'), Data),
    ("data-ascii", None, Data),
    ("data-binary", None, Data),
    ("data-raw", None, DataRaw),
    ("data-urlencode", None, DataUrlencode),
    ("json", None, Json),
    ("form", Some('F'), Form),
    ("form-string", None, Form),
    ("upload-file", Some('T'), Upload),
    ("get", Some('G'), Get),
    ("head", Some('I'), Head),
    ("compressed", None, Compressed),
    ("http2", None, Http2),
    ("http2-prior-knowledge", None, Http2),
    ("http3", None, Http2),
    ("http3-only", None, Http2),
    ("url", None, Url),
    ("url-query", None, UrlQuery),
    ("request-target", None, Target),
    ("aws-sigv4", None, Refused(WORKED_OUT)),
    ("digest", None, Refused(WORKED_OUT)),
    ("negotiate", None, Refused(WORKED_OUT)),
    ("ntlm", None, Refused(WORKED_OUT)),
    ("netrc", Some('n'), Refused(FROM_FILE)),
    ("netrc-optional", None, Refused(FROM_FILE)),
    ("netrc-file", None, Refused(FROM_FILE)),
    ("config", Some('K'), Refused(FROM_FILE)),
    ("variable", None, Refused("is not known here: write the value in its place")),
    ("next", Some(':'), Refused("begins another request: explain each by itself")),
];

/// Options that change nothing of a request that a limit is about. A letter behind a name is its short form.
const SWITCHES: &str = "anyauth basic ca-native cert-status create-dirs crlf disable/q disallow-username-in-url \
    doh-insecure fail/f fail-early fail-with-body false-start globoff/g haproxy-protocol http0.9 http1.0/0 http1.1 \
    ignore-content-length include/i insecure/k ipv4/4 ipv6/6 junk-session-cookies/j location/L location-trusted alpn \
    buffer/N clobber keepalive progress-meter sessionid parallel/Z parallel-immediate path-as-is post301 post302 \
    post303 progress-bar/# proxy-anyauth proxy-basic proxy-digest proxy-insecure proxy-negotiate proxy-ntlm \
    proxytunnel/p raw remote-header-name/J remote-name/O remote-name-all remote-time/R remove-on-error \
    retry-all-errors retry-connrefused show-error/S silent/s ssl ssl-no-revoke ssl-reqd styled-output \
    suppress-connect-headers tcp-fastopen tcp-nodelay tlsv1/1 tlsv1.0 tlsv1.1 tlsv1.2 tlsv1.3 tr-encoding trace-ids \
    trace-time use-ascii/B verbose/v xattr";

/// The same, of those that have a value.
const SETTINGS: &str = "abstract-unix-socket alt-svc cacert capath cert/E cert-type ciphers connect-timeout connect-to \
    continue-at/C cookie-jar/c create-file-mode crlfile curves dns-interface dns-ipv4-addr dns-ipv6-addr dns-servers \
    doh-url dump-header/D ech engine etag-compare etag-save expect100-timeout happy-eyeballs-timeout-ms \
    haproxy-clientip hsts interface keepalive-time key key-type libcurl limit-rate local-port max-filesize max-redirs \
    max-time/m noproxy output/o output-dir parallel-max pass pinnedpubkey preproxy proto proto-default proto-redir \
    proxy/x proxy-cacert proxy-capath proxy-cert proxy-cert-type proxy-ciphers proxy-crlfile proxy-header proxy-key \
    proxy-key-type proxy-pass proxy-pinnedpubkey proxy-tls13-ciphers proxy-user/U proxy1.0 rate resolve retry \
    retry-delay retry-max-time service-name socks4 socks4a socks5 socks5-hostname speed-limit/Y speed-time/y stderr \
    time-cond/z tls-max tls13-ciphers trace trace-ascii trace-config unix-socket write-out/w";

/// Reads a line as a shell does, up to a pipe. An error never holds a value.
pub fn request(line: &str) -> Result<Request, String> {
    let line = line.trim_start();
    let words = shell::words(line.strip_prefix("$ ").unwrap_or(line))?;
    let mut words = words.into_iter().enumerate();
    if words.next().is_none_or(|(_, word)| word.rsplit('/').next() != Some("curl")) {
        return Err("the line begins with `curl`".into());
    }
    let mut curl = Curl::default();
    let mut only_urls = false;
    while let Some((index, word)) = words.next() {
        match (word.strip_prefix("--"), word.strip_prefix('-')) {
            (Some(""), _) if !only_urls => only_urls = true,
            (Some(name), _) if !only_urls => {
                let (kind, name) = long(name).ok_or_else(|| unknown(index + 1, name))?;
                let value = if kind.has_value() { words.next().map(|(_, value)| value) } else { Some(String::new()) };
                curl.take(kind, value.ok_or_else(|| format!("--{name} lacks its value"))?, &format!("--{name}"))?;
            }
            (None, Some(letters)) if !only_urls && !letters.is_empty() => {
                let mut letters = letters.chars();
                while let Some(letter) = letters.next() {
                    let kind = short(letter).ok_or_else(|| unknown(index + 1, ""))?;
                    let mut value = String::new();
                    if kind.has_value() {
                        value = letters.by_ref().collect();
                        if value.is_empty() {
                            (_, value) = words.next().ok_or_else(|| format!("-{letter} lacks its value"))?;
                        }
                    }
                    curl.take(kind, value, &format!("-{letter}"))?;
                }
            }
            _ => curl.urls.push(word),
        }
    }
    curl.request()
}

/// An option that is not known is not shown: it may be a value whose quotes were forgotten.
fn unknown(word: usize, name: &str) -> String {
    let known: Vec<&str> = names().map(|(name, _, _)| name).collect();
    let rest = match nearest(name, &known) {
        Some(name) => format!("did you mean --{name}?"),
        None => "leave it out if it changes nothing of the request, or put it in quotes if it is a value".into(),
    };
    format!("word {word} of the line is no option that is known here: {rest}")
}

/// Every option that is known.
fn names() -> impl Iterator<Item = (&'static str, Option<char>, Kind)> {
    let plain = |list: &'static str, kind: Kind| {
        list.split_ascii_whitespace().map(move |word| match word.split_once('/') {
            Some((name, short)) => (name, short.chars().next(), kind),
            None => (word, None, kind),
        })
    };
    OPTIONS.iter().copied().chain(plain(SWITCHES, Switch)).chain(plain(SETTINGS, Setting))
}

fn long(name: &str) -> Option<(Kind, &'static str)> {
    let negated = name.strip_prefix("no-");
    names().find_map(|(known, _, kind)| {
        let is_off = negated == Some(known) && !kind.has_value();
        (known == name || is_off).then_some((if is_off { Switch } else { kind }, known))
    })
}

fn short(letter: char) -> Option<Kind> {
    names().find_map(|(_, short, kind)| (short == Some(letter)).then_some(kind))
}

impl Kind {
    const fn has_value(self) -> bool {
        !matches!(self, Get | Head | Compressed | Http2 | Switch | Refused(_))
    }
}

/// What the options say.
#[derive(Default)]
struct Curl {
    method: Option<String>,
    headers: Vec<String>,
    cookies: Vec<String>,
    agent: Option<String>,
    referer: Option<String>,
    user: Option<String>,
    bearer: Option<String>,
    range: Option<String>,
    /// In their order; `None` for what is in a file.
    data: Vec<Option<String>>,
    sends_json: bool,
    has_form: bool,
    upload: Option<String>,
    get: bool,
    head: bool,
    compressed: bool,
    http2: bool,
    query: Vec<String>,
    target: Option<String>,
    urls: Vec<String>,
}

impl Curl {
    fn take(&mut self, kind: Kind, value: String, option: &str) -> Result<(), String> {
        match kind {
            Method => self.method = Some(value),
            Header if value.starts_with('@') => {
                return Err(format!("{option} @… {FROM_FILE}, each header with its own {option}"));
            }
            Header => self.headers.push(value),
            Cookie if !value.contains('=') && !value.is_empty() => {
                return Err(format!("{option} without a = {FROM_FILE}, as {option} 'name=value'"));
            }
            Cookie => self.cookies.push(value),
            Agent => self.agent = Some(value),
            Referer => self.referer = Some(value),
            User => self.user = Some(value),
            Bearer => self.bearer = Some(value),
            Range => self.range = Some(value),
            Data if value.starts_with('@') => self.data.push(None),
            Data | DataRaw => self.add_data(value, "&"),
            DataUrlencode => match urlencoded(&value) {
                Some(text) => self.add_data(text, "&"),
                None => self.data.push(None),
            },
            Json => {
                self.sends_json = true;
                if value.starts_with('@') { self.data.push(None) } else { self.add_data(value, "") }
            }
            Form => self.has_form = true,
            Upload => self.upload = Some(value),
            Get => self.get = true,
            Head => self.head = true,
            Compressed => self.compressed = true,
            Http2 => self.http2 = true,
            Url => self.urls.push(value),
            UrlQuery => {
                let text = value.strip_prefix('+').map(String::from).or_else(|| urlencoded(&value));
                self.query.push(text.ok_or_else(|| format!("{option} @… {FROM_FILE}"))?);
            }
            Target => self.target = Some(value),
            Switch | Setting => {}
            Refused(why) => return Err(format!("{option} {why}")),
        }
        Ok(())
    }

    fn add_data(&mut self, text: String, joint: &str) {
        let text = if self.data.is_empty() { text } else { format!("{joint}{text}") };
        self.data.push(Some(text));
    }

    fn request(self) -> Result<Request, String> {
        let url = match self.urls.as_slice() {
            [url] => url.as_str(),
            [] => return Err("the line has no URL".into()),
            [..] => return Err("the line has several URLs: give one, and put each value in quotes".into()),
        };
        let (userinfo, host, mut path) = parts(url)?;
        let body = self.body();
        if self.get && !self.data.is_empty() {
            let data: Option<Vec<&str>> = self.data.iter().map(Option::as_deref).collect();
            add_query(&mut path, &data.ok_or_else(|| format!("-G with data that {FROM_FILE}"))?.concat());
        }
        self.query.iter().for_each(|text| add_query(&mut path, text));
        if let Some(file) = self.upload.as_ref().filter(|_| path.ends_with('/')) {
            path.push_str(file.rsplit('/').next().unwrap_or_default());
        }
        let method = self.method.clone().unwrap_or_else(|| self.implied_method().into());
        let path = self.target.clone().unwrap_or(path);
        let mut request = Request { method, host, path, body, joins_cookies: self.http2, ..Request::default() };
        self.headers.iter().try_for_each(|line| request.add_header(line).map_err(|error| format!("-H: {error}")))?;
        let is_set = |name: &str| {
            let own = |line: &String| line.split([':', ';']).next().is_some_and(|own| own.eq_ignore_ascii_case(name));
            // What -H says, even that there is none, is what is sent.
            self.headers.iter().any(own)
        };
        for (name, value) in self.own_headers(userinfo.as_deref(), body) {
            if let Some(value) = value.filter(|value| !value.is_empty() && !is_set(name)) {
                request.headers.push((name.into(), value));
            }
        }
        Ok(request)
    }

    /// What curl sends by itself where no -H says otherwise.
    fn own_headers(&self, userinfo: Option<&str>, body: Body) -> Vec<(&'static str, Option<String>)> {
        let basic = self.user.as_deref().or(userinfo);
        let basic = basic.map(|user| if user.contains(':') { user.into() } else { format!("{user}:") });
        let basic = basic.map(|user| format!("Basic {}", BASE64_STANDARD.encode(user)));
        let bearer = self.bearer.as_ref().map(|token| format!("Bearer {token}"));
        let kind = match body {
            Body::None => None,
            _ if self.has_form => Some("multipart/form-data"),
            _ if self.upload.is_some() => None,
            _ if self.sends_json => Some("application/json"),
            _ => Some("application/x-www-form-urlencoded"),
        };
        vec![
            ("accept", Some(if self.sends_json { "application/json" } else { "*/*" }.into())),
            ("accept-encoding", self.compressed.then(|| "deflate, gzip".into())),
            ("authorization", bearer.or(basic)),
            ("content-type", kind.map(Into::into)),
            ("content-length", if let Body::Bytes(length) = body { Some(length.to_string()) } else { None }),
            ("cookie", Some(self.cookies.join("; "))),
            ("range", self.range.as_ref().map(|range| format!("bytes={range}"))),
            ("referer", self.referer.clone()),
            ("user-agent", Some(self.agent.clone().unwrap_or_else(|| "curl/8".into()))),
        ]
    }

    fn implied_method(&self) -> &'static str {
        match (self.head, &self.upload, self.has_form || (!self.data.is_empty() && !self.get)) {
            (true, ..) => "HEAD",
            (_, Some(_), _) => "PUT",
            (.., true) => "POST",
            _ => "GET",
        }
    }

    fn body(&self) -> Body {
        if self.has_form || self.upload.is_some() {
            return Body::Unknown;
        }
        if self.data.is_empty() || self.get {
            return Body::None;
        }
        let lengths: Option<Vec<usize>> = self.data.iter().map(|text| Some(text.as_ref()?.len())).collect();
        lengths.map_or(Body::Unknown, |lengths| Body::Bytes(lengths.iter().sum()))
    }
}

fn add_query(path: &mut String, text: &str) {
    path.push(if path.contains('?') { '&' } else { '?' });
    path.push_str(text);
}

/// `content`, `=content` and `name=content` as curl encodes them; nothing for what is in a file.
fn urlencoded(text: &str) -> Option<String> {
    let (name, content) = match text.split_once('=') {
        Some((name, content)) => (Some(name).filter(|name| !name.is_empty()), content),
        None if text.contains('@') => return None,
        None => (None, text),
    };
    let encoded: String = content
        .bytes()
        .map(|byte| match byte {
            b'-' | b'.' | b'_' | b'~' => char::from(byte).into(),
            b' ' => "+".into(),
            byte if byte.is_ascii_alphanumeric() => char::from(byte).into(),
            byte => format!("%{byte:02X}"),
        })
        .collect();
    Some(name.map_or_else(|| encoded.clone(), |name| format!("{name}={encoded}")))
}

/// The credentials, the host and the path of a URL whose scheme may be missing.
fn parts(url: &str) -> Result<(Option<String>, String, String), String> {
    let rest = match url.split_once("://") {
        Some((scheme, rest)) if ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) => rest,
        // A scheme; else it is within a query.
        Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            return Err("the URL is neither http nor https".into());
        }
        _ => url,
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (userinfo, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    if host.is_empty() {
        return Err("the URL has no host".into());
    }
    let path = path.split('#').next().unwrap_or_default();
    let path = if path.starts_with('/') { path.into() } else { format!("/{path}") };
    Ok((userinfo.map(decoded), host.into(), path))
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match hex.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use tollgate_core::facts::{Facts, Header};

    fn read(line: &str) -> Request {
        request(line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    #[test]
    fn no_option_is_there_twice() {
        let (mut long, mut short) = (HashSet::new(), HashSet::new());
        for (name, letter, _) in names() {
            assert!(long.insert(name), "{name}");
            assert!(letter.is_none_or(|letter| short.insert(letter)), "{letter:?}");
        }
    }

    #[test]
    fn a_line_is_the_request_that_curl_sends() {
        for (line, method, host, path) in [
            ("curl example.com", "GET", "example.com", "/"),
            ("$ curl -sSL https://example.com:8443/a/b?c=d#e | jq .", "GET", "example.com:8443", "/a/b?c=d"),
            ("/usr/bin/curl --url 'http://[::1]:80?x=1'", "GET", "[::1]:80", "/?x=1"),
            ("curl -XDELETE http://u:p@example.com/x", "DELETE", "example.com", "/x"),
            ("curl -X GET -X PUT example.com", "PUT", "example.com", "/"),
            ("curl -I example.com/x -o /dev/null -w '%{http_code}'", "HEAD", "example.com", "/x"),
            ("curl example.com/x -d a=1 -d b=2", "POST", "example.com", "/x"),
            ("curl example.com/x?y -G -d a=1 --data-raw b=2", "GET", "example.com", "/x?y&a=1&b=2"),
            ("curl -G --data-urlencode 'q=a b&c' --data-urlencode ä a.com", "GET", "a.com", "/?q=a+b%26c&%C3%A4"),
            ("curl --url-query a=ä --url-query +b a.com/x", "GET", "a.com", "/x?a=%C3%A4&b"),
            ("curl -T file example.com/x", "PUT", "example.com", "/x"),
            ("curl -T dir/file example.com/x/", "PUT", "example.com", "/x/file"),
            ("curl -F a=b a.com", "POST", "a.com", "/"),
            ("curl --json '{}' -X PATCH a.com", "PATCH", "a.com", "/"),
            ("curl --request-target '*' -X OPTIONS a.com", "OPTIONS", "a.com", "*"),
            ("curl \\\n  -H 'Host: other.example' \\\n  example.com", "GET", "other.example", "/"),
            ("curl --http2 --no-progress-meter --no-keepalive -fsS -m5 -- a.com", "GET", "a.com", "/"),
            ("curl 'HTTPS://a.com/?next=ftp://b'", "GET", "a.com", "/?next=ftp://b"),
            ("curl a.com?next=http://b", "GET", "a.com", "/?next=http://b"),
        ] {
            let request = read(line);
            assert_eq!(
                (request.method.as_str(), request.host.as_str(), request.path.as_str()),
                (method, host, path),
                "{line}"
            );
        }
    }

    #[test]
    fn the_headers_are_those_that_curl_sends() {
        let header = |line: &str, name: &str| match read(line).header(name) {
            Header::One(value) => String::from_utf8(value).expect("text"),
            other => format!("{other:?}"),
        };
        for (line, name, value) in [
            ("curl -u user:pass a.com", "authorization", "Basic dXNlcjpwYXNz"),
            ("curl -u user a.com", "authorization", "Basic dXNlcjo="),
            ("curl http://user:pa%73s@a.com", "authorization", "Basic dXNlcjpwYXNz"),
            ("curl --oauth2-bearer tok a.com", "authorization", "Bearer tok"),
            ("curl -u user:pass -H 'Authorization: Bearer x' a.com", "authorization", "Bearer x"),
            ("curl -u user:pass -H 'Authorization:' a.com", "authorization", "Absent"),
            ("curl -b a=1 -b b=2 a.com", "cookie", "a=1; b=2"),
            ("curl -H 'cookie: a=1' -H 'cookie: b=2' a.com", "cookie", "Several"),
            ("curl --http2 -H 'cookie: a=1' -H 'cookie: b=2' a.com", "cookie", "a=1; b=2"),
            ("curl -d a=1 -d b=2 a.com", "content-length", "7"),
            ("curl --json '[1' --json ']' a.com", "content-length", "3"),
            ("curl -d a=1 a.com", "content-type", "application/x-www-form-urlencoded"),
            ("curl -d a=1 -G a.com", "content-type", "Absent"),
            ("curl -F a=1 a.com", "content-type", "multipart/form-data"),
            ("curl --json '{}' a.com", "content-type", "application/json"),
            ("curl --json '{}' a.com", "accept", "application/json"),
            ("curl -d '{}' -H 'Content-Type: application/json' a.com", "content-type", "application/json"),
            ("curl -d @file a.com", "content-length", "Absent"),
            ("curl -H 'x-empty;' a.com", "x-empty", ""),
            ("curl -H 'Accept:' a.com", "accept", "Absent"),
            ("curl a.com", "accept", "*/*"),
            ("curl a.com", "user-agent", "curl/8"),
            ("curl -A me a.com", "user-agent", "me"),
            ("curl -A '' a.com", "user-agent", "Absent"),
            ("curl --compressed a.com", "accept-encoding", "deflate, gzip"),
            ("curl -r 0-9 a.com", "range", "bytes=0-9"),
            ("curl -H 'x-k: 1' -H 'X-K: 2' a.com", "x-k", "Several"),
            ("curl -Hx-k:1 a.com", "x-k", "1"),
            ("curl -H \"x-k: it's\" a.com", "x-k", "it's"),
            ("curl -H $'x-k: \\u00e4\\'' a.com", "x-k", "ä'"),
            ("curl -H 'authorization: Bearer a, Bearer b' a.com", "authorization", "Several"),
        ] {
            assert_eq!(header(line, name), value, "{line}");
        }
        let length = |line: &str| read(line).content_length();
        assert_eq!(length("curl a.com"), Header::One(b"0".to_vec()), "a request without a body is known to be one");
        assert_eq!(length("curl -X POST a.com"), Header::One(b"0".to_vec()));
        assert_eq!(length("curl -d @file a.com"), Header::Absent);
        assert_eq!(length("curl -F a=b a.com"), Header::Absent);
        assert_eq!(length("curl -T file a.com"), Header::Absent);
    }

    #[test]
    fn what_is_not_known_is_told_without_what_may_be_a_value() {
        let leave = "is no option that is known here: leave it out if it changes nothing of the request, or put it in \
                     quotes if it is a value";
        for (line, expected) in [
            ("wget s3cret", "the line begins with `curl`".to_owned()),
            ("curl -k", "the line has no URL".into()),
            ("curl a.com -H x: s3cret", "the line has several URLs: give one, and put each value in quotes".into()),
            ("curl a.com --s3cret", format!("word 3 of the line {leave}")),
            ("curl a.com -b a=b --s3cret=s3cret", format!("word 5 of the line {leave}")),
            ("curl -ß3cret a.com", format!("word 2 of the line {leave}")),
            (
                "curl a.com --heder s3cret",
                "word 3 of the line is no option that is known here: did you mean --header?".into(),
            ),
            ("curl a.com -H", "-H lacks its value".into()),
            ("curl a.com --header", "--header lacks its value".into()),
            (
                "curl a.com -H @s3cret",
                "-H @… reads from a file: write what is in it, each header with its own -H".into(),
            ),
            ("curl a.com -H s3cret", "-H: a header is written as 'name: value'".into()),
            (
                "curl a.com --cookie s3cret",
                "--cookie without a = reads from a file: write what is in it, as --cookie 'name=value'".into(),
            ),
            (
                "curl a.com -u s:3cret --digest",
                "--digest works the authorization out with the server: write -H 'authorization: …'".into(),
            ),
            ("curl a.com -K s3cret", "-K reads from a file: write what is in it".into()),
            ("curl a.com -G -d @s3cret", "-G with data that reads from a file: write what is in it".into()),
            ("curl a.com -d s3cret --next b.com", "--next begins another request: explain each by itself".into()),
            ("curl ftp://s3cret", "the URL is neither http nor https".into()),
            ("curl 'http://s3cret@/x'", "the URL has no host".into()),
        ] {
            assert_eq!(request(line).map(drop).expect_err(line), expected);
        }
    }
}
