//! `make bench-endpoint`: what the token endpoint carries, beside what limits it, and what it keeps.

mod keeps;
mod overload;
mod speed;

use tokio::runtime::Builder;
use tollgate_tests::machine;

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
