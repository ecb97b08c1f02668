"""The laws of the folders, read off the source: who may import whom, and what is nowhere allowed.

No module is imported here, so the laws also hold for imports inside functions.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

# `make check` runs this file.
pytestmark = pytest.mark.complete

ROOT = Path(__file__).parents[2]
MAY_IMPORT = {  # rooms and the rooms below them; what is not listed here is nobody's
    "api": {"core", "codec", "formats", "storage", "readers", "packer", "growing", "extras", "cli", "testing"},
    "cli": {"core", "codec", "formats", "storage", "readers", "packer", "growing", "extras"},
    "extras": {"core", "codec", "formats", "storage", "readers", "packer"},
    "growing": {"core", "codec", "formats", "storage", "readers", "packer"},
    "packer": {"core", "codec", "formats", "storage", "readers"},
    "readers": {"core", "codec", "formats", "storage"},
    "storage": {"core"},
    "formats": {"core"},
    "codec": {"core"},
    "core": set[str](),
    "testing": {"api", "core"},  # laws are stated in what users import; nobody imports them in turn
}
MAY_IMPORT_INSIDE = {  # the same, of packages inside a room
    "extras/train_val": {"dali"},
    "extras/dali": set[str](),
    "readers/loader": {"dataset", "monitoring", "transforms"},
    "readers/monitoring": {"dataset"},
    "readers/dataset": {"transforms"},
    "readers/transforms": set[str](),
    "storage/streams": {"location", "remote", "staging"},
    "storage/staging": {"location", "remote"},
    "storage/remote": set[str](),
}
ROOMS = tuple(MAY_IMPORT)
ERRORS = {
    node.name for node in ast.parse((ROOT / "core" / "errors.py").read_text()).body if isinstance(node, ast.ClassDef)
}
OTHERS = ("tests", "examples", "benchmarks")
HEAVY = {
    "core": {"PIL", "click", "h5py", "lmdb", "torch"},
    "codec": {"click", "h5py", "lmdb", "torch"},
    "formats": {"PIL", "click", "torch"},
    "storage": {"PIL", "click", "h5py", "lmdb", "torch"},
    "readers": {"torch"},
    "packer": {"torch"},
    "growing": {"torch"},
    "extras": {"torch"},
    "cli": {"torch"},
}
# The readers that exist to make tensors, whoever imports them has asked for torch; and those that import it only to
# draw random numbers for a caller who hands in none, or to seed it.
TORCH_ALLOWED = {
    "extras/train_val/imagenet.py",
    "extras/train_val/torch_loader.py",
    "extras/dali/loader.py",
    "extras/dali/engine.py",
    "readers/dataset/image_dataset.py",
    "readers/dataset/named.py",
    "readers/loader/assembly.py",
    "readers/loader/pipeline.py",
    "readers/loader/blob.py",
    "readers/loader/columns.py",
    "readers/loader/cuda_decoder.py",
    "readers/loader/decoding.py",
    "readers/loader/finishing.py",
    "readers/loader/generators.py",
    "readers/loader/device.py",
    "readers/loader/loader.py",
    "readers/loader/frameworks.py",
    "readers/loader/postprocess.py",
    "readers/loader/ragged.py",
    "readers/loader/randomness.py",
    "readers/loader/ranks.py",
    "readers/loader/resampling.py",
    "readers/loader/worker.py",
    "readers/transforms/executors.py",
    "extras/foreign_decoders.py",
    "readers/transforms/pipeline.py",
    "readers/transforms/base.py",
    "readers/transforms/policies.py",
    "readers/transforms/warps.py",
    "readers/transforms/erasing.py",
    "readers/transforms/finisher.py",
    "readers/transforms/tensor_steps.py",
}
PICKLES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
# They send transforms, which are code, from a loader to its own workers, and tasks to the workers of a cluster, as
# multiprocessing does with its own; or state that a dataset may be sent.
PICKLE_ALLOWED = {"packer/ray_engine.py", "readers/loader/recipe.py", "testing/dataset.py", "testing/loading.py"}


def name_of(path: PurePosixPath) -> tuple[str, ...]:
    """The name that a folder or module is imported by: ``core/index.py`` is ``packtrain._core.index``."""
    room, *inner = path.with_suffix("").parts
    inner = inner[:-1] if inner and inner[-1] == "__init__" else inner
    return ("packtrain", *inner) if room == "api" else ("packtrain", f"_{room}", *inner)


def room_of(module: str) -> str:
    """The room that a module of packtrain lives in."""
    parts = module.split(".")
    return parts[1][1:] if len(parts) > 1 and parts[1].startswith("_") else "api"


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
                package = name_of(self.path.parent)
                # One level more than there are packages leads out of packtrain: an empty name.
                parent = package[: len(package) - level + 1] if level <= len(package) else ()
                yield ".".join((*parent, *([module] if module else []))), True
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(module))]):
                if name in ("import_module", "__import__"):
                    yield module, False


def order(source: Source) -> Iterator[str]:
    """A room imports the rooms below it, examples import what users import, and nobody but its tests imports cli."""
    if source.folder == "tests":
        return
    for module, line, *_ in source.imports:
        if module.split(".")[0] != "packtrain":
            continue
        room = room_of(module)
        if source.folder == "examples":
            allowed = room == "api"
        elif source.folder == "benchmarks":
            allowed = room != "cli"
        else:
            allowed = room in MAY_IMPORT[source.folder] | {source.folder}
        if not allowed:
            yield f"{source.path}:{line}: {source.folder} may not import {module}"


def order_inside(source: Source) -> Iterator[str]:
    """Inside a room, too, imports run one way."""
    mine = "/".join(source.path.parts[:2])
    if mine not in MAY_IMPORT_INSIDE:
        return
    for module, line, *_ in source.imports:
        _, room, *inner = (*module.split("."), "")
        if room == f"_{source.folder}" and inner[0] not in MAY_IMPORT_INSIDE[mine] | {source.path.parts[1]}:
            yield f"{source.path}:{line}: {mine} may not import {module}"


def spelling(source: Source) -> Iterator[str]:
    """Relative inside a room, absolute across rooms, and never by the bare name, which is a second identity."""
    home = source.folder if source.folder in ROOMS else None
    for node in source.nodes:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for module, relative in source._modules(node):
            ours = module.split(".")[0] == "packtrain"
            inside = home is not None and ours and room_of(module) == home
            if not relative and module.split(".")[0] in ROOMS:
                yield f"{source.path}:{node.lineno}: import {module} as packtrain._{module}"
            elif inside and not relative:
                yield f"{source.path}:{node.lineno}: import {module} relatively, it is in the same room"
            elif home is not None and relative and not inside:
                yield f"{source.path}:{node.lineno}: import absolutely what is in another room"


def weight(source: Source) -> Iterator[str]:
    """core imports nothing heavy, and torch is imported only where tensors are made."""
    if source.folder not in HEAVY or source.path.as_posix() in TORCH_ALLOWED:
        return
    for module, line, _, typing_only in source.imports:
        if module.split(".")[0] in HEAVY[source.folder] and not typing_only:
            yield f"{source.path}:{line}: {source.folder} may not import {module}"


def no_pickle(source: Source) -> Iterator[str]:
    """Data is never pickled: not by module, not by numpy's nor by torch's back door."""
    if source.folder not in ROOMS:
        return
    for module, line, *_ in source.imports:
        if module.split(".")[0] in PICKLES and source.path.as_posix() not in PICKLE_ALLOWED:
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
    if source.folder not in ROOMS or source.folder == "cli":
        return
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"{source.path}:{node.lineno}: print outside cli"


def one_tree_of_errors(source: Source) -> Iterator[str]:
    """Errors that users can catch are all in core/errors.py; what serves a module alone is none of them."""
    if source.folder not in ROOMS or str(source.path) == "core/errors.py":
        return
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and {ast.unparse(base).rpartition(".")[2] for base in node.bases} & ERRORS:
            yield f"{source.path}:{node.lineno}: {node.name} is an error that users would meet and cannot import"


LAWS: tuple[Callable[[Source], Iterator[str]], ...] = (
    order,
    order_inside,
    spelling,
    weight,
    no_pickle,
    no_print,
    one_tree_of_errors,
)


def parse(path: str, text: str) -> Source:
    return Source(PurePosixPath(path), ast.parse(text, path))


@pytest.fixture(scope="module")
def sources() -> Iterator[list[Source]]:
    # Looking for garbage among all these objects takes three times as long as making them.
    gc.disable()
    try:
        yield [
            parse(path.relative_to(ROOT).as_posix(), path.read_text())
            for folder in (*ROOMS, *OTHERS)
            for path in sorted((ROOT / folder).rglob("*.py"))
        ]
    finally:
        gc.enable()


@pytest.mark.parametrize("law", LAWS)
def test_the_source_keeps_the_law(law: Callable[[Source], Iterator[str]], sources: list[Source]) -> None:
    assert {source.folder for source in sources} >= set(ROOMS)
    broken = [breach for source in sources for breach in law(source)]
    assert not broken, f"{law.__doc__}\n" + "\n".join(broken)


def circles(sources: list[Source]) -> list[list[str]]:
    """Groups of modules of packtrain that import each other, by Tarjan's algorithm; imports for typing count too."""
    known = {".".join(name_of(source.path)): source for source in sources if source.folder in ROOMS}
    edges = {
        name: {
            found
            for node in source.nodes
            for found in imported(source, node, known)
            if found != name and not name.startswith(f"{found}.")
        }
        for name, source in known.items()
    }
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in edges[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in edges:
        if name not in index:
            visit(name)
    return found


def imported(source: Source, node: ast.AST, known: Collection[str]) -> Iterator[str]:
    """The modules that an import names: of ``from package import name``, the module `name` if there is one."""
    for module, _ in source._modules(node):
        names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        inner = [f"{module}.{name}" for name in names if f"{module}.{name}" in known]
        yield from inner
        if module in known and len(inner) < max(len(names), 1):
            yield module


def test_no_module_imports_itself_by_way_of_others(sources: list[Source]) -> None:
    assert not circles(sources)


def test_a_circle_is_noticed() -> None:
    made = [
        parse("core/a.py", "from .b import B"),
        parse("core/b.py", "def f():\n    from . import c"),
        parse("core/c.py", "if TYPE_CHECKING:\n    from .a import A\nfrom packtrain._core.d import D"),
        parse("core/d.py", "import numpy"),
    ]
    assert circles(made) == [["packtrain._core.a", "packtrain._core.b", "packtrain._core.c"]]


@pytest.mark.parametrize(
    ("law", "path", "text"),
    [
        (order, "core/a.py", "import packtrain._readers"),
        (order, "core/a.py", "from packtrain import _readers"),
        (order, "core/a.py", "import packtrain"),
        (order, "codec/a.py", "from packtrain._storage.staging.root import lease_on"),
        (order, "examples/a.py", "from packtrain._readers.loader import Loader"),
        (order_inside, "readers/dataset/a.py", "from ..loader.loader import Loader"),
        (order_inside, "readers/transforms/a.py", "def f():\n    from .. import dataset"),
        (order_inside, "storage/remote/a.py", "from ..staging.room import Room"),
        (order, "core/a.py", "def f():\n    from packtrain._packer.plan import Plan"),
        (order, "formats/a.py", "from packtrain._packer import plan"),
        (order, "readers/a.py", "import importlib\nimportlib.import_module('packtrain._packer.plan')"),
        (order, "packer/a.py", "from packtrain._cli.main import main"),
        (order, "examples/a.py", "import packtrain._cli.main"),
        (spelling, "core/a.py", "import core.errors"),
        (spelling, "tests/a.py", "from readers.dataset import packed"),
        (spelling, "core/a.py", "from packtrain._core.errors import PacktrainError"),
        (spelling, "core/a.py", "from packtrain._core import errors"),
        (spelling, "core/a.py", "from packtrain import _core"),
        (spelling, "formats/a.py", "from ..core import errors"),
        (spelling, "formats/a.py", "from ....core import errors"),
        (weight, "core/a.py", "import lmdb"),
        (weight, "core/a.py", "def f():\n    from PIL import Image"),
        (weight, "formats/a.py", "import torch.utils.data"),
        (weight, "packer/a.py", "from torch import nn"),
        (no_pickle, "packer/a.py", "import pickle"),
        (no_pickle, "core/a.py", "np.load(f, allow_pickle=True)"),
        (no_pickle, "core/a.py", "np.load(f, allow_pickle=flag)"),
        (no_pickle, "cli/a.py", "torch.load(f)"),
        (no_print, "packer/a.py", "def f():\n    print('packed')"),
        (one_tree_of_errors, "storage/streams/a.py", "class _LateError(RemoteError): pass"),
        (one_tree_of_errors, "storage/streams/a.py", "class LateError(errors.PacktrainError, OSError): pass"),
    ],
)
def test_the_law_notices_a_breach(law: Callable[[Source], Iterator[str]], path: str, text: str) -> None:
    assert len(list(law(parse(path, text)))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("core/a.py", "from . import errors\nfrom .errors import PacktrainError\nimport numpy"),
        ("formats/a.py", "from . import tar\nfrom .tar import A\nfrom packtrain._core.errors import E"),
        ("readers/dataset/image_dataset.py", "import torch"),
        ("core/errors.py", "class Late(RemoteError): pass"),
        ("storage/remote/a.py", "class Late(Exception): pass"),
        ("examples/a.py", "from packtrain import Loader\nfrom packtrain.transforms import Resize"),
        ("readers/a.py", "if TYPE_CHECKING:\n    import torch\nimport h5py"),
        ("packer/a.py", "import packtrain._formats.tar.reader\nnumpy.load(f, allow_pickle=False)"),
        ("cli/a.py", "from packtrain._packer import pack\nfrom .main import main\nprint(1)"),
        ("tests/a.py", "import pickle\nimport torch\nimport packtrain._cli.main\nprint(pickle.dumps(1))"),
    ],
)
def test_the_laws_allow_what_is_right(path: str, text: str) -> None:
    assert not [breach for law in LAWS for breach in law(parse(path, text))]
