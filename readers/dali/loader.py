"""The loader with DALI."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from packtrain._core.arguments import whole
from packtrain._core.cores import cores_per_rank

from ..loader.batches import BatchMaker, Probe
from ..loader.engine import Engine
from ..loader.loader import Loader
from .engine import DaliEngine, DaliOptions

if TYPE_CHECKING:
    from torch.utils.data import Dataset


class DaliLoader(Loader):
    """A `packtrain.Loader` in which NVIDIA DALI decodes, resizes and flips, in threads of this process or on a GPU.

    Args:
        dataset: A dataset of packtrain's, of images that are not stored raw.
        batch_size: Number of samples in a batch of this rank.
        num_threads: Number of DALI's threads; ``"auto"`` as `num_workers` of `packtrain.Loader`.
        prefetch_factor: Number of batches that DALI makes ahead.
        options: All other arguments of `packtrain.Loader`, but those about workers.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        num_threads: int | Literal["auto"] = "auto",
        prefetch_factor: int = 2,
        **options: Any,
    ) -> None:
        threads = cores_per_rank() if num_threads == "auto" else whole("num_threads", num_threads, 1)
        self._dali = DaliOptions(threads, whole("prefetch_factor", prefetch_factor, 1))
        super().__init__(dataset, batch_size, num_workers=0, **options)

    @property
    @override
    def _undecoded(self) -> bool:
        return True

    @property
    @override
    def _engine_maker(self) -> Callable[[BatchMaker, Probe], Engine] | None:
        return partial(DaliEngine, self._dali)
