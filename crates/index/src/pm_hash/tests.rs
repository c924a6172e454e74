//! The table against what every index must do.

use super::PmHash;
use crate::{Index, Persistent, contract};
use nyx_base::WorkerId;
use nyx_media::Mapped;
use proptest::prelude::*;

/// Small segments and tables, so that few keys make many of them.
type Small = PmHash<Mapped, 2, 4, 2>;
type Whole = PmHash<Mapped>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_agrees_with_an_ordered_map(steps in contract::any_steps()) {
        contract::agrees::<Small>(&steps);
        contract::agrees::<Whole>(&steps);
    }
}

#[test]
fn in_order_in_reverse_and_shuffled_all_keys_are_found() {
    contract::holds_any_order::<Whole>();
}

/// Of memory for segments and tables, whatever the number of keys.
#[test]
fn it_takes_28_to_30_bytes_per_key() {
    let table: Whole = contract::empty(16 << 20, 1);
    let mut key = 0;
    for keys in (100_000..=200_000).step_by(10_000) {
        while key < keys {
            table.put(WorkerId(0), key, key).expect("room");
            key += 1;
        }
        let per_key = table.heap().claimed_bytes() as f64 / keys as f64;
        println!("{keys} keys: {per_key:.1} bytes each");
        assert!(
            (27.0..30.5).contains(&per_key),
            "{keys} keys: {per_key:.1} bytes each"
        );
    }
}

#[test]
fn the_greatest_key_is_told_to_whoever_goes_beyond() {
    contract::ends_at_the_greatest_key::<Small>();
}

#[test]
fn somebody_else_is_asked_before_it_decides() {
    contract::asks_before_it_decides::<Small>();
}

#[test]
fn a_full_heap_refuses_new_segments_and_nothing_else() {
    contract::refuses_when_full::<Whole>();
}

#[test]
fn readers_miss_nothing_and_never_go_back_while_writers_write() {
    contract::serves_all_at_once::<Small>();
}

#[test]
fn it_grows_under_writers_and_who_was_told_of_a_key_finds_it() {
    contract::serves_while_it_grows::<Small>();
}
