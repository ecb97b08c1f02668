"""The loader with DALI."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

from packtrain._core.arguments import choice, whole
from packtrain._core.errors import MissingDependency, UsageError
from packtrain._core.installing import extra_command
from packtrain._readers.loader.arguments import REFUSED, Refused, loader_class, prefetch_factor_of, workers_of
from packtrain._readers.loader.device import device_of
from packtrain._readers.loader.engine import Backend
from packtrain._readers.loader.loader import CommonOptions, Loader

from .engine import DaliEngine
from .graph import DaliOptions

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset

_HERE: Final = "DALI's threads do the work of workers, in this process"
# Arguments of `Loader` and of DALI that do not mean anything here.
_REFUSED: Final[Refused] = {
    **REFUSED,
    # No value means the same as leaving it out.
    "num_workers": (object(), f"{_HERE}: give num_threads="),
    "collate_fn": (None, "images are decoded after the batch has been put together: give batch_transform="),
    "worker_init_fn": (None, f"{_HERE}, so there is nothing to initialise"),
    "multiprocessing_context": (None, f"{_HERE}, so no process is started"),
    "timeout": (0, f"{_HERE}, so no process can fail to answer"),
    "persistent_workers": (True, f"{_HERE}; they live until close(), and it ends them"),
    "reader": ("packtrain", "DALI's own reader takes none of its arguments: examples/dali_webdataset has it"),
}


@loader_class(_REFUSED)
class DaliLoader(Loader):
    """A `packtrain.Loader` in which NVIDIA DALI decodes, in threads of this process or on a GPU.

    packtrain reads, checks and cuts the records, and plans each image. So order, crops, sharding, resuming, labels and
    fields are those of `packtrain.Loader` with the same arguments, and a state of one can be loaded by the other. On a
    CPU, so are all pixels; on a GPU they differ slightly, see docs/dali.md. Transforms may only crop, resize once, and
    flip; steps on tensors may follow.

    With ``device="cuda"``, uint8 images are copied to the GPU, and cast and normalised there. With ``decode="mixed"``
    they are also decoded and resized there.

    Arguments that are not described here mean what they mean for `packtrain.Loader`; `prefetch_factor` is the number of
    batches that DALI makes ahead, its ``prefetch_queue_depth``, and each takes memory.

    Args:
        dataset: A dataset from `open_dataset`, `concat` or `subset`, of colour images that are not stored raw. Its
            transform gives all images one size.
        batch_size: Number of samples in a batch of this rank.
        num_threads: Number of DALI's threads. ``"auto"`` takes as many as the cores that affinity and the cgroup allow,
            divided among the ranks on this machine.
        decode: Where images are decoded: ``"cpu"``, or ``"mixed"``, as DALI calls it: by nvJPEG, which needs
            ``device="cuda"``. Experimental: it has not been run on a GPU yet.
        host_memory_padding: With ``decode="mixed"``: bytes of pinned memory that nvJPEG allocates when it is made,
            twice for each thread, so that a large image does not make it allocate more. None: DALI's choice.
            docs/dali.md says what full ImageNet takes.
        device_memory_padding: The same for memory of the GPU, once for each thread.
        preallocate_width_hint: With ``decode="mixed"``: width of the largest image, for which a GPU's hardware decoder
            allocates memory at once. None: DALI's choice.
        preallocate_height_hint: The same for the height.
        options: Further arguments of `packtrain.Loader`.

    Raises:
        UsageError: An argument is unknown, of the wrong type or out of its range, or DALI cannot run the transform.
        MissingDependency: DALI is not installed.

    Attributes:
        num_threads: Number of DALI's threads.
        decode: Where images are decoded.
        stats: How long the consumer waited, and what was done meanwhile.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        num_threads: int | Literal["auto"] = "auto",
        decode: Literal["cpu", "mixed"] = "cpu",
        host_memory_padding: int | None = None,
        device_memory_padding: int | None = None,
        preallocate_width_hint: int | None = None,
        preallocate_height_hint: int | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        self.num_threads: Final = workers_of(num_threads, "num_threads", 1)
        self.decode: Final = choice("decode", decode, DECODE)
        dali = DaliOptions(
            self.num_threads,
            prefetch_factor_of(options.get("prefetch_factor")),
            gpu_of(self.decode, options.get("device")),
            hints_of(
                self.decode,
                host_memory_padding=host_memory_padding,
                device_memory_padding=device_memory_padding,
                preallocate_width_hint=preallocate_width_hint,
                preallocate_height_hint=preallocate_height_hint,
            ),
        )
        shown = f"threads={self.num_threads}, decode={self.decode}"
        self._backend = Backend(partial(DaliEngine, dali), shown, undecoded=True, threads=self.num_threads)
        require_dali()
        super().__init__(dataset, batch_size, num_workers=0, **options)


DECODE: Final = ("cpu", "mixed")


def require_dali() -> None:
    """Checks that DALI can be imported.

    Raises:
        MissingDependency: It cannot.
    """
    try:
        importlib.import_module("nvidia.dali")
    except ImportError as error:
        raise MissingDependency(
            f"NVIDIA DALI is needed: `{extra_command('dali')}` (Linux only; for a GPU with CUDA 13, `pip install "
            f"nvidia-dali-cuda130`). The import says: {error}"
        ) from error


def gpu_of(decode: str, device: str | torch.device | None) -> int | None:
    """The number of the GPU that decodes; None: the CPU does.

    Raises:
        UsageError: A GPU is to decode, but the batches do not go there.
    """
    if decode == "cpu":
        return None
    import torch

    found = device_of(device, decode)
    if found is None or found.type != "cuda":
        raise UsageError(
            f"decode='mixed' with device={device!r}: a GPU decodes, and the images stay there: give device='cuda', or "
            "decode='cpu'"
        )
    # torch's types do not know that a device may have no number.
    return torch.cuda.current_device() if found.index is None else found.index  # type: ignore[redundant-expr]


def hints_of(decode: str, **hints: int | None) -> Mapping[str, int]:
    """The hints about memory that were given.

    Raises:
        UsageError: One is not a whole number, or no GPU decodes.
    """
    given = {name: whole(name, value, 0) for name, value in hints.items() if value is not None}
    if given and decode == "cpu":
        name, value = next(iter(given.items()))
        raise UsageError(f"{name}={value} is about memory of nvJPEG: leave it out with decode='cpu'")
    return given
