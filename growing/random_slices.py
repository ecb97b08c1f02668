"""Random slices of a large array."""

from __future__ import annotations

import importlib
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import items, path_of, whole
from packtrain._core.errors import MissingDependency, UsageError
from packtrain._core.installing import extra_command
from packtrain._core.opening import open_regular
from packtrain._core.schema import check_name

_START: Final = "start"
_NPY: Final = b"\x93NUMPY"
_KEPT_BYTES: Final = 64 << 20
"""The most bytes of a mapped array that are kept in memory after they were read."""


@dataclass(frozen=True)
class RandomSlices:
    """Windows of a large array at random places, for ever: a source of a growing cache.

    Each sample holds a window, and in ``start``, int64 [dimensions], the index of its first value. All windows that lie
    within the array are equally likely. Windows of HDF5 and Zarr arrays take the least time if they match the chunks.

    Attributes:
        path: An ``.npy`` file, an HDF5 file, or the folder of a Zarr array or group (the extra ``packtrain[zarr]``).
        shape: Shape of a window; it has as many dimensions as the array.
        name: Name of the array in an HDF5 file or a Zarr group; None where there is only one.
        field: Name of the field that holds the window.
        seed: Decides the places; None: other ones whenever the source is called.

    Raises:
        UsageError: A value is not what it should be.
    """

    path: str | PathLike[str]
    shape: Sequence[int]
    name: str | None = None
    field: str = "x"
    seed: int | None = 0

    def __post_init__(self) -> None:
        set_to = object.__setattr__
        set_to(self, "path", fspath(path_of("path", self.path)))
        sizes = items("shape", self.shape, "the sizes of a window, such as (64, 64)")
        set_to(self, "shape", tuple(whole("shape", size, 1) for size in sizes))
        if check_name(self.field) == _START:
            raise UsageError(f"field={_START!r} holds the place of each window: choose another name")
        if self.seed is not None:
            set_to(self, "seed", whole("seed", self.seed, 0))

    def __call__(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yield the windows.

        Raises:
            UsageError: There is no such array, or it is smaller than a window.
            MissingDependency: The package that reads it is not installed.
            OSError: It cannot be read.
        """
        random = np.random.default_rng(self.seed)
        with self._opened() as array:
            sizes = tuple(array.shape)
            if len(sizes) != len(self.shape) or any(map(int.__lt__, sizes, self.shape)):
                raise UsageError(f"{self.path}: an array {list(sizes)} has no window {list(self.shape)}: change shape")
            ends = np.subtract(sizes, self.shape) + 1
            while True:
                start = random.integers(0, ends, dtype=np.int64)
                window = tuple(slice(at, at + size) for at, size in zip(start.tolist(), self.shape, strict=True))
                yield {self.field: np.asarray(array[window]), _START: start}

    def _opened(self) -> AbstractContextManager[Any]:
        path = Path(self.path)
        if path.is_dir():
            return _zarr(path, self.name)
        with os.fdopen(open_regular(path), "rb") as file:
            if file.read(len(_NPY)) == _NPY:
                if self.name is not None:
                    raise UsageError(f"{path} is one array: leave out name={self.name!r}")
                return _npy(path)
        return _hdf5(path, self.name)


class _Mapped:
    """An array in an `.npy` file, of which little stays in memory."""

    def __init__(self, values: npt.NDArray[Any], descriptor: int) -> None:
        self.shape: Final = values.shape
        self._values = values
        self._pages = cast(mmap.mmap, values.base)
        self._descriptor = descriptor
        self._read = 0
        # Windows are stretches of rows, with nothing that is needed between them.
        self._pages.madvise(mmap.MADV_RANDOM)

    def __getitem__(self, window: tuple[slice, ...]) -> npt.NDArray[Any]:
        found = np.array(self._values[window])
        self._read += found.nbytes
        if self._read > _KEPT_BYTES:
            # The next window lies elsewhere, and what is trained on needs the memory.
            self._pages.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            self._read = 0
        return found


@contextmanager
def _npy(path: Path) -> Iterator[_Mapped]:
    with os.fdopen(open_regular(path), "rb") as file:
        try:
            values = np.lib.format.open_memmap(f"/proc/self/fd/{file.fileno()}", "r")
        except (TypeError, ValueError) as error:
            raise UsageError(f"{path} is no .npy file that can be read: {error}") from error
        yield _Mapped(values, file.fileno())


@contextmanager
def _hdf5(path: Path, name: str | None) -> Iterator[Any]:
    import h5py

    if not h5py.is_hdf5(path):
        raise UsageError(f"{path} is neither an .npy file nor an HDF5 file, nor the folder of a Zarr array")
    with h5py.File(path, "r") as file:
        yield _chosen(path, file, h5py.Dataset, name)


@contextmanager
def _zarr(path: Path, name: str | None) -> Iterator[Any]:
    try:
        zarr = importlib.import_module("zarr")
    except ImportError as error:
        raise MissingDependency(f"zarr is needed to read Zarr arrays: `{extra_command('zarr')}`") from error
    if not any((path / file).exists() for file in ("zarr.json", ".zarray", ".zgroup")):
        raise UsageError(f"{path} is a folder, but neither a Zarr array nor a Zarr group")
    found = zarr.open(fspath(path), mode="r")
    if not isinstance(found, zarr.Array):
        found = _chosen(path, found, zarr.Array, name)
    elif name is not None:
        raise UsageError(f"{path} is one array: leave out name={name!r}")
    yield found


def _chosen(path: Path, group: Any, kind: type[Any], name: str | None) -> Any:
    """Return the array called `name` in a file or a group; with None, the only one at its top."""
    if name is None:
        names = [each for each in group if isinstance(group.get(each), kind)]
        if len(names) != 1:
            raise UsageError(f"{path} has {len(names)} arrays at its top ({', '.join(names)}): say which one by name")
        name = names[0]
    found = group.get(name)
    if not isinstance(found, kind):
        raise UsageError(f"{path} has no array {name!r}; at its top are {', '.join(group) or 'none'}")
    return found
