"""The device stage: takes made batches to where the consumer wants them, and finishes them there.

On an accelerator, copies and everything that `Finish` does are asked for on one side stream, some batches before the
consumer gets to them. What makes that right:

- A slot of the arena is not written again before the copies out of it are done: an event is left with it.
- The consumer's stream waits for the event that follows all work on the batch it is given.
- The memory of that batch is the side stream's. So that it is not used for another one while the consumer's stream
  still reads it, however early the consumer drops it, the allocator is told of that stream.
- What was there before a pass (a tensor that a batch transform uses) is there for the side stream too: it waits for the
  consumer's once, at the beginning. Later it never does: it would wait for the training step.
"""

from __future__ import annotations

import ctypes
import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, NamedTuple, Protocol

import torch

from packtrain._core.errors import UsageError

from .arena import Event
from .batches import Made
from .engine import Batch, Engine, Job
from .postprocess import Finish, mapped

# Batches on the device that the consumer has not asked for: one whose copy may be under way and one that is ready. More
# would take memory there and win nothing, since the arena holds what workers make ahead.
_AHEAD: Final = 2
# Usable in every context of the process.
_PORTABLE: Final = 1


class Finished(NamedTuple):
    """A batch as the consumer gets it.

    Attributes:
        job: What was to be made.
        made: What came of it.
        value: The batch; None if all its samples were left out.
    """

    job: Job
    made: Made
    value: Any


class Stage(Protocol):
    """Finishes what an engine makes."""

    def run(self, batches: Iterator[Batch]) -> Iterator[Finished]:
        """Some batches, those of a run of the engine, in their order.

        Raises:
            PacktrainError: A batch cannot be made or finished; after those before it.
        """

    def close(self) -> None:
        """Waits for what is under way, and lets go of the engine's memory."""


class HostStage:
    """Finishes each batch when it is asked for, in this process.

    Args:
        finish: What to do with a batch.
        tensors: Makes tensors over the arrays of a batch.
        pin: Hand them out in memory that a GPU can copy from at once.
    """

    def __init__(self, finish: Finish, tensors: Callable[[Batch], Any], *, pin: bool = False) -> None:
        self._finish = finish
        self._tensors = tensors
        self._pin = pin

    def run(self, batches: Iterator[Batch]) -> Iterator[Finished]:
        """See `Stage.run`."""
        # No variable here holds a batch: its memory is to be free as soon as the consumer drops it.
        return map(self._finished, batches)

    def close(self) -> None:
        """See `Stage.close`."""

    def _finished(self, batch: Batch) -> Finished:
        job, made = batch.job, batch.made
        if not made.size:
            return Finished(job, made, None)
        value = self._tensors(batch)
        if "image" in batch.arrays:
            # A view of the labels would keep the slot with the images.
            value = (value[0], value[1].clone(), *value[2:])
        value = self._finish(value, job)
        return Finished(job, made, mapped(torch.Tensor.pin_memory, value) if self._pin else value)


class Accelerator(Protocol):
    """A device with two streams: the side stream, and the one that the consumer works on."""

    def register(self, memory: Any) -> None:
        """Makes a ctypes array, which lies in this process, something that `copy` can read at once.

        Raises:
            RuntimeError: It cannot be done.
        """

    def unregister(self, memory: Any) -> None:
        """The reverse; nothing may read it any more."""

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy, made now, that `copy` can read at once, and that lasts until it has."""

    def stream(self) -> AbstractContextManager[Any]:
        """What is asked of the device within is done later, on the side stream, one after the other."""

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device, made later; to be called within `stream`."""

    def event(self) -> Event:
        """Done when all is done that has been asked for on the side stream."""

    def follow(self) -> None:
        """The side stream waits for what the consumer's has been asked for."""

    def wait(self, event: Event) -> None:
        """The consumer's stream waits for an event."""

    def keep(self, tensor: torch.Tensor) -> None:
        """The consumer's stream reads memory of the side stream: nothing else is put there before it has.

        That is, before it has done what it was asked for until the tensor was dropped.
        """

    def synchronize(self) -> None:
        """Waits until the side stream has nothing to do."""


