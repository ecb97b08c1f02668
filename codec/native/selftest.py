"""Tests the extension once, when it is imported, with the libjpeg that is really loaded.

That may be another than the one that it was built with. The extension relies on more than libjpeg's interface promises,
so it is not used at all where a tiny JPEG does not come through unharmed.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from . import Extension

_WIDTH, _HEIGHT = 37, 22
# A progressive colour JPEG with 4:2:0 sampling.
_SAMPLE: Final = base64.b85decode(
    "|JeWF01!$>Nk#wx0RR9200961|JwjV04N+DBOVzjBOxO#D=08LWI;SPH#~b-T}fn-fSHz$fQ*WuwC2O0s@koJjL84X+V1uL|Noo8|NsB`|K|Pw`2"
    "X7gLjfx-Ej%?mc0oaQ_@#`c`1ttv`1ttv`1ttv`1ttv`1ttv`1ttv`1ttv`1ttv`1ttv`1ttv`1ttv`1ttv`1t?A01*fP762s!0U`hb5di}c0sq7"
    "R761VO0RR910000000000000010{_GS6#)SO00000000000000000001|Jncy0|5X65CaeZ00GTZDk6zWLMW5}!~hf!0RR91000000000000000F"
    "#p;B2mt{A0R;ko|HJ?k5di=I00000000000000003iR`00;pC0RcY&U;o4a77+jg000000000000000000mXAphC`2mt~C0Y3o_KmWu46c7Ob000"
    "000000000000001!m+5iXv0RRR+0)PL+02L4c0RR9100000000000000W5&zl%2mt{A0Y4!S)&JT63<CiG0ssR5000oRu)uUb|HJ?o5dZ@L0RR91"
    "00000000000003I5HbJS00;pC0RcY{g@j{g7JvW502&bh0s;d70000000000000000T3ZEK~ewO00;pB0RcY{bwlJfEJy#u02>eh0{{X80000000"
    "000000000TCfFK~Z7<+5iXv0RRC%5J-YV5J*UnbCbd=73_F4OSAvk"
)
_BOX: Final = (9, 5, 20, 13)


def fault(extension: Extension) -> str | None:
    """Return what the extension does wrong; None if it passes. Takes about half a millisecond."""
    try:
        return _fault(extension)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _pixels(extension: Extension, data: bytes, box: tuple[int, int, int, int]) -> bytes:
    pixels, start, stride = extension.decode(data, box, 3, 1)
    return b"".join(pixels[start + stride * row :][: 3 * box[2]] for row in range(box[3]))


def _fault(extension: Extension) -> str | None:
    # libjpeg decodes the progressive image with its own Huffman decoder, the record and its cut with the extension's.
    everything = 0, 0, _WIDTH, _HEIGHT
    whole = _pixels(extension, _SAMPLE, everything)
    record = extension.transcode(_SAMPLE)
    if _pixels(extension, record, everything) != whole:
        return "a transcoded JPEG has other pixels"
    left, top, width, height = _BOX
    expected = b"".join(whole[3 * (_WIDTH * row + left) :][: 3 * width] for row in range(top, top + height))
    if _pixels(extension, _SAMPLE, _BOX) != expected:
        return "a rectangle of a JPEG has other pixels than the whole"
    part = extension.cut(record, _BOX)
    if part is None:
        return "a transcoded JPEG cannot be cut"
    data, cut_left, cut_top = part
    if _pixels(extension, data, (left - cut_left, top - cut_top, width, height)) != expected:
        return "a cut has other pixels than the whole"
    coefficients = extension.coefficient_record(_SAMPLE)
    if _pixels(extension, coefficients, everything) != whole or _pixels(extension, coefficients, _BOX) != expected:
        return "a coefficient record has other pixels than its JPEG"
    if extension.coefficients(extension.transcode(coefficients)) != extension.coefficients(record):
        return "a coefficient record gives another JPEG than it is made of"
    try:
        extension.transcode(_SAMPLE[:-40])
    except ValueError:
        return None
    return "a JPEG that is cut off is not refused"
