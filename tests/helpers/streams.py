"""A device for tests, in plain memory: it does what is queued on its streams later, in any order that events allow.

It reads and writes by address, as a device does: what is queued keeps no tensor alive, and the memory of a dropped
tensor is used again at once, unless the allocator was told that another stream uses it.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from packtrain._readers.loader.arena import Arena, Board, Layout
from packtrain._readers.loader.batches import CANCELLED, BatchMaker, Made, Probe
from packtrain._readers.loader.worker import Ticket
from packtrain.errors import PacktrainError

Choice = Callable[[int], int]
"""Chooses a number below the given one."""


class Event:
    """See `packtrain._readers.loader.slots.Event`."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.done = False

    def query(self) -> bool:
        self._device.work(self._device.choose(3))
        return self.done

    def synchronize(self) -> None:
        while not self.done:
            assert self._device.work(1), "this would wait for ever"


@dataclass(eq=False)
class Block:
    """A block of the device's memory."""

    memory: Any
    kept: bool = False
    """True if the allocator knows that the consumer's stream uses it."""
    free_after: Event | None = None
    """The event after which it may be used again; None while it is in use."""


@dataclass(frozen=True)
class Operation:
    """Work that is queued on a stream: waits for an event, then does something."""

    act: Callable[[], object] = lambda: None
    needs: Event | None = None
    reads: range = range(0)


