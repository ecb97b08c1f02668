"""Laws of the public page: every name on it resolves, and the lists of names agree."""

from __future__ import annotations

import ast
import inspect
import pickle
from importlib import import_module
from pathlib import Path

import pytest

import packtrain
from packtrain import errors

PAGE = ast.parse(Path(packtrain.__file__).read_text())
ERRORS = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("name", packtrain.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(packtrain, name) is not None


def test_an_unknown_name_is_pythons_own_error() -> None:
    with pytest.raises(AttributeError, match="module 'packtrain' has no attribute 'open_datasets'"):
        packtrain.open_datasets  # noqa: B018


def test_dir_lists_the_public_names() -> None:
    assert dir(packtrain) == sorted(packtrain.__all__)
    assert len(set(packtrain.__all__)) == len(packtrain.__all__)


def test_type_checkers_are_told_the_same_homes_as_the_interpreter() -> None:
    (block,) = (node for node in PAGE.body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    told = set()
    for statement in (*PAGE.body, *block.body):
        if isinstance(statement, ast.ImportFrom) and (statement.level or (statement.module or "").startswith("packt")):
            for alias in statement.names:
                assert alias.asname == alias.name, "without `as`, type checkers take the name for private"
                told.add(((statement.module or "").removeprefix("packtrain."), alias.name))
    homes = {(module, name) for module, names in packtrain._HOMES.items() for name in names}
    assert told == homes | {("", name) for name in packtrain._MODULES}
    assert {name for _, name in told} | {"__version__"} == set(packtrain.__all__)


@pytest.mark.parametrize(
    "module",
    [f"packtrain.{name}" for name in ("accelerate", "orders", "reports", "staging", "testing", "transforms")],
)
def test_public_modules_list_what_they_import(module: str) -> None:
    page = import_module(module)
    body = ast.parse(inspect.getsource(page)).body
    imported = {alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert page.__all__ == sorted(imported, key=page.__all__.index)


def test_every_error_is_public() -> None:
    from packtrain._core import errors as core

    assert {value for value in vars(core).values() if inspect.isclass(value)} == set(ERRORS)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
class TestEveryError:
    def test_a_traceback_shows_the_name_that_users_import(self, error: type[Exception]) -> None:
        with pytest.raises(error) as caught:
            raise error("what went wrong")
        assert f"packtrain.errors.{error.__name__}: what went wrong" in str(caught.getrepr(style="native"))

    def test_it_pickles_under_that_name(self, error: type[Exception]) -> None:
        data = pickle.dumps(error("what went wrong"))
        assert b"packtrain.errors" in data
        assert b"_core" not in data
        assert type(pickle.loads(data)) is error
