"""Rules: the field of each extension in foreign shards, and the member with the label; plan.json keeps them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, Self

from packtrain._core.arguments import choice, unexpected
from packtrain._core.document import dump_document, parse_document, read_document
from packtrain._core.errors import OutputConflict, UsageError
from packtrain._core.kinds import KINDS
from packtrain._core.manifest import PLAN, VERSION
from packtrain._core.options import PIXEL_MODES
from packtrain._core.problems import reading
from packtrain._core.schema import IMAGE, LABEL, RESERVED, FieldName, check_name
from packtrain._core.suggestions import did_you_mean
from packtrain._core.typed import Form, OneOf
from packtrain._storage.location import Location
from packtrain._storage.remote.objects import Objects

from ..plan import require_same_terms
from .shard_files import read_if_there

_IMAGES: Final = (
    *("jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm"),
    *("jp2", "j2k", "avif"),
)
_KINDS: Final = {**dict.fromkeys(_IMAGES, "image"), "txt": "text", "text": "text", "json": "json", "jsn": "json"}
_NAMES: Final = {**dict.fromkeys(_IMAGES, IMAGE), "txt": "text", "jsn": "json"}
_LABEL_EXTENSION: Final = "cls"
_NO_LABEL: Final = "none"
_INDEX: Final = "index"
_ALTERNATIVES: Final = ("image", "text", "json")
"""Kinds of which a field may have several extensions: what the records are is seen from their content."""

Extension = Annotated[str, Form(r"[^/\0]+", "what follows the first dot of a name")]


@dataclass(frozen=True)
class FieldRule:
    """The field of an extension, as a user gives it.

    Attributes:
        name: Name of its field.
        extension: The extension, in lower case.
        kind: Kind of the field; None for that of the extension.
    """

    name: FieldName
    extension: Extension
    kind: Annotated[str, OneOf(tuple(KINDS))] | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``NAME=EXT`` or ``NAME=EXT:KIND``.

        Raises:
            UsageError: `text` is something else.
        """
        found = re.fullmatch(r"([^=:]+)=\.?([^=:/\s]+)(?::([a-z]+))?", text)
        if not found:
            raise unexpected("fields", text, "NAME=EXT or NAME=EXT:KIND, such as seg=seg.png:mask")
        name, extension, kind = found[1], found[2].lower(), found[3]
        if kind is not None and kind not in KINDS:
            raise unexpected("fields", text, f"one of {', '.join(KINDS)} behind the colon{did_you_mean(kind, KINDS)}")
        if name != IMAGE:
            check_name(name)
        return cls(name, extension, kind)


