//! What happened, in words, for those who asked for it.

use tollgate_core::units::Micros;

pub struct Trace(Option<Vec<String>>);

impl Trace {
    pub fn new(wanted: bool) -> Self {
        Self(wanted.then(Vec::new))
    }

    pub fn note(&mut self, at: Micros, what: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.0 {
            let micros = at.count();
            lines.push(format!("{:6}.{:06} s  {}", micros / 1_000_000, micros % 1_000_000, what()));
        }
    }

    pub fn into_lines(self) -> Vec<String> {
        self.0.unwrap_or_default()
    }
}
