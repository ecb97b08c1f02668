"""The type of all paths on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click


class _LocalPath(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        # A `Path` of it would be the working folder.
        if value == "":
            self.fail("the path is empty: type `.` for the working folder", param, ctx)
        return super().convert(value, param, ctx)


PATH: Final = _LocalPath(path_type=Path)
"""A path, unless it is empty, as a variable of the shell is that was never set."""
