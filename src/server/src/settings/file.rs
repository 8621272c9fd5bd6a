//! The settings file: YAML, read straight into types, so that no value is guessed (`no` is not false here where a word
//! belongs).

use super::values::{Bounded, CollectorUrl, LogFilter, LogFormat, Share, Wait};
use crate::store::StoreUrl;
use serde::{Deserialize, Deserializer, de};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// What a file says; a field has its flag's name. A file that leaves something out leaves it as it is.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub listen: Option<SocketAddr>,
    #[serde(default, deserialize_with = "store")]
    pub store: Option<StoreUrl>,
    pub redis_user: Option<String>,
    pub redis_password_file: Option<PathBuf>,
    pub redis_ca_file: Option<PathBuf>,
    pub redis_cert_file: Option<PathBuf>,
    pub redis_key_file: Option<PathBuf>,
    pub sentinel_user: Option<String>,
    pub sentinel_password_file: Option<PathBuf>,
    pub store_timeout: Option<Wait>,
    pub memory_keys: Option<Bounded<1000, { u32::MAX }>>,
    pub auth_token_file: Option<PathBuf>,
    pub allow_remote: Option<bool>,
    pub max_in_flight: Option<Bounded<1, 65_536>>,
    pub max_connections: Option<Bounded<1, 1_000_000>>,
    pub log: Option<LogFilter>,
    pub log_format: Option<LogFormat>,
    pub otlp_endpoint: Option<CollectorUrl>,
    pub otlp_sample: Option<Share>,
}

impl File {
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("--config: {}: cannot be read: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("{}:{error}", path.display()))
    }

    /// An error begins with the line and the column.
    pub fn parse(text: &str) -> Result<Self, String> {
        // Excerpts of the file could show a password.
        let options = serde_saphyr::options! { with_snippet: false, strict_booleans: true };
        let mut field = String::new();
        serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| {
            serde_path_to_error::deserialize(yaml).map_err(|error| {
                field = error.path().to_string();
                error.into_inner()
            })
        })
        .map_err(|error| tell(&field, &error))
    }
}

fn store<'de, D: Deserializer<'de>>(value: D) -> Result<Option<StoreUrl>, D::Error> {
    Option::<String>::deserialize(value)?.map(|text| text.parse().map_err(de::Error::custom)).transpose()
}

fn tell(field: &str, error: &serde_saphyr::Error) -> String {
    let mut text = error.to_string();
    let mut place = String::new();
    if let Some(at) = error.location() {
        // The library puts it last, editors and people look for it first.
        let last = format!(" at line {}, column {}", at.line(), at.column());
        text = text.strip_suffix(&last).unwrap_or(&text).to_owned();
        place = format!("{}:{}: ", at.line(), at.column());
    }
    let field = if matches!(field, "" | "." | "?") { String::new() } else { format!("{field}: ") };
    format!("{place}{field}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_line_and_the_field_and_what_would_be_right() {
        for (text, expected) in [
            ("log: info\nmax_in_flight: 0", "2:16: max_in_flight: must be between 1 and 65536, is 0"),
            ("lisen: x", "1:1: lisen: unknown field `lisen`, expected one of listen, store,"),
            ("listen: nowhere", "1:9: listen: invalid socket address syntax"),
            ("\nstore_timeout: 20", "2:16: store_timeout: write a whole number and us, ms, s, m, h or d, such as 20ms"),
            ("store_timeout: 20s", "1:16: store_timeout: must be between 1ms and 10s"),
            ("allow_remote: yes", "1:15: allow_remote: invalid boolean (strict mode expects true/false)"),
            ("log_format: xml", "1:13: log_format: unknown variant `xml`, expected one of text, json"),
            ("log: loud=very", "1:6: log: write off, error, warn, info, debug or trace"),
            ("store: somewhere", "1:8: store: not a store: write `memory` or redis://"),
            ("memory_keys: 01000", "1:14: memory_keys: invalid"),
            ("otlp_endpoint: collector:4318", "1:16: otlp_endpoint: write http://host:port, such as"),
            ("otlp_sample: 2", "1:14: otlp_sample: must be between 0 and 1, is 2"),
            ("log: info\nlog: warn", "2:1: duplicate mapping key: log"),
        ] {
            let error = File::parse(text).err().unwrap_or_else(|| panic!("{text:?} is taken"));
            assert!(error.starts_with(expected) && !error.contains("at line"), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_error_never_shows_what_may_be_a_password() {
        for text in [
            "store: redis//u:s3cret@host",
            "store: redis://u:s3cret@host\nlog: [",
            "store: [redis://u:s3cret@host]",
            "store: {s3cret: 1}",
            "otlp_endpoint: http://u:s3cret@host:4318",
        ] {
            let error = File::parse(text).err().unwrap_or_else(|| panic!("{text:?} is taken"));
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_file_without_settings_changes_nothing() {
        for text in ["", "# all is as it is\n", "{}"] {
            assert!(File::parse(text).unwrap().listen.is_none(), "{text:?}");
        }
    }
}
