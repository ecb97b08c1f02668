"""What Python's tarfile finds in a shard that was indexed, for comparison with the index."""

from __future__ import annotations

import itertools
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packtrain._core.errors import CorruptFile
from packtrain._core.schema import LABEL
from packtrain._formats import MOST_LABEL_BYTES, StoredLabel, StoredSample

from . import records
from .plan import Rules
from .records import Unfit
from .samples import Name, split_name


def walk(path: Path, rules: Rules, lines: Mapping[bytes, int], classes: Sequence[str] | None) -> Iterator[StoredSample]:
    """Yields the samples of a shard that are in the index.

    Args:
        path: The shard.
        rules: How it was indexed.
        lines: Line of each sample by its key; all others were refused.
        classes: Names of the classes, if labels are such names.

    Raises:
        CorruptFile: tarfile cannot read the shard, or a label has changed.
    """
    fields = {rule.extension: rule.name for rule in rules.fields}
    try:
        with tarfile.open(path, "r:") as archive:
            for key, members in itertools.groupby(_members(archive), lambda item: item[0].key):
                if (line := lines.get(key)) is None:
                    continue
                places: dict[str, tuple[int, int]] = {}
                label: StoredLabel = None
                for name, member in members:
                    kind = rules.kind(name.extension)
                    if rules.labels and (kind == LABEL or _holds_label(rules, name.extension)):
                        label = _label(rules, _content(archive, member), classes)
                    if kind != LABEL:
                        places[fields[name.extension]] = member.offset_data, member.size
                yield StoredSample(line, places, label)
    except (tarfile.TarError, Unfit, KeyError, ValueError, OSError, RecursionError) as error:
        raise CorruptFile(f"{path} is not the shard that was indexed: {error}", file=path.name) from error


def _members(archive: tarfile.TarFile) -> Iterator[tuple[Name, tarfile.TarInfo]]:
    for member in archive:
        if member.isreg() and (name := split_name(os.fsencode(member.name))) is not None:
            yield name, member
        archive.members.clear()  # type: ignore[attr-defined]  # otherwise tarfile would keep them all


def _holds_label(rules: Rules, extension: str) -> bool:
    return rules.label is not None and rules.label.key is not None and extension == rules.label.extension


def _label(rules: Rules, content: bytes, classes: Sequence[str] | None) -> StoredLabel:
    if rules.label is None or rules.label.key is None:
        return records.plain_label(memoryview(content))
    label = records.json_label(records.parse_json(memoryview(content)), rules.label.key)
    if not isinstance(label, str):
        return label
    return (classes or ()).index(label)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = archive.extractfile(member)
    return content.read(MOST_LABEL_BYTES + 1) if content else b""
