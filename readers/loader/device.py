"""Takes batches from an engine to the device where the consumer wants them, and postprocesses them there.

On an accelerator, copies and postprocessing are queued on a side stream, some batches before the consumer asks for
them. Four rules make that safe:

- A slot of the arena is not written again before the copies out of it are done, and before the images that lie in it
  undecoded are decoded: an event is left with the slot.
- The consumer's stream waits for the event that follows all work on the batch it gets.
- The memory of that batch belongs to the side stream. The allocator is told that the consumer's stream uses it, too, so
  that it is not given to another batch while that stream still reads it, however early the consumer drops the batch.
- What existed before a pass, such as a tensor that a batch transform uses, must exist for the side stream, too. So the
  side stream waits for the consumer's stream once, at the beginning of the pass. It never does so later, because it
  would wait for the training step.
"""

from __future__ import annotations

import ctypes
import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

import torch

from packtrain._core.errors import UsageError
from packtrain._core.overriding import override

from .assembly import BatchSteps
from .engine import Batch, Engine
from .postprocess import mapped
from .slots import Event

# Batches on the device that the consumer has not asked for: one being copied and one that is ready. More would take
# memory there and gain nothing, since the arena holds what workers make ahead.
_AHEAD: Final = 2
# The registered memory can be used in every CUDA context of the process.
_PORTABLE: Final = 1


