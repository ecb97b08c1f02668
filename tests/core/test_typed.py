"""Laws of reading values by type hints: what was written comes back, and anything else is named by its key."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._core.typed import MOST, Between, Form, Mismatch, OneOf, Spelled, parse


@dataclass(frozen=True)
class Inner:
    name: Annotated[str, Form("[a-z]+", "letters")]
    bytes: Annotated[int, Between(0, MOST)]


@dataclass(frozen=True)
class Outer:
    inner: Inner
    others: tuple[Inner, ...]
    kind: Annotated[str, OneOf(("a", "b"))]
    note: str | None
    sure: bool
    level: Annotated[int, Between(1, 3)]
    ratio: float = 0.5


INNERS = st.builds(Inner, st.from_regex("[a-z]+", fullmatch=True), st.integers(0, MOST))
OUTERS = st.builds(
    Outer,
    INNERS,
    st.lists(INNERS, max_size=3).map(tuple),
    st.sampled_from("ab"),
    st.none() | st.text(),
    st.booleans(),
    st.integers(1, 3),
    st.floats(allow_nan=False),
)
SOUND: dict[str, Any] = {
    "inner": {"name": "x", "bytes": 1},
    "others": [{"name": "y", "bytes": 2}, {"name": "z", "bytes": 3}],
    "kind": "a",
    "note": None,
    "sure": True,
    "level": 2,
    "ratio": 0.5,
}


@given(OUTERS)
def test_what_was_written_comes_back(value: Outer) -> None:
    assert parse(Outer, json.loads(json.dumps(asdict(value)))) == value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inner": 3}, "inner: expected an object, found 3"),
        ({"inner": {"name": "x"}}, 'inner: has no key "bytes"'),
        ({"inner": {"name": "x", "bytes": 1, "more": 1}}, 'inner: has an unknown key "more"'),
        ({"inner": {"name": "x", "bytes": True}}, "inner.bytes: expected a whole number from 0, found true"),
        ({"inner": {"name": "x", "bytes": -1}}, "inner.bytes: expected a whole number from 0, found -1"),
        ({"inner": {"name": "x", "bytes": 1.0}}, "inner.bytes: expected a whole number from 0, found 1.0"),
        ({"inner": {"name": "x", "bytes": float("nan")}}, "inner.bytes: expected a whole number from 0, found NaN"),
        ({"inner": {"name": "x", "bytes": MOST + 1}}, f"inner.bytes: expected a whole number from 0, found {MOST + 1}"),
        (
            {"inner": {"name": "x", "bytes": 10**400}},
            "inner.bytes: expected a whole number from 0, found a number of 1329",
        ),
        ({"inner": {"name": "x\n", "bytes": 1}}, r'inner.name: expected letters, found "x\n"'),
        (
            {"others": [{"name": "y", "bytes": 2}, {"name": "../z", "bytes": 3}]},
            "others[1].name: expected letters, found",
        ),
        ({"others": {}}, "others: expected a list, found an object"),
        ({"others": "ab"}, 'others: expected a list, found "ab"'),
        ({"kind": "c"}, 'kind: expected one of a, b, found "c"'),
        ({"kind": ["a"]}, "kind: expected one of a, b, found a list"),
        ({"note": 3}, "note: expected a text, found 3"),
        ({"note": [3]}, "note: expected a text, found a list"),
        ({"sure": 1}, "sure: expected true or false, found 1"),
        ({"level": 4}, "level: expected a whole number from 1 to 3, found 4"),
        ({"ratio": "1"}, 'ratio: expected a number, found "1"'),
        ({"\x1b[2J": 1}, r'has an unknown key "\u001b[2J"'),
    ],
    ids=str,
)
def test_anything_else_is_named_by_its_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Mismatch) as caught:
        parse(Outer, {**SOUND, **change})
    assert str(caught.value).startswith(message)
    assert parse(Outer, SOUND).others[1] == Inner("z", 3)


@given(st.text())
def test_what_is_shown_cannot_disturb_a_terminal(text: str) -> None:
    with pytest.raises(Mismatch) as caught:
        parse(int, text)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 600


def test_what_a_text_spells_and_what_a_class_refuses_are_named_too() -> None:
    @dataclass(frozen=True)
    class Body:
        labels: Annotated[LabelSpec, Spelled(LabelSpec.parse)]

    assert parse(Body, {"labels": "int*3"}) == Body(LabelSpec("int", 3))
    with pytest.raises(Mismatch, match=r"labels: labels='many': expected int"):
        parse(Body, {"labels": "many"})
    with pytest.raises(Mismatch, match=r"^labels: expected a text, found 3$"):
        parse(Body, {"labels": 3})
    with pytest.raises(Mismatch, match=r"^quality=0: expected a whole number from 1 to 100$"):
        parse(StoreOptions, asdict(StoreOptions()) | {"quality": 0})
