//! One tenant's stream of requests: popularity, mix, lengths and times to live put together.
//!
//! What it never does: depend on anything but its description and its seed.

use super::popularity::Picker;
use super::{KeySpace, Lengths, Op, OpMix, Popularity, TtlMix, WorkloadError};
use nyx_base::Rng;

/// A tenant's workload, described.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// How many keys, 1 to 2^32.
    pub keys: u64,
    /// The length of every key, in bytes.
    pub key_len: usize,
    /// What every key begins with.
    pub prefix: String,
    /// Which keys are asked for.
    pub popularity: Popularity,
    /// How long their values are.
    pub values: Lengths,
    /// What is done with them.
    pub mix: OpMix,
    /// How long what is written lives.
    pub ttl: TtlMix,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What to do.
    pub op: Op,
    /// With which key: its index.
    pub key: u64,
    /// The time to live that a `Set`, `Incr` or `Touch` gives, in seconds; 0 is for ever.
    pub ttl_s: u32,
}

/// The requests of one stream, without end.
#[derive(Clone, Debug)]
pub struct Generator {
    spec: Spec,
    space: KeySpace,
    picker: Picker,
    rng: Rng,
}

impl Generator {
    /// Stream number `stream` of the workload: streams of one seed are independent of each other,
    /// and their scans start at different keys.
    pub fn new(spec: &Spec, seed: u64, stream: u64) -> Result<Generator, WorkloadError> {
        let mut rng = Rng::with_seed(super::spread(seed ^ super::spread(stream + 1)));
        let start = if stream == 0 { 0 } else { rng.u64(..) };
        Ok(Generator {
            space: KeySpace::new(&spec.prefix, spec.keys, spec.key_len)?,
            picker: Picker::new(spec.popularity, spec.keys, start)?,
            spec: spec.clone(),
            rng,
        })
    }

    /// The next request.
    #[inline]
    pub fn step(&mut self) -> Step {
        let op = self.spec.mix.pick(&mut self.rng);
        let key = self.picker.pick(&mut self.rng, op == Op::Set);
        Step {
            op,
            key,
            ttl_s: if op == Op::Get { 0 } else { self.ttl_s() },
        }
    }

    /// A further key to read: for a request that reads several.
    #[inline]
    pub fn read_key(&mut self) -> u64 {
        self.picker.pick(&mut self.rng, false)
    }

    /// A time to live for a write, in seconds.
    #[inline]
    pub fn ttl_s(&mut self) -> u32 {
        self.spec.ttl.pick(&mut self.rng)
    }

    /// The length of the value of `key`, in bytes.
    #[inline]
    pub fn value_len(&self, key: u64) -> u32 {
        self.spec.values.of_key(key)
    }

    /// The keys as text.
    #[inline]
    pub fn space(&self) -> &KeySpace {
        &self.space
    }

    /// The description that this stream was made from.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The stream's source of randomness, for the times of its arrivals.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec {
            keys: 1000,
            key_len: 16,
            prefix: String::new(),
            popularity: Popularity::Zipf { alpha: 1.0 },
            values: Lengths::Uniform(10, 1000),
            mix: "get:80,set:20".parse().expect("fine"),
            ttl: TtlMix::default(),
        }
    }

    fn steps(seed: u64, stream: u64) -> Vec<Step> {
        let mut generator = Generator::new(&spec(), seed, stream).expect("a sound spec");
        (0..1000).map(|_| generator.step()).collect()
    }

    #[test]
    fn the_same_seed_and_stream_give_the_same_requests() {
        assert_eq!(steps(1, 0), steps(1, 0));
        assert_ne!(steps(1, 0), steps(1, 1));
        assert_ne!(steps(1, 0), steps(2, 0));
    }

    #[test]
    fn an_impossible_description_is_refused() {
        assert!(Generator::new(&Spec { keys: 0, ..spec() }, 1, 0).is_err());
        assert!(
            Generator::new(
                &Spec {
                    key_len: 2,
                    ..spec()
                },
                1,
                0
            )
            .is_err()
        );
    }
}
