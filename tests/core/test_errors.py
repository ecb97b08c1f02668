"""Laws of the errors: the tree in the docstring is the tree, and every error survives a worker."""

from __future__ import annotations

import inspect
import json
import pickle
import re

import pytest
from torch._utils import ExceptionWrapper

from packtrain._core import errors
from packtrain._core.errors_as_json import error_from_json, error_to_json

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)]


def drawn_tree() -> dict[str, str]:
    """Each class in the docstring and the one it hangs below."""
    parents: dict[str, str] = {}
    branch: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([ │├└─]*)([A-Z]\w+)(  |$)", line)
        if found:
            depth = len(found[1])
            while branch and branch[-1][0] >= depth:
                branch.pop()
            parents[found[2]] = branch[-1][1] if branch else "Exception"
            branch.append((depth, found[2]))
    return parents


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert drawn_tree() == {error.__name__: error.__base__.__name__ for error in CLASSES if error.__base__}


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
class TestEveryError:
    def test_it_pickles_with_what_it_knows(self, error: type[Exception]) -> None:
        facts = dict.fromkeys(vars(error("")), 5)
        again = pickle.loads(pickle.dumps(error("message", **facts)))
        assert (type(again), str(again), vars(again)) == (error, "message", facts)

    def test_it_comes_out_of_a_dataloader_worker_as_it_went_in(self, error: type[Exception]) -> None:
        try:
            raise error("what went wrong")
        except Exception:
            wrapper = ExceptionWrapper(where="in a worker")  # type: ignore[no-untyped-call]
        with pytest.raises(error, match="what went wrong") as caught:
            pickle.loads(pickle.dumps(wrapper)).reraise()
        assert type(caught.value) is error


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_survives_a_message(error: type[Exception]) -> None:
    original = error("3 of 7 bytes\nare missing")
    facts = {"file": "a.tar", "row": 0, "line": 7}
    vars(original).update({name: facts[name] for name in facts if hasattr(original, name)})
    arrived = error_from_json(json.loads(json.dumps(error_to_json(original))))
    assert (type(arrived), str(arrived), vars(arrived)) == (error, str(original), vars(original))


def test_what_is_no_error_of_ours_arrives_as_one_that_is() -> None:
    arrived = error_from_json(error_to_json(ZeroDivisionError("division by zero")))
    assert type(arrived) is errors.RemoteError
    assert str(arrived) == "ZeroDivisionError: division by zero"
