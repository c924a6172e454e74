//! Figures of what `nyx bench --json` writes.

use serde_json::Value;

/// A figure by its path. What was not measured is no number.
pub(crate) fn figure(of: &Value, path: &str) -> f64 {
    let found = path
        .split('/')
        .try_fold(of, |of, step| match step.parse::<usize>() {
            Ok(place) => of.get(place),
            Err(_) => of.get(step),
        });
    found.and_then(Value::as_f64).unwrap_or(f64::NAN)
}
