"""Is the software fit for mpiter: what to think of Python, start methods, packages, decoders, Chainer, torch and GPUs.

From values to a ``Finding``, wherever it is called; asks nothing of the machine (``probes`` does), so that every
verdict is tested with values.  Guarantees that a remedy names the command or the option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .finding import Decoder, Finding, Status, Trial

_TESTED = (3, 13)  # the newest Python that the tests run on
NEEDED = {"numpy": "1.23", "msgpack": "1", "cloudpickle": "3", "threadpoolctl": "3"}  # as in pyproject.toml
_SLOW_START = 10.0  # seconds; half a second is usual, three with torch to import
_MEND_DECODER = {
    "opencv-python": "pip uninstall -y opencv-python && pip install opencv-python-headless",
    "PyTurboJPEG": "apt-get install libturbojpeg (the library that it calls), or pip install simplejpeg",
}


def python(version: Sequence[int], build: str, free_threaded: bool, gil: bool, bits: int) -> Finding:
    """``build`` names implementation, version and platform; ``gil`` tells whether it is in use."""
    found = f"{build}, {'free-threaded' if free_threaded else 'with the GIL'}"
    if bits < 64:
        return Finding("Python", Status.WARN, f"{found}, {bits} bits", "install a 64-bit Python: slots need addresses.")
    if free_threaded and gil:
        remedy = "PYTHON_GIL=0 in the environment keeps it off, whatever a module asks for."
        return Finding("Python", Status.NOTE, f"{found}, but the GIL is in use", remedy)
    if tuple(version[:2]) > _TESTED:
        newest = ".".join(map(str, _TESTED))
        return Finding("Python", Status.NOTE, f"{found}; mpiter is tested up to {newest}")
    remedy = "backend='thread' runs in parallel here and needs no processes." if free_threaded else ""
    return Finding("Python", Status.GOOD, found, remedy)


def packages(versions: Mapping[str, str | None]) -> Finding:
    """The versions of what mpiter depends on; None is missing."""
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    wrong = [f"'{name}>={NEEDED[name]}'" for name, version in versions.items() if not _at_least(version, NEEDED[name])]
    if wrong:
        return Finding("packages", Status.BAD, found, f"pip install {' '.join(wrong)}")
    return Finding("packages", Status.GOOD, found)


def start_methods(trials: Mapping[str, Trial], default: str) -> Finding:
    """The seconds until the first batch, or what went wrong, by start method."""
    works = {method: float(trial.answer) for method, trial in trials.items() if not trial.error}
    told = [", ".join(f"{method} {seconds:.1f} s" for method, seconds in works.items()) + " to the first batch"] * bool(
        works
    )
    for error in dict.fromkeys(trial.error for trial in trials.values() if trial.error):
        told.append(f"{', '.join(name for name, trial in trials.items() if trial.error == error)}: {error}")
    subject, found = "start methods", f"{'; '.join(told)}; {default} is the default"
    if not works:
        remedy = "do what the other findings say; failing that, pass backend='thread' or n_processes=0."
        return Finding(subject, Status.BAD, found, remedy)
    if default not in works:
        return Finding(subject, Status.BAD, found, f"pass backend=mpiter.Process({next(iter(works))!r}).")
    if broken := [method for method in trials if method not in works]:
        remedy = f"leave backend= as it is: {default} works, mpiter.Process({broken[0]!r}) would not."
        return Finding(subject, Status.WARN, found, remedy)
    if works[default] > _SLOW_START:
        imports = "python -X importtime -c 'import mpiter.worker.worker'"
        remedy = f"{imports} shows what is slow to import (a network file system?)."
        return Finding(subject, Status.NOTE, found, remedy)
    return Finding(subject, Status.GOOD, found)


def numerical_threads(libraries: Mapping[str, int], variables: Mapping[str, str], cores: int) -> Finding:
    """The threads of the libraries loaded here, the environment that says how many, and the cores we have."""
    subject = "numerical threads"
    here = ", ".join(f"{name} {count}" for name, count in libraries.items()) or "no such library"
    if not variables:
        found = f"here {here}; in each worker 1"
        if max(libraries.values(), default=0) > cores:
            remedy = f"threadpoolctl.threadpool_limits({cores}) in your program: more threads than cores hinder."
            return Finding(subject, Status.NOTE, f"{found}; we have {cores} cores", remedy)
        return Finding(subject, Status.GOOD, found)
    told = ", ".join(f"{name}={value}" for name, value in variables.items())
    found = f"here {here}; in each worker as you set {told}"
    most = max(_first_number(value) for value in variables.values())
    if most > 1:
        found += f": up to {most} threads on each of {cores} cores"
        remedy = f"unset {' '.join(variables)}: each worker then has one thread."
        return Finding(subject, Status.WARN if cores > 1 else Status.NOTE, found, remedy)
    return Finding(subject, Status.GOOD, found)


def image_decoders(decoders: Sequence[Decoder]) -> Finding:
    """Pillow's answer says whether it has libjpeg-turbo; of the others it is enough that they load."""
    subject = "image decoders"
    if not decoders:
        return Finding(subject, Status.NOTE, "none; needed for image files only", "pip install 'mpiter[images]'")
    told, remedies = [], []
    for decoder in decoders:
        name, fault = decoder.name, ""
        if decoder.trial.error:
            fault = f" (does not load: {decoder.trial.error})"
            remedies.append(_MEND_DECODER.get(name, f"pip install --force-reinstall {name}"))
        elif decoder.trial.answer == "False":
            fault = " (without libjpeg-turbo)"
            remedies.append(f"pip install --force-reinstall --only-binary :all: {name.partition('-')[0]}")
        told.append(f"{name} {decoder.version}{fault}")
    if {"Pillow", "Pillow-SIMD"} <= {decoder.name for decoder in decoders}:
        told.append("of the two Pillows, one has overwritten the other")
        remedies.append("pip uninstall -y Pillow Pillow-SIMD && pip install Pillow")
    return Finding(subject, Status.WARN if remedies else Status.GOOD, ", ".join(told), "; ".join(remedies))


