//! What the eviction policies are for: a look-aside cache of a tenth of the keys, as its client
//! sees it. Figures are of this seeded workload alone.

mod rig;

use nyx_store::{Eviction, StoreConfig};
use rig::{Rig, small};

const KEYS: u64 = 100_000;
const REQUESTS: u32 = 400_000;

/// A key of a Zipf-like popularity: the logarithm of the rank is uniform, which is Zipf with
/// exponent one.
fn popular(rng: &mut fastrand::Rng) -> u64 {
    ((KEYS as f64).powf(rng.f64()) as u64 - 1).wrapping_mul(0x9e37_79b9) % KEYS
}

/// The share of requests that hit, of the second half; now and then a scan passes through.
fn hit_ratio(eviction: Eviction) -> f64 {
    let rig = Rig::new(StoreConfig {
        eviction,
        ..small(4 << 20)
    });
    let mut w = rig.worker(0);
    let mut rng = fastrand::Rng::with_seed(11);
    let (mut hits, mut asked, mut scanned) = (0u32, 0u32, KEYS);
    for round in 0..REQUESTS {
        let scans = round % 20_000 < 4_000;
        let key = if scans { scanned } else { popular(&mut rng) };
        scanned += u64::from(scans);
        let name = key.to_le_bytes();
        let hit = w.get(&name).is_some();
        if !hit {
            w.store(&name, &[1; 300]);
        }
        if !scans && round > REQUESTS / 2 {
            hits += u32::from(hit);
            asked += 1;
        }
        w.enter();
    }
    f64::from(hits) / f64::from(asked)
}

#[test]
fn what_is_popular_stays() {
    let ratios = Eviction::ALL.map(|eviction| (eviction, hit_ratio(eviction)));
    println!("{ratios:?}");
    let of = |wanted| {
        ratios
            .iter()
            .find(|(eviction, _)| *eviction == wanted)
            .expect("all ran")
            .1
    };
    for better in [
        Eviction::Lru,
        Eviction::Lfu,
        Eviction::S3Fifo,
        Eviction::Merge,
    ] {
        assert!(
            of(better) > of(Eviction::Fifo) + 0.01,
            "{better} against fifo: {ratios:?}"
        );
    }
    assert!(
        of(Eviction::S3Fifo) > of(Eviction::Lru),
        "a scan hurts lru more: {ratios:?}"
    );
}
