"""The files of a checkpoint: whole or not at all, with every value as it was, and never unpickled."""

from __future__ import annotations

import errno
import importlib.util
import os
from collections import OrderedDict

import numpy as np
import pytest

import mpiter
from mpiter import Checkpoint, StateError

STATE = {
    "plain": [1, 2.5, "x", None, True, b"\0", (1, 2), {3: "three"}, 1 << 70, float("inf")],
    "arrays": OrderedDict(
        a=np.arange(6, dtype=">i4").reshape(2, 3),
        empty=np.zeros((0, 3), "f4"),
        scalar=np.float32(0.1),
        zero=np.array(5.0),
        dates=np.array(["2026-01-01"], "M8[D]"),
        records=np.array([(1, 2.0)], [("a", "i1"), ("b", "f8")]),
        turned=np.arange(6).reshape(2, 3).T,
        nothing=np.array(["", ""], "S0"),
    ),
}


def written(folder, state, steps=1, **options):
    """The file after so many steps."""
    with Checkpoint(folder, model=state, every_s=None, **options) as c:
        for _ in range(steps):
            c.step()
    return folder / f"step-{c.finished:09d}"


def found(folder):
    return Checkpoint.read(folder)["model"]


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


def test_what_is_read_is_what_was_written(tmp_path):
    written(tmp_path, STATE)
    same(found(tmp_path), STATE)


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: python3 tests --all")
def test_tensors_of_every_dtype_come_back_as_tensors(tmp_path):
    import torch

    kinds = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64)
    tensors = {str(kind): torch.ones(2, 3).to(kind) for kind in kinds}
    tensors |= {"parameter": torch.nn.Parameter(torch.ones(2)), "empty": torch.zeros(0, 2), "number": torch.tensor(3)}
    written(tmp_path, tensors)
    for name, tensor in tensors.items():
        assert found(tmp_path)[name].dtype == tensor.dtype
        assert torch.equal(found(tmp_path)[name].to(torch.complex64), tensor.detach().to(torch.complex64))
    with torch.no_grad():
        tensors["parameter"].zero_()
    with Checkpoint(tmp_path, model=tensors):
        assert tensors["parameter"].tolist() == [1, 1]


def test_what_no_file_can_hold_is_refused_before_the_training_and_leaves_nothing(tmp_path):
    with pytest.raises(StateError, match=r"state\['parts'\]\['model'\]\['a'\]\[1\] is of type object"):
        written(tmp_path, {"a": [1, object()]})
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        written(tmp_path / "file", {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_is_cut_or_changed_anywhere_is_told_or_reads_as_it_was(tmp_path):
    state = {"a": np.arange(4), "b": "text"}
    path = written(tmp_path, state)
    whole = path.read_bytes()
    untold = 0
    for at in range(0, len(whole), 11):
        path.write_bytes(whole[:at])
        with pytest.raises(StateError, match="cannot be read"):
            found(tmp_path)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            same(found(tmp_path), state)
            untold += 1
        except StateError:
            pass
    assert untold < len(whole) / 22  # a date, say


def test_a_damaged_file_is_told_and_without_it_the_one_before_is_taken(tmp_path):
    written(tmp_path, {"a": 1})
    last = written(tmp_path, {"a": 2})
    last.write_bytes(b"rubbish")
    with pytest.raises(StateError, match=r"step-000000002 cannot be read .* Delete it to go on from the one before"):
        written(tmp_path, {"a": 3})
    last.unlink()
    with Checkpoint(tmp_path, model={}) as c:
        assert c.finished == 1


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_disk_that_is_full_leaves_the_files_that_were_there(tmp_path, monkeypatch, where):
    written(tmp_path, {"a": 1}, keep=1)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, where, full)
    with pytest.raises(OSError, match=r"No space left on device: ['\"].*step-000000002['\"]"):
        written(tmp_path, {"a": 2}, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_a_save_that_fails_on_the_way_is_told_and_tried_again(tmp_path, monkeypatch):
    replace, failures = os.replace, [OSError("the disk is full")]

    def full_once(*paths):
        if failures:
            raise failures.pop()
        replace(*paths)

    monkeypatch.setattr(os, "replace", full_once)
    with Checkpoint(tmp_path, model={"a": 1}, every_steps=2) as c:
        c.step()
        with pytest.warns(RuntimeWarning, match="nothing could be saved after 2 steps .the disk is full"):
            c.step()
        c.step()
        assert found(tmp_path) == {"a": 1}


def test_other_files_in_the_folder_are_left_alone_and_unfinished_ones_are_cleared_away(tmp_path):
    (tmp_path / "step-by-step.txt").write_text("mine")
    (tmp_path / ".step-000000001-0123").write_bytes(b"half of it")
    (tmp_path / "step-000000007").mkdir()
    written(tmp_path, {}, steps=3, every_steps=1, keep=1)
    names = ["step-000000003", "step-000000007", "step-by-step.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_no_link_is_followed_where_a_file_is_written(tmp_path, monkeypatch):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.write_text("another's")
    folder.mkdir()
    monkeypatch.setattr(mpiter.machine.secrets, "token_hex", lambda _: "foretold")
    (folder / ".step-foretold").symlink_to(elsewhere)
    with pytest.raises(FileExistsError):
        written(folder, {"a": 1})
    assert elsewhere.read_text() == "another's"


def test_a_folder_without_checkpoints_has_none_to_read(tmp_path):
    with pytest.raises(StateError, match="there is no checkpoint in"):
        Checkpoint.read(tmp_path / "nowhere")
