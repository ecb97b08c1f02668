"""Messages to running workers: where batches lie, and a recipe, by which they are made from now on.

A recipe is everything but what the workers had open when they were started, as bytes.

Pickle sends functions and classes by name. A worker that was started earlier may know another one by that name, if it
is from a notebook or an interactive session, or none at all. Such a recipe needs new workers.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, Final, NamedTuple

from packtrain._core.overriding import override

from .arena import Layout
from .batches import BatchMaker, Probe

_MAIN: Final = "__main__"


class Announced(NamedTuple):
    """The message to the workers about slots and recipe.

    Attributes:
        layout: What a slot holds.
        slots: Number of slots.
        start: Offset of the first slot in the shared memory.
        number: Number of the recipe; 0: batches are made as when the workers were started.
        recipe: What `packed` returned, unless the number is 0.
    """

    layout: Layout
    slots: int
    start: int
    number: int = 0
    recipe: bytes = b""

    def to_bytes(self) -> bytes:
        """All of it as bytes."""
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    @classmethod
    def from_bytes(cls, content: bytes) -> Announced:
        """The message of which `to_bytes` made these bytes."""
        found: Announced = pickle.loads(content)
        return found


def definitions() -> Mapping[str, object]:
    """The functions and classes of the main module as they are now."""
    found = list(vars(sys.modules[_MAIN]).items()) if _MAIN in sys.modules else []
    return {name: value for name, value in found if isinstance(value, FunctionType | type)}


def packed(maker: BatchMaker, probe: Probe, common: Sequence[object], known: Mapping[str, object]) -> bytes | None:
    """A recipe as bytes.

    Args:
        maker: Makes batches from now on.
        probe: The samples that show what a batch looks like.
        common: What the workers were started with, see `common_to`.
        known: `definitions` when the workers were started.

    Returns:
        The bytes; None if running workers cannot take them.
    """
    file = io.BytesIO()
    try:
        _Pickler(file, common, known).dump((maker, probe))
    except Exception:
        # Objects refuse this with errors of any type. New workers can be forked, or say what is wrong.
        return None
    return file.getvalue()


def unpacked(message: bytes, common: Sequence[object]) -> tuple[BatchMaker, Probe]:
    """The maker and the samples in a recipe; raises whatever their classes raise.

    Args:
        message: What `packed` returned.
        common: What this worker was started with, see `common_to`.
    """
    found: tuple[BatchMaker, Probe] = _Unpickler(io.BytesIO(message), common).load()
    return found


def common_to(maker: BatchMaker) -> Sequence[object]:
    """Return what every maker of a loader has, and need not be sent: open datasets, and a function that stays."""
    return *maker.samples.opened, maker.collate_fn


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[object], known: Mapping[str, object]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._shared = {id(each): number for number, each in enumerate(shared) if each is not None}
        self._known = known

    @override
    def persistent_id(self, obj: Any) -> int | None:
        if isinstance(obj, FunctionType | type) and obj.__module__ == _MAIN:
            name = obj.__qualname__.partition(".")[0]
            if name not in self._known or self._known[name] is not vars(sys.modules[_MAIN]).get(name):
                raise pickle.PicklingError(f"{obj.__qualname__} was defined after the workers were started")
        return self._shared.get(id(obj))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[object]) -> None:
        super().__init__(file)
        self._shared = shared

    @override
    def persistent_load(self, pid: Any) -> Any:
        return self._shared[pid]
