"""The files of a checkpoint are whole or not there, and hold every value as it was.

Nothing in them is ever unpickled.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import random
import signal
import threading
import tracemalloc
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiter
from mpiter import Checkpoint, StateError
from mpiter.checkpoint import file, saving

STATE = {
    "plain": [
        1,
        2.5,
        "x",
        None,
        True,
        b"\0",
        (1, 2),
        {3: "three"},
        1 << 70,
        float("inf"),
    ],
    "arrays": OrderedDict(
        a=np.arange(6, dtype=">i4").reshape(2, 3),
        empty=np.zeros((0, 3), "f4"),
        scalar=np.float32(0.1),
        zero=np.array(5.0),
        dates=np.array(["2026-01-01"], "M8[D]"),
        turned=np.arange(6).reshape(2, 3).T,
        nothing=np.array(["", ""], "S0"),
    ),
}


def written(path, state, **options):
    """The file after a step."""
    with Checkpoint(path, model=state, **options) as c:
        c.step()
    return path


def found(path):
    return Checkpoint.read(path)["model"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.npz"


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            same(*pair)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
    else:
        assert one == other


def test_what_is_read_is_what_was_written(path):
    same(found(written(path, STATE)), STATE)


@pytest.mark.torch
@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed: python3 tests --all",
)
def test_tensors_of_every_dtype_come_back_as_tensors(path):
    import torch

    kinds = (
        torch.float32,
        torch.bfloat16,
        torch.int64,
        torch.bool,
        torch.float8_e4m3fn,
        torch.complex64,
    )
    tensors = {str(kind): torch.ones(2, 3).to(kind) for kind in kinds}
    tensors |= {
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "empty": torch.zeros(0, 2),
        "number": torch.tensor(3),
    }
    written(path, tensors)
    for name, tensor in tensors.items():
        assert found(path)[name].dtype == tensor.dtype
        # Some kinds can't be compared as they are.
        mine = found(path)[name].to(torch.complex64)
        assert torch.equal(mine, tensor.detach().to(torch.complex64))
    with torch.no_grad():
        tensors["parameter"].zero_()
    with Checkpoint(path, model=tensors):
        assert tensors["parameter"].tolist() == [1, 1]


def test_what_no_file_can_hold_is_refused_before_the_training_and_leaves_nothing(
    tmp_path,
):
    with pytest.raises(
        StateError, match=r"state\['parts'\]\['model'\]\['a'\]\[1\] is of type object"
    ):
        written(tmp_path / "run.npz", {"a": [1, object()]})
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        written(tmp_path / "file" / "run.npz", {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_is_cut_or_changed_anywhere_is_told_or_reads_as_it_was(path):
    state = {"a": np.arange(4), "b": "text"}
    whole = written(path, state).read_bytes()
    untold = 0
    for at in range(0, len(whole), 29):
        path.write_bytes(whole[:at])
        remedy = "or delete the file if it is a damaged one"
        with pytest.raises(StateError, match=rf"run\.npz cannot be read .* {remedy}"):
            found(path)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            same(found(path), state)
            untold += 1
        except StateError:
            pass
    # A flipped bit in the date of a member of the archive, say, changes nothing.
    assert untold < len(whole) / 58
    with path.open("wb") as file:
        np.savez(file, states=np.frombuffer(b"[1]", np.uint8))  # another program's
    with pytest.raises(StateError, match="cannot be read"):
        found(path)
    path.write_bytes(b"rubbish")
    with pytest.raises(StateError, match="cannot be read"):
        written(path, {"a": 3})
    assert path.read_bytes() == b"rubbish", "it is not written over"


PLANTED = [
    None,
    0,
    -1,
    1 << 70,
    0.5,
    "x",
    [],
    {},
    [1],
    {"a": 1},
    {"~dict": [[1, 2]]},
    {"~array": ["|S0", [9], ""]},
]


def parts_of(plain, path=()):
    """Yield the paths of the values in a checkpoint's JSON.

    Of a long list only the first ones are given.
    """
    yield path
    items = ()
    if isinstance(plain, dict):
        items = plain.items()
    elif isinstance(plain, list):
        items = enumerate(plain[:3])
    for key, part in items:
        yield from parts_of(part, (*path, key))


@pytest.mark.filterwarnings("ignore:.* doesn't hold .*taken as it is")
@settings(max_examples=50)
@given(data=st.data())
def test_a_value_that_was_planted_in_a_file_is_a_state_error_or_a_value(
    tmp_path_factory, data
):
    path = tmp_path_factory.mktemp("planted") / "run.npz"

    def parts():
        loader = mpiter.DataLoader(range(6), 2, shuffle=True, seed=1)
        return loader, {"w": np.arange(3), "deep": [{"a": (1, 2)}]}

    loader, model = parts()
    with Checkpoint(path, loader, model=model) as c:
        next(c.steps(loader))
    with np.load(path) as file:
        arrays = dict(file)
    plain = json.loads(bytes(arrays.pop("states")))
    paths = [way for way in parts_of(plain) if way]
    *ways, last = data.draw(st.sampled_from(paths), "path")
    inner = plain
    for way in ways:
        inner = inner[way]
    if data.draw(st.booleans(), "is left out"):
        del inner[last]
    else:
        inner[last] = data.draw(st.sampled_from(PLANTED), "value")
    states = np.frombuffer(json.dumps(plain).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, states=states, **arrays)
    before = random.getstate(), np.random.get_state()
    loader, model = parts()
    try:
        with (
            contextlib.suppress(StateError),
            Checkpoint(path, loader, model=model) as c,
        ):
            list(c.steps(loader))
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def test_what_is_wrong_with_a_file_is_said(path):
    written(path, {"a": 1})
    with np.load(path) as file:
        arrays = dict(file)
    genuine = json.loads(bytes(arrays.pop("states")))
    for change, told in (
        ({"steps": "x"}, "'steps' is 'x', not of type int"),
        ({"epoch": -1}, "'epoch' is -1, not within 0"),
        ({"parts": [1]}, r"'parts' is \[1\], not of type dict"),
        ({"parts": {"model": 5}}, "holds 5 as part model, which is a dict here"),
        ({"ranks": [1]}, "'ranks' has other things than texts"),
        ({"ranks": ["x"]}, "holds no states of rank 0"),
        ({"ranks": ["3"]}, "holds no states of rank 0: 3"),
        ({"ranks": ['{"numpy": 3}']}, "holds no state of the random generator numpy"),
        ({"id": 3}, "'id' is 3, not of type str"),
        ({"passes": {"0": "x"}}, "'0' is 'x', not of type int"),
    ):
        plain = json.dumps(genuine | change).encode()
        with path.open("wb") as file:
            np.savez(file, states=np.frombuffer(plain, np.uint8), **arrays)
        with pytest.raises(StateError, match=rf"run\.npz .*{told}"):
            Checkpoint(path, model={"a": 2}).__enter__()
    with path.open("wb") as file:
        np.savez_compressed(file, states=np.zeros(1 << 20, np.uint8))
    with pytest.raises(StateError, match="cannot be read"):
        found(path)


@pytest.mark.parametrize("use", [found, file.mark_of])
def test_a_compressed_file_is_not_unpacked_to_look_into_it(path, use):
    size = 1 << 26
    with path.open("wb") as compressed:
        np.savez_compressed(compressed, states=np.zeros(size, np.uint8))
    tracemalloc.start()
    try:
        with contextlib.suppress(StateError):
            use(path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < size / 8


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_disk_that_is_full_leaves_the_file_that_was_there(path, monkeypatch, where):
    written(path, {"a": 1})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, where, full)
    with pytest.raises(OSError, match="No space left on device"):
        written(path, {"a": 2})
    assert found(path) == {"a": 1}
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("background", [True, False])
def test_a_save_that_fails_on_the_way_is_told_and_tried_again(
    path, monkeypatch, background
):
    replace = os.replace
    model = {"a": 1}

    def fails_once(*paths):
        monkeypatch.setattr(os, "replace", replace)
        raise OSError("the server is gone")

    with Checkpoint(path, model=model, every_steps=1, background=background) as c:
        monkeypatch.setattr(os, "replace", fails_once)
        # An error of the thread that writes is raised by the step after.
        for _ in range(background):
            c.step()
        with pytest.warns(
            RuntimeWarning,
            match="nothing could be saved after . steps .the server is gone",
        ):
            c.step()
        model["a"] = 4
        c.step()
    assert found(path) == {"a": 4}


def test_a_save_that_fails_at_an_epochs_end_is_told_and_tried_again(path, monkeypatch):
    replace = os.replace
    model = {"a": 1}

    def fails_once(*paths):
        monkeypatch.setattr(os, "replace", replace)
        raise OSError("the server is gone")

    monkeypatch.setattr(saving, "_SOON", 0)  # as of a large model
    loader = mpiter.DataLoader(range(4), 2)
    with (
        pytest.raises(SystemExit),
        Checkpoint(path, loader, model=model, background=False) as c,
    ):
        batches = c.steps(loader)
        for _ in c.epochs(1):
            next(batches)
            next(batches)
            model["a"] = 3
            monkeypatch.setattr(os, "replace", fails_once)
            with pytest.warns(
                RuntimeWarning,
                match="nothing could be saved after 2 steps .the server is gone",
            ):
                next(batches, None)
            model["a"] = 9
            signal.raise_signal(signal.SIGTERM)
    assert Checkpoint.read(path)["model"] == {"a": 3}


@pytest.mark.parametrize("background", [True, False])
def test_a_disk_that_is_full_is_an_error_with_the_sizes_at_the_next_step(
    path, monkeypatch, background
):
    model = {"w": np.zeros(500_000)}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    sizes = r"run\.npz takes 4\.0 MB, and [\d,.]+ MB are free there"
    with (
        pytest.raises(OSError, match=f"{sizes}; what was saved before"),
        Checkpoint(path, model=model, background=background) as c,
    ):
        monkeypatch.setattr(os, "fsync", full)
        model["w"] += 1
        c.step()
        c.save()
        c.step()
        c.save()
    monkeypatch.undo()
    assert found(path)["w"].max() == 0


def test_what_is_saved_beside_the_training_is_what_it_was_when_the_step_ended(
    path, monkeypatch
):
    fsync = os.fsync
    written_at = threading.Event()

    def waits(descriptor):
        written_at.wait(30)
        fsync(descriptor)

    model = {"w": np.zeros(1000), "n": 0}
    with Checkpoint(path, model=model) as c:
        monkeypatch.setattr(os, "fsync", waits)
        model["w"] += 1
        model["n"] = 1
        c.step()
        c.save()
        model["w"] += 1
        model["n"] = 2
        assert found(path)["n"] == 0, "it waits for the disk"
        written_at.set()
        c.step()
    assert (found(path)["w"].max(), found(path)["n"]) == (2, 2)


def test_an_error_in_the_block_waits_for_what_is_being_saved(path, monkeypatch):
    model = {"n": 0}
    replace = os.replace
    begun = threading.Event()

    def slowly(*paths):
        begun.wait(30)
        replace(*paths)

    with pytest.raises(ZeroDivisionError), Checkpoint(path, model=model) as c:
        monkeypatch.setattr(os, "replace", slowly)
        model["n"] = 1
        c.step()
        c.save()
        model["n"] = 2
        threading.Timer(0.05, begun.set).start()
        raise ZeroDivisionError
    assert found(path) == {"n": 1}


def test_other_files_are_left_alone_and_an_unfinished_one_is_cleared_away(path):
    others = [".other.npz-unfinished", ".run.npz-mine", "run.npz.txt"]
    for name in [*others, ".run.npz-unfinished"]:
        (path.parent / name).write_bytes(b"half of it")
    with pytest.raises(FileNotFoundError):
        Checkpoint.read(path)
    written(path, {})
    there = sorted(other.name for other in path.parent.iterdir())
    assert there == sorted([*others, "run.npz"])


def test_no_link_is_followed_where_a_file_is_written(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("another's")
    (tmp_path / ".run.npz-unfinished").symlink_to(elsewhere)
    written(tmp_path / "run.npz", {"a": 1})
    assert elsewhere.read_text() == "another's"
