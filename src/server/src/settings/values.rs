//! The values of settings that have bounds or a form of their own: the same whether a flag, a variable or the file gives
//! them.

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