def chainer(version: str | None, numpy: str, python: Sequence[int], pkg_resources: bool) -> Finding:
    """Chainer's version, and what it needs: an old NumPy, an old Python, a setuptools with ``pkg_resources``."""
    if version is None:
        return Finding("Chainer", Status.GOOD, "not installed; needed for Chainer programs only")
    reasons = [f"NumPy {numpy}"] if _at_least(numpy, "1.24") else []
    reasons += ["Python " + ".".join(map(str, python[:2]))] if tuple(python[:2]) >= (3, 12) else []
    reasons += [] if pkg_resources else ["a setuptools without pkg_resources"]
    if not reasons:
        return Finding("Chainer", Status.GOOD, f"{version}, which imports unaided here")
    remedy = "write `import mpiter.chainer_compat` before `import chainer`."
    if version != "7.8.1":
        remedy = f"pip install chainer==7.8.1 (docs/chainer.md says how), and {remedy}"
    return Finding("Chainer", Status.WARN, f"{version}, which does not import with {', '.join(reasons)}", remedy)


def frameworks(versions: Mapping[str, str | None], numpy: str) -> Finding:
    """torch's and jax's versions, by name; None is not installed."""
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    torch = versions.get("torch")
    if torch and not _at_least(torch, "2.3") and _at_least(numpy, "2"):
        found += f"; this torch was built for NumPy 1, and here is {numpy}"
        return Finding("torch and jax", Status.WARN, found, "pip install 'torch>=2.3', or pip install 'numpy<2'")
    return Finding("torch and jax", Status.GOOD, found or "not installed; needed for their programs only")


def gpu(names: Sequence[str], trouble: str, torch: str | None, seen: Trial | None, hidden: bool) -> Finding:
    """The GPUs, what nvidia-smi complains of, torch's version and how many it sees; ``hidden`` by the environment?"""
    if trouble:
        remedy = "run nvidia-smi; after an update of the driver, restart the machine (a container: start it again)."
        return Finding("GPU", Status.WARN, f"nvidia-smi fails: {trouble}", remedy)
    if not names:
        return Finding("GPU", Status.GOOD, "none found; mpiter needs none")
    found = f"{len(names)} ({', '.join(sorted(set(names)))})"
    if hidden:
        remedy = "unset CUDA_VISIBLE_DEVICES"
        return Finding("GPU", Status.NOTE, f"{found}, hidden by CUDA_VISIBLE_DEVICES", remedy)
    if torch is None or seen is None:
        return Finding("GPU", Status.GOOD, found)
    if seen.error or seen.answer == "0":
        found += f"; torch {torch} " + (f"fails: {seen.error}" if seen.error else "sees none")
        remedy = "install a torch built for CUDA, of a version that the driver can do (nvidia-smi names the newest)."
        return Finding("GPU", Status.WARN, found, remedy)
    return Finding("GPU", Status.GOOD, f"{found}; torch {torch} sees {seen.answer}")


def _at_least(version: str | None, least: str) -> bool:
    return version is not None and _numbers(version) >= _numbers(least)


def _numbers(version: str) -> list[int]:
    """The release of a version, without what follows: 2.3.0rc1+cpu is 2, 3, 0."""
    match = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in match[0].split(".")] if match else []


def _first_number(value: str) -> int:
    """Of OMP_NUM_THREADS=4,2 the threads of the outermost level, 4."""
    match = re.match(r"\s*(\d+)", value)
    return int(match[1]) if match else 1