@dataclass(frozen=True)
class LabelRule:
    """The member that holds the label of a sample.

    Attributes:
        extension: Extension of the member that holds it.
        key: Where it is in a JSON object, with dots between the keys of inner objects; None if it is all of the member,
            in decimal.
    """

    extension: Extension
    key: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads ``EXT`` or ``EXT:KEY``.

        Raises:
            UsageError: `text` is something else.
        """
        extension, colon, key = text.removeprefix(".").partition(":")
        if not extension or (colon and not key):
            raise unexpected("label", text, "EXT or EXT:KEY, such as cls or json:class_id")
        return cls(extension.lower(), key or None)

    def __str__(self) -> str:
        return self.extension if self.key is None else f"{self.extension}:{self.key}"


@dataclass(frozen=True)
class Rules:
    """The meaning of the extensions of foreign shards.

    Attributes:
        fields: What is said about extensions; all others are understood by themselves.
        masks: Names of fields that are masks.
        label: Where the label is; None for ``.cls``, if there is any.
        labels: False for a dataset without labels.
        mode: Pixel mode that readers deliver: ``"RGB"`` or ``"L"``.
    """

    fields: tuple[FieldRule, ...] = ()
    masks: tuple[FieldName, ...] = ()
    label: LabelRule | None = None
    labels: bool = True
    mode: str = "RGB"

    def __post_init__(self) -> None:
        choice("mode", self.mode, PIXEL_MODES)
        for extension, count in Counter(rule.extension for rule in self.fields).items():
            if count > 1:
                raise UsageError(f"`fields`: two are for the extension {extension}")
        if not self.labels and self.label is not None:
            raise UsageError("a label, and a dataset without labels: leave one of them out")

    @classmethod
    def parse(cls, fields: Sequence[str], masks: Sequence[str], label: str | None, mode: str) -> Self:
        """Reads what a user types.

        Raises:
            UsageError: Something of it cannot be understood.
        """
        for name, texts in (("fields", fields), ("masks", masks)):
            if isinstance(texts, str):
                raise UsageError(f"{name} is a text: expected a list of texts")
        labels = label != _NO_LABEL
        return cls(
            tuple(FieldRule.parse(text) for text in fields),
            tuple(check_name(name) for name in masks),
            LabelRule.parse(label) if labels and label is not None else None,
            labels,
            mode,
        )

    @property
    def label_extension(self) -> str | None:
        """Extension of the member that is nothing but the label; None if there is none."""
        if not self.labels or (self.label is not None and self.label.key is not None):
            return None
        return _LABEL_EXTENSION if self.label is None else self.label.extension

    def label_key(self, extension: str) -> str | None:
        """Return the key of the label in JSON members with this extension; None if the label is elsewhere."""
        return self.label.key if self.label is not None and extension == self.label.extension else None

    def kind(self, extension: str) -> str:
        """Return the kind of the field of an extension, or ``"label"``."""
        for rule in self.fields:
            if rule.extension == extension and rule.kind is not None:
                return rule.kind
        if extension == self.label_extension:
            return LABEL
        if self._name(extension) in self.masks:
            return "mask"
        last = extension.rpartition(".")[2]
        return "array" if last == "npy" else _KINDS.get(last, "bytes")

    def _name(self, extension: str) -> str:
        """The name that is first tried for the field of an extension."""
        for rule in self.fields:
            if rule.extension == extension:
                return rule.name
        stem, dot, last = extension.rpartition(".")
        return fit(stem) if dot else fit(_NAMES.get(last, last))

    def require_used(self, extensions: Iterable[str]) -> None:
        """Makes sure that all extensions and fields that the user names are there.

        Raises:
            UsageError: One is not.
        """
        known = list(extensions)
        wanted = [rule.extension for rule in self.fields] + ([self.label.extension] if self.label else [])
        for extension in wanted:
            if extension not in known:
                listed = ", ".join(sorted(known)[:20]) or "none"
                raise UsageError(
                    f"no member has the extension {extension!r}: there are {listed}{did_you_mean(extension, known)}"
                )
        names = {self._name(extension) for extension in known}
        for mask in self.masks:
            if mask not in names:
                raise UsageError(f"`masks`: there is no field {mask!r}{did_you_mean(mask, names)}")

    def has_labels(self, extensions: Container[str]) -> bool:
        """Tell whether a dataset of shards with these extensions has labels."""
        return self.labels and (self.label is not None or self.label_extension in extensions)

    def names(self, extensions: Iterable[str]) -> dict[str, str]:
        """Finds the field of each extension. Returns their names by extension, without that of the label.

        Raises:
            UsageError: Two fields would have the same name.
        """
        known = list(extensions)
        kinds = {extension: self.kind(extension) for extension in known}
        own = {rule.extension for rule in self.fields}
        groups: defaultdict[str, list[str]] = defaultdict(list)
        for extension in known:
            if kinds[extension] != LABEL:
                groups[self._name(extension)].append(extension)
        names = {}
        for name, group in groups.items():
            chosen = [extension for extension in group if extension in own]
            alike = len({kinds[extension] for extension in group}) == 1 and kinds[group[0]] in _ALTERNATIVES
            for extension in group:
                keep = extension in own or (not chosen and (alike or len(group) == 1))
                own_name = name if keep else fit(extension)
                if own_name == IMAGE and kinds[extension] != "image":
                    own_name = f"{IMAGE}_"
                names[extension] = own_name if own_name == IMAGE else check_name(own_name)
        first: dict[str, str] = {}
        for extension, name in names.items():
            other = first.setdefault(name, extension)
            if kinds[other] != kinds[extension] or (other != extension and kinds[other] not in _ALTERNATIVES):
                raise UsageError(
                    f"the extensions {other!r} and {extension!r} would both be the field {name!r}: name one of them "
                    f"with --field NAME={extension}"
                )
        return names


def fit(text: str) -> str:
    """A name for a field that is as much like `text` as may be.

    >>> fit("Seg.2"), fit("3d"), fit("class")
    ('seg_2', 'f_3d', 'class_')
    """
    name = re.sub("[^a-z0-9_]", "_", text.lower())[:60]
    name = name if re.match("[a-z]", name) else f"f_{name.lstrip('_')}"
    return f"{name}_" if name in RESERVED - {IMAGE} else name


@dataclass(frozen=True)
class IndexPlan:
    """The content of plan.json.

    Attributes:
        rules: What each extension is, and where labels come from.
        written_by: Program and version that made the plan.
        made_by: The command, ``"index"``: the plan of packed datasets has no such key.
    """

    rules: Rules
    written_by: str
    made_by: Annotated[str, OneOf((_INDEX,))] = _INDEX

    def dump(self) -> bytes:
        """The content of plan.json."""
        return dump_document({"version": VERSION, **asdict(self)})

    @property
    def sha256(self) -> str:
        """SHA-256 of plan.json, in hexadecimal digits."""
        return hashlib.sha256(self.dump()).hexdigest()

    def doubtful(self, asked: Rules) -> set[str]:
        """The extensions of which the plan does not say why their field is bytes: arrays that do not fit are, too."""
        there = {rule.extension for rule in self.rules.fields if rule.kind == "bytes"}
        return {extension for extension in there if asked.kind(extension) == "array"}

    def require_same(self, asked: Rules, unfit: Container[str], folder: Location) -> None:
        """Compares the rules by which a finished dataset was indexed with those that are asked for.

        They are the same if they mean the same for the extensions that are there, however they are given.

        Args:
            asked: The rules that are asked for.
            unfit: Those of the `doubtful` extensions whose arrays do not fit together.
            folder: Where the dataset lies, for the message.

        Raises:
            UsageError: They do not fit the extensions that are there.
            OutputConflict: They differ; the message says how.
        """
        there = dict.fromkeys(rule.extension for rule in self.rules.fields)
        if self.rules.labels and (label := self.rules.label_extension) is not None:
            there[label] = None
        asked.require_used(there)
        mine, theirs = _terms(self.rules, there), _terms(asked, there)
        theirs |= {f"kind of .{extension}": "bytes" for extension in there if extension in unfit}
        require_same_terms(mine, theirs, folder, "indexed")

    @classmethod
    def load(cls, folder: Location, objects: Objects | None = None) -> Self:
        """Reads and checks the plan in `folder`.

        Raises:
            OutputConflict: There is none, or the dataset was packed.
            UnsupportedVersion: It was written by a newer packtrain.
            UnreadableFile: It cannot be read.
            CorruptFile: It is damaged.
            RemoteError: The object store does not answer as it should.
        """
        path = folder / PLAN
        with reading(Path(path), missing=False):
            data = read_if_there(path, objects)
        if data is None:
            raise OutputConflict(f"{folder} is not an indexed dataset: it has no {PLAN}")
        body = read_document(data, path, newest=VERSION)
        if body.get("made_by") != _INDEX:
            raise OutputConflict(f"{folder} holds a dataset that was packed: index into another folder")
        return parse_document(cls, body, path)


def _terms(rules: Rules, extensions: Iterable[str]) -> dict[str, str | None]:
    """The meaning of rules for these extensions, in words."""
    known = list(extensions)
    terms: dict[str, str | None] = {"mode": rules.mode, "label": "none"}
    for extension, name in rules.names(known).items():
        terms |= {f"field of .{extension}": name, f"kind of .{extension}": rules.kind(extension)}
    if rules.has_labels(known):
        terms["label"] = rules.label_extension if rules.label is None else str(rules.label)
    return terms
