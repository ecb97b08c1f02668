"""Brings a source into the process of the filler: by its name, or pickled as multiprocessing does."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from dataclasses import dataclass
from functools import reduce
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from packtrain._core.arguments import function
from packtrain._core.errors import PacktrainError, UsageError
from packtrain._core.suggestions import did_you_mean

from .source_reader import Source, described

_EXPECTED: Final = "expected MODULE:FUNCTION, as in my_data:samples for the function samples in my_data.py"
_PROGRAM: Final = "__main__"
_UNGUARDED: Final = (
    "this program fills a cache as soon as it is imported, and the filler imports it because it defines the source. "
    'Put the program\'s actions under `if __name__ == "__main__":`, or the source into a module of its own'
)


def load_source(name: str) -> Source:
    """Import the source that ``MODULE:FUNCTION`` names: a function, or a class or factory of sources.

    As with ``python -m``, modules in the working folder are found.

    Raises:
        UsageError: There is none of this name, or its module cannot be imported.
    """
    module_name, _, path = name.partition(":")
    if not path or not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise UsageError(f"source {name!r}: {_EXPECTED}")
    folder = os.getcwd()
    if not {"", folder} & set(sys.path):
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(f"source {name}: {module_name} imports {error.name}, which is not installed") from error
        raise UsageError(
            f"source {name}: there is no module {error.name}, neither in {folder} nor among those that are installed. "
            "Run this in the folder of the module, or name that folder in PYTHONPATH"
        ) from error
    except Exception as error:
        raise UsageError(f"source {name}: {module_name} cannot be imported: {described(error)}") from error
    try:
        source: Any = reduce(getattr, path.split("."), module)
    except AttributeError as error:
        public = [each for each in vars(module) if not each.startswith("_")]
        raise UsageError(f"source {name}: {module_name} has no {path}{did_you_mean(path, public)}") from error
    if not callable(source):
        raise UsageError(
            f"source {name}: {path} is an object of type {type(source).__name__}, not a function that yields samples"
        )
    loaded: Source = source
    return loaded


@dataclass(frozen=True)
class PickledSource:
    """A source as multiprocessing sends functions: by the names of its parts.

    Attributes:
        content: The pickled source.
        main: Arguments of `spawn.prepare` that make the sender's main program importable; empty if the source does not
            need it.
    """

    content: bytes
    main: dict[str, str]

    @classmethod
    def of(cls, source: Source) -> PickledSource:
        """Pickle a source.

        Raises:
            UsageError: Another process could not import the source.
        """
        advice = 'Define it at the top level of a module, or give its name: "MODULE:FUNCTION"'
        function("source", source)
        try:
            content = bytes(ForkingPickler.dumps(source))
        except Exception as error:
            raise UsageError(f"source cannot be sent to the filler ({described(error)}). {advice}") from error
        main = _main_program() if _PROGRAM.encode() in content else {}
        if main is None:
            raise UsageError(
                "source is defined in a notebook or an interactive session, from which the filler cannot import it. "
                'Write it into a file FILE.py, and import it from there, or give its name: "FILE:FUNCTION"'
            )
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise UsageError(_UNGUARDED)
        return cls(content, main)

    def load(self) -> Source:
        """Return the source, in another process.

        Raises:
            UsageError: The source cannot be imported.
        """
        # As multiprocessing does, so that a program that starts processes when it is imported gets an error for it.
        process: Any = multiprocessing.current_process()
        process._inheriting = True
        try:
            spawn.prepare(self.main)
            source: Source = ForkingPickler.loads(self.content)
        except PacktrainError:
            raise
        except (Exception, SystemExit) as error:
            raise UsageError(
                f"the filler cannot import the source ({described(error)}). Define it at the top level of a module of "
                "its own, and import it from there"
            ) from error
        finally:
            process._inheriting = False
        return source


def _main_program() -> dict[str, str] | None:
    """Return how another process can import the main program of this process; None if it cannot."""
    main = sys.modules[_PROGRAM]
    if main.__spec__ is not None:
        return {"init_main_from_name": main.__spec__.name}
    path = getattr(main, "__file__", None)
    return {"init_main_from_path": os.path.abspath(path)} if path and os.path.exists(path) else None