class Cuda:
    """A CUDA device: see `Accelerator`.

    Args:
        device: The device; without an index the current one.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = self._stream.device

    def register(self, memory: Any) -> None:
        """See `Accelerator.register`."""
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = int(runtime.cudaHostRegister(ctypes.addressof(memory), len(memory), _PORTABLE))
        if code:
            # The error would else be found, and raised, by whatever kernel is launched next.
            with suppress(RuntimeError):
                torch.ones(1, device=self._device)
            raise RuntimeError(f"cudaHostRegister returned {code}")

    def unregister(self, memory: Any) -> None:
        """See `Accelerator.unregister`."""
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        runtime.cudaHostUnregister(ctypes.addressof(memory))

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Accelerator.pinned`."""
        return tensor.pin_memory()

    def stream(self) -> AbstractContextManager[Any]:
        """See `Accelerator.stream`."""
        return torch.cuda.stream(self._stream)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Accelerator.copy`."""
        return tensor.to(self._device, non_blocking=True)

    def event(self) -> Event:
        """See `Accelerator.event`."""
        event: Event = self._stream.record_event()
        return event

    def follow(self) -> None:
        """See `Accelerator.follow`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def wait(self, event: Event) -> None:
        """See `Accelerator.wait`."""
        torch.cuda.current_stream(self._device).wait_event(event)  # type: ignore[arg-type]

    def keep(self, tensor: torch.Tensor) -> None:
        """See `Accelerator.keep`."""
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))

    def synchronize(self) -> None:
        """See `Accelerator.synchronize`."""
        self._stream.synchronize()


class DeviceStage:
    """Takes batches to an accelerator, and finishes them there, ahead of the consumer.

    Args:
        accelerator: The accelerator.
        finish: What to do with a batch.
        tensors: Makes tensors over the arrays of a batch.
        engine: Makes the batches.
    """

    def __init__(
        self, accelerator: Accelerator, finish: Finish, tensors: Callable[[Batch], Any], engine: Engine
    ) -> None:
        self._accelerator = accelerator
        self._finish = finish
        self._tensors = tensors
        self._engine = engine
        self._release: Callable[[], Any] = lambda: None
        self._registered = range(0)
        """Addresses that can be copied from directly."""
        memory = engine.memory()
        if memory is not None:
            try:
                accelerator.register(memory)
            except RuntimeError as error:
                warnings.warn(
                    f"the loader's memory cannot be copied from directly ({error}): its batches go through pinned "
                    "memory, which costs this process a copy of each",
                    RuntimeWarning,
                    stacklevel=2,
                )
            else:
                self._registered = range(first := ctypes.addressof(memory), first + len(memory))
                # Should the loader be forgotten, this still lets go of the memory before it is given back.
                self._release = weakref.finalize(self, _release, os.getpid(), accelerator, memory)

    def run(self, batches: Iterator[Batch]) -> Iterator[Finished]:
        """See `Stage.run`."""
        self._accelerator.follow()
        begun: deque[tuple[Finished, Event | None] | Exception] = deque()
        ended = False
        while True:
            while not ended and (not begun or len(begun) <= _AHEAD):
                try:
                    # The consumer waits for the batch that it asked for only, not for those after it.
                    if begun and not self._engine.ready():
                        break
                    begun.append(self._begun(next(batches)))
                except StopIteration:
                    ended = True
                except Exception as error:
                    # It belongs to this batch, and those before it are good.
                    begun.append(error)
                    ended = True
            if not begun:
                return
            yield self._handed_over(begun.popleft())

    def close(self) -> None:
        """See `Stage.close`."""
        self._release()
        self._registered = range(0)

    def _begun(self, batch: Batch) -> tuple[Finished, Event | None]:
        """Asks for all that is to be done with a batch."""
        accelerator, job, made = self._accelerator, batch.job, batch.made
        if not made.size:
            return Finished(job, made, None), None
        with accelerator.stream():
            try:
                value = mapped(self._copied, self._tensors(batch))
            finally:
                # Whatever happened: a copy may be under way.
                if batch.after is not None:
                    batch.after(accelerator.event())
            value = self._finish(value, job)
        return Finished(job, made, value), accelerator.event()

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        direct = tensor.data_ptr() in self._registered
        return self._accelerator.copy(tensor if direct else self._accelerator.pinned(tensor))

    def _handed_over(self, begun: tuple[Finished, Event | None] | Exception) -> Finished:
        if isinstance(begun, Exception):
            raise begun
        finished, event = begun
        if event is not None:
            self._accelerator.wait(event)
            mapped(self._kept, finished.value)
        return finished

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        self._accelerator.keep(tensor)
        return tensor


def _release(owner: int, accelerator: Accelerator, memory: Any) -> None:
    if os.getpid() != owner:
        # A copy of the loader in a process that was forked off.
        return
    # A device that has failed cannot be waited for, and reads nothing any more.
    with suppress(RuntimeError):
        accelerator.synchronize()
    accelerator.unregister(memory)


def stage_of(
    device: torch.device | None, finish: Finish, tensors: Callable[[Batch], Any], engine: Engine, *, pin: bool
) -> Stage:
    """The stage that takes what an engine makes to a device."""
    if device is not None and device.type == "cuda":
        return DeviceStage(Cuda(device), finish, tensors, engine)
    return HostStage(finish, tensors, pin=pin)


def device_of(name: str | torch.device | None) -> torch.device | None:
    """The device that is meant; None: wherever batches are made.

    Raises:
        UsageError: There is no such device, or it is of a kind that batches cannot be taken to.
    """
    if name is None:
        return None
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise UsageError(f"device={name!r}: expected 'cpu', 'cuda' or 'cuda:N'") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device={name!r}: expected 'cpu', 'cuda' or 'cuda:N'")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device={name!r}: torch sees no CUDA device; with device='cpu' batches have the same numbers")
    return device


def pins(pin_memory: bool, device: torch.device | None) -> bool:
    """Whether batches are to be handed out in pinned memory, which only a GPU has a use for."""
    if not pin_memory or (device is not None and device.type == "cuda"):
        return False
    if not torch.cuda.is_available():
        # As torch's DataLoader.
        warnings.warn("pin_memory=True: torch sees no CUDA device, so memory is not pinned", stacklevel=3)
        return False
    return True
