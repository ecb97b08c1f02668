"""Links of a dataset to shards that lie elsewhere, as its manifest has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from packtrain._core.errors import UsageError

from .location import Location
from .remote.urls import Url


def common_folder(locations: Sequence[Location]) -> Location:
    """Return the deepest folder below which all shards lie.

    Raises:
        UsageError: There is none.
    """
    paths = [location for location in locations if isinstance(location, Path)]
    if len(paths) == len(locations):
        return Path(os.path.commonpath([path.parent for path in paths]))
    urls = [location for location in locations if isinstance(location, Url)]
    if paths:
        raise UsageError(
            f"{paths[0]} lies on this machine and {urls[0]} in a store, but all shards of a dataset lie under one "
            "folder: copy those that lie elsewhere, or make two datasets"
        )
    for url in urls:
        if url.base != urls[0].base:
            raise UsageError(
                f"{urls[0]} and {url} lie in two buckets, but all shards of a dataset must lie in one: copy some of "
                "the shards, or make two datasets"
            )
    keys = [f"/{url.parent.key}" for url in urls]
    return Url(urls[0].scheme, urls[0].bucket, os.path.commonpath(keys).strip("/"))


def path_below(location: Location, base: Location) -> str:
    """Return the path of a shard relative to the folder `base`, with the escapes of an address."""
    if isinstance(location, Path):
        return location.relative_to(base).as_posix()
    return str(location)[len(str(base)) + 1 :]


def base_name(base: Location, folder: Location) -> str:
    """Return the folder of the shards as the manifest names it: relative if both lie together, to move together.

    Raises:
        UsageError: The dataset is to lie in a store, and its shards do not.
    """
    if isinstance(base, Url) and isinstance(folder, Url):
        if base.base != folder.base:
            return str(base)
        inside, around = Path("/", base.key), Path("/", folder.key)
    elif isinstance(base, Path) and isinstance(folder, Path):
        inside, around = base, folder
    elif isinstance(folder, Url):
        raise UsageError(f"the shards in {base} are on this machine only, but {folder} is for all: upload them first")
    else:
        return str(base)
    together = around.parent == inside or around.parent in inside.parents
    return os.path.relpath(inside, around) if together else str(base)
