//! Zipf's law over ranks 0..n: rank `k` is drawn with probability proportional to `(k+1)^-alpha`.
//!
//! Rejection-inversion (W. Hoermann and G. Derflinger, "Rejection-inversion to generate variates
//! from monotone discrete distributions", ACM TOMACS 6(3), 1996): constant time and memory for any
//! `alpha >= 0`, including 1 and beyond, and no table over the keys.
//!
//! What it never does: approximate. (The generator of Gray et al. that YCSB uses is limited to
//! `alpha < 1`.)

use nyx_base::Rng;

/// A sampler for one `n` and one `alpha`.
#[derive(Clone, Debug, PartialEq)]
pub struct Zipf {
    n: f64,
    alpha: f64,
    /// `integral(1.5) - 1`: the upper end of what is inverted.
    high: f64,
    /// `integral(n + 0.5)`: the lower end.
    low: f64,
    /// Distances from `x` up to which a rank is accepted without a further test.
    accept: f64,
}

impl Zipf {
    /// A sampler over `n` ranks. `n` must be positive, `alpha` finite and not negative.
    pub fn new(n: u64, alpha: f64) -> Zipf {
        assert!(n > 0, "a Zipf law needs at least one rank");
        assert!(
            alpha.is_finite() && alpha >= 0.0,
            "alpha must be finite and >= 0, got {alpha}"
        );
        let n = n as f64;
        let mut zipf = Zipf {
            n,
            alpha,
            high: 0.0,
            low: 0.0,
            accept: 0.0,
        };
        zipf.high = zipf.integral(1.5) - 1.0;
        zipf.low = zipf.integral(n + 0.5);
        zipf.accept = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// Draws a rank in `0..n`; 0 is the most popular.
    #[inline]
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.low + rng.f64() * (self.high - self.low);
            let x = self.inverse(u);
            let k = (x + 0.5).floor().clamp(1.0, self.n);
            if k - x <= self.accept || u >= self.integral(k + 0.5) - self.density(k) {
                return k as u64 - 1;
            }
        }
    }

    /// The probability of each rank up to a factor, as a continuous function.
    fn density(&self, x: f64) -> f64 {
        (-self.alpha * x.ln()).exp()
    }

    /// The integral of the density from 1 to `x`; written so that `alpha` near 1 loses no digits.
    fn integral(&self, x: f64) -> f64 {
        let log_x = x.ln();
        let t = (1.0 - self.alpha) * log_x;
        let exp_m1_over_t = if t.abs() > 1e-8 {
            t.exp_m1() / t
        } else {
            1.0 + t / 2.0
        };
        exp_m1_over_t * log_x
    }

    /// The inverse of [`Zipf::integral`].
    fn inverse(&self, y: f64) -> f64 {
        let t = (y * (1.0 - self.alpha)).max(-1.0);
        let ln_1p_over_t = if t.abs() > 1e-8 {
            t.ln_1p() / t
        } else {
            1.0 - t / 2.0
        };
        (ln_1p_over_t * y).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts of `draws` samples per rank, against the law, as a chi-square per degree of freedom.
    fn chi_square_per_degree(n: usize, alpha: f64) -> f64 {
        let zipf = Zipf::new(n as u64, alpha);
        let mut rng = Rng::with_seed(7);
        let draws = 200_000;
        let mut seen = vec![0u32; n];
        for _ in 0..draws {
            seen[zipf.sample(&mut rng) as usize] += 1;
        }
        let weights: Vec<f64> = (1..=n).map(|k| (k as f64).powf(-alpha)).collect();
        let total: f64 = weights.iter().sum();
        let chi: f64 = (weights.iter().zip(&seen))
            .map(|(w, &s)| {
                let expected = w / total * f64::from(draws);
                (f64::from(s) - expected).powi(2) / expected
            })
            .sum();
        chi / (n - 1) as f64
    }

    #[test]
    fn ranks_follow_the_law_below_at_and_above_one() {
        for alpha in [0.0, 0.5, 0.99, 1.0, 1.01, 1.5, 2.6774] {
            let chi = chi_square_per_degree(50, alpha);
            assert!(
                chi < 1.7,
                "alpha {alpha}: chi-square per degree of freedom is {chi}"
            );
        }
    }

    #[test]
    fn one_rank_and_billions_of_ranks_work() {
        let mut rng = Rng::with_seed(1);
        assert_eq!(Zipf::new(1, 1.2).sample(&mut rng), 0);
        let huge = Zipf::new(1 << 32, 0.9);
        assert!((0..10_000).all(|_| huge.sample(&mut rng) < 1 << 32));
    }
}
