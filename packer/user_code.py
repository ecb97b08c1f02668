"""Code of the user's: imported by its name, sent to other processes, and what it raised, in a line."""

from __future__ import annotations

import importlib
import os
import re
import sys
import sysconfig
import traceback
from functools import reduce
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from packtrain._core.errors import PacktrainError, UsageError
from packtrain._core.suggestions import did_you_mean

_PROGRAM: Final = "__main__"
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


def is_named(text: str) -> bool:
    """True for a text of the form ``MODULE:NAME``."""
    module, _, path = text.partition(":")
    return bool(path) and all(part.isidentifier() for part in (*module.split("."), *path.split(".")))


def load_named(name: str, expected: str) -> Any:
    """Import the object that ``MODULE:NAME`` names. As with ``python -m``, modules in the working folder are found.

    Args:
        name: The name.
        expected: What it looks like, for messages.

    Raises:
        UsageError: There is none of this name, or its module cannot be imported.
    """
    if not is_named(name):
        raise UsageError(f"source {name!r}: {expected}")
    module_name, _, path = name.partition(":")
    folder = os.getcwd()
    if not {"", folder} & set(sys.path):
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"source {name}: {module_name} cannot be imported: {described(error)}. Modules are found in "
            f"{folder} and where packages are installed: run this in the folder of the module, or name that folder in "
            'PYTHONPATH. A program does its work under `if __name__ == "__main__":`'
        ) from error
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError as error:
        public = [each for each in vars(module) if not each.startswith("_")]
        raise UsageError(f"source {name}: {module_name} has no {path}{did_you_mean(path, public)}") from error
    except Exception as error:
        # A module may make its names when they are asked for.
        raise UsageError(f"source {name}: {module_name} does not give {path}: {with_line(error, __file__)}") from error


def pickled(value: object, what: str, advice: str) -> bytes:
    """Pickle an object as multiprocessing does: functions by their names.

    Args:
        value: The object.
        what: What it is and where it is to go, for the message: ``"source cannot be sent to the filler"``.
        advice: What to do if it cannot.

    Raises:
        UsageError: It cannot be pickled.
    """
    try:
        return bytes(ForkingPickler.dumps(value))
    except Exception as error:
        raise UsageError(f"{what} ({described(error)}). {advice}") from error


def require_sendable(source: object, *, elsewhere: bool) -> None:
    """Makes sure that workers can import what makes the samples.

    Args:
        source: What makes them.
        elsewhere: True if the workers are on other machines.

    Raises:
        UsageError: They cannot.
    """
    what, advice = "`function` or an input cannot be sent to workers", "Define it at the top level of a module"
    content = pickled(source, what, f"{advice}, or leave out `num_workers`")
    if needs_program(content) and (elsewhere or main_program() is None):
        where = "the program that is run" if elsewhere else "a notebook or an interactive session"
        raise UsageError(f"{what}: it is defined in {where}, which workers cannot import. {advice}")


def needs_program(content: bytes) -> bool:
    """True if what was pickled needs the main program."""
    return _PROGRAM.encode() in content


def main_program() -> dict[str, str] | None:
    """Return how another process can import the main program of this process; None if it cannot."""
    main = sys.modules[_PROGRAM]
    if main.__spec__ is not None:
        return {"init_main_from_name": main.__spec__.name}
    path = getattr(main, "__file__", None)
    return {"init_main_from_path": os.path.abspath(path)} if path and os.path.exists(path) else None


def described(error: BaseException) -> str:
    """Describe an error in a line."""
    if isinstance(error, PacktrainError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def with_line(error: BaseException, *without: str) -> str:
    """Describe an error with the line of the user's code that raised it.

    Args:
        error: The error.
        without: Files whose lines do not count, because they only call the user's code.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in without]
    paths = sysconfig.get_paths()
    libraries = tuple(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    own = [frame for frame in frames if not frame.filename.startswith(libraries)] or frames[:1]
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return f"{described(error)}{where}"


def without_addresses(text: str) -> str:
    """A text without the places of objects in memory, which differ from run to run.

    >>> without_addresses("<function f at 0x7f0000000000>")
    '<function f>'
    """
    return _ADDRESS.sub("", text)
