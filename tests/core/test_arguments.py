"""Laws of checks: what is right comes back in one form, everything else is named together with what was expected."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import packtrain
import packtrain.accelerate
import packtrain.staging
import packtrain.transforms
from packtrain._core import arguments
from packtrain.errors import UsageError

# As callers without a type checker see it.
unchecked: Any = arguments


def test_what_is_right_comes_back_as_pythons_own() -> None:
    for value in (3, np.int8(3), np.uint64(3), torch.tensor(3)):
        found = unchecked.whole("n", value)
        assert (type(found), found) == (int, 3)
    for truth in (True, np.bool_(True)):
        assert unchecked.flag("f", truth) is True
    for share in (1, 0.5, np.float32(0.5), torch.tensor(0.5)):
        assert type(unchecked.number("p", share, 0, 1, "a share")) is float
    assert unchecked.choice("c", "b", "ab") == "b"
    assert unchecked.function("g", len) is len and unchecked.function("g", None) is None
    assert unchecked.items("l", (1, 2), "a list") == [1, 2]


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: unchecked.whole("n", True), "n=True: expected a whole number"),
        (lambda: unchecked.whole("n", 2.0), "n=2.0: expected a whole number"),
        (lambda: unchecked.whole("n", "2", 1), "n='2': expected a whole number, at least 1"),
        (lambda: unchecked.whole("n", 0, 1), "n=0: expected a whole number, at least 1"),
        (lambda: unchecked.whole("n", None), "n=None: expected a whole number"),
        (lambda: unchecked.flag("f", 1), "f=1: expected True or False"),
        (lambda: unchecked.flag("f", "no"), "f='no': expected True or False"),
        (lambda: unchecked.number("p", "0.5", 0, 1, "a share"), "p='0.5': expected a share"),
        (lambda: unchecked.number("p", float("nan"), 0, 1, "a share"), "p=nan: expected a share"),
        (lambda: unchecked.number("p", None, 0, 1, "a share"), "p=None: expected a share"),
        (
            lambda: unchecked.choice("c", "tra", ["tar", "lmdb"]),
            "c='tra': expected one of tar, lmdb; did you mean 'tar'?",
        ),
        (lambda: unchecked.choice("c", ["tar"], ["tar"]), "c=['tar']: expected one of tar"),
        (lambda: unchecked.function("g", 3), "g=3: expected a function"),
        (lambda: unchecked.items("l", "ab", "a list"), "l='ab': expected a list"),
        (lambda: unchecked.items("l", 3, "a list"), "l=3: expected a list"),
        (
            lambda: unchecked.refuse_unknown("open", ["pth"], ["path"]),
            "open has no argument 'pth'; did you mean 'path'?",
        ),
        (lambda: unchecked.whole("n", [0] * 1000), "... (an object of type list): expected a whole number"),
    ],
)
def test_what_is_wrong_is_named(check: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message) + "$") as caught:
        check()
    assert len(str(caught.value)) < 200


def takes_options(function: Callable[..., Any]) -> bool:
    kinds = (parameter.kind for parameter in inspect.signature(function).parameters.values())
    return inspect.Parameter.VAR_KEYWORD in kinds


def public_calls() -> list[Any]:
    """Every public function, and the classes of options."""
    homes = (packtrain, packtrain.staging, packtrain.accelerate, packtrain.transforms)
    found = [getattr(home, name) for home in homes for name in home.__all__]
    # What takes any options passes them on to a function that checks their names.
    functions = {each for each in found if inspect.isfunction(each) and not takes_options(each)}
    options = {each for each in found if inspect.isclass(each) and each.__name__.endswith("Options")}
    assert len(functions) >= 17 and len(options) >= 4
    return sorted(functions | options, key=lambda each: str(each.__name__))


@pytest.mark.parametrize("call", public_calls(), ids=lambda each: each.__name__)
def test_a_misspelt_argument_is_told_what_it_may_have_been(call: Any) -> None:
    name = list(inspect.signature(call).parameters)[-1]
    with pytest.raises(UsageError, match=f"^{call.__name__} has no argument '{name}s'; did you mean '{name}'"):
        call(**{f"{name}s": 1})
    with pytest.raises(UsageError, match=f"^{call.__name__} has no argument 'qqqq'$"):
        call(qqqq=1)


def test_an_argument_of_the_options_is_told_where_it_belongs() -> None:
    pack: Any = packtrain.pack
    with pytest.raises(UsageError, match=r"pack has no argument 'format': write options=PackOptions\(format=\.\.\.\)$"):
        pack("list", "out", format="tar")
    with pytest.raises(UsageError, match=r"; did you mean 'shard_size'\? It belongs in options=PackOptions\(\.\.\.\)$"):
        pack("list", "out", shard_byte=1)


def test_a_function_that_checks_names_is_otherwise_as_it_was() -> None:
    def made(first: int, *, second: str = "b") -> str:
        """Doc."""
        return second * first

    checked = arguments.checks_names()(made)
    assert inspect.signature(checked) == inspect.signature(made)
    assert (checked.__doc__, checked.__qualname__, checked.__module__) == ("Doc.", made.__qualname__, __name__)
    assert (checked(2), checked(first=2, second="c")) == ("bb", "cc")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        checked()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("call", "given", "most"),
    [
        (packtrain.TrainVal, ("a", "b", "packtrain"), "2 argument(s) without a name (train, val)"),
        (packtrain.transforms.Views, ([], []), "1 argument(s) without a name (transforms)"),
        (packtrain.pack, ("a", "b", None, 2), "3 argument(s) without a name (source, out, options)"),
    ],
)
def test_more_arguments_than_have_a_place_are_refused(call: Any, given: tuple[Any, ...], most: str) -> None:
    message = f"^{call.__name__} takes at most {re.escape(most)}, and {len(given)} are given$"
    with pytest.raises(UsageError, match=message):
        call(*given)
