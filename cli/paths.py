"""The types of paths on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from packtrain._core.overriding import override
from packtrain._core.paths import is_address, is_hub_address, local_path


class _LocalPath(click.Path):
    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        # A `Path` of it would be the working folder.
        if value == "":
            self.fail("the path is empty: type `.` for the working folder", param, ctx)
        # Refused before a `Path` of it loses a slash.
        local_path(value)
        return super().convert(value, param, ctx)


class _PathOrUrl(_LocalPath):
    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if is_address(value) else super().convert(value, param, ctx)


class _Page(_LocalPath):
    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        # Known before the work is done that the page is to show.
        if not path.absolute().parent.is_dir():
            self.fail(f"there is no folder {path.absolute().parent}: make it", param, ctx)
        return path


class _PathOrHub(_PathOrUrl):
    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if is_hub_address(value) else super().convert(value, param, ctx)


PATH: Final = _LocalPath(path_type=Path)
"""A path of this machine, unless it is empty, as a variable of the shell is that was never set."""
PATH_OR_URL: Final = _PathOrUrl(path_type=Path)
"""The same, as a `Path`; or an address in an object store, as a str."""
SOURCE: Final = _PathOrHub(path_type=Path)
"""The same, or an address on the Hugging Face Hub, as a str."""
PAGE: Final = _Page(path_type=Path)
"""The path of a file to write, in a folder that there is."""
