//! Who may ask: callers that hold a bearer token (RFC 6750). Two are valid at once, so that a token can be changed
//! without a moment in which a caller is refused: add the new one, give it to the callers, remove the old one.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use std::path::Path;
use subtle::{Choice, ConstantTimeEq};

/// The shortest token that is not guessed.
const SHORTEST: usize = 16;

const MOST: usize = 2;

/// The digests of the tokens that are valid. The tokens themselves are not kept, so nothing can show them.
pub struct BearerTokens(Vec<[u8; blake3::OUT_LEN]>);

impl BearerTokens {
    /// A file with one token a line; empty lines do not count.
    pub fn read(path: &Path) -> Result<Self, String> {
        let file = path.display();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{file}: cannot be read: {error}"))?;
        let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
        Self::new(lines.map(|(index, line)| (format!("line {}", index + 1), line)))
            .map_err(|error| format!("{file}: {error}"))
    }

    /// Tokens with commas between them.
    pub fn parse_list(text: &str) -> Result<Self, String> {
        let tokens = text.split(',').map(str::trim).enumerate().filter(|(_, token)| !token.is_empty());
        Self::new(tokens.map(|(index, token)| (format!("token {}", index + 1), token)))
    }

    /// Each token with the place where it was found: an error names the place and never the token.
    fn new<'a>(tokens: impl Iterator<Item = (String, &'a str)>) -> Result<Self, String> {
        let mut digests = Vec::new();
        for (place, token) in tokens {
            if token.len() < SHORTEST {
                return Err(format!("{place}: a token has {SHORTEST} bytes or more, and this has {}", token.len()));
            }
            if !is_token(token) {
                return Err(format!("{place}: a token is made of letters, digits and -._~+/, with = at its end"));
            }
            digests.push(digest(token.as_bytes()));
        }
        match digests.len() {
            1..=MOST => Ok(Self(digests)),
            // An empty secret must not open the door.
            0 => Err("there is no token: write 1 or 2".into()),
            count => Err(format!("there are {count} tokens: write 1, or 2 while callers change from one to the other")),
        }
    }

    /// Whether a request with these headers holds a valid token. Takes the same time whichever token is wrong and
    /// wherever it differs: digests of one length are compared, all of them, to their ends.
    pub fn admit(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return false };
        let Some(token) = bearer(value.as_bytes()) else { return false };
        let digest = digest(token);
        self.0.iter().fold(Choice::from(0), |found, valid| found | valid.ct_eq(&digest)).into()
    }
}

fn digest(token: &[u8]) -> [u8; blake3::OUT_LEN] {
    *blake3::hash(token).as_bytes()
}

/// `b64token` of RFC 6750, 2.1: what can stand in the header as it is.
fn is_token(token: &str) -> bool {
    let body = token.trim_end_matches('=');
    !body.is_empty() && body.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte))
}

/// The token of `Bearer TOKEN`. The scheme's case does not matter (RFC 9110, 11.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "the-old-token-0123";
    const NEW: &str = "the/new+token~4567==";

    fn tokens() -> BearerTokens {
        BearerTokens::parse_list(&format!("{OLD}, {NEW}")).unwrap()
    }

    fn admits(values: &[&str]) -> bool {
        let headers = values.iter().map(|value| (AUTHORIZATION, value.parse().unwrap())).collect();
        tokens().admit(&headers)
    }

    #[test]
    fn both_tokens_are_valid_while_callers_change_from_one_to_the_other() {
        assert!(admits(&[&format!("Bearer {OLD}")]));
        assert!(admits(&[&format!("bearer {NEW}")]));
    }

    #[test]
    fn nothing_but_one_whole_token_is_valid() {
        let whole = format!("Bearer {OLD}");
        for values in [
            &[] as &[&str],
            &[""],
            &["Bearer"],
            &["Bearer "],
            &[OLD],
            &["Basic dGhlLW9sZC10b2tlbi0wMTIz"],
            &[&whole[..whole.len() - 1]],
            &[&format!("{whole}4")],
            &[&format!("{whole}, Bearer {NEW}")],
            &[&whole.to_uppercase()],
            &[&whole, &whole],
        ] {
            assert!(!admits(values), "{values:?}");
        }
    }

    #[test]
    fn a_wrong_list_says_which_token_is_wrong_and_never_shows_it() {
        for (list, expected) in [
            ("", "there is no token"),
            (" , ", "there is no token"),
            ("short-secret", "token 1: a token has 16 bytes or more, and this has 12"),
            ("the-old-token-0123,pass word with spaces", "token 2: a token is made of letters"),
            ("================", "token 1: a token is made of letters"),
            ("the-old-token-0123,the-old-token-0124,the-old-token-0125", "there are 3 tokens"),
        ] {
            let Err(error) = BearerTokens::parse_list(list) else { panic!("{list} is taken") };
            assert!(error.contains(expected), "{error}");
            for token in list.split(',').filter(|token| token.trim().len() > 3) {
                assert!(!error.contains(token), "{error}");
            }
        }
    }

    #[test]
    fn a_file_has_one_token_a_line() {
        let folder = std::env::temp_dir().join(format!("tollgate-auth-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("tokens");
        std::fs::write(&path, format!("{OLD}\r\n\n{NEW}\n")).unwrap();
        let headers = HeaderMap::from_iter([(AUTHORIZATION, format!("Bearer {NEW}").parse().unwrap())]);
        assert!(BearerTokens::read(&path).unwrap().admit(&headers));

        std::fs::write(&path, format!("{OLD}\n\nshort\n")).unwrap();
        let error = BearerTokens::read(&path).err().unwrap();
        assert_eq!(error, format!("{}: line 3: a token has 16 bytes or more, and this has 5", path.display()));
        std::fs::remove_dir_all(&folder).unwrap();
        let error = BearerTokens::read(&path).err().unwrap();
        assert!(error.starts_with(&format!("{}: cannot be read: ", path.display())), "{error}");
    }
}
