"""Finds the random generators that the user's functions have for themselves, so that they can be seeded, too.

A library such as albumentations draws neither from `random` nor from numpy's or torch's global generator, but from
generators that its transforms hold.
"""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch

from packtrain._core.keys import mixed

from .randomness import seed_all

# What a function can reach is looked at up to this many objects and this deep, and no further into long lists.
_MOST: Final = 5000
_DEPTH: Final = 12
_LONGEST: Final = 200
_PLAIN: Final = (str, bytes, bytearray, int, float, complex, np.ndarray, np.generic, torch.Tensor)
_LEAVES: Final = (*_PLAIN, type, types.ModuleType)
# `set_random_seed` of albumentations takes 32 bits, as do numpy's older generators.
_BITS: Final = 0xFFFFFFFF
# The generators of a sample get the seeds that follow those of the three global ones.
_FIRST: Final = 3


class Seeder:
    """Seeds everything that some functions may draw from: the global generators, and those that the functions hold.

    A generator is found wherever a function has it: as an attribute, in a list or dict, in a closure, as an argument of
    a `functools.partial`, or as a global variable.

    Args:
        functions: Functions or objects that are not packtrain's.
    """

    def __init__(self, *functions: object) -> None:
        self._functions = functions
        self._seeds: list[Callable[[int], object]] | None = None

    def seed(self, key: int, position: int) -> None:
        """Seeds for one sample or batch. Every generator gets a seed of its own."""
        seed_all(key, position)
        if self._seeds is None:
            self._seeds = [seed for found in _reachable(self._functions) if (seed := _seed_of(found)) is not None]
        for number, seed in enumerate(self._seeds, _FIRST):
            seed(mixed(key, position, number) & _BITS)

    def look_again(self) -> None:
        """Finds the generators anew at the next call of `seed`, because the functions may hold others by now."""
        self._seeds = None

    def unseedable(self) -> list[str]:
        """Names of types found that draw random numbers nobody can seed."""
        kinds = {type(found) for found in _reachable(self._functions) if _is_unseedable(found)}
        return sorted(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)

    def __getstate__(self) -> dict[str, Any]:
        # What a function holds in another process is found there.
        return {**vars(self), "_seeds": None}


def _seed_of(found: object) -> Callable[[int], object] | None:
    """A function that seeds an object; None if it is not to be seeded."""
    if _is_unseedable(found):
        return None
    if isinstance(found, (random.Random, np.random.RandomState)):
        return found.seed
    if isinstance(found, torch.Generator):
        return found.manual_seed
    if isinstance(found, np.random.Generator):
        return lambda seed: setattr(found.bit_generator, "state", type(found.bit_generator)(seed).state)
    if _method(found, "set_random_seed"):
        seed: Callable[[int], object] = found.set_random_seed  # type: ignore[attr-defined]
        return seed
    return None


def _is_unseedable(found: object) -> bool:
    return isinstance(found, random.SystemRandom) or type(found).__module__.partition(".")[0] == "imgaug"


def _method(found: object, name: str) -> bool:
    # In the class: an object may claim to have any attribute.
    return callable(getattr(type(found), name, None))


def _reachable(roots: tuple[object, ...]) -> Iterator[object]:
    """Objects that `roots` refer to, each once, in an order that is the same in every process."""
    # The global generators, which have their seeds already.
    seen = {id(found) for found in (random._inst, np.random.mtrand._rand, torch.default_generator)}
    waiting = [(root, 0) for root in reversed(roots)]
    for _ in range(_MOST):
        if not waiting:
            return
        found, depth = waiting.pop()
        if found is None or id(found) in seen or isinstance(found, _LEAVES):
            continue
        seen.add(id(found))
        yield found
        if depth < _DEPTH and not isinstance(found, random.Random) and not _method(found, "set_random_seed"):
            waiting += [(part, depth + 1) for part in reversed(_parts(found))]


def _parts(found: object) -> list[object]:
    if isinstance(found, (list, tuple, dict)):
        parts = found.values() if isinstance(found, dict) else found
        return list(parts) if len(found) <= _LONGEST else []
    if isinstance(found, functools.partial):
        return [found.func, *found.args, *found.keywords.values()]
    if isinstance(found, (types.MethodType, types.BuiltinMethodType)):
        return [found.__self__, getattr(found, "__func__", None)]
    if isinstance(found, types.FunctionType):
        return [*_closure(found), *_globals(found), *(found.__defaults__ or ()), *(found.__kwdefaults__ or {}).values()]
    call = vars(type(found)).get("__call__")
    named = _globals(call) if isinstance(call, types.FunctionType) else ()
    return [*getattr(found, "__dict__", {}).values(), *named]


def _closure(function: types.FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            # The variable has no value yet.
            continue


def _globals(function: types.FunctionType) -> Iterator[object]:
    """The global variables that a function names."""
    if (function.__module__ or "").partition(".")[0] in ("packtrain", "torch", "torchvision", "numpy", "PIL"):
        return
    for name in _names(function.__code__):
        yield function.__globals__.get(name)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
