//! Published caches as workloads: `twitter:CLUSTER` and `meta:CACHE`.
//!
//! What it never does: make up what was not published. Twitter's statistics give mean lengths, so
//! a preset's values all have the mean length; Meta's files give popularity and lengths, so a
//! preset there only reads (a client that fills on a miss makes the writes) and has 32 B keys.

use super::meta::CACHES;
use super::twitter::CLUSTERS;
use super::{Lengths, OpMix, Popularity, Spec, TtlMix, WorkloadError};

/// The length of keys where it was not published, in bytes.
const KEY_LEN: usize = 32;

/// The workload that `name` stands for, over `keys` keys that begin with `prefix`.
///
/// Keys shorter than what tells them apart are made just long enough.
pub fn spec(name: &str, keys: u64, prefix: &str) -> Result<Spec, WorkloadError> {
    let mut spec = match name.split_once(':') {
        Some(("twitter", cluster)) => twitter(cluster),
        Some(("meta", cache)) => meta(cache),
        _ => None,
    }
    .ok_or_else(|| WorkloadError::Preset {
        text: name.to_owned(),
        hint: hint(),
    })?;
    let digits = keys.saturating_sub(1).max(1).ilog10() as usize + 1;
    spec.key_len = spec.key_len.max(prefix.len() + digits);
    spec.keys = keys;
    spec.prefix = prefix.to_owned();
    Ok(spec)
}

fn hint() -> String {
    let clusters: Vec<String> = CLUSTERS
        .iter()
        .filter(|c| c.alpha.is_some())
        .map(|c| c.id.to_string())
        .collect();
    let caches: Vec<&str> = CACHES.iter().map(|c| c.name).collect();
    format!(
        "write twitter:N with N of {}; or meta: and {}",
        clusters.join(" "),
        caches.join(" ")
    )
}

fn twitter(cluster: &str) -> Option<Spec> {
    let id: u8 = cluster.trim_start_matches("cluster").parse().ok()?;
    let cluster = CLUSTERS.iter().find(|c| c.id == id)?;
    let [get, set, delete, incr] = cluster.mix.map(u32::from);
    Some(Spec {
        keys: 0,
        key_len: usize::from(cluster.key_len),
        prefix: String::new(),
        popularity: Popularity::Zipf {
            alpha: cluster.alpha?,
        },
        values: Lengths::Fixed(cluster.value_len),
        mix: OpMix::new([get, set, delete, incr, 0])?,
        ttl: TtlMix::new(
            cluster
                .ttl_s
                .iter()
                .map(|&(s, pct)| (s, u32::from(pct)))
                .collect(),
        ),
    })
}

fn meta(cache: &str) -> Option<Spec> {
    Some(Spec {
        keys: 0,
        key_len: KEY_LEN,
        prefix: String::new(),
        popularity: Popularity::of_meta(cache)?,
        values: Lengths::of_meta(cache)?,
        mix: OpMix::default(),
        ttl: TtlMix::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Generator, Op};

    #[test]
    fn every_published_cluster_and_cache_makes_a_stream() {
        let twitter = CLUSTERS.iter().filter(|c| c.alpha.is_some()).map(|c| c.id);
        let names = twitter
            .map(|id| format!("twitter:{id}"))
            .chain(CACHES.iter().map(|c| format!("meta:{}", c.name)));
        for name in names {
            let spec = spec(&name, 100_000, "t:").expect(&name);
            let mut stream = Generator::new(&spec, 1, 0).expect(&name);
            assert!((0..1000).all(|_| stream.step().key < 100_000), "{name}");
        }
    }

    #[test]
    fn a_cluster_keeps_its_published_figures() {
        let spec = spec("twitter:14", 10, "").expect("published");
        assert_eq!((spec.key_len, spec.values), (96, Lengths::Fixed(414)));
        assert_eq!(spec.popularity, Popularity::Zipf { alpha: 1.2959 });
        assert!(spec.mix.has(Op::Delete) && !spec.mix.has(Op::Incr));
    }

    #[test]
    fn what_was_not_published_is_refused_by_name() {
        for name in [
            "twitter:5",
            "twitter:43",
            "twitter:99",
            "meta:nothing",
            "elsewhere",
        ] {
            let error = spec(name, 10, "").expect_err(name).to_string();
            assert!(
                error.contains(name) && error.contains("kvcache_reg"),
                "{error}"
            );
        }
    }
}