class Device:
    """See `packtrain._readers.loader.device.Cuda`; it has one side stream and the consumer's.

    Args:
        choose: Decides how many operations are done now, and on which stream.
    """

    def __init__(self, choose: Choice) -> None:
        self.choose = choose
        self.side: deque[Operation] = deque()
        self.main: deque[Operation] = deque()
        self.blocks: list[Block] = []
        self.registered: list[range] = []
        self.refuses = False
        self.copies = 0
        self.stagings = 0
        self._pinned: dict[int, torch.Tensor] = {}

    # --- the accelerator ---

    def register(self, memory: Any) -> None:
        if self.refuses:
            raise RuntimeError("not today")
        self.registered.append(_addresses(memory))

    def unregister(self, memory: Any) -> None:
        span = _addresses(memory)
        assert not any(operation.reads and operation.reads[0] in span for operation in self.side), "it is being read"
        self.registered.remove(span)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        self.stagings += 1
        with _disable_current_modes():
            copy = tensor.clone()
        self._pinned[copy.data_ptr()] = copy
        return copy

    def stream(self) -> AbstractContextManager[Any]:
        return _Later(self)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        self.copies += 1
        with _disable_current_modes():
            address = tensor.data_ptr()
            staged = self._pinned.pop(address, None)
            if staged is None:
                assert any(address in span for span in self.registered), "neither registered nor pinned"
            source, target = staged if staged is not None else _ghost(tensor), self._like(tensor)
            ghost = _ghost(target)
            reads = range(address, address + tensor.untyped_storage().nbytes()) if staged is None else range(0)
            self.side.append(Operation(lambda: ghost.copy_(source), reads=reads))
            return target

    def event(self) -> Event:
        return self._recorded(self.side)

    def follow(self) -> None:
        self.side.append(Operation(needs=self._recorded(self.main)))

    def wait(self, event: Any) -> None:
        self.main.append(Operation(needs=event))

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if tensor.data_ptr() in _addresses(block.memory):
                block.kept = True
        return tensor

    def synchronize(self) -> None:
        self.event().synchronize()

    # --- the consumer ---

    def read(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Queues a read of a tensor on the consumer's stream. The result appears in the list later."""
        found: list[torch.Tensor] = []
        ghost = _ghost(tensor)
        self.main.append(Operation(lambda: found.append(ghost.clone())))
        return found

    def write(self, tensor: torch.Tensor, value: int) -> None:
        """Queues on the consumer's stream that a tensor of the test is filled."""
        self.main.append(Operation(lambda: tensor.fill_(value)))

    # --- the hardware ---

    def work(self, most: int) -> int:
        """Does up to `most` operations. Returns how many."""
        with _disable_current_modes():
            for count in range(most):
                able = [one for one in (self.side, self.main) if one and (one[0].needs is None or one[0].needs.done)]
                if not able:
                    return count
                able[self.choose(len(able))].popleft().act()
        return most

    def finish(self) -> None:
        while self.work(1):
            pass
        assert not self.side and not self.main

    def ask(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Queues an operation of torch on the side stream. Returns the tensor that will hold the result."""
        if function.is_view:
            return function(*args, **kwargs)
        ghosts, named = tree_map_only(torch.Tensor, self._unowned, (args, kwargs))
        schema = function._schema
        if schema.is_mutable:
            self.side.append(Operation(lambda: function(*ghosts, **named)))
            written = [
                argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments
            ]
            position = written.index(True)
            return args[position] if position < len(args) else kwargs[schema.arguments[position].name]
        given: list[torch.Tensor] = []
        tree_map_only(torch.Tensor, given.append, (args, kwargs))
        if not given:
            value = function(*args, **kwargs)
            if not isinstance(value, torch.Tensor):
                return value
            target = self._like(value)
            ghost = _ghost(target)
            self.side.append(Operation(lambda: ghost.copy_(value)))
            return target
        shapes, keywords = tree_map_only(torch.Tensor, lambda one: one.to("meta"), (args, kwargs))
        keywords.pop("device", None)
        target = self._like(function(*shapes, **keywords))
        ghost = _ghost(target)
        self.side.append(Operation(lambda: ghost.copy_(function(*ghosts, **named))))
        return target

    def _recorded(self, stream: deque[Operation]) -> Event:
        event = Event(self)
        stream.append(Operation(lambda: setattr(event, "done", True)))
        return event

    def _unowned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor over the same memory that does not keep it, if the memory is the device's."""
        ours = any(tensor.data_ptr() in _addresses(block.memory) for block in self.blocks)
        return _ghost(tensor) if ours else tensor

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new tensor on the device for the side stream, in the free memory that was used last, if there is any."""
        size = tensor.untyped_storage().nbytes()
        block = next((one for one in self.blocks if len(one.memory) == size and _is_free(one)), None)
        if block is None:
            block = Block((ctypes.c_ubyte * size).from_buffer(bytearray(b"\xaa" * size)))
        else:
            self.blocks.remove(block)
        self.blocks.insert(0, block)
        block.kept, block.free_after = False, None
        owner = type(block.memory).from_buffer(block.memory)
        weakref.finalize(owner, self._dropped, block)
        return _over(owner, tensor)

    def _dropped(self, block: Block) -> None:
        if block.kept:
            block.free_after = self._recorded(self.main)
        else:
            # For the same stream it is free at once: what is queued there next comes after what is queued there now.
            block.free_after = Event(self)
            block.free_after.done = True


class _Later(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._device.ask(function, args, kwargs or {})


def _is_free(block: Block) -> bool:
    return block.free_after is not None and block.free_after.done


def _addresses(memory: Any) -> range:
    first = ctypes.addressof(memory)
    return range(first, first + len(memory))


def _over(memory: Any, like: torch.Tensor) -> torch.Tensor:
    flat = torch.frombuffer(memory, dtype=like.dtype)
    return flat.as_strided(like.size(), like.stride(), 0)


def _ghost(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory that does not keep it alive."""
    size = int(tensor.untyped_storage().nbytes()) - int(tensor.storage_offset()) * tensor.element_size()
    return _over((ctypes.c_ubyte * size).from_address(tensor.data_ptr()), tensor)


class Inline:
    """Stands for `Workers`: makes batches in this process, some of them before anybody waits for them."""

    def __init__(self, maker: BatchMaker, board: Board, probe: Probe, choose: Choice) -> None:
        self._maker = maker
        self._board = board
        self._probe = probe
        self._arena: Arena | None = None
        self._choose = choose
        self._tickets: deque[Ticket] = deque()
        self._oldest = 0

    def probed(self) -> Layout:
        return self._maker.layout(self._probe)

    def change(self, maker: BatchMaker, probe: Probe) -> Layout:
        assert not self._tickets
        self._maker, self._probe = maker, probe
        return self.probed()

    def announce(self, layout: Layout, slots: int, start: int) -> None:
        self._arena = Arena(self._board, layout, slots, start)

    def submit(self, ticket: Ticket) -> None:
        self._tickets.append(ticket)

    def results(self, *, wait: bool) -> list[tuple[int, Made]]:
        number = min(max(self._choose(3), wait), len(self._tickets))
        return [(ticket.number, self._made(ticket)) for ticket in (self._tickets.popleft() for _ in range(number))]

    def cancel(self, oldest: int) -> None:
        self._oldest = oldest

    def close(self) -> None:
        self._tickets.clear()

    def _made(self, ticket: Ticket) -> Made:
        if ticket.number < self._oldest:
            return CANCELLED
        arena = self._arena
        assert arena is not None
        arrays = arena.arrays(ticket.slot)
        try:
            return self._maker.make(ticket.key, ticket.size, arena.layout, arrays)
        except PacktrainError as error:
            return Made(error=error)
