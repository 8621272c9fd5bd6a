//! The values of settings that have bounds or a form of their own: the same whether a flag, a variable or the file gives
//! them.

use axum::http::Uri;
use serde::Deserialize;
use std::str::FromStr;
use std::time::Duration;
use tollgate_core::units::{DURATION_UNITS, Micros};
use tracing_subscriber::EnvFilter;

/// A whole number between two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u64")]
pub struct Bounded<const LEAST: u32, const MOST: u32>(u32);

impl<const LEAST: u32, const MOST: u32> Bounded<LEAST, MOST> {
    pub fn get(self) -> usize {
        self.0 as usize
    }
}

impl<const LEAST: u32, const MOST: u32> TryFrom<u64> for Bounded<LEAST, MOST> {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        match u32::try_from(number) {
            Ok(number) if (LEAST..=MOST).contains(&number) => Ok(Self(number)),
            _ => Err(format!("must be between {LEAST} and {MOST}, is {number}")),
        }
    }
}

impl<const LEAST: u32, const MOST: u32> FromStr for Bounded<LEAST, MOST> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number: u64 = text.parse().map_err(|_| format!("write a whole number between {LEAST} and {MOST}"))?;
        number.try_into()
    }
}

/// How long something may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Wait(pub Duration);

impl FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match Micros::parse(text) {
            Some(span) if span >= Micros::from_millis(1) && span <= Micros::from_secs(10) => {
                Ok(Self(Duration::from_micros(span.count())))
            }
            Some(_) => Err("must be between 1ms and 10s".into()),
            None => Err(format!("write a whole number and {DURATION_UNITS}, such as 20ms")),
        }
    }
}

impl TryFrom<String> for Wait {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Where spans go.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct CollectorUrl(Uri);

impl CollectorUrl {
    /// Where OTLP over HTTP has spans taken.
    pub fn traces(&self) -> String {
        format!("{}/v1/traces", self.0.to_string().trim_end_matches('/'))
    }
}

impl FromStr for CollectorUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A wrong one is not shown: it may hold a password.
        let uri: Uri = text.parse().map_err(|_| String::from(COLLECTOR))?;
        let plain = uri.scheme_str() == Some("http") && uri.query().is_none();
        if plain && uri.authority().is_some_and(|authority| !authority.as_str().contains('@')) {
            Ok(Self(uri))
        } else {
            Err(COLLECTOR.into())
        }
    }
}

const COLLECTOR: &str = "write http://host:port, such as http://collector:4318, without a user. For TLS, send to a \
                         collector beside this program; what it asks for goes into OTEL_EXPORTER_OTLP_HEADERS";

impl TryFrom<String> for CollectorUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A part of all.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "f64")]
pub struct Share(pub f64);

impl TryFrom<f64> for Share {
    type Error = String;

    fn try_from(share: f64) -> Result<Self, String> {
        if (0.0..=1.0).contains(&share) { Ok(Self(share)) } else { Err(format!("must be between 0 and 1, is {share}")) }
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share: f64 = text.parse().map_err(|_| "write a number between 0 and 1, such as 0.01")?;
        share.try_into()
    }
}

/// What is logged.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct LogFilter(pub EnvFilter);

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The Redis library writes lines for each request that meets a fault; what is told of faults is bounded here.
        let quiet = if text.contains("redis=") { text.to_owned() } else { format!("redis=off,{text}") };
        EnvFilter::builder().parse(quiet).map(Self).map_err(|error| {
            format!("write off, error, warn, info, debug or trace, or a list such as `warn,tollgate=debug` ({error})")
        })
    }
}

impl TryFrom<String> for LogFilter {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

// clap keeps its values in copies, and a filter has none.
impl Clone for LogFilter {
    fn clone(&self) -> Self {
        Self(EnvFilter::new(self.0.to_string()))
    }
}

/// How it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}
