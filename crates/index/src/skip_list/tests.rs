//! The list against what every index must do.

use super::SkipList;
use crate::contract;
use nyx_media::Mapped;
use proptest::prelude::*;

type List = SkipList<Mapped>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_agrees_with_an_ordered_map(steps in contract::any_steps()) {
        contract::agrees::<List>(&steps);
    }
}

#[test]
fn in_order_in_reverse_and_shuffled_all_keys_are_found() {
    contract::holds_any_order::<List>();
}

#[test]
fn the_greatest_key_is_told_to_whoever_goes_beyond() {
    contract::ends_at_the_greatest_key::<List>();
}

#[test]
fn somebody_else_is_asked_before_it_decides() {
    contract::asks_before_it_decides::<List>();
}

#[test]
fn a_full_heap_refuses_new_nodes_and_nothing_else() {
    contract::refuses_when_full::<List>();
}

#[test]
fn readers_miss_nothing_and_never_go_back_while_writers_write() {
    contract::serves_all_at_once::<List>();
}

#[test]
fn it_grows_under_writers_and_who_was_told_of_a_key_finds_it() {
    contract::serves_while_it_grows::<List>();
}

#[test]
fn its_memory_is_in_proportion_to_the_keys_of_one_time() {
    contract::churn::stays_small::<List>();
}

#[test]
fn whole_nodes_come_and_go_beside_readers_who_miss_nothing() {
    contract::churn::serves_while_keys_come_and_go::<List>();
}
