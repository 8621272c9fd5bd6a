//! Reading `POST /v1/admit`: the form, and what the form alone cannot say.

use crate::calendar;
use std::collections::HashMap;
use tollgate_core::limit::{FixedWindow, Limit, Window};
use tollgate_core::policy::is_name;
use tollgate_core::wire::{AdmitRequest, MAX_CHARGES, MAX_DECISIONS};

/// The error names the field and says what would be right.
pub fn parse(body: &[u8]) -> Result<AdmitRequest, String> {
    let deserializer = &mut serde_json::Deserializer::from_slice(body);
    let request: AdmitRequest = serde_path_to_error::deserialize(&mut *deserializer).map_err(|error| {
        let path = error.path().to_string();
        if path == "." { error.inner().to_string() } else { format!("{path}: {}", error.inner()) }
    })?;
    deserializer.end().map_err(|error| error.to_string())?;
    check(&request)?;
    Ok(request)
}

fn check(request: &AdmitRequest) -> Result<(), String> {
    count("decisions", request.decisions.len(), MAX_DECISIONS)?;
    for (index, decision) in request.decisions.iter().enumerate() {
        let path = format!("decisions[{index}].charges");
        count(&path, decision.charges.len(), MAX_CHARGES)?;
        let mut buckets = HashMap::new();
        for (index, charge) in decision.charges.iter().enumerate() {
            if !is_name(&charge.policy) {
                return Err(format!("{path}[{index}].policy: must be 1 to 64 letters, digits, '_', '-' or '.'"));
            }
            if let Limit::FixedWindow(FixedWindow { window: Window::Calendar(window), .. }) = &charge.limit {
                calendar::check(&window.zone)
                    .map_err(|error| format!("{path}[{index}].fixed_window.time_zone: {error}"))?;
            }
            // Both would be checked against the same balance, and one of them lost.
            if let Some(earlier) = buckets.insert((&charge.policy, charge.key, charge.group), index) {
                return Err(format!("{path}[{index}]: the same bucket as charges[{earlier}]: add their costs up"));
            }
        }
    }
    Ok(())
}

fn count(path: &str, count: usize, most: usize) -> Result<(), String> {
    if (1..=most).contains(&count) { Ok(()) } else { Err(format!("{path}: must have 1 to {most} items, has {count}")) }
}

#[cfg(test)]
mod tests;
