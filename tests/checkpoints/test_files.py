"""The files of a checkpoint: whole or not at all, with every value as it was, and never unpickled."""

from __future__ import annotations

import errno
import importlib.util
import os
from collections import OrderedDict

import numpy as np
import pytest

from mpiter.checkpoints import files
from mpiter.errors import StateError

STATES = {
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
    same(files.read(files.write(tmp_path, 3, STATES, keep=1)), STATES)


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: python3 tests --all")
def test_tensors_of_every_dtype_come_back_as_tensors(tmp_path):
    import torch

    kinds = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64)
    tensors = {str(kind): torch.ones(2, 3).to(kind) for kind in kinds}
    tensors |= {"parameter": torch.nn.Parameter(torch.ones(2)), "empty": torch.zeros(0, 2), "number": torch.tensor(3)}
    found = files.read(files.write(tmp_path, 0, tensors, keep=1))
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].to(torch.complex64), tensor.detach().to(torch.complex64))


def test_what_no_file_can_hold_is_refused_by_its_path_and_leaves_nothing(tmp_path):
    with pytest.raises(StateError, match=r"state\['model'\]\[1\] is of type object"):
        files.write(tmp_path, 0, {"model": [1, object()]}, keep=1)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_cut_or_changed_anywhere_is_told(tmp_path):
    path = files.write(tmp_path, 0, {"a": np.arange(4), "b": "text"}, keep=1)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(StateError):
            files.read(path)
        path.write_bytes(whole[:length] + bytes([whole[length] ^ 1]) + whole[length + 1 :])
        with pytest.raises(StateError):
            files.read(path)


def test_where_the_newest_is_damaged_the_one_before_is_read_with_a_warning(tmp_path):
    files.write(tmp_path, 1, {"a": 1}, keep=2)
    files.write(tmp_path, 2, {"a": 2}, keep=2).write_bytes(b"rubbish")
    with pytest.warns(
        RuntimeWarning, match="step-000000002 cannot be read: .* the checkpoint before it, step-000000001, is taken"
    ):
        assert files.newest(tmp_path) == (tmp_path / "step-000000001", {"a": 1})


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_disk_that_is_full_leaves_the_files_that_were_there(tmp_path, monkeypatch, where):
    files.write(tmp_path, 1, {"a": 1}, keep=1)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, where, full)
    with pytest.raises(OSError, match=r"No space left on device: ['\"].*step-000000002['\"]"):
        files.write(tmp_path, 2, {"a": 2}, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_no_link_is_followed_where_a_file_is_written(tmp_path):
    """A killed program may have had our pid, and anybody knows it."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.write_text("another's")
    folder.mkdir()
    (folder / f".unfinished-{os.getpid()}").symlink_to(elsewhere)
    files.write(folder, 1, {"a": 1}, keep=1)
    files.prepare(folder, {})
    assert elsewhere.read_text() == "another's"
    assert files.newest(folder) == (folder / "step-000000001", {"a": 1})


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "step-by-step.txt").write_text("mine")
    for step in range(3):
        files.write(tmp_path, step, {}, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000002", "step-by-step.txt"]


def test_a_folder_that_is_not_there_holds_none(tmp_path):
    assert files.newest(tmp_path / "nowhere") is None


def test_what_was_just_written_stays_beside_files_that_cannot_be_read(tmp_path):
    for step in (100, 200):
        (tmp_path / f"step-{step:09d}").write_bytes(b"of another version")
    with pytest.raises(StateError, match=r"step-000000200 cannot be read: .* Move it away"):
        files.newest(tmp_path)
    path = files.write(tmp_path, 3, {"a": 1}, keep=1)
    assert path.is_file()
    with pytest.warns(RuntimeWarning, match="step-000000003, is taken"):
        assert files.newest(tmp_path) == (path, {"a": 1})


def test_what_was_left_unfinished_is_cleared_away_at_the_next_beginning(tmp_path):
    (tmp_path / ".unfinished-1").write_bytes(b"half of it")
    (tmp_path / "step-000000007").mkdir()  # somebody's, and no file
    files.prepare(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000007"]
    assert files.newest(tmp_path) is None
