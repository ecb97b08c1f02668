"""WebDataset tars: the members of a sample stand together, ``NAME.jpg``, ``NAME.cls``, ``NAME.caption.txt``.

webdataset's own ShardWriter is not used: it gives members the current time, and shards their final names at once, so
that nothing tells a shard that was cut off from a whole one.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packtrain._core.files import write_file
from packtrain._core.overriding import override
from packtrain._core.schema import IMAGE
from packtrain._formats.tar.reader import BLOCK

from .names import Names, class_folders
from .target import CLASSES, ExportTask, PartProgress, Sample, Target, can_be_listed, words

_JSON_LABEL = "label.json"


@dataclass(frozen=True)
class TarTarget(Target):
    """A folder of tar shards."""

    @override
    def names(self) -> Names:
        classes = self.schema.classes
        return Names(None if classes is None else class_folders(classes, ()), dotted=False)

    @override
    def part_path(self, number: int) -> Path:
        return self.out / f"{self.name}-{number:06d}.tar"

    @override
    def write(self, task: ExportTask, report: Callable[[PartProgress], None]) -> None:
        def archive() -> Iterator[bytes | memoryview]:
            for sample in task.samples(report):
                for extension, data in self._members(sample):
                    yield _header(f"{sample.name}.{extension}", len(data))
                    yield data
                    yield bytes(-len(data) % BLOCK)
            yield bytes(2 * BLOCK)

        write_file(self.part_path(task.number), archive())

    def _members(self, sample: Sample) -> Iterator[tuple[str, bytes | memoryview]]:
        if isinstance(sample.label, int):
            yield "cls", str(sample.label).encode()
        elif sample.label is not None:
            yield _JSON_LABEL, json.dumps({"label": sample.label}).encode()
        for field, file in zip(self.schema.fields, sample.files, strict=True):
            if file is not None:
                yield file.extension if field.name == IMAGE else f"{field.name}.{file.extension}", file.data

    @override
    def again(self) -> str:
        options = ["--label", f"{_JSON_LABEL}:label"] if str(self.schema.labels) == "float" else []
        for field in self.schema.fields:
            if field.kind == "mask":
                options += ["--field", f"{field.name}={field.name}.png:mask"]
            elif field.kind == "bytes":
                options += ["--field", f"{field.name}={field.name}.bin"]
        again = words("packtrain", "index", self.out, "OUT", *options)
        # Tars have no names of classes.
        named = can_be_listed(self.schema.classes)
        return f"{again} && {words('packtrain', 'relabel', 'OUT', '--classes', self.out / CLASSES)}" if named else again


def _header(name: str, size: int) -> bytes:
    """The header of a file, in the format of GNU tar, which has long names; without a time or an owner."""
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
