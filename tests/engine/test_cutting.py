"""How work is cut: properties that hold for every sample time, batch size and crew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mpiter.engine.cutting import MOST_BATCHES, PARTS, WORTHWHILE_S, cut
from mpiter.pool.pool import MOST_OUT
from mpiter.rules import DEAR_S

times = st.floats(1e-9, 1e3) | st.just(0.0)
sizes = st.integers(1, 4096)
crews = st.integers(1, 64)
allowed = st.integers(1, 200)
learnt = st.integers(0, 40)


@given(sample_s=times, batch_size=sizes, workers=crews, most=allowed, together=learnt)
def test_sizes_are_always_possible(sample_s, batch_size, workers, most, together):
    made = cut(sample_s, batch_size, workers, most, together)
    assert made.rows >= 1
    assert made.budget_ns > 0
    assert 1 <= made.batches <= most
    assert isinstance(made.rows, int)
    assert isinstance(made.budget_ns, int)


@given(sample_s=times, batch_size=sizes, workers=crews, most=allowed, together=learnt)
def test_a_budget_gives_a_task_time_for_what_it_is_expected_to_hold(sample_s, batch_size, workers, most, together):
    made = cut(sample_s, batch_size, workers, most, together)
    assert made.budget_ns / 1e9 >= 0.999 * made.rows * sample_s


@given(sample_s=times, batch_size=sizes, workers=crews, most=allowed, together=learnt)
def test_several_batches_in_a_task_leave_work_for_every_worker(sample_s, batch_size, workers, most, together):
    made = cut(sample_s, batch_size, workers, most, together)
    if made.rows > batch_size:
        assert made.rows % batch_size == 0
        assert made.rows <= MOST_BATCHES * batch_size
        assert made.rows * MOST_OUT * workers <= most * batch_size
        assert made.rows * sample_s <= WORTHWHILE_S * 1.001


@given(sample_s=times, batch_size=sizes, workers=crews, most=allowed, together=learnt)
def test_what_is_on_its_way_fills_every_workers_hands_and_no_more_than_a_batch_is_begun_beyond(
    sample_s, batch_size, workers, most, together
):
    made = cut(sample_s, batch_size, workers, most, together)
    full = (MOST_OUT * workers + (made.rows > batch_size)) * made.rows
    assert made.batches == most or full <= made.batches * batch_size < full + batch_size


@given(sample_s=times, batch_size=sizes, workers=crews, most=allowed, together=learnt)
def test_parts_of_a_dear_batch_take_no_longer_than_worthwhile(sample_s, batch_size, workers, most, together):
    made = cut(sample_s, batch_size, workers, most, together)
    if sample_s * batch_size > DEAR_S and made.rows > 1:
        assert (made.rows - 1) * sample_s <= DEAR_S / PARTS * 1.001


@given(sample_s=times, batch_size=sizes, workers=crews, most=allowed, together=learnt)
def test_a_dear_batch_is_split_over_the_workers(sample_s, batch_size, workers, most, together):
    made = cut(sample_s, batch_size, workers, most, together)
    if sample_s * batch_size > DEAR_S:
        assert made.rows * workers < batch_size + workers


@given(sample_s=times, batch_size=sizes, workers=crews, most=st.integers(1, 64), together=learnt)
def test_too_few_batches_for_all_are_split_so_that_nobody_idles(sample_s, batch_size, workers, most, together):
    made = cut(sample_s, batch_size, workers, most, together)
    if most < workers:
        assert made.rows * workers < batch_size + workers


@given(batch_size=sizes, workers=crews, most=allowed, together=learnt, data=st.data())
def test_dearer_samples_never_make_larger_tasks_of_whole_batches(batch_size, workers, most, together, data):
    cheap = data.draw(st.floats(1e-9, 1e-3))
    dear = data.draw(st.floats(cheap, 10))
    assert cut(dear, batch_size, workers, most, together).rows <= cut(cheap, batch_size, workers, most, together).rows


@given(sample_s=times, batch_size=sizes, most=allowed, together=learnt)
def test_one_worker_gets_whole_batches_while_they_are_cheap(sample_s, batch_size, most, together):
    if sample_s * batch_size <= DEAR_S:
        assert cut(sample_s, batch_size, 1, most, together).rows % batch_size == 0


@given(sample_s=times, batch_size=sizes, workers=crews, most=allowed)
def test_batches_are_not_grouped_on_the_word_of_one_sample(sample_s, batch_size, workers, most):
    assert cut(sample_s, batch_size, workers, most, 1).rows <= batch_size
    assert cut(sample_s, batch_size, workers, most, 0).rows <= batch_size


@given(sample_s=times, batch_size=sizes, workers=crews, most=allowed, together=learnt, dear_s=st.floats(0.1, 10))
def test_where_handing_over_is_dear_a_batch_stays_whole_longer(sample_s, batch_size, workers, most, together, dear_s):
    made = cut(sample_s, batch_size, workers, most, together, dear_s)
    if sample_s * batch_size <= dear_s and most >= workers:
        assert made.rows % batch_size == 0
    assert made.budget_ns >= dear_s / 10 * 0.999e9
