"""Documents that a newcomer passes are refused with what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiter
from mpiter.errors import DocumentError, OptionError
from mpiter.language import Balanced


@pytest.mark.parametrize("text", ["abc", b"abc", ["a", "b"]])
def test_text_is_refused_and_told_to_be_made_tokens(text: Any) -> None:
    with pytest.raises(
        DocumentError, match=r"document 0 has text .* make tokens of it"
    ):
        mpiter.Pack([text], 4)[0]


def test_the_tokens_that_are_advised_for_bytes_are_taken() -> None:
    row = mpiter.Pack([np.frombuffer(b"abc", "uint8")], 4)[0]
    assert row["tokens"].tobytes() == b"abc\0"


def test_a_tuple_of_tokens_and_a_label_is_refused() -> None:
    told = "document 0 has a tuple in its field 'tokens', and no array"
    with pytest.raises(DocumentError, match=told):
        mpiter.Pack([(np.arange(3), 1)], 4)[0]


def test_fields_of_other_lengths_are_named() -> None:
    told = "document 0 has 1 tokens in its field 'b', and 2 in 'a'"
    with pytest.raises(DocumentError, match=told):
        mpiter.Pack([{"a": [1, 2], "b": [3]}], 4)[0]


@pytest.mark.parametrize("make", [lambda stream: mpiter.Pack(stream, 4), Balanced])
def test_a_stream_is_refused(make: Any) -> None:
    with pytest.raises(OptionError, match=r"\(list_iterator\) has no len\(\)"):
        make(iter([[1], [2]]))
