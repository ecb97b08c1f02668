"""Small pictures of rows for a page, made in a process that may die of one."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from packtrain._codec.pillow import has_pillow
from packtrain._core.files import MiB
from packtrain._core.typed import Form
from packtrain._packer.sandbox import Died, Limits, Send, run_sandboxed
from packtrain._readers.dataset.pictures import Look, stored_picture
from packtrain._readers.dataset.stored_rows import StoredRows

from .figures import Place

if TYPE_CHECKING:
    from PIL.Image import Image

_LOOK: Final = Look(side=96, masks=False)
_QUALITY: Final = 75
_LIMITS: Final = Limits(4096 * MiB, 300)


@dataclass(frozen=True)
class _Message:
    """The picture of the next place, a JPEG in base64; empty if there is none."""

    jpeg: Annotated[str, Form("[A-Za-z0-9+/]*={0,2}", "base64")]


def pictures_of(places: Sequence[Place]) -> dict[Place, str]:
    """Draw rows, each as a JPEG in base64; without Pillow, and of what cannot be decoded, there is none."""
    found: dict[Place, str] = {}
    if not has_pillow():
        return found
    rows = {name: StoredRows.open(name) for name in dict.fromkeys(place.dataset for place in places)}
    begun = 0
    while begun < len(places):
        try:
            for message in run_sandboxed(partial(_work, rows, places[begun:]), _Message, _LIMITS):
                if message.jpeg:
                    found[places[begun]] = message.jpeg
                begun += 1
            break
        except Died:
            begun += 1
    return found


def _work(rows: dict[str, StoredRows], places: Sequence[Place], send: Send) -> None:
    """Runs in a process of its own: sends a `_Message` for each place."""
    for place in places:
        file = io.BytesIO()
        if (image := _picture(rows[place.dataset], place)) is not None:
            image.save(file, "JPEG", quality=_QUALITY)
        send({"jpeg": base64.b64encode(file.getvalue()).decode()})


def _picture(rows: StoredRows, place: Place) -> Image | None:
    """The picture of a row; None if a later version has another one there, or it cannot be decoded."""
    if place.row >= len(rows):
        return None
    store, row = rows.locate(place.row)
    return stored_picture(store, row, _LOOK).image if store.filename(row) == place.path else None
