"""Small pictures of rows for a page, made in a process that may die of one."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

from packtrain._codec.pillow import has_pillow
from packtrain._core.files import MiB
from packtrain._core.typed import Form
from packtrain._packer.sandbox import Died, Limits, Send, run_sandboxed
from packtrain._readers.dataset.pictures import Look, stored_picture
from packtrain._readers.dataset.store import RecordStore

from .figures import Place

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
    stores = {name: RecordStore(Path(name)) for name in dict.fromkeys(place.dataset for place in places)}
    begun = 0
    while begun < len(places):
        try:
            for message in run_sandboxed(partial(_work, stores, places[begun:]), _Message, _LIMITS):
                if message.jpeg:
                    found[places[begun]] = message.jpeg
                begun += 1
            break
        except Died:
            begun += 1
    return found


def _work(stores: dict[str, RecordStore], places: Sequence[Place], send: Send) -> None:
    """Runs in a process of its own: sends a `_Message` for each place."""
    for place in places:
        file = io.BytesIO()
        if (image := stored_picture(stores[place.dataset], place.row, _LOOK).image) is not None:
            image.save(file, "JPEG", quality=_QUALITY)
        send({"jpeg": base64.b64encode(file.getvalue()).decode()})
