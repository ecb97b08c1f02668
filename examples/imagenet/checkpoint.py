"""Checkpoints: all that a training needs to continue, also in the middle of an epoch."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from packtrain.errors import PacktrainError, UsageError


class Unwritten(PacktrainError):
    """A checkpoint cannot be written. The one before it stays."""


class Stateful(Protocol):
    """Part of a training that has a state: model, optimizer, loader..."""

    def state_dict(self) -> Any:
        """The state."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Continues from a state."""


def save(path: Path, options: Mapping[str, str], parts: Mapping[str, Stateful]) -> None:
    """Writes a checkpoint. If this is interrupted, `path` still holds the old checkpoint or already the new one.

    Args:
        path: Where to write it.
        options: The options with which it has to be continued, by name.
        parts: What it holds.

    Raises:
        Unwritten: The checkpoint cannot be written, because the disk is full for example.
    """
    state = {name: part.state_dict() for name, part in parts.items()}
    new = path.with_suffix(".new")
    try:
        with new.open("wb") as file:
            torch.save({**options, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    # What torch raises when it cannot write to the end.
    except (OSError, RuntimeError) as error:
        raise Unwritten(
            f"{new} cannot be written: {error}. If the disk is full, free some of it; then continue with --resume"
        ) from error


def load(path: Path, options: Mapping[str, str], parts: Mapping[str, Stateful]) -> None:
    """Continues from a checkpoint, which any number of processes may have written.

    Raises:
        UsageError: The file is no checkpoint, or that of another training.
        PacktrainError: The checkpoint belongs to another dataset.
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
    if not isinstance(state, dict) or not options.keys() <= state.keys():
        raise UsageError(f"{path} is a checkpoint of something else: choose another --output")
    for name, value in options.items():
        if state[name] != value:
            raise UsageError(
                f"{path} was written with --{name} {state[name]}, not {value}: continue with --{name} {state[name]}"
            )
    missing = parts.keys() ^ (state.keys() - options.keys())
    if missing:
        raise UsageError(
            f"{path} was written with other options, and differs in {', '.join(sorted(missing))}: "
            "continue with the options it was written with"
        )
    for name, part in parts.items():
        try:
            part.load_state_dict(state[name])
        except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise UsageError(
                f"{path} does not fit this training: {name}: {error}. Continue with the options it was written with"
            ) from error
