"""A dataset in a notebook: what it is, and a few of its rows. Loads no torch."""

from __future__ import annotations

import base64
import io
from html import escape
from typing import TYPE_CHECKING, Final

from packtrain._core.printable import one_line, printable
from packtrain._core.schema import LABEL

from .pictures import Look, Picture, stored_picture

if TYPE_CHECKING:
    from .samples import Samples

_ROWS: Final = 8
_SIDE: Final = 112
_QUALITY: Final = 80
_LETTERS: Final = 60
_FIGURE: Final = f"margin:0;width:{_SIDE}px;font-size:11px;overflow-wrap:anywhere"


def html_of(samples: Samples, shown: str) -> str:
    """Return HTML of a text about a dataset and pictures of `_ROWS` rows, evenly spaced.

    It holds no script, and refers to nothing. Nothing is fetched for it: of a dataset that is read through a cache, and
    wherever a picture cannot be made, there is the text alone.
    """
    figures = []
    if not any(store.chunks is not None for store in samples.stores):
        count = min(_ROWS, len(samples))
        for row in (at * len(samples) // count for at in range(count)):
            packed, inner = samples.locate(row)
            figures.append(_figure(row, stored_picture(packed.store, inner, Look(_SIDE))))
    return (
        f'<div><code style="white-space:pre-wrap">{escape(printable(shown))}</code>'
        f'<div style="display:flex;flex-wrap:wrap;gap:8px;margin-top:8px">{"".join(figures)}</div></div>'
    )


def _figure(row: int, picture: Picture) -> str:
    label, *others = picture.texts.get(LABEL), *(text for name, text in picture.texts.items() if name != LABEL)
    lines = [
        " · ".join([f"{row:,}", *filter(None, [label])]),
        *others[:1],
        *([f"damaged: {picture.problem}"] if picture.problem else []),
    ]
    texts = "<br>".join(escape(_short(line)) for line in lines)
    return f'<figure style="{_FIGURE}">{_image(picture)}<figcaption>{texts}</figcaption></figure>'


def _short(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _LETTERS else f"{line[:_LETTERS]}..."


def _image(picture: Picture) -> str:
    if picture.image is None:
        return ""
    file = io.BytesIO()
    picture.image.save(file, "JPEG", quality=_QUALITY)
    return f'<img alt="" src="data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}">'
