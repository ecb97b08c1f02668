"""Options that decide what a dataset holds. They are written verbatim to its plan and manifest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Self

from .arguments import checks_names, choice, flag, instance, unexpected, whole
from .errors import UsageError
from .store_modes import STORE_MODES, StoreMode


class ContainerFormat(NamedTuple):
    """A container format, as it is written and read in a folder of `formats/` of the same name.

    Attributes:
        suffix: File name suffix of a shard, with the dot.
        bare: True if arrays, raw masks and raw images are stored as their values alone, False if as `.npy` files.
    """

    suffix: str
    bare: bool = False


FORMATS: Final = {
    "tar": ContainerFormat(".tar"),
    "hdf5": ContainerFormat(".h5", bare=True),
    "lmdb": ContainerFormat(".mdb"),
}
"""By name; the first is the default."""
PIXEL_MODES: Final = ("RGB", "L")
ORIENTATIONS: Final = ("ignore", "apply")
_RULES: Final = ("short", "long", "exact")
_LABEL_KINDS: Final = ("int", "float", "none")


@dataclass(frozen=True)
class ResizeRule:
    """Rule for the new size of an image before it is stored.

    Attributes:
        rule: ``"short"``: the short side becomes `width`, as with torchvision's ``Resize(width)``. ``"long"``: the long
            side becomes `width`. Neither of these enlarges an image: that would add bytes but no information, and a
            reader can do it. ``"exact"``: the image becomes `width` x `height`, whatever its aspect ratio.
        width: Target width, or length of the named side, in pixels.
        height: Target height in pixels; equal to `width` unless the rule is ``"exact"``.
    """

    rule: Literal["short", "long", "exact"]
    width: int
    height: int

    def __post_init__(self) -> None:
        choice("rule", self.rule, _RULES)
        object.__setattr__(self, "width", whole("width", self.width, 1))
        object.__setattr__(self, "height", whole("height", self.height, 1))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``short=256``, ``long=500`` or ``256x192`` (width x height).

        Raises:
            UsageError: `text` is none of these.
        """
        instance("resize", text, str)
        if found := re.fullmatch(r"(short|long)=([1-9]\d{0,4})", text):
            side = int(found[2])
            return cls("short" if found[1] == "short" else "long", side, side)
        if found := re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", text):
            return cls("exact", int(found[1]), int(found[2]))
        raise unexpected("resize", text, "short=256, long=500 or 256x256 (width x height)")

    def __str__(self) -> str:
        return f"{self.width}x{self.height}" if self.rule == "exact" else f"{self.rule}={self.width}"

    def output_size(self, width: int, height: int) -> tuple[int, int]:
        """Returns width and height of the result for an image of `width` x `height` pixels.

        >>> ResizeRule.parse("short=256").output_size(500, 375)
        (341, 256)
        """
        if self.rule == "exact":
            return self.width, self.height
        short, long = sorted((width, height))
        if (short if self.rule == "short" else long) <= self.width:
            return width, height
        if self.rule == "short":
            new_short, new_long = self.width, int(self.width * long / short)
        else:
            new_short, new_long = max(1, int(self.width * short / long)), self.width
        return (new_short, new_long) if width <= height else (new_long, new_short)


