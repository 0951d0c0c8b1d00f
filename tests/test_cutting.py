"""How work is cut: properties that hold for every sample time, batch size and crew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mpiter.cutting import DEAR_S, MOST_BATCHES, TASKS_PER_WORKER, WORTHWHILE_S, cut

times = st.floats(1e-9, 1e3) | st.just(0.0)
sizes = st.integers(1, 4096)
crews = st.integers(1, 64)
allowed = st.integers(1, 200)
learnt = st.integers(0, 40)


@given(sample_s=times, batch_size=sizes, workers=crews, most=allowed, experience=learnt)
def test_sizes_are_always_possible(sample_s, batch_size, workers, most, experience):
    made = cut(sample_s, batch_size, workers, most, experience)
    assert made.rows >= 1
    assert made.budget_ns > 0
    assert made.tasks == TASKS_PER_WORKER * workers
    assert 1 <= made.batches <= most
    assert isinstance(made.rows, int)
    assert isinstance(made.budget_ns, int)


@given(sample_s=times, batch_size=sizes, workers=crews, most=allowed, experience=learnt)
def test_a_budget_gives_a_task_time_for_what_it_is_expected_to_hold(sample_s, batch_size, workers, most, experience):
    made = cut(sample_s, batch_size, workers, most, experience)
    assert made.budget_ns / 1e9 >= 0.999 * made.rows * sample_s


@given(sample_s=times, batch_size=sizes, workers=crews, most=allowed, experience=learnt)
def test_several_batches_in_a_task_leave_work_for_every_worker(sample_s, batch_size, workers, most, experience):
    made = cut(sample_s, batch_size, workers, most, experience)
    if made.rows > batch_size:
        assert made.rows % batch_size == 0
        assert made.rows <= MOST_BATCHES * batch_size
        assert made.rows * made.tasks <= most * batch_size
        assert made.rows * sample_s <= WORTHWHILE_S * 1.001


@given(sample_s=times, batch_size=sizes, workers=crews, most=allowed, experience=learnt)
def test_a_dear_batch_is_split_over_the_workers(sample_s, batch_size, workers, most, experience):
    made = cut(sample_s, batch_size, workers, most, experience)
    if sample_s * batch_size > DEAR_S:
        assert made.rows * workers < batch_size + workers


@given(sample_s=times, batch_size=sizes, workers=crews, most=st.integers(1, 64), experience=learnt)
def test_too_few_batches_for_all_are_split_so_that_nobody_idles(sample_s, batch_size, workers, most, experience):
    made = cut(sample_s, batch_size, workers, most, experience)
    if most < workers:
        assert made.rows * workers < batch_size + workers


@given(batch_size=sizes, workers=crews, most=allowed, experience=learnt, data=st.data())
def test_dearer_samples_never_make_larger_tasks_of_whole_batches(batch_size, workers, most, experience, data):
    cheap = data.draw(st.floats(1e-9, 1e-3))
    dear = data.draw(st.floats(cheap, 10))
    assert (
        cut(dear, batch_size, workers, most, experience).rows <= cut(cheap, batch_size, workers, most, experience).rows
    )


@given(sample_s=times, batch_size=sizes, most=allowed, experience=learnt)
def test_one_worker_gets_whole_batches_while_they_are_cheap(sample_s, batch_size, most, experience):
    if sample_s * batch_size <= DEAR_S:
        assert cut(sample_s, batch_size, 1, most, experience).rows % batch_size == 0


@given(sample_s=times, batch_size=sizes, workers=crews, most=allowed)
def test_batches_are_not_grouped_on_the_word_of_one_sample(sample_s, batch_size, workers, most):
    assert cut(sample_s, batch_size, workers, most, 1).rows <= batch_size
    assert cut(sample_s, batch_size, workers, most, 0).rows <= batch_size
