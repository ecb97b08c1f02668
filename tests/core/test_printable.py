"""Laws of text that strangers made: it steers no terminal wherever it is printed, and nothing of it is lost."""

from __future__ import annotations

import inspect
import re

from hypothesis import given
from hypothesis import strategies as st

from packtrain import errors
from packtrain._core.printable import one_line, printable

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@given(st.text())
def test_what_is_printable_steers_nothing_and_keeps_all_the_rest(text: str) -> None:
    shown = printable(text)
    assert not STEERING.search(shown)
    assert printable(shown) == shown
    assert "\n" not in one_line(text)
    if text.isprintable():
        assert shown == text


@given(st.text(alphabet=st.sampled_from("a\x1b\x7f\x85\r\u2028\u202e\udcff")))
def test_nothing_that_is_escaped_is_lost(text: str) -> None:
    assert printable(text).encode().decode("unicode_escape") == text


KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.PacktrainError)]


@given(st.sampled_from(KINDS), st.text())
def test_so_are_messages_of_errors(kind: type[errors.PacktrainError], text: str) -> None:
    assert str(kind(text)) == printable(text)