@checks_names()
@dataclass(frozen=True)
class StoreOptions:
    """Options of the storage of pixels.

    Attributes:
        store: ``"crop-ready"``: JPEGs are transcoded without loss, so that readers decode only what they need; other
            files are stored unchanged. ``"coefficients"``: the same, but without Huffman codes, so that records are
            larger and decoded faster. ``"verbatim"``: files are stored unchanged. ``"jpeg"``: images are decoded,
            resized and encoded as JPEG. ``"raw"``: images are stored as uint8 pixels.
        resize: New size, such as ``"short=256"``, ``"long=500"`` or ``"256x192"`` (see `ResizeRule`); None keeps it.
        quality: JPEG quality, 1 to 100. It applies to ``"jpeg"`` only: with other modes, `PackOptions` refuses any but
            the default. A dataset on disk may state one all the same.
        mode: Pixel mode that readers deliver: ``"RGB"`` or ``"L"``.
        orientation: ``"apply"`` to turn stored pixels upright by their EXIF orientation; ``"ignore"`` to leave them as
            they are, as torchvision does.
        check: True to decode every image before it is stored, not only suspects, and every transcoded image, to compare
            the pixels.
    """

    store: str = "crop-ready"
    resize: str | None = None
    quality: int = 90
    mode: str = "RGB"
    orientation: str = "ignore"
    check: bool = False

    def __post_init__(self) -> None:
        choice("store", self.store, STORE_MODES)
        choice("mode", self.mode, PIXEL_MODES)
        choice("orientation", self.orientation, ORIENTATIONS)
        object.__setattr__(self, "quality", whole("quality", self.quality, 1, 100))
        object.__setattr__(self, "check", flag("check", self.check))
        if self.resize is not None:
            ResizeRule.parse(self.resize)
        if self.keeps_pixels and (self.resize is not None or self.orientation == "apply"):
            what = "--resize" if self.resize is not None else "--orientation apply"
            others = " or ".join(name for name, mode in STORE_MODES.items() if not mode.keeps_pixels)
            raise UsageError(f"store mode {self.store} keeps each image's pixels, so {what} needs --store {others}")

    @property
    def store_mode(self) -> StoreMode:
        """The entry of the mode in the table of all modes."""
        return STORE_MODES[self.store]

    @property
    def keeps_pixels(self) -> bool:
        """True if the pixels of each file are kept, so that a record is about as large as its file."""
        return self.store_mode.keeps_pixels

    @property
    def channels(self) -> int:
        """Values per pixel."""
        return 3 if self.mode == "RGB" else 1

    @property
    def fixed_shape(self) -> tuple[int, int, int] | None:
        """(height, width, channels) if every raw record has the same shape, else None."""
        if not self.store_mode.is_raw or self.resize is None:
            return None
        resize = ResizeRule.parse(self.resize)
        return (resize.height, resize.width, self.channels) if resize.rule == "exact" else None


@checks_names()
@dataclass(frozen=True)
class LabelSpec:
    """Type of the labels: what follows the path on each line.

    Attributes:
        kind: ``"int"``, ``"float"`` or ``"none"``.
        count: Number of values if the label is a vector; None if it is a scalar.
    """

    kind: Literal["int", "float", "none"] = "int"
    count: int | None = None

    def __post_init__(self) -> None:
        choice("kind", self.kind, _LABEL_KINDS)
        if self.count is not None:
            object.__setattr__(self, "count", whole("count", self.count, 1))
            if self.kind == "none":
                raise UsageError(f"count={self.count}: labels of kind none have no values")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``int``, ``int*K``, ``float``, ``float*K`` or ``none``.

        Raises:
            UsageError: `text` is none of these.
        """
        instance("labels", text, str)
        found = re.fullmatch(r"(int|float)(?:\*([1-9]\d{0,5}))?|none", text)
        if not found:
            raise unexpected("labels", text, "int, int*K, float, float*K or none")
        if found[1] is None:
            return cls("none")
        return cls("int" if found[1] == "int" else "float", int(found[2]) if found[2] else None)

    def __str__(self) -> str:
        return self.kind if self.count is None else f"{self.kind}*{self.count}"

    @property
    def dtype(self) -> str:
        """numpy type string: ``"<i8"`` or ``"<f4"``."""
        return "<f4" if self.kind == "float" else "<i8"

    @property
    def fields(self) -> int:
        """Number of values on each line."""
        return 0 if self.kind == "none" else self.count or 1

    def shape(self, records: int) -> tuple[int, ...]:
        """Returns the shape of the label column for this number of records."""
        return (records,) if self.count is None else (records, self.count)
