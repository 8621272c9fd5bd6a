//! What happened, in words, for those who asked for it.

use tollgate_core::lease::LeaseCall;
use tollgate_core::units::Micros;
use tollgate_core::wire::AdmitRequest;

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

/// What a call says of leases.
pub fn leases(body: &[u8]) -> String {
    let Ok(request) = serde_json::from_slice::<AdmitRequest>(body) else { return String::new() };
    let charges = request.decisions.iter().flat_map(|decision| &decision.charges);
    let calls = charges.filter_map(|charge| Some((&charge.policy, charge.lease?)));
    calls.fold(String::new(), |text, (policy, call)| {
        let LeaseCall { seq, acked, kept, returned, wanted, demand, .. } = call;
        format!(
            "{text}, lease of {policy}: seq {seq}, acked {acked}, kept {kept}, returned {returned}, wanted {wanted}, demand {demand}"
        )
    })
}
