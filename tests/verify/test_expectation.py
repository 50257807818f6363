"""Words of ``--expect``."""

from __future__ import annotations

import pytest

from shotclock.errors import RequestError
from shotclock.verify.expectation import Expectation, parse_expect


def test_words_are_split_trimmed_and_lowered() -> None:
    """As a person types them."""
    assert parse_expect(" Silent, static,") == frozenset({"silent", "static"})
    assert parse_expect("") == frozenset()


def test_an_unknown_word_is_refused_with_the_known_ones() -> None:
    """A misspelt excuse must not be ignored."""
    with pytest.raises(RequestError, match="does not know slient") as caught:
        Expectation(expect=parse_expect("slient,static"))
    assert "silent" in caught.value.allowed
