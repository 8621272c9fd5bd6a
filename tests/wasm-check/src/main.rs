//! `wasm-check FILE --max-bytes N`: would Envoy load this filter, and is it small enough?
//!
//! Envoy refuses a module with an import that it cannot satisfy, and says so only when it starts.
//! One dependency that pulls in `wasm-bindgen` is enough. So the build asks here first.

mod check;

use std::ffi::OsString;
use std::process::ExitCode;

const USAGE: &str = "usage: wasm-check FILE --max-bytes N";

fn main() -> ExitCode {
    match run(std::env::args_os().skip(1)) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("wasm-check: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: impl Iterator<Item = OsString>) -> Result<String, String> {
    let (path, max_bytes) = parse_args(args)?;
    let name = path.to_string_lossy();
    let module = std::fs::read(&path).map_err(|error| format!("cannot read {name}: {error}"))?;
    match check::check(&module, max_bytes) {
        Ok(facts) => Ok(format!("{name}: {facts}")),
        Err(faults) => Err(format!("{name} is not fit to ship:\n{faults}")),
    }
}

fn parse_args(args: impl Iterator<Item = OsString>) -> Result<(OsString, usize), String> {
    let args: Vec<OsString> = args.collect();
    let [path, flag, max_bytes] = args.as_slice() else {
        return Err(USAGE.to_owned());
    };
    if flag != "--max-bytes" {
        return Err(USAGE.to_owned());
    }
    let max_bytes = max_bytes
        .to_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("--max-bytes takes a whole number of bytes; {USAGE}"))?;
    Ok((path.clone(), max_bytes))
}
