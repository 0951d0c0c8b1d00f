"""A file of tokens is a dataset of the documents in it, and knows their lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpiter
from mpiter.files import Tokens

DOCUMENTS = [[5, 6, 0], [7, 0], [0], [1, 2, 3, 4, 0]]


def written(path: Path, documents: Any = DOCUMENTS, dtype: str = "uint16") -> Path:
    np.array([one for document in documents for one in document], dtype).tofile(path)
    return path


def documents_in(tokens: Tokens) -> list[list[int]]:
    return [tokens[at].tolist() for at in range(len(tokens))]


@pytest.mark.parametrize("kind", ["a file", "a mixture"])
def test_lengths_are_a_sequence_as_an_array_is_one(kind: str, tmp_path: Path) -> None:
    files = dict[str, Any]()
    for name in "ab":
        path = written(tmp_path / f"{name}.bin")
        files[name] = Tokens(path, separator=0)
    lengths = files["a"].lengths
    expected = [len(document) for document in DOCUMENTS]
    if kind != "a file":
        lengths = mpiter.Mix(files, {"a": 1, "b": 1}).lengths
        expected = 2 * expected
    array = np.array(expected)
    count = len(expected)
    assert len(lengths) == count
    assert [*lengths] == np.asarray(lengths).tolist() == expected
    assert np.asarray(lengths, "uint16").dtype == np.uint16
    assert (np.subtract(lengths, 1) == array - 1).all()
    ways: list[Any] = [
        *range(-count, count),
        slice(1, -1),
        slice(None, None, -2),
        slice(count, count + 5),
        [0, -1],
        array > 2,
        np.array([[0, 1], [-1, 2]], np.int8),
    ]
    for asked in ways:
        assert np.array_equal(lengths[asked], array[asked])
    assert lengths[[]].tolist() == []
    for beyond in (count, -count - 1, [0, count], np.array([-count - 1])):
        with pytest.raises(IndexError, match=f"isn't from -{count} to before {count}"):
            lengths[beyond]
    with pytest.raises(IndexError, match="lengths take whole numbers"):
        lengths[1.5]


def test_a_mixture_knows_the_lengths_that_its_components_have_as_lists() -> None:
    class Listed(list[Any]):
        lengths = (2, 1)

    mix = mpiter.Mix({"a": Listed([[1, 2], [3]])}, {"a": 1})
    assert [*mix.lengths] == [2, 1]  # type: ignore[misc]
    assert len(mpiter.Pack(mix, 3)) == 1


GROWN = [*DOCUMENTS, [8, 9, 0], [8, 0]]
# As many documents, and as many tokens.
OTHERS = [[5, 0], [6, 7, 0], [0], [1, 2, 3, 4, 0]]


@pytest.mark.parametrize("later", [GROWN, OTHERS, DOCUMENTS[:1]])
def test_offsets_of_other_tokens_are_searched_anew_once(
    later: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "web.bin")
    kept = tmp_path / "web.npy"
    for _ in range(2):
        assert documents_in(Tokens(path, kept, separator=0)) == DOCUMENTS
    assert caplog.messages == []
    written(path, later)
    for _ in range(2):
        assert documents_in(Tokens(path, kept, separator=0)) == later
    [line] = caplog.messages
    assert "web.npy doesn't have the documents of" in line
    assert np.load(kept)[-1] == sum(map(len, later))


def test_offsets_of_a_file_whose_last_document_lacks_its_separator_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for documents in ([*DOCUMENTS, [3]], [[0], [3]]):
        path = written(tmp_path / f"{len(documents)}.bin", documents)
        kept = tmp_path / f"{len(documents)}.npy"
        for _ in range(2):
            assert documents_in(Tokens(path, kept, separator=0)) == documents
    assert caplog.messages == []


def test_tokens_after_the_last_document_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "web.bin")
    assert documents_in(Tokens(path, [0, 3, 5])) == DOCUMENTS[:2]
    [line] = caplog.messages
    assert line.endswith("web.bin has 6 tokens after the last document")


def test_a_separator_that_ends_no_document_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "web.bin")
    text = (
        r"separator=99 is nowhere in .*web.bin, whose first tokens of uint16 are 5, 6"
    )
    with pytest.raises(mpiter.OptionError, match=text):
        Tokens(path, separator=99)
    assert documents_in(Tokens(path, separator=np.int64(4)))[1] == [0]  # type: ignore[arg-type]
    wrong: list[Any] = [70_000, -1, "0", 0.5, True]
    for separator in wrong:
        with pytest.raises(mpiter.OptionError, match=r"a whole number that tokens of"):
            Tokens(path, separator=separator)
