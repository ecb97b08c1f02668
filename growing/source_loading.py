"""Brings a source into the process of the filler: by its name, or pickled as multiprocessing does."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from multiprocessing import spawn
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from packtrain._core.arguments import function
from packtrain._core.errors import PacktrainError, UsageError
from packtrain._packer.user_code import described, load_named, main_program, needs_program, pickled

from .source_reader import Source

_EXPECTED: Final = "expected MODULE:FUNCTION, as in my_data:samples for the function samples in my_data.py"
_UNGUARDED: Final = (
    "this program fills a cache as soon as it is imported, and the filler imports it because it defines the source. "
    'Put the program\'s actions under `if __name__ == "__main__":`, or the source into a module of its own'
)


def load_source(name: str) -> Source:
    """Import the source that ``MODULE:FUNCTION`` names: a function, or a class or factory of sources.

    Raises:
        UsageError: There is none of this name, or its module cannot be imported.
    """
    source: Any = load_named(name, _EXPECTED)
    if not callable(source):
        raise UsageError(
            f"source {name}: {name.partition(':')[2]} is an object of type {type(source).__name__}, not a function "
            "that yields samples"
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
        content = pickled(source, "source cannot be sent to the filler", advice)
        main = main_program() if needs_program(content) else {}
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
