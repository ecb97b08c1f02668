"""The arguments of the loader with DALI: checks, and values for those that were left out."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from packtrain._core.arguments import whole
from packtrain._core.errors import MissingDependency, UsageError
from packtrain._core.installing import extra_command
from packtrain._readers.loader.device import device_of

if TYPE_CHECKING:
    import torch

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
