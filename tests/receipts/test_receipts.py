"""Receipts and their audit: what a rank was handed stands in its file, and what is lost or repeated is found."""

from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpiter
from mpiter import DataLoader, MultiprocessIterator, MultithreadIterator, OptionError, SerialIterator, batches
from mpiter.__main__ import main as command
from mpiter.audit import audit
from mpiter.receipts import Receipts

LENGTH = 50


class Numbers:
    """Samples that say which they are; some fail."""

    def __init__(self, failing: Any = ()) -> None:
        self.failing = failing

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        if index in self.failing:
            raise ValueError(f"sample {index}")
        return np.full(3, index)


class Named(Numbers):
    def __getitem__(self, index: Any) -> Any:
        return index


def files_in(folder: Path) -> list[Path]:
    return sorted(Path(folder).glob("*.receipts"))


def lines_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def keys_in(folder: Path) -> list[Any]:
    """What was noted as handed out, one file after the other."""
    found = [line["keys"] for path in files_in(folder) for line in lines_in(path) if "batch" in line]
    return [key for keys in found for key in keys]


def numbers_of(batch: Any) -> list[int]:
    return [int(np.asarray(sample).ravel()[0]) for sample in batch]


MAKES: dict[str, Callable[..., Any]] = {
    "MultiprocessIterator": lambda **k: MultiprocessIterator(Numbers(), 8, n_processes=2, repeat=False, **k),
    "repeating": lambda **k: MultiprocessIterator(Numbers(), 8, n_processes=2, n_prefetch=3, **k),
    "larger than the dataset": lambda **k: SerialIterator(Numbers(), 70, **k),
    "MultithreadIterator": lambda **k: MultithreadIterator(Numbers(), 8, n_threads=2, repeat=False, **k),
    "batches": lambda **k: batches(Numbers(), 8, n_processes=2, epochs=2, **k),
    "batches in sequence": lambda **k: batches(Numbers(), 8, n_processes=0, shuffle=False, drop_last=True, **k),
    "DataLoader": lambda **k: DataLoader(Numbers(), 8, num_workers=2, shuffle=True, **k),
    "DataLoader without workers": lambda **k: DataLoader(Numbers(), 8, shuffle=True, **k),
    "a collate_fn": lambda **k: DataLoader(Numbers(), 8, shuffle=True, num_workers=1, collate_fn=list, **k),
    "a shard": lambda **k: batches(Numbers(), 8, n_processes=0, shard=(1, 3), epochs=2, **k),
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_what_was_handed_out_is_noted_and_nothing_that_was_only_fetched(make: Any, tmp_path: Path) -> None:
    with make(receipts=tmp_path) as source:
        seen = [number for _, batch in zip(range(4), source, strict=False) for number in numbers_of(batch)]
    assert keys_in(tmp_path) == seen


@pytest.mark.torch
def test_torchs_loader_notes_too(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: run `python3 tests --all`")
    from mpiter.torch import DataLoader

    with DataLoader(Numbers(), 8, shuffle=True, num_workers=2, receipts=tmp_path) as loader:
        seen = [number for batch in loader for number in numbers_of(batch)]
    assert keys_in(tmp_path) == seen
    assert audit(tmp_path).is_sound


@pytest.mark.parametrize("sampler", [[7, 3, 3, 1, 0, 9, 8], ["a", "b"]])
def test_of_a_sampler_that_repeats_samples_its_draws_are_counted(sampler: Any, tmp_path: Path) -> None:
    dataset: Any = Named() if sampler[0] == "a" else Numbers()
    with DataLoader(dataset, 3, sampler=sampler, receipts=tmp_path) as loader:
        assert sum(map(len, loader)) == len(sampler)
    verdict = audit(tmp_path)
    assert verdict.is_sound
    assert verdict.epochs[0].samples == len(sampler)


def test_a_line_is_json_and_the_first_says_who_writes(tmp_path: Path) -> None:
    with Receipts(tmp_path, 1, 4) as receipts:
        receipts.begin(0, 0, length=5)
        receipts.handed(0, 0, np.array([3, 1]))
        receipts.handed(0, np.int64(1), ["a", 7, (1, 2)], fills=1)
        receipts.handed(0, 2, [4], kind="failed")
        receipts.end(0)
    [path] = files_in(tmp_path)
    header, *lines = lines_in(path)
    assert {**header, "time": 0} == {"receipts": 1, "rank": 1, "size": 4, "time": 0}
    assert lines == [
        {"from": [0, 0], "length": 5, "step": None},
        {"batch": [0, 0], "keys": [3, 1], "fills": 0},
        {"batch": [0, 1], "keys": ["a", 7, "(1, 2)"], "fills": 1},
        {"failed": [0, 2], "keys": [4], "fills": 0},
        {"end": 0},
    ]


# -- ranks and restarts ------------------------------------------------------------------------------------------------


def train(folder: Path, size: int, batch_size: int, steps: int | None = None, state: Any = None, **options: Any) -> Any:
    """Ranks that are killed two batches after the state was saved."""
    saved = None
    for rank in range(size):
        options = {"n_processes": 0, "seed": 0, "receipts": folder, **options}
        stream = batches(Numbers(), batch_size, shard=(rank, size), **options)
        if state is not None:
            stream.load_state_dict(state)
        for step, _ in enumerate(stream, 1):
            if step == steps:
                saved = stream.state_dict()
            if steps is not None and step == steps + 2:
                break
        stream.close()
    return saved


@pytest.mark.parametrize("workers", [0, 2])
def test_restarts_with_other_numbers_of_ranks_and_batch_sizes_are_joined(workers: int, tmp_path: Path) -> None:
    state = train(tmp_path, 4, 2, 2, n_processes=workers)
    state = train(tmp_path, 2, 3, 2, state, n_processes=workers)
    train(tmp_path, 1, 7, state=state, n_processes=workers)
    verdict = audit(tmp_path)
    assert [*verdict.lines()] == [
        "7 files: 4 ranks, then 2 ranks, then 1 rank",
        "epoch 0: each of 50 samples exactly once",
        "sound: nothing lost, nothing repeated",
    ]


@pytest.mark.parametrize("batch_size", [3, 4, 16])
def test_samples_that_fill_up_a_last_step_are_told_apart(batch_size: int, tmp_path: Path) -> None:
    train(tmp_path, 3, batch_size)
    [epoch] = audit(tmp_path).epochs
    assert epoch.is_sound
    assert epoch.fills == -LENGTH % 3 or epoch.fills > 0
    assert epoch.samples == LENGTH


def test_what_drop_last_and_on_error_leave_out_is_told_apart(tmp_path: Path) -> None:
    with batches(Numbers((3, 17)), 8, n_processes=2, drop_last=True, on_error="skip", receipts=tmp_path) as stream:
        list(stream)
    [epoch] = audit(tmp_path).epochs
    assert (epoch.is_sound, epoch.dropped) == (True, 2)
    assert epoch.samples + epoch.skipped + epoch.dropped >= LENGTH


def test_an_error_in_a_batchs_place_is_a_loss(tmp_path: Path) -> None:
    with DataLoader(Numbers((9,)), 8, num_workers=2, receipts=tmp_path) as loader:
        under_way, errors = iter(loader), 0
        while True:
            try:
                next(under_way)
            except ValueError:
                errors += 1
            except StopIteration:
                break
    verdict = audit(tmp_path)
    assert (errors, verdict.is_sound, verdict.epochs[0].failed, verdict.missing) == (1, False, 8, 0)
    assert "  sample 9 failed" in verdict.lines() or "  sample 8 failed" in verdict.lines()


def test_an_epoch_that_has_not_come_to_its_end_is_incomplete_and_nothing_is_lost(tmp_path: Path) -> None:
    with batches(Numbers(), 8, n_processes=0, receipts=tmp_path) as stream:
        next(iter(stream))
    verdict = audit(tmp_path)
    assert verdict.is_sound
    assert verdict.epochs[0].state == "incomplete"


def test_going_back_within_one_program_makes_void_what_came_after(tmp_path: Path) -> None:
    with batches(Numbers(), 8, n_processes=0, receipts=tmp_path) as stream:
        next(stream)
        state = stream.state_dict()
        next(stream)
        stream.load_state_dict(state)
        list(stream)
    assert audit(tmp_path).is_sound
    with batches(Numbers(), 8, n_processes=0, receipts=tmp_path) as stream:  # a training that starts anew
        list(stream)
    assert audit(tmp_path).is_sound


def test_ctrl_c_before_a_batch_arrives_leaves_one_line_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with batches(Numbers(), 8, n_processes=0, seed=1, receipts=tmp_path) as stream:
        next(stream)
        note = Receipts.handed

        def interrupted(*args: Any, **options: Any) -> None:
            note(*args, **options)
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(Receipts, "handed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        list(stream)
    assert audit(tmp_path).is_sound


TRAINER = """
import sys, json, mpiter
folder, rank, state, steps = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
with mpiter.batches(range(50), 4, n_processes=1, seed=0, shard=(rank, 2), receipts=folder) as stream:
    if state != "-":
        stream.load_state_dict(json.load(open(state)))
    for step, _ in enumerate(stream, 1):
        if step == 2 and steps:
            json.dump(stream.state_dict(), open(folder + "/state.json", "w"))
        if step == steps:
            print("killed", flush=True)
            sys.stdin.read()
"""


def test_trainers_that_are_killed_and_go_on_are_sound_and_a_lost_line_is_found(tmp_path: Path) -> None:
    script = tmp_path / "trainer.py"
    script.write_text(textwrap.dedent(TRAINER))
    for state, steps in (("-", 4), (f"{tmp_path}/state.json", 0)):
        for rank in range(2):
            command = [sys.executable, str(script), str(tmp_path), str(rank), state, str(steps)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
                if steps:
                    assert trainer.stdout is not None
                    assert trainer.stdout.readline() == "killed\n"
                    trainer.send_signal(signal.SIGKILL)
                trainer.communicate(timeout=60)
    verdict = audit(tmp_path)
    assert verdict.is_sound
    assert verdict.starts == (2, 2)
    last = files_in(tmp_path)[-1]
    lines = last.read_text().splitlines(keepends=True)
    last.write_text("".join(lines[:3] + lines[4:]))
    lost = audit(tmp_path)
    assert (lost.is_sound, lost.missing) == (False, len(json.loads(lines[3])["keys"]))
    last.write_text("".join([*lines[:3], lines[3], *lines[3:]]))
    again = audit(tmp_path)
    assert (again.is_sound, again.twice) == (False, len(json.loads(lines[3])["keys"]))
    assert any("came several times: line 4 of" in line for line in again.lines())


def test_a_rank_without_a_file_is_named(tmp_path: Path) -> None:
    for rank in (0, 2):
        with batches(Numbers(), 5, n_processes=0, shard=(rank, 3), receipts=tmp_path) as stream:
            list(stream)
    verdict = audit(tmp_path)
    assert verdict.absent == (1,)
    assert "rank 1 of 3 has left no file" in verdict.lines()
    assert verdict.missing > 0


def test_an_epoch_that_was_broken_off_is_not_sound(tmp_path: Path) -> None:
    with DataLoader(Numbers(), 8, receipts=tmp_path) as loader:
        next(iter(loader))
        list(loader)
    verdict = audit(tmp_path)
    assert [epoch.state for epoch in verdict.epochs] == ["broken off", "whole"]
    assert not verdict.is_sound


def test_a_length_can_be_promised_to_the_audit_and_keys_may_be_strings(tmp_path: Path) -> None:
    with Receipts(tmp_path, 0, 1) as receipts:
        receipts.begin(0, 0)
        receipts.handed(0, 0, ["a", "b", "b"])
        receipts.end(0)
    assert (audit(tmp_path).twice, audit(tmp_path).missing) == (1, 0)
    assert audit(tmp_path, length=5).missing == 3


def test_more_samples_than_were_promised_are_not_sound(tmp_path: Path) -> None:
    with Receipts(tmp_path, 0, 1) as receipts:
        receipts.begin(0, 0, length=2)
        receipts.handed(0, 0, [0, 1, 2])
        receipts.end(0)
    assert not audit(tmp_path).is_sound


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_torn_last_line_is_left_out_and_a_damaged_one_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with batches(Numbers(), 8, n_processes=0, receipts=tmp_path) as stream:
        list(stream)
    [path] = files_in(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b"\n", 0, -1) - 5])
    assert audit(tmp_path).torn == 1
    path.write_bytes(whole.replace(b'"keys":[', b'"keys":{', 1))
    with pytest.raises(OptionError, match="line 3 is no receipt"):
        audit(tmp_path)
    assert command(["audit", str(tmp_path)]) == 1
    assert "line 3 is no receipt" in capsys.readouterr().err


@pytest.mark.parametrize("line", [b"3", b"[]", b"{}", b'{"batch":[0]}', b'{"end":-1}', b"\xff"])
def test_what_no_line_may_be_is_refused_in_a_sentence(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank-0-of-1.receipts"
    path.write_bytes(b'{"receipts":1,"rank":0,"size":1,"time":0}\n' + line + b"\n")
    with pytest.raises(OptionError, match="line 2 is no receipt"):
        audit(tmp_path)
    path.write_bytes(b'{"receipts":2,"rank":0,"size":1,"time":0}\n')
    with pytest.raises(OptionError, match="version 2; this mpiter reads 1"):
        audit(path)


def test_the_command_says_it_all_and_its_status_is_0_or_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with batches(Numbers(), 8, n_processes=0, receipts=tmp_path) as stream:
        list(stream)
    assert command(["audit", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "sound: nothing lost, nothing repeated"
    assert command(["audit", str(tmp_path), "--length", "60"]) == 1
    assert "10 never came" in capsys.readouterr().out
    assert command(["audit", str(tmp_path / "nowhere")]) == 1
    assert "there are no receipts" in capsys.readouterr().err


def test_a_full_disk_ends_the_file_with_one_warning_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with batches(Numbers(), 8, n_processes=0, receipts=tmp_path) as stream:
        next(stream)
        monkeypatch.setattr("mpiter.receipts.os.write", full)
        assert len(list(stream)) == 6
    assert caplog.text.count("cannot be written, and end here") == 1


@pytest.mark.parametrize("given", [3, b"x", object()])
def test_what_is_no_folder_is_refused(given: Any) -> None:
    with pytest.raises(OptionError, match="is no folder; pass a path"):
        batches(Numbers(), 8, receipts=given)


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="the folder cannot be made"):
        batches(Numbers(), 8, receipts=tmp_path / "file" / "folder")


def test_batches_as_they_finish_and_streams_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="receipts need in_order=True"):
        batches(Numbers(), 8, in_order=False, receipts=tmp_path)
    with pytest.raises(OptionError, match="what is read as a stream has none"):
        DataLoader(type("Stream", (), {"__iter__": lambda _: iter([1])})(), 8, receipts=tmp_path)


def test_notes_need_a_beginning(tmp_path: Path) -> None:
    with Receipts(tmp_path) as receipts, pytest.raises(OptionError, match=r"receipts begin with begin\(epoch, place\)"):
        receipts.handed(0, 0, [1])


def test_a_copy_elsewhere_and_a_fork_have_files_of_their_own(tmp_path: Path) -> None:
    with batches(Numbers(), 8, n_processes=0, receipts=tmp_path) as stream:
        next(stream)
        copy = pickle.loads(pickle.dumps(stream))
        if (child := os.fork()) == 0:
            next(stream)
            os._exit(0)
        os.waitpid(child, 0)
        next(copy)
        copy.close()
        next(stream)
    assert len(files_in(tmp_path)) == 3


def test_the_rank_is_the_launchers_unless_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with mpiter.SerialIterator(Numbers(), 8, receipts=tmp_path / "launcher") as it:
        next(it)
    assert files_in(tmp_path / "launcher")[0].name.startswith("rank-1-of-2-")
    with mpiter.SerialIterator(Numbers(), 8, receipts=Receipts(tmp_path / "said", 4, 5)) as it:
        next(it)
    assert files_in(tmp_path / "said")[0].name.startswith("rank-4-of-5-")
