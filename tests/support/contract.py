"""Gives the tests of `tests/iterators/test_contract.py` for another backend."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

# Tests get the options of a backend by these fixtures.
FIXTURES = {"default", "any_way", "any_start"}
# These try each kind of sample alone.  Another test has parts of all kinds.
MANY = {"test_samples_come_back_as_they_were"}
# These concern only the consumer's process.  They are left out of backends whose
# workers take a second to start.
CONSUMERS = {
    "test_a_batch_is_a_real_list_and_knows_its_columns",
    "test_changing_the_list_detaches_the_columns",
    "test_constructing_starts_nothing",
    "test_epoch_arithmetic_describes_what_was_handed_out",
    "test_the_end_comes_again_and_again",
    "test_each_epoch_has_an_order_of_its_own",
    "test_an_order_sampler_is_read_anew_at_each_epoch",
    "test_several_threads_may_share_an_iterator",
    "test_an_order_samplers_error_comes_after_the_batches_before_it",
    "test_a_copy_goes_on_from_the_same_place",
    "test_strict_run_ahead_keeps_to_n_prefetch",
    "test_the_callers_random_state_is_left_alone",
    "test_more_failures_than_may_be_skipped_are_errors_each",
    "test_batches_larger_than_the_dataset_follow_an_order_sampler",
    "test_no_epochs_end_is_lost_with_a_batch_of_which_nothing_is_left",
    "test_the_end_is_the_epochs_end_though_nothing_is_left_of_its_last_batch",
    "test_of_many_skipped_samples_the_first_hundred_are_listed",
    "test_a_dataset_of_which_every_sample_fails_is_not_skipped_for_ever",
    "test_a_batch_of_countless_epochs_that_memory_cannot_hold_is_refused_at_once",
    "test_a_room_has_as_many_rows_as_come",
    "test_nothing_waits_for_a_look_at_the_workers",
    "test_a_room_grows_with_the_batches",
    "test_parts_of_a_mapped_file_are_stacked",
    "test_errors_that_cannot_travel_are_described",
    "test_an_item_visited_twice_gets_fresh_randomness",
    "test_an_order_that_the_dataset_brings_is_followed",
    "test_numpys_numbers_are_taken_as_pythons_and_do_not_overflow",
}


def contract(without: Iterable[str] = ()) -> dict[str, Callable[..., Any]]:
    """Return the tests of the contract that run on any backend, by name.

    The module that takes them must define the fixtures in ``FIXTURES``.
    """
    folder = str(Path(__file__).resolve().parents[1] / "iterators")
    if folder not in sys.path:
        sys.path.append(folder)
    pytest.register_assert_rewrite("test_contract")
    import test_contract

    found = {
        name: test
        for name, test in vars(test_contract).items()
        if name.startswith("test_")
    }
    ours = {
        name
        for name, test in found.items()
        if FIXTURES & inspect.signature(test).parameters.keys()
    }
    return {
        name: found[name] for name in found if name in ours.difference(MANY, without)
    }
