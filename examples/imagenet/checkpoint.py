"""Checkpoints: all that a training needs to continue, also in the middle of an epoch."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import torch

from packtrain.errors import PacktrainError, UsageError


class Unwritten(PacktrainError):
    """A checkpoint cannot be written. The one before it stays."""


@dataclass(frozen=True)
class Kind:
    """Properties that a training must have in common with the checkpoint that it continues from.

    Attributes:
        arch: The network.
        opt: The optimizer.
        ema: Share of the running average of the weights that a step keeps; 0 for no average.
        classes: Number of classes.
    """

    arch: str
    opt: str
    ema: float
    classes: int

    def check(self, path: Path, given: Kind) -> None:
        """Checks that a training of another kind continues from `path`, which is of this one.

        Raises:
            UsageError: It cannot.
        """
        if given.classes != self.classes:
            raise UsageError(
                f"{path} was written with {self.classes} classes, not {given.classes}: continue with the images that "
                "it was trained with"
            )
        # How much the average keeps may change.
        fits = {"arch": given.arch == self.arch, "opt": given.opt == self.opt, "ema": bool(given.ema) == bool(self.ema)}
        for name in (name for name, fit in fits.items() if not fit):
            mine, its = getattr(self, name), getattr(given, name)
            raise UsageError(f"{path} was written with --{name} {mine}, not {its}: continue with --{name} {mine}")


class Stateful(Protocol):
    """Part of a training that has a state: model, optimizer, loader..."""

    def state_dict(self) -> Any:
        """The state."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Continues from a state."""


def save(path: Path, kind: Kind, parts: Mapping[str, Stateful]) -> None:
    """Writes a checkpoint. If this is interrupted, `path` still holds the old checkpoint or already the new one.

    Args:
        path: Path of the checkpoint.
        kind: Properties that must stay when the checkpoint is continued.
        parts: Parts of the checkpoint.

    Raises:
        Unwritten: The checkpoint cannot be written, because the disk is full for example.
    """
    state = {name: part.state_dict() for name, part in parts.items()}
    new = path.with_suffix(".new")
    try:
        with new.open("wb") as file:
            torch.save({"kind": asdict(kind), **state}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    # What torch raises when it cannot write to the end.
    except (OSError, RuntimeError) as error:
        raise Unwritten(
            f"{new} cannot be written: {error}. If the disk is full, free some of it; then continue with --resume"
        ) from error


def read(path: Path) -> tuple[Kind, dict[str, Any]]:
    """A checkpoint, which any number of processes may have written: its kind, and the states of its parts by name.

    Raises:
        UsageError: The file is no checkpoint.
    """
    try:
        # Onto the CPU, because each process would otherwise put its copy on the GPU that the first one had.
        state = torch.load(path, map_location="cpu", weights_only=True)
    # What torch says of a file that it did not write depends on the file's first bytes.
    except (OSError, RuntimeError, EOFError, LookupError, TypeError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error) or "it is incomplete"
        raise UsageError(
            f"{path} cannot be read as a checkpoint: {reason}. Start anew with another --output"
        ) from error
    kind = state.pop("kind", None) if isinstance(state, dict) else None
    if not isinstance(kind, dict) or kind.keys() != {field.name for field in fields(Kind)}:
        raise UsageError(f"{path} is a checkpoint of something else: choose another --output")
    return Kind(**kind), state


def restore(path: Path, states: Mapping[str, Any], parts: Mapping[str, Stateful]) -> None:
    """Continues with what was read from `path`.

    Raises:
        UsageError: A part does not fit its state.
        PacktrainError: The checkpoint belongs to another dataset.
    """
    for name, part in parts.items():
        try:
            part.load_state_dict(states[name])
        except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise UsageError(
                f"{path} does not fit this training: {name}: {error}. Continue with the options it was written with"
            ) from error
