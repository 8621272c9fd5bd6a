//! Reading `POST /v1/admit`: the form, and what the form alone cannot say.

use tollgate_core::policy::is_name;
use tollgate_core::wire::{AdmitRequest, ChargeRequest, MAX_CHARGES, MAX_DECISIONS};

/// The error names the field and says what would be right.
pub fn parse(body: &[u8]) -> Result<AdmitRequest, String> {
    let request: AdmitRequest = serde_json::from_slice(body).map_err(|_| wrong(body))?;
    check(&request)?;
    Ok(request)
}

/// What is wrong with a body that cannot be read, and where. Keeping track of the place takes as long as the reading
/// itself, so only what failed is read in this way.
fn wrong(body: &[u8]) -> String {
    let deserializer = &mut serde_json::Deserializer::from_slice(body);
    if let Err(error) = serde_path_to_error::deserialize::<_, AdmitRequest>(&mut *deserializer) {
        let path = error.path().to_string();
        return if path == "." { error.inner().to_string() } else { format!("{path}: {}", error.inner()) };
    }
    // What was wrong comes after the request.
    deserializer.end().err().map(|error| error.to_string()).unwrap_or_default()
}

fn check(request: &AdmitRequest) -> Result<(), String> {
    count(|| "decisions".into(), request.decisions.len(), MAX_DECISIONS)?;
    for (index, decision) in request.decisions.iter().enumerate() {
        let path = || format!("decisions[{index}].charges");
        count(path, decision.charges.len(), MAX_CHARGES)?;
        for (index, charge) in decision.charges.iter().enumerate() {
            if !is_name(&charge.policy) {
                return Err(format!("{}[{index}].policy: must be 1 to 64 letters, digits, '_', '-' or '.'", path()));
            }
            // Both would be checked against the same balance, and one of them lost. There are few: comparing them is
            // cheaper than hashing them.
            if let Some(earlier) = decision.charges[..index].iter().position(|other| is_same_bucket(other, charge)) {
                return Err(format!("{}[{index}]: the same bucket as charges[{earlier}]: add their costs up", path()));
            }
        }
    }
    Ok(())
}

fn is_same_bucket(one: &ChargeRequest, other: &ChargeRequest) -> bool {
    (one.key, one.group) == (other.key, other.group) && one.policy == other.policy
}

fn count(path: impl Fn() -> String, count: usize, most: usize) -> Result<(), String> {
    if (1..=most).contains(&count) {
        Ok(())
    } else {
        Err(format!("{}: must have 1 to {most} items, has {count}", path()))
    }
}

#[cfg(test)]
mod tests;
