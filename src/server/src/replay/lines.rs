//! The lines of access logs as requests, in the order of their times.

use super::line::{Entry, Fields};
use indicatif::{ProgressBar, ProgressStyle};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use tollgate_core::units::Micros;

/// So many lines are held back, for those to overtake them that begin earlier and ended later.
const HELD_BACK: usize = 65_536;

/// No request that Envoy takes makes a longer line.
const MAX_LINE: u64 = 1 << 20;

/// Where a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Which of the logs.
    pub log: usize,
    /// From 1.
    pub line: u64,
}

/// A request, and where it stands.
pub struct Placed {
    pub at: Micros,
    pub place: Place,
    pub request: crate::explain::Request,
}

/// What was read.
#[derive(Default)]
pub struct ReadSoFar {
    pub requests: u64,
    pub unreadable: Unreadable,
    /// Requests that were further out of order than lines are held back.
    pub late: u64,
}

/// Lines that are no requests.
#[derive(Default)]
pub struct Unreadable {
    pub count: u64,
    pub first: Option<Wrong>,
}

/// What is wrong with a line.
pub struct Wrong {
    pub log: String,
    pub line: u64,
    pub why: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.log, self.line, self.why)
    }
}

pub struct Lines<'a> {
    logs: &'a [String],
    fields: &'a Fields,
    reader: Box<dyn BufRead>,
    /// The place of the line that was read last.
    at: Place,
    held_back: BinaryHeap<Reverse<ByTime>>,
    /// The time of the last request that was given out.
    given: Micros,
    read: ReadSoFar,
    progress: ProgressBar,
}

struct ByTime(Placed);

impl<'a> Lines<'a> {
    pub fn open(logs: &'a [String], fields: &'a Fields) -> Result<Self, String> {
        let first = logs.first().ok_or("there is no log")?;
        // A log that is not there is told of before hours have been spent on the others.
        let sizes = logs.iter().map(|log| size(log)).collect::<Result<Vec<Option<u64>>, String>>()?;
        let progress = match sizes.into_iter().sum::<Option<u64>>() {
            Some(bytes) => {
                ProgressBar::new(bytes).with_style(style("{bar:30} {percent} %, {msg} requests, {eta} left"))
            }
            None => ProgressBar::no_length().with_style(style("{binary_bytes}, {msg} requests in {elapsed}")),
        };
        Ok(Self {
            logs,
            fields,
            reader: open(first)?,
            at: Place { log: 0, line: 0 },
            held_back: BinaryHeap::new(),
            given: Micros::ZERO,
            read: ReadSoFar::default(),
            progress,
        })
    }

    /// The request that comes next. The error says which log cannot be read.
    pub fn next(&mut self) -> Result<Option<Placed>, String> {
        while self.held_back.len() < HELD_BACK {
            let Some(line) = self.line()? else { break };
            match self.fields.read(&line) {
                Ok(Entry { at, request }) => {
                    self.read.requests += 1;
                    self.held_back.push(Reverse(ByTime(Placed { at, place: self.at, request })));
                }
                Err(why) => self.wrong(why),
            }
        }
        let Some(Reverse(ByTime(next))) = self.held_back.pop() else { return Ok(None) };
        self.read.late += u64::from(next.at < self.given);
        self.given = self.given.max(next.at);
        Ok(Some(next))
    }

    /// What was read, when all is.
    pub fn end(self) -> ReadSoFar {
        self.progress.finish_and_clear();
        self.read
    }

    fn wrong(&mut self, why: String) {
        self.read.unreadable.count += 1;
        if self.read.unreadable.first.is_none() {
            let log = self.logs[self.at.log].clone();
            self.read.unreadable.first = Some(Wrong { log, line: self.at.line, why });
        }
    }

    /// The next line that has anything in it, of this log or those behind it.
    fn line(&mut self) -> Result<Option<String>, String> {
        loop {
            let mut bytes = Vec::new();
            let log = &self.logs[self.at.log];
            let failed = |error: io::Error| format!("{log}: cannot be read: {error}");
            let mut line = self.reader.by_ref().take(MAX_LINE);
            let read = line.read_until(b'\n', &mut bytes).map_err(failed)?;
            if read == 0 {
                let Some(next) = self.logs.get(self.at.log + 1) else { return Ok(None) };
                self.reader = open(next)?;
                self.at = Place { log: self.at.log + 1, line: 0 };
                continue;
            }
            self.at.line += 1;
            let mut read = read as u64;
            if read == MAX_LINE && bytes.last() != Some(&b'\n') {
                read += skip_line(&mut self.reader).map_err(failed)?;
                self.wrong(format!("the line has more than {} KiB", MAX_LINE >> 10));
                bytes.clear();
            }
            self.progress.inc(read);
            if self.read.requests.is_multiple_of(10_000) {
                self.progress.set_message(self.read.requests.to_string());
            }
            let text = String::from_utf8_lossy(&bytes);
            let text = text.trim();
            if !text.is_empty() {
                return Ok(Some(text.into()));
            }
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// How many bytes a log has, where that is known.
fn size(log: &str) -> Result<Option<u64>, String> {
    if log == "-" {
        return Ok(None);
    }
    let metadata = std::fs::metadata(log).map_err(|error| format!("{log}: cannot be read: {error}"))?;
    if metadata.is_dir() {
        return Err(format!("{log}: cannot be read: it is a directory"));
    }
    Ok(metadata.is_file().then_some(metadata.len()))
}

fn open(log: &str) -> Result<Box<dyn BufRead>, String> {
    if log == "-" {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(log).map_err(|error| format!("{log}: cannot be read: {error}"))?;
    Ok(Box::new(BufReader::with_capacity(1 << 16, file)))
}

/// Reads to the end of a line and keeps nothing; gives how many bytes that were.
fn skip_line(reader: &mut dyn BufRead) -> io::Result<u64> {
    let mut skipped = 0;
    loop {
        let there = reader.fill_buf()?;
        let (count, is_end) = match there.iter().position(|byte| *byte == b'\n') {
            Some(place) => (place + 1, true),
            None => (there.len(), there.is_empty()),
        };
        reader.consume(count);
        skipped += count as u64;
        if is_end {
            return Ok(skipped);
        }
    }
}

impl Ord for ByTime {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0.at, self.0.place).cmp(&(other.0.at, other.0.place))
    }
}

impl PartialOrd for ByTime {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByTime {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByTime {}
