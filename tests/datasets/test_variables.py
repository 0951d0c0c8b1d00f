"""Workers see what the program has set: settings, and its modules' variables.

A warning names what can't be sent.
"""

import json

import pytest
from scripts import run

CONFIG = """
import argparse, enum, functools, itertools, random, threading
import numpy as np

SIZE, WIDTHS, LATER, LARGE = 32, [1, 2], None, b""
lock = threading.Lock()
dice = random.Random(1)
rng = np.random.default_rng(1)
numbers = itertools.count()
file = open(__file__)
ARGS = argparse.Namespace(size=1)
MISSING = object()
class Defaults:
    depth = 3
    class Train:
        rate = 0.1
class Holder:
    def __init__(self):
        self.rate = 1
class Kind(enum.Enum):
    CAR = 1

HOLDER, KINDS = Holder(), [Kind.CAR]
def size():
    return SIZE
@functools.lru_cache(maxsize=None)
def cached():
    return SIZE
def load(number):
    return number
def given(value=MISSING):
    return value is not MISSING
"""

DATA = """
import json, logging, os, pickle, time
from pathlib import Path
import numpy as np
import PIL.Image, PIL.ImageFile
import config
from config import ARGS, HOLDER, WIDTHS, given, size
class Sees:
    def __init__(self):
        self.kinds, self.record = config.KINDS, pickle.dumps(config.Kind.CAR)
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return json.dumps([
            config.SIZE, size(), config.cached(),
            [WIDTHS, WIDTHS is config.WIDTHS], [ARGS.size, ARGS is config.ARGS],
            config.LATER and config.LATER.size, HOLDER.rate,
            [config.Defaults.depth, config.Defaults.Train.rate],
            config.load(3), given(), given(config.MISSING),
            pickle.loads(self.record) is self.kinds[0] is config.Kind.CAR,
            os.environ.get("GREETING"), time.localtime(0).tm_hour,
            Path("/proc/self/status").read_text().split("Umask:")[1][:6],
            np.geterr(), logging.root.level,
            PIL.ImageFile.LOAD_TRUNCATED_IMAGES, PIL.Image.MAX_IMAGE_PIXELS,
        ])
"""

CHANGE = """
import argparse, logging, os, sys, time
import numpy as np
import PIL.Image, PIL.ImageFile
import config, data, mpiter
def tripled(number):
    return 3 * number

list(mpiter.batches([1], 1, n_processes=1))  # the fork server is there already
before = data.Sees()[0]
config.SIZE = 64
config.WIDTHS.append(3)
parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int)
parser.parse_args(["--size", "9"], config.ARGS)
config.LATER = argparse.Namespace(size=5)
config.HOLDER.rate, config.Defaults.depth, config.Defaults.Train.rate = 7, 11, 0.2
config.cached.cache_clear()
config.load = tripled
os.environ["GREETING"], os.environ["TZ"] = "good evening", "XYZ-9"
time.tzset()
os.umask(0o077)
np.seterr(divide="raise")
logging.root.setLevel("ERROR")
PIL.ImageFile.LOAD_TRUNCATED_IMAGES, PIL.Image.MAX_IMAGE_PIXELS = True, None
with mpiter.DataLoader(
    data.Sees(), 1, num_workers=1, multiprocessing_context=sys.argv[1]
) as loader:
    print(next(iter(loader))[0])
print(data.Sees()[0])
print(before)
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_a_program_has_set_before_the_first_batch_its_workers_see(
    tmp_path, method
):
    (tmp_path / "config.py").write_text(CONFIG)
    (tmp_path / "data.py").write_text(DATA)
    there, here, before = map(
        json.loads, run(tmp_path, CHANGE, method).ended_well().lines
    )
    assert there == here
    unchanged = [
        at
        for at, (now, then) in enumerate(zip(here, before, strict=True))
        if now == then
    ]
    assert unchanged == [9, 10, 11], "of what the program has set, all is looked at"


NAMED = """
def make():
    class Plain:
        y = [1]
        def read(self):
            return self.y
    return Plain

Other = make()
Again = Other
Renamed = type("Plain", (), {"y": [2]})
class Outer:
    class Inner:
        y = [3]
