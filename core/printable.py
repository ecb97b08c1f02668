"""Makes text of strangers fit to be printed: in a message, on a terminal or in a log."""

from __future__ import annotations

import re
from typing import Final

# All control characters except tab and line feed, marks that change the direction of writing, and halves of surrogates.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Returns `text` with an escape such as ``\x1b`` for everything that could steer a terminal or mislead its reader.

    File names, class names and datasets may be made by strangers. Escaped are control characters, those that change the
    direction of writing, and bytes that are no text; line breaks and tabs stay.
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Returns `text` like `printable`, and without line breaks, for a row of a table."""
    return printable(text).replace("\n", "\\n")
