"""A loader for training and one for validation, of which only one has processes and memory at a time."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Mapping
from typing import Any, Final, Self

from packtrain._core.arguments import checks_names, unexpected
from packtrain._core.errors import UsageError
from packtrain._core.options import LabelSpec
from packtrain._core.schema import LABEL, PAIR
from packtrain._readers.dataset.combined import NAMES, require_same_classes, require_same_label_types
from packtrain._readers.dataset.image_dataset import samples_of
from packtrain._readers.loader.loader import Loader

from ..dali.loader import DaliLoader

# M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h, the bytes that they are set to, and what a program sets them by.
_TRIM, _MAPPED = -1, -3
_KEPT: Final = 8 << 20
_LARGE: Final = 1 << 20
_VARIABLES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@checks_names()
class TrainVal:
    """A loader for training and one for validation, of which only one has processes, threads and memory at a time.

        with TrainVal(*imagenet_loaders("train", "val", "dali-cpu", batch_size=256)) as data:
            for epoch in range(90):
                for images, labels in data.get_train_loader():
                    ...
                data.prep_for_val()
                for images, labels in data.get_val_loader():
                    ...
                data.reset()

    Each loader starts processes and threads when a pass through it begins. `prep_for_val` and `reset` end them and give
    their memory back to the system.

    Args:
        train: The loader for training: a `packtrain.Loader`, or one of its kind such as `packtrain.dali.DaliLoader`.
            `imagenet_loaders` makes both.
        val: The loader for validation.

    Raises:
        UsageError: An argument is not a loader, or a label stands for different classes in the two datasets.
        CorruptFile: An index is damaged.
    """

    def __init__(self, train: Loader, val: Loader) -> None:
        for name, loader in (("train", train), ("val", val)):
            if not isinstance(loader, Loader):
                raise unexpected(name, loader, "a packtrain.Loader; TrainVal(*imagenet_loaders(...)) makes both")
        require_same_labels(train.dataset, val.dataset)
        self._loaders: Final = train, val
        self._with_dali: Final = any(isinstance(loader, DaliLoader) for loader in self._loaders)
        if self._with_dali:
            limit_free_memory()

    def get_train_loader(self) -> Loader:
        """Return the loader for training, always the same one."""
        return self._loaders[0]

    def get_val_loader(self) -> Loader:
        """Return the loader for validation, always the same one."""
        return self._loaders[1]

    def prep_for_val(self) -> None:
        """End the processes and threads of both loaders, and release their memory, before a validation.

        Passes that are under way end here: the next one of validation begins with the first sample again. If a training
        pass has handed out two batches, the next one goes through the next epoch. If the pass has handed out one, that
        was a look, see `packtrain.Loader`, and the next one begins where the look began.
        """
        self.close()

    def reset(self) -> None:
        """Do the same before the next epoch of training.

        A state that was loaded stays, if no pass has begun since.
        """
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of training between two steps, see `packtrain.Loader.state_dict`.

        A training loader over any other back end can continue from it.
        """
        return self._loaders[0].state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue training from a state, in the middle of an epoch if the state was saved there.

        Raises:
            UsageError: The state belongs to another dataset.
        """
        self._loaders[0].load_state_dict(state)

    def close(self) -> None:
        """End all processes and threads. Batches that were handed out stay valid."""
        train, val = self._loaders
        try:
            train.close()
        finally:
            val.close()
            release_free_memory(dali=self._with_dali)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TrainVal{self._loaders!r}"


def require_same_labels(train: object, val: object) -> None:
    """Check that a label stands for the same class in both datasets, as far as their class names tell.

    Where only one has names, the labels of the other are taken as they are, but each of them must have a name. Nothing
    is known of a dataset with a `target_transform`, of one whose samples have no labels, or that is not packtrain's.
    """
    one, two = samples_of(train), samples_of(val)
    if one is None or two is None:
        return
    both = one, two
    if any(LABEL not in (each.fields or PAIR) for each in both):
        return
    if any(len(each) and each.locate(0)[0].target_transform is not None for each in both):
        return
    require_same_label_types(both)
    require_same_classes(store for each in both for store in each.stores)
    for named, bare in (both, both[::-1]):
        if named.classes is None or bare.classes is not None or bare.schema.labels != LabelSpec() or not len(bare):
            continue
        if (largest := int(bare.labels.max())) >= len(named.classes):
            name, other = bare.stores[0].name, named.stores[0].name
            raise UsageError(
                f"label {largest} of {name} is none of the {len(named.classes)} classes of {other}, which are numbered "
                f"from 0: pack {name} with the numbers of these classes, or with {NAMES}"
            )


def limit_free_memory() -> None:
    """Limit the memory that the C library's allocator keeps of what DALI's threads free, for the whole process.

    Left alone, the allocator raises its limits when large blocks are freed, until it keeps up to 64 MB for each thread.
    So memory grows from epoch to epoch until each of DALI's threads has that much. A program that is started with
    limits of its own keeps these.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not any(name in os.environ for name in _VARIABLES):
        mallopt(_TRIM, _KEPT)
        mallopt(_MAPPED, _LARGE)


def release_free_memory(*, dali: bool) -> None:
    """Give memory that was freed back to the system, with `dali` also that of DALI's pools."""
    # A pipeline of DALI's and what feeds it refer to each other.
    gc.collect()
    if dali:
        from nvidia.dali.backend import ReleaseUnusedMemory

        ReleaseUnusedMemory()
    # What batches of odd sizes have left would be copied into workers that are forked.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
