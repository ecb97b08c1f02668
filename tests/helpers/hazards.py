"""Datasets and transforms that go wrong in a loader's workers.

In a module of its own, because spawned processes import it by name.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from helpers.transforms import to_tensor
from PIL.Image import Image
from torch.utils.data import Dataset


class Numbered(Dataset[tuple[torch.Tensor, int]]):
    """A dataset of images whose pixels are all their row number.

    Args:
        rows: Number of rows.
        deeds: What happens when a row is read: names in `DEEDS` by row number.
    """

    def __init__(self, rows: int, deeds: dict[int, str] | None = None) -> None:
        self._rows = rows
        self._deeds = deeds or {}

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        if row in self._deeds:
            DEEDS[self._deeds[row]]()
        return self.image(row), row

    @staticmethod
    def image(row: int) -> torch.Tensor:
        """uint8 [3, 6, 8]."""
        return torch.full((3, 6, 8), row % 256, dtype=torch.uint8)


def assert_right(images: torch.Tensor, labels: torch.Tensor) -> None:
    """Requires that a batch of `Numbered` is what its labels say."""
    assert torch.equal(images, torch.stack([Numbered.image(label) for label in labels.tolist()]))


@dataclass(frozen=True)
class Trap:
    """`to_tensor`, with a deed at one line of a `support.image_set`.

    Attributes:
        line: The line, which is recognised by the width of its image.
        deed: What happens there: a name in `DEEDS`.
    """

    line: int
    deed: str

    def __call__(self, image: Image) -> torch.Tensor:
        if image.width == 40 + 3 * self.line:
            DEEDS[self.deed]()
        return to_tensor(image)


class OddError(Exception):
    """An exception that can neither be made from its message nor sent to another process."""

    def __init__(self, code: int, *, what: str) -> None:
        super().__init__(f"{what} ({code})")
        self.handle = lambda: code


class Unreceivable:
    """Can be sent to another process, where a deed happens when it arrives.

    Args:
        deed: A name in `DEEDS`; "" kills the sender.
    """

    def __init__(self, deed: str) -> None:
        self.state = os.getpid(), deed

    def __reduce__(self) -> tuple[Any, ...]:
        return arrive, self.state


def arrive(sender: int, deed: str) -> None:
    if deed:
        DEEDS[deed]()
    else:
        os.kill(sender, signal.SIGKILL)
        os.waitid(os.P_PID, sender, os.WEXITED | os.WNOWAIT)


def fail() -> None:
    raise ValueError("no such luck")


def fail_oddly() -> None:
    raise OddError(7, what="something odd")


def fail_to_read() -> None:
    raise OSError("not readable today")


def kill(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def read_nothing() -> None:
    ctypes.string_at(0)


def read_past_the_end() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
        file.flush()
        pages = mmap.mmap(file.fileno(), 0)
        os.ftruncate(file.fileno(), 0)
        bytes(pages)


def spin() -> None:
    print("begun", flush=True)
    while True:
        pass


def sleep() -> None:
    print("begun", flush=True)
    time.sleep(60)


def search_for_ever() -> None:
    """Holds the GIL all the time, as native code may."""
    print("begun", flush=True)
    re.match(r"(a*)*b", "a" * 50)


def stop() -> None:
    print("begun", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


DEEDS: dict[str, Callable[[], None]] = {
    "fail": fail,
    "fail oddly": fail_oddly,
    "fail to read": fail_to_read,
    "SIGKILL": kill(signal.SIGKILL),
    "SIGRTMIN+5": kill(signal.SIGRTMIN + 5),
    "SIGSEGV": read_nothing,
    "SIGBUS": read_past_the_end,
    "sys.exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(0),
    "sleep": sleep,
    "nap": lambda: time.sleep(1),
    "spin": spin,
    "search": search_for_ever,
    "stop": stop,
}
"""Everything that can go wrong, by name."""


def init(worker: int) -> None:
    """A `worker_init_fn` that fails in the second worker."""
    if worker == 1:
        raise RuntimeError("not today")


def quiet(worker: int) -> None:
    """A `worker_init_fn` for workers that crash on purpose: pytest's report of the crash would look like a failure."""
    faulthandler.disable()


def together(samples: list[Any]) -> dict[str, Any]:
    """A `collate_fn` for images of any shape."""
    return {"images": [sample[0] for sample in samples], "labels": torch.tensor([sample[1] for sample in samples])}


def never(samples: list[Any]) -> Any:
    raise ValueError("no such luck")


def nothing(samples: list[Any]) -> None:
    pass


def unsendable(samples: list[Any]) -> Any:
    return lambda: samples


def unreceivable(samples: list[Any]) -> Any:
    return Unreceivable("fail")


def unreadable(samples: list[Any]) -> Any:
    return Unreceivable("fail to read")


def deadly(samples: list[Any]) -> Any:
    return Unreceivable(""), torch.zeros(5)