Short = Outer.Inner
"""

RENAMES = """
import mpiter, named
class Uses:
    def __len__(self):
        return 1
    def __getitem__(self, index):
        kinds = named.Other, named.Again, named.Renamed, named.Outer.Inner, named.Short
        return *(kind.y for kind in kinds), named.Other().read()

named.Other.y = [5]
named.Renamed.y = [6]
named.Short.y = [7]
backend = mpiter.Process("forkserver")
with mpiter.DataLoader(
    Uses(), 1, num_workers=1, backend=backend, collate_fn=list
) as loader:
    print(*loader)
"""


def test_what_is_set_in_a_class_by_another_name_than_its_own_workers_see(tmp_path):
    (tmp_path / "named.py").write_text(NAMED)
    lines = run(tmp_path, RENAMES).ended_well().lines
    assert lines == ["[([5], [5], [6], [7], [7], [5])]"]


TORCH = """
import torch
import mpiter
class Sees:
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return str(torch.zeros(1).dtype)

torch.set_default_dtype(torch.float64)
print(*mpiter.DataLoader(Sees(), 1, num_workers=1, collate_fn=list))
"""


@pytest.mark.torch
def test_torchs_default_type_is_the_programs(tmp_path):
    pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    assert run(tmp_path, TORCH).ended_well().lines == ["['torch.float64']"]


STAYS = """
import config, mpiter
class Uses:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return config.LATER is None, config.SIZE

config.LATER, config.SIZE = (number for number in range(3)), 5
config.WIDTHS, config.LARGE = [config.LATER], bytes(65 << 20)
backend = mpiter.Process("forkserver")
with mpiter.batches(Uses(), 2, n_processes=2, backend=backend) as stream:
    print(*(column.tolist() for column in next(stream)))
"""


def test_one_warning_names_what_cannot_travel_and_the_rest_does(tmp_path):
    (tmp_path / "config.py").write_text(CONFIG)
    outcome = run(tmp_path, STAYS)
    assert (outcome.code, outcome.lines, outcome.left_running) == (
        0,
        ["[True, True] [5, 5]"],
        [],
    )
    assert outcome.err.count("RuntimeWarning") == 1
    told = (
        "config.WIDTHS (list: cannot pickle 'generator' object), config.LARGE (bytes: "
        "larger than 64 MB)."
    )
    assert f"does not reach its workers: {told}" in outcome.err, (
        "and nothing of what each process has for itself"
    )
    assert "worker_init" in outcome.err
    assert "next(stream)" in outcome.err, "the line of the program, not one of ours"


EPOCHS = """
import numpy as np
import config, mpiter
class Divides:
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return np.array([config.size()]) / np.array([0.0])[:config.SIZE - 64]

loader = mpiter.DataLoader(Divides(), 1, num_workers=1, collate_fn=list)
workers = set()
for size in (63, 64, 64):
    config.SIZE = size
    print(*loader)
    workers |= set(loader.worker_pids)
np.seterr(divide="raise")
config.SIZE = 65
try:
    print(*loader)
except FloatingPointError:
    print(len(workers), "raised")
"""


def test_an_epochs_workers_see_what_has_been_set_since_and_are_kept_if_nothing_has(
    tmp_path,
):
    (tmp_path / "config.py").write_text(CONFIG)
    lines = run(tmp_path, EPOCHS).ended_well().lines
    assert lines == [*["[array([], dtype=float64)]"] * 3, "2 raised"]


PLUGGED = """
import importlib.util, sys
import config, mpiter, plugin

spec = importlib.util.spec_from_file_location("plugged", "hidden/plugged.py")
sys.modules["plugged"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
config.LATER, config.SIZE = module.called, 3
for batch in mpiter.DataLoader(plugin.Reads(), 2, num_workers=1, collate_fn=list):
    print(batch)
"""

PLUGIN = """
import config
config.WIDTHS.append("once")
def width(size=config.SIZE):
    return size
class Reads:
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return width(), config.SIZE, config.LATER(), config.WIDTHS
"""


def test_modules_start_with_first_values_and_get_what_only_the_program_can_import(
    tmp_path,
):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "plugged.py").write_text("def called():\n    return 1\n")
    (tmp_path / "config.py").write_text(CONFIG)
    (tmp_path / "plugin.py").write_text(PLUGIN)
    assert run(tmp_path, PLUGGED).ended_well().lines == ["[(32, 3, 1, [1, 2, 'once'])]"]
