//! `make bench-endpoint`: what the token endpoint carries, beside what limits it, and what it keeps.

mod keeps;
mod overload;
mod speed;

use std::fs::read_to_string;
use tokio::runtime::Builder;

/// The argument with which this program is the empty route and nothing else.
const EMPTY_ROUTE: &str = "empty-route";

/// The parts, by the arguments that choose them.
const PARTS: [&str; 3] = ["speed", "keeps", "overload"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == [EMPTY_ROUTE] {
        // As many threads as the endpoint has.
        return Builder::new_multi_thread().enable_all().build().expect("a runtime").block_on(speed::empty_route());
    }
    if let Some(unknown) = arguments.iter().find(|argument| !PARTS.contains(&argument.as_str())) {
        eprintln!("error: the parts are {}, not {unknown:?}", PARTS.join(", "));
        std::process::exit(2);
    }
    let chosen = |part: &str| arguments.is_empty() || arguments.iter().any(|argument| argument == part);
    Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(bench(chosen));
}

async fn bench(chosen: impl Fn(&str) -> bool) {
    println!("{}", machine());
    if chosen("speed") {
        speed::measure().await;
    }
    if chosen("keeps") {
        keeps::measure().await;
    }
    if chosen("overload") {
        overload::measure().await;
    }
}

/// What all of it was measured on, and how busy that was before.
fn machine() -> String {
    let first = |file: &str, field: &str| {
        let text = read_to_string(file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(field));
        line.map_or("?".into(), |rest| rest.trim_start_matches([':', '\t', ' ']).to_owned())
    };
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{processors} processors ({}), {}, Linux {}, load before {}",
        first("/proc/cpuinfo", "model name"),
        first("/proc/meminfo", "MemTotal"),
        first("/proc/sys/kernel/osrelease", ""),
        first("/proc/loadavg", "").split(' ').next().unwrap_or("?"),
    )
}