class Transfer:
    """Turns the batches of an engine into what the consumer gets: in this process, when it is asked for.

    Args:
        steps: The steps.
        pin: True to hand out batches in pinned memory, from which a GPU can copy directly.
    """

    def __init__(self, steps: BatchSteps, *, pin: bool = False) -> None:
        self._steps = steps
        self._pin = pin

    def run(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches of one run of the engine, in their order, with what the consumer gets as their `value`.

        Raises:
            PacktrainError: A batch cannot be made or postprocessed. Raised after the batches before it.
        """
        # No variable here holds a batch, so that its memory is free as soon as the consumer drops it.
        return map(self._handed_over, batches)

    def close(self) -> None:
        """Gives up the engine's memory, and the dataset: a pass that the consumer still has refers to this."""
        del self._steps

    def _handed_over(self, batch: Batch) -> Batch:
        steps = self._steps
        if not batch.made.size:
            return Batch(batch.job, batch.made, None)
        # If labels were a view, they would keep the slot with the images in use.
        value, batch = steps.decoded(steps.tensors(batch, apart=True), batch)
        value = steps.last(value, batch)
        return Batch(batch.job, batch.made, mapped(torch.Tensor.pin_memory, value) if self._pin else value)


class Cuda:
    """A CUDA device with two streams: the side stream, and the stream that the consumer works on.

    Args:
        device: The device; without an index, the current one.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = self._stream.device

    def register(self, memory: Any) -> None:
        """Lets `copy` read a ctypes array in this process's memory directly.

        Raises:
            RuntimeError: That is not possible.
        """
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = int(runtime.cudaHostRegister(ctypes.addressof(memory), len(memory), _PORTABLE))
        if code:
            # CUDA keeps the error and reports it at the next kernel launch; this launch takes it.
            with suppress(RuntimeError):
                torch.ones(1, device=self._device)
            raise RuntimeError(f"cudaHostRegister returned {code}")

    def unregister(self, memory: Any) -> None:
        """Undoes `register`. Nothing may read the memory any more."""
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        runtime.cudaHostUnregister(ctypes.addressof(memory))

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy, made at once, that `copy` can read directly, and that lives until `copy` has read it."""
        return tensor.pin_memory()

    def stream(self) -> AbstractContextManager[Any]:
        """A context in which work for the device is queued on the side stream."""
        return torch.cuda.stream(self._stream)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device, made later. Only within `stream`."""
        return tensor.to(self._device, non_blocking=True)

    def event(self) -> Event:
        """An event that is done when everything queued on the side stream so far is done."""
        event: Event = self._stream.record_event()
        return event

    def follow(self) -> None:
        """Makes the side stream wait for everything queued on the consumer's stream so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def wait(self, event: Event) -> None:
        """Makes the consumer's stream wait for an event."""
        torch.cuda.current_stream(self._device).wait_event(event)  # type: ignore[arg-type]

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Tells the allocator that the consumer's stream reads this tensor in the side stream's memory, and returns it.

        Once the tensor is dropped, its memory is not used again before everything queued on the consumer's stream by
        then is done.
        """
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return tensor

    def synchronize(self) -> None:
        """Waits until everything queued on the side stream is done."""
        self._stream.synchronize()


class DeviceTransfer(Transfer):
    """Copies batches to an accelerator and postprocesses them there, ahead of the consumer.

    Args:
        accelerator: The accelerator.
        steps: The steps.
        engine: Makes the batches.
    """

    def __init__(self, accelerator: Cuda, steps: BatchSteps, engine: Engine) -> None:
        super().__init__(steps)
        self._accelerator = accelerator
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
                    "memory, which costs this process one more copy of each",
                    RuntimeWarning,
                    stacklevel=2,
                )
            else:
                self._registered = range(first := ctypes.addressof(memory), first + len(memory))
                # Unregisters the memory before it is freed, even if the loader is dropped without being closed.
                self._release = weakref.finalize(self, _release, os.getpid(), accelerator, memory)

    @override
    def run(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        self._accelerator.follow()
        begun: deque[tuple[Batch, Event | None] | Exception] = deque()
        ended = False
        while True:
            while not ended and (not begun or len(begun) <= _AHEAD):
                try:
                    # The consumer waits only for the batch that it asked for, not for those after it.
                    if begun and not self._engine.ready():
                        break
                    begun.append(self._begun(next(batches)))
                except StopIteration:
                    ended = True
                except Exception as error:
                    # The error belongs to this batch; the batches before it are good.
                    begun.append(error)
                    ended = True
            if not begun:
                return
            yield self._ready(begun.popleft())

    @override
    def close(self) -> None:
        self._release()
        self._registered = range(0)
        super().close()

    def _begun(self, batch: Batch) -> tuple[Batch, Event | None]:
        """Queues all work on a batch, which is done at the event."""
        accelerator, steps, after = self._accelerator, self._steps, batch.after
        if not batch.made.size:
            return Batch(batch.job, batch.made, None), None
        with accelerator.stream():
            try:
                value = mapped(self._copied, steps.tensors(batch, apart=False))
                # Reads the slot, too, but no longer once it returns.
                value, batch = steps.decoded(value, batch)
            finally:
                # Even after an error, the slot may be read.
                if after is not None:
                    after(accelerator.event())
            value = steps.last(value, batch)
        return Batch(batch.job, batch.made, value), accelerator.event()

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cuda:
            # An engine that decodes there uses the memory again after the event that it gets.
            return tensor.clone()
        direct = tensor.data_ptr() in self._registered
        return self._accelerator.copy(tensor if direct else self._accelerator.pinned(tensor))

    def _ready(self, begun: tuple[Batch, Event | None] | Exception) -> Batch:
        if isinstance(begun, Exception):
            raise begun
        batch, event = begun
        if event is not None:
            self._accelerator.wait(event)
            mapped(self._accelerator.keep, batch.value)
        return batch


def _release(owner: int, accelerator: Cuda, memory: Any) -> None:
    if os.getpid() != owner:
        # A copy of the loader in a forked process.
        return
    # A device that has failed cannot be waited for, and no longer reads anything.
    with suppress(RuntimeError):
        accelerator.synchronize()
    accelerator.unregister(memory)


def transfer_of(steps: BatchSteps, engine: Engine, *, device: torch.device | None, pin: bool) -> Transfer:
    """Return the transfer from an engine to a device; without a device, batches stay where they were made."""
    if device is not None and device.type == "cuda":
        return DeviceTransfer(Cuda(device), steps, engine)
    return Transfer(steps, pin=pin)


def device_of(name: str | torch.device | None, decode: str = "cpu") -> torch.device | None:
    """The device that an argument names; None: batches stay where they are made.

    Raises:
        UsageError: There is no such device, or batches cannot be taken to a device of its kind.
    """
    if name is None:
        return None
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UsageError(f"device={name!r}: expected 'cpu', 'cuda' or 'cuda:N'")
    if device.type == "cuda" and not torch.cuda.is_available():
        instead = "gives the same batches" if decode == "cpu" else "with decode='cpu' gives the same crops"
        raise UsageError(f"device={str(name)!r}: torch sees no CUDA device; device='cpu' {instead}")
    return device


def pins(pin_memory: bool, device: torch.device | None) -> bool:
    """True if batches are to be handed out in pinned memory, which is of use only to a GPU."""
    if not pin_memory or (device is not None and device.type == "cuda"):
        return False
    if not torch.cuda.is_available():
        # As torch's DataLoader does.
        warnings.warn("pin_memory=True: torch sees no CUDA device, so memory is not pinned", stacklevel=3)
        return False
    return True
