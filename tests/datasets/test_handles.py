"""Datasets on open files work in every worker, by a documented way of opening them."""

import contextlib
import multiprocessing
import os
import socket
import sqlite3
import tempfile
import threading
from functools import partial

import numpy as np
import pytest
from ways import iterator

import mpiter

ROWS = 40
BATCH = 6


class Rows:
    """Opens its database in ``worker_init``, which runs once in each worker."""

    def __init__(self, path):
        self.path = path
        self.file = None
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("create table rows (i integer primary key, a, b, c)")
            rows = [(i, 3 * i, 3 * i + 1, 3 * i + 2) for i in range(ROWS)]
            connection.executemany("insert into rows values (?, ?, ?, ?)", rows)

    def worker_init(self, info):
        self.file = self.open()

    def open(self):
        return sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        return np.array(
            self.file.execute(
                "select a, b, c from rows where i = ?", (int(i),)
            ).fetchone()
        ), i


class OnFirstUse:
    """Opens its HDF5 file on first use in a process.

    ``__getstate__`` leaves out the handle.
    """

    def __init__(self, path):
        self.path = path
        self.file = None
        self.pid = None
        h5py = pytest.importorskip("h5py", reason="h5py is not installed")
        with h5py.File(path, "w") as file:
            file["rows"] = np.arange(ROWS * 3).reshape(ROWS, 3)

    def open(self):
        import h5py

        return h5py.File(self.path, "r")

    def __len__(self):
        return ROWS

    def __getitem__(self, i):
        # A forked copy must open the file again.
        if self.pid != os.getpid():
            self.file = self.open()
            self.pid = os.getpid()
        return self.file["rows"][i], i

    def __getstate__(self):
        return {**self.__dict__, "file": None, "pid": None}


def checked(dataset, **options):
    with iterator(dataset, BATCH, repeat=False, seed=1, n_processes=2, **options) as it:
        seen = {i: row.tolist() for batch in it for row, i in batch}
    assert seen == {i: [3 * i, 3 * i + 1, 3 * i + 2] for i in range(ROWS)}


@pytest.mark.parametrize(
    ("method", "kind"),
    [("fork", OnFirstUse), ("forkserver", OnFirstUse), ("forkserver", Rows)],
)
def test_a_dataset_on_an_open_file_works_in_every_worker_and_without(
    tmp_path, method, kind
):
    dataset = kind(str(tmp_path / "rows"))
    checked(dataset, backend=mpiter.Process(method))
    assert dataset.file is None
    checked(dataset, backend="serial")
    mine = dataset.file
    # The file is in use here now, and the dataset may be sent even so.
    if kind is OnFirstUse:
        checked(dataset, backend=mpiter.Process(method))
        assert dataset.file is mine
        assert dataset[7][0].tolist() == [21, 22, 23]
    mine.close()


OPEN = {
    "text file": partial(open, __file__),
    "binary file": partial(open, __file__, "rb"),
    "temporary file": partial(tempfile.TemporaryFile, "w+"),
    "socket": socket.socket,
    "connection": lambda: multiprocessing.Pipe()[0],
}


class Holds:
    def __init__(self, thing):
        self.deep = {"in": [thing]}

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return i


# The worker is forked from a process that has threads.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_what_cannot_be_pickled_is_forked_by_default_with_a_warning_at_the_users_line():
    it = iterator(Holds(threading.Lock()), 3, shuffle=False, n_processes=1)
    with (
        it,
        pytest.warns(
            RuntimeWarning, match=r"dataset\.deep\['in'\]\[0\].*lock.*Forking"
        ) as told,
    ):
        assert next(it) == [0, 1, 2]
    (warning,) = [one for one in told if one.category is RuntimeWarning]
    assert warning.filename == __file__


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_what_is_open_in_a_dataset_is_refused_by_its_path_and_forked_only_if_asked(
    tmp_path,
):
    files = {
        "sqlite": Rows(str(tmp_path / "rows")).open,
        "hdf5": OnFirstUse(str(tmp_path / "more")).open,
    }
    for kind, opens in {**OPEN, **files}.items():
        is_handle = kind != "connection"
        with (
            contextlib.closing(opens()) as thing,
            iterator(
                Holds(thing),
                3,
                n_processes=1,
                backend=mpiter.Process(None if is_handle else "spawn"),
            ) as it,
            pytest.raises(
                mpiter.errors.DatasetNotPicklable,
                match=r"dataset\.deep\['in'\]\[0\].*worker_init",
            ) as told,
        ):
            next(it)
        assert told.value.is_handle == is_handle, kind
    with socket.socket() as thing:
        options = {
            "shuffle": False,
            "n_processes": 1,
            "backend": mpiter.Process("fork"),
        }
        with iterator(Holds(thing), 3, **options) as it:
            assert next(it) == [0, 1, 2]


class ReturnsThem(Holds):
    def __init__(self):
        self.kinds = list(OPEN)

    def __getitem__(self, i):
        return {"i": i, "open": [OPEN[self.kinds[i]]()] if i < len(self.kinds) else []}

    def __len__(self):
        return len(self.kinds) + 1


def test_what_is_open_in_a_sample_is_refused_by_its_path():
    with iterator(ReturnsThem(), 1, shuffle=False, n_processes=1) as it:
        for at in range(len(OPEN)):
            with pytest.raises(
                mpiter.errors.SampleNotSendable,
                match=rf"dataset\[{at}\]\['open'\]\[0\]",
            ):
                next(it)
        assert next(it) == [{"i": len(OPEN), "open": []}]


def test_a_handle_is_found_behind_what_else_cannot_be_pickled(tmp_path):
    with (
        open(tmp_path / "data", "wb", buffering=0) as file,
        iterator(Holds([threading.Lock(), file]), 3, n_processes=1) as it,
        pytest.raises(
            mpiter.errors.DatasetNotPicklable,
            match=r"\['in'\]\[0\]\[1\] \(FileIO\).*would share",
        ) as told,
    ):
        next(it)
    assert told.value.is_handle
