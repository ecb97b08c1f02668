"""The arguments of `Loader`: checks, and values for those that were left out."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.context import BaseContext
from typing import Any, Final, Literal, TypeVar

from packtrain._core.arguments import flag, refuse_unknown, unexpected, whole
from packtrain._core.cores import cores_per_rank
from packtrain._core.errors import UsageError

from ..dataset.growing import GrowingDataset
from ..dataset.image_dataset import ImageDataset, instead_of, is_remote
from .chunk_shuffled import ChunkShuffled
from .order import Order, Sequential, Shuffled
from .sampler import SamplerOrder

Refused = Mapping[str, tuple[object, str]]
"""Arguments known from elsewhere: the value that means the same as leaving each out, and what to write instead."""

REFUSED: Final[Refused] = {
    "batch_sampler": (None, "give sampler= and batch_size=; for batches of other shapes, use torch's DataLoader"),
    "generator": (None, "give seed=generator.initial_seed()"),
    "headspace": (False, "write `with loader.headspace():` around the loop that is to be measured"),
    "in_order": (True, "batches always come in order"),
    "keep_generation": (3600, "set dataset.keep_generation"),
    "persistent_workers": (True, "workers live until loader.close(), and a pass after that starts others"),
    "pin_memory_device": ("", "give device="),
    "transform": (None, "give dataset.with_transform(transform), or set loader.transform later"),
}

C = TypeVar("C", bound=type)


def loader_class(refused: Refused = REFUSED) -> Callable[[C], C]:
    """Make a class of loaders refuse arguments that it does not have, with a hint at what to write instead.

    ``**options`` in its constructor stands for the arguments of its base class that it neither names nor refuses. The
    signature lists all of them, for `help` and for completion.

    Args:
        refused: Arguments with a hint of their own.
    """

    def decorated(target: C) -> C:
        kind: Any = target
        call = kind.__init__
        signature = inspect.signature(call)
        known = dict(signature.parameters)
        if known.pop("options", None) is not None:
            inherited = inspect.signature(kind.__mro__[1].__init__).parameters.items()
            known |= {name: each for name, each in inherited if name not in known and name not in refused}

        @functools.wraps(call)
        def checked(self: Any, *arguments: Any, **named: Any) -> None:
            for name, (default, advice) in refused.items():
                if (value := named.pop(name, default)) != default:
                    raise UsageError(f"{name}={value!r}: {target.__name__} does not have this argument; {advice}")
            refuse_unknown(target.__name__, [name for name in named if name not in known], list(known)[1:])
            call(self, *arguments, **named)

        checked.__signature__ = signature.replace(parameters=list(known.values()))  # type: ignore[attr-defined]
        kind.__init__, kind._arguments = checked, frozenset(known)
        return target

    return decorated


def require_dataset(dataset: Any) -> Any:
    """Checks that an object has rows, and returns it.

    Raises:
        UsageError: It has none.
    """
    if isinstance(dataset, (str, bytes, os.PathLike)):
        raise unexpected("dataset", dataset, "a dataset; open_dataset opens one")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UsageError(
            f"an object of type {type(dataset).__name__} is not a dataset: a loader needs __len__ and __getitem__"
        )
    return dataset


def with_transform(dataset: Any, transform: Any) -> ImageDataset:
    """Return the dataset with another transform.

    Raises:
        UsageError: The dataset has none that can be replaced, or `transform` is not one.
    """
    if not isinstance(dataset, ImageDataset):
        raise UsageError(
            f"loader.transform needs a packtrain dataset; an object of type {type(dataset).__name__} has its own"
            f"{instead_of(dataset)}"
        )
    return dataset.with_transform(transform)


def order_of(dataset: Any, sampler: Any, shuffle: bool | None) -> Order:
    """The order that `sampler` and `shuffle` stand for.

    Raises:
        UsageError: Both are given, `sampler` is an order for another number of rows, or it is not a function that makes
            an order although the dataset grows.
    """
    rows = len(dataset)
    shuffle = shuffle is not None and flag("shuffle", shuffle)
    if sampler is None:
        if shuffle and is_remote(dataset):
            # The one that a cache can serve which does not hold everything.
            return ChunkShuffled(dataset)
        return Shuffled(rows) if shuffle else Sequential(rows)
    if shuffle:
        raise UsageError("give either sampler or shuffle=True: the sampler decides the order")
    if callable(sampler) and not isinstance(sampler, Order) and not hasattr(sampler, "__iter__"):
        order = sampler(dataset)
        if not isinstance(order, Order):
            raise UsageError(
                f"sampler= is a function that returned an object of type {type(order).__name__}: let it return a "
                "packtrain.orders.Order for the dataset it is called with"
            )
        return _fitting(order, rows)
    if isinstance(dataset, GrowingDataset):
        raise UsageError(
            f"sampler={type(sampler).__name__} is for one number of rows, but each epoch takes the newest generation "
            "of a growing cache: give shuffle=True, or a function that makes the order of a generation, as in "
            "sampler=lambda dataset: Weighted(weights_of(dataset)). dataset.subset(range(len(dataset))) stays at its "
            "generation and takes any sampler"
        )
    return _fitting(sampler, rows) if isinstance(sampler, Order) else SamplerOrder(sampler, rows)


def _fitting(order: Order, rows: int) -> Order:
    if order.dataset_rows not in (None, rows):
        raise UsageError(
            f"sampler={type(order).__name__} was made for a dataset of {order.dataset_rows} rows, but this one has "
            f"{rows}: make it for this dataset"
        )
    return order


def workers_of(value: int | Literal["auto"], name: str = "num_workers", least: int = 0) -> int:
    """Return a number of worker processes or threads; ``"auto"`` is this rank's share of the cores.

    Raises:
        UsageError: It is neither ``"auto"`` nor a whole number, at least `least`.
    """
    if isinstance(value, str) and value != "auto":
        raise unexpected(name, value, f"a whole number, at least {least}, or 'auto'")
    return cores_per_rank() if value == "auto" else whole(name, value, least)


def prefetch_factor_of(prefetch_factor: int | None) -> int:
    """Return the number of batches that each worker makes ahead.

    Raises:
        UsageError: It is not a whole number, at least 1.
    """
    return 2 if prefetch_factor is None else whole("prefetch_factor", prefetch_factor, 1)


def context_of(start_method: str | BaseContext | None) -> BaseContext:
    """The multiprocessing context that starts the workers.

    Raises:
        UsageError: The start method is unknown.
    """
    if isinstance(start_method, BaseContext):
        return start_method
    methods = multiprocessing.get_all_start_methods()
    if start_method is not None and start_method not in methods:
        raise unexpected("multiprocessing_context", start_method, f"one of {', '.join(methods)}")
    return multiprocessing.get_context(start_method)
