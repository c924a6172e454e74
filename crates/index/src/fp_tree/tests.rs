//! The tree against what every index must do.

use super::FpTree;
use crate::contract;
use nyx_media::Mapped;
use proptest::prelude::*;

/// Few slots, so that small trees have many leaves.
type Small = FpTree<Mapped, 6>;
type Whole = FpTree<Mapped>;

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

#[test]
fn the_greatest_key_is_told_to_whoever_goes_beyond() {
    contract::ends_at_the_greatest_key::<Small>();
}

#[test]
fn somebody_else_is_asked_before_it_decides() {
    contract::asks_before_it_decides::<Small>();
}

#[test]
fn a_full_heap_refuses_new_leaves_and_nothing_else() {
    contract::refuses_when_full::<Small>();
}

#[test]
fn readers_miss_nothing_and_never_go_back_while_writers_write() {
    contract::serves_all_at_once::<Small>();
}

#[test]
fn it_grows_under_writers_and_who_was_told_of_a_key_finds_it() {
    contract::serves_while_it_grows::<Small>();
}

#[test]
fn its_memory_is_in_proportion_to_the_keys_of_one_time() {
    contract::churn::stays_small::<Small>();
    contract::churn::stays_small::<Whole>();
}

#[test]
fn whole_nodes_come_and_go_beside_readers_who_miss_nothing() {
    contract::churn::serves_while_keys_come_and_go::<Small>();
}

#[test]
fn the_last_node_comes_and_goes_beside_readers_who_are_told_of_no_damage() {
    contract::churn::serves_while_the_last_node_comes_and_goes::<Small>();
}
