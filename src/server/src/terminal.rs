//! What commands say. That nobody reads any more (`| head`) is no error of theirs, and no reason to end in another way.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// What was asked for. A file that it cannot be written to is an error, and the end.
pub fn say(text: impl Display) {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            warn(format_args!("error: standard output cannot be written: {error}\n"));
            std::process::exit(2);
        }
        Ok(()) | Err(_) => {}
    }
}

/// What went wrong.
pub fn warn(text: impl Display) {
    let _ = write!(io::stderr().lock(), "{text}");
}
