"""The laws of the folders, read off the source: who may import whom, and what is nowhere allowed.

No module is imported here, so the laws also hold for imports inside functions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
ORDER = ("core", "readers", "packer", "cli")  # each may import the ones before it
OTHERS = ("tests", "examples", "benchmarks")
HEAVY = {
    "core": {"PIL", "click", "h5py", "lmdb", "torch"},
    "readers": {"torch"},
    "packer": {"torch"},
    "cli": {"torch"},
}
# The readers that exist to make tensors, whoever imports them has asked for torch; and those that import it only to
# draw random numbers for a caller who hands in none, or to seed it.
TORCH_ALLOWED = {
    "readers/dataset.py",
    "readers/fused.py",
    "readers/loader/arguments.py",
    "readers/loader/batches.py",
    "readers/loader/device.py",
    "readers/loader/finish.py",
    "readers/loader/loader.py",
    "readers/loader/randomness.py",
    "readers/loader/worker.py",
    "readers/transforms.py",
}
PICKLES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}


class Import(NamedTuple):
    """One imported module by its absolute name; `relative` is how it was written, `typing_only` when it never runs."""

    module: str
    line: int
    relative: bool
    typing_only: bool


@dataclass(frozen=True)
class Source:
    """One parsed file; `path` is relative to the repository."""

    path: PurePosixPath
    tree: ast.Module

    @property
    def folder(self) -> str:
        return self.path.parts[0]

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of the tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> list[Import]:
        return list(self._imports())

    def _imports(self) -> Iterator[Import]:
        typing_only = {
            id(inner)
            for node in self.nodes
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
            for statement in node.body
            for inner in ast.walk(statement)
        }
        for node in self.nodes:
            for module, relative in self._modules(node):
                yield Import(module, getattr(node, "lineno", 0), relative, id(node) in typing_only)

    def _modules(self, node: ast.AST) -> Iterator[tuple[str, bool]]:
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, False) for alias in names)
            case ast.ImportFrom(module="packtrain", names=names, level=0):
                yield from ((f"packtrain.{alias.name}", False) for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module, False
            case ast.ImportFrom(module=module, level=level):
                package = ("packtrain", *self.path.parent.parts)
                # One level more than there are packages leads out of packtrain: an empty name.
                parent = package[: len(package) - level + 1] if level <= len(package) else ()
                yield ".".join((*parent, *([module] if module else []))), True
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(module))]):
                if name in ("import_module", "__import__"):
                    yield module, False


def order(source: Source) -> Iterator[str]:
    """cli -> packer -> readers -> core, and nobody but its tests imports cli."""
    if source.folder == "tests":
        return
    above = ORDER[ORDER.index(source.folder) + 1 :] if source.folder in ORDER else ("cli",)
    for module, line, *_ in source.imports:
        if module.startswith("packtrain.") and module.split(".")[1] in above:
            yield f"{source.path}:{line}: {source.folder} may not import {module}"


def spelling(source: Source) -> Iterator[str]:
    """Relative inside a folder, absolute across folders, and never by the bare name, which is a second identity."""
    home = f"packtrain.{source.folder}"
    for node in source.nodes:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for module, relative in source._modules(node):
            inside = f"{module}.".startswith(f"{home}.")
            if not relative and module.split(".")[0] in ORDER:
                yield f"{source.path}:{node.lineno}: import {module} as packtrain.{module}"
            elif source.folder in ORDER and inside and not relative:
                yield f"{source.path}:{node.lineno}: import {module} relatively, it is in the same folder"
            elif source.folder in ORDER and relative and not inside:
                yield f"{source.path}:{node.lineno}: import absolutely what is in another folder"


def weight(source: Source) -> Iterator[str]:
    """core imports nothing heavy, and torch is imported only where tensors are made."""
    if source.folder not in HEAVY or source.path.as_posix() in TORCH_ALLOWED:
        return
    for module, line, _, typing_only in source.imports:
        if module.split(".")[0] in HEAVY[source.folder] and not typing_only:
            yield f"{source.path}:{line}: {source.folder} may not import {module}"


def no_pickle(source: Source) -> Iterator[str]:
    """Data is never pickled: not by module, not by numpy's nor by torch's back door."""
    if source.folder not in ORDER:
        return
    for module, line, *_ in source.imports:
        if module.split(".")[0] in PICKLES:
            yield f"{source.path}:{line}: {module} is not allowed"
    for node in source.nodes:
        match node:
            case ast.keyword(arg="allow_pickle", value=value) if not (
                isinstance(value, ast.Constant) and value.value is False
            ):
                yield f"{source.path}:{node.value.lineno}: allow_pickle must be False"
            case ast.Attribute(value=ast.Name(id="torch"), attr="load" | "save" as name):
                yield f"{source.path}:{node.lineno}: torch.{name} pickles"


def no_print(source: Source) -> Iterator[str]:
    """Only cli talks to the user."""
    if source.folder not in ORDER or source.folder == "cli":
        return
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"{source.path}:{node.lineno}: print outside cli"


LAWS: tuple[Callable[[Source], Iterator[str]], ...] = (order, spelling, weight, no_pickle, no_print)


def parse(path: str, text: str) -> Source:
    return Source(PurePosixPath(path), ast.parse(text, path))


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return [
        parse(path.relative_to(ROOT).as_posix(), path.read_text())
        for folder in (*ORDER, *OTHERS)
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]


@pytest.mark.parametrize("law", LAWS)
def test_the_source_keeps_the_law(law: Callable[[Source], Iterator[str]], sources: list[Source]) -> None:
    assert {source.folder for source in sources} >= set(ORDER)
    broken = [breach for source in sources for breach in law(source)]
    assert not broken, f"{law.__doc__}\n" + "\n".join(broken)


@pytest.mark.parametrize(
    ("law", "path", "text"),
    [
        (order, "core/a.py", "import packtrain.readers"),
        (order, "core/a.py", "from packtrain import readers"),
        (order, "core/a.py", "def f():\n    from packtrain.packer.plan import Plan"),
        (order, "readers/formats/a.py", "from packtrain.packer import plan"),
        (order, "readers/a.py", "import importlib\nimportlib.import_module('packtrain.packer.plan')"),
        (order, "packer/a.py", "from packtrain.cli.main import main"),
        (order, "examples/a.py", "import packtrain.cli.main"),
        (spelling, "core/a.py", "import core.errors"),
        (spelling, "tests/a.py", "from readers import open_dataset"),
        (spelling, "core/a.py", "from packtrain.core.errors import PacktrainError"),
        (spelling, "core/a.py", "from packtrain.core import errors"),
        (spelling, "core/a.py", "from packtrain import core"),
        (spelling, "readers/formats/a.py", "from ...core import errors"),
        (spelling, "readers/formats/a.py", "from .....core import errors"),
        (weight, "core/a.py", "import lmdb"),
        (weight, "core/a.py", "def f():\n    from PIL import Image"),
        (weight, "readers/formats/a.py", "import torch.utils.data"),
        (weight, "packer/a.py", "from torch import nn"),
        (no_pickle, "packer/a.py", "import pickle"),
        (no_pickle, "core/a.py", "np.load(f, allow_pickle=True)"),
        (no_pickle, "core/a.py", "np.load(f, allow_pickle=flag)"),
        (no_pickle, "cli/a.py", "torch.load(f)"),
        (no_print, "packer/a.py", "def f():\n    print('packed')"),
    ],
)
def test_the_law_notices_a_breach(law: Callable[[Source], Iterator[str]], path: str, text: str) -> None:
    assert len(list(law(parse(path, text)))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("core/a.py", "from . import errors\nfrom .errors import PacktrainError\nimport numpy"),
        ("readers/formats/a.py", "from .. import store\nfrom ..store import A\nfrom packtrain.core.errors import E"),
        ("readers/dataset.py", "import torch"),
        ("readers/a.py", "if TYPE_CHECKING:\n    import torch\nimport h5py"),
        ("packer/a.py", "import packtrain.readers.formats.tar\nnumpy.load(f, allow_pickle=False)"),
        ("cli/a.py", "from packtrain.packer import pack\nfrom .main import main\nprint(1)"),
        ("tests/a.py", "import pickle\nimport torch\nimport packtrain.cli.main\nprint(pickle.dumps(1))"),
    ],
)
def test_the_laws_allow_what_is_right(path: str, text: str) -> None:
    assert not [breach for law in LAWS for breach in law(parse(path, text))]
