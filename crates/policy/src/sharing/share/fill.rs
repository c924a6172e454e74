//! Water-filling: one device divided by weight and desire.
//!
//! *Invariants*: the parts sum to the device; nobody gets less than the smaller of what it desires
//! and what it is entitled to; what nobody desires stays with those whom it belongs to.

/// Parts of the device, for entitlements that sum to 1 and desires of any size.
pub(super) fn fill(entitled: &[f64], desired: &[f64]) -> Vec<f64> {
    let mut parts = vec![0.0; entitled.len()];
    let mut open: Vec<usize> = (0..entitled.len()).collect();
    let mut rest = 1.0;
    // Each round satisfies somebody or is the last.
    while !open.is_empty() {
        let level = rest / open.iter().map(|&i| entitled[i]).sum::<f64>();
        let (thirsty, satisfied): (Vec<usize>, Vec<usize>) = open
            .iter()
            .partition(|&&i| desired[i] > level * entitled[i]);
        if satisfied.is_empty() {
            for &i in &thirsty {
                parts[i] = level * entitled[i];
            }
            return parts;
        }
        for &i in &satisfied {
            parts[i] = desired[i];
            rest -= desired[i];
        }
        open = thirsty;
    }
    give_back(entitled, &mut parts, rest);
    parts
}

/// Divides what nobody desires among those who have less than they are entitled to.
fn give_back(entitled: &[f64], parts: &mut [f64], rest: f64) {
    let lent = |entitled: f64, part: f64| (entitled - part).max(0.0);
    let pairs = entitled.iter().zip(&*parts);
    let lent_sum: f64 = pairs.map(|(&entitled, &part)| lent(entitled, part)).sum();
    if lent_sum > 0.0 {
        for (&entitled, part) in entitled.iter().zip(parts) {
            *part += rest * lent(entitled, *part) / lent_sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(parts: &[f64], wanted: &[f64]) {
        let all = parts.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(all && parts.len() == wanted.len(), "{parts:?}, {wanted:?}");
    }

    #[test]
    fn who_all_desire_more_get_their_weights() {
        near(
            &fill(&[0.5, 0.25, 0.25], &[1.0, 1.0, 1.0]),
            &[0.5, 0.25, 0.25],
        );
    }

    #[test]
    fn what_one_leaves_is_divided_by_the_others_weights() {
        near(&fill(&[0.4, 0.4, 0.2], &[0.1, 1.0, 1.0]), &[0.1, 0.6, 0.3]);
        // One of the takers is satisfied on the way; the rest is the other's.
        near(
            &fill(&[0.4, 0.4, 0.2], &[0.1, 0.45, 1.0]),
            &[0.1, 0.45, 0.45],
        );
    }

    #[test]
    fn what_nobody_desires_goes_back_to_its_lenders() {
        near(&fill(&[0.5, 0.5], &[0.1, 0.7]), &[0.3, 0.7]);
        near(&fill(&[0.5, 0.5], &[0.0, 0.0]), &[0.5, 0.5]);
    }

    #[test]
    fn nobody_gets_less_than_it_desires_and_is_entitled_to() {
        let entitled = [0.1, 0.2, 0.3, 0.4];
        for seed in 0..1_000_u32 {
            let digit = |i: u32| f64::from((seed / 10_u32.pow(i)) % 10) / 6.0;
            let desired = [digit(0), digit(1), digit(2), digit(0) * digit(1)];
            let parts = fill(&entitled, &desired);
            assert!(
                (parts.iter().sum::<f64>() - 1.0).abs() < 1e-9,
                "{desired:?}: {parts:?}"
            );
            for i in 0..4 {
                let least = desired[i].min(entitled[i]) - 1e-9;
                assert!(parts[i] >= least, "{desired:?}: {parts:?}");
            }
        }
    }
}
