"""Files in folders: ``class/name.jpg``, other fields beside, and a list by which `packtrain pack` takes all of them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from packtrain._core.files import fsync_file, fsync_folder, make_folder, remove_temporaries, write_file
from packtrain._core.kinds import KINDS
from packtrain._core.overriding import override
from packtrain._core.schema import IMAGE, LABEL, Field

from ..lists.folder import TORCHVISION_SUFFIXES
from ..lists.reader import EXPORTED_LIST
from .contents import value_in
from .names import Names, class_folders
from .target import CLASSES, ExportTask, PartProgress, Sample, Target, can_be_listed, words, write_lines

_PARTS: Final = ".parts"
_SAME: Final = {"jpg": (".jpg", ".jpeg"), "tif": (".tif", ".tiff")}
"""Suffixes of one kind of file, of which a name keeps its own."""


@dataclass(frozen=True)
class FolderTarget(Target):
    """A folder of files."""

    @override
    def names(self) -> Names:
        classes = self.schema.classes
        taken = (EXPORTED_LIST, CLASSES, *(_mask_classes(field) for field in self.schema.fields))
        folders = None if classes is None or self.schema.image is None else class_folders(classes, taken)
        # With other fields beside, the name is all that keeps samples apart.
        return Names(folders, dotted=not self.schema.others)

    @override
    def prepare(self) -> None:
        make_folder(self.out / _PARTS)
        super().prepare()
        for field in self.schema.fields:
            if can_be_listed(field.classes):
                write_lines(self.out / _mask_classes(field), field.classes or ())

    @override
    def part_path(self, number: int) -> Path:
        return self.out / _PARTS / f"{number:06d}"

    @override
    def write(self, task: ExportTask, report: Callable[[PartProgress], None]) -> None:
        lines, files, folders = [], list[Path](), dict[Path, None]()
        for sample in task.samples(report):
            line: dict[str, Any] = {} if sample.label is None else {LABEL: sample.label}
            for field, file in zip(self.schema.fields, sample.files, strict=True):
                if file is None or field.indexed:
                    line[field.name] = None if file is None else value_in(field, file)
                    continue
                name = line[field.name] = _file_name(sample, field, file.extension)
                path = self.out / name
                if path.parent not in folders:
                    make_folder(path.parent)
                    folders[path.parent] = None
                write_file(path, [file.data], durable=False)
                files.append(path)
            lines.append(json.dumps(line) + "\n")
        # All at once: a disk takes many files in less time than each by itself.
        for path in files:
            fsync_file(path)
        for folder in folders:
            fsync_folder(folder)
        write_file(self.part_path(task.number), ["".join(lines).encode()])

    @override
    def missing(self) -> list[int]:
        # A run that was killed while it removed the parts has removed some.
        return [] if (self.out / EXPORTED_LIST).exists() else super().missing()

    @property
    @override
    def is_complete(self) -> bool:
        return (self.out / EXPORTED_LIST).exists() and not (self.out / _PARTS).exists()

    @override
    def finish(self) -> None:
        if not (self.out / EXPORTED_LIST).exists():
            write_file(self.out / EXPORTED_LIST, (self.part_path(number).read_bytes() for number in range(self.parts)))
        shutil.rmtree(self.out / _PARTS)
        fsync_folder(self.out)

    @override
    def clean(self) -> None:
        for folder, _, _ in os.walk(self.out):
            remove_temporaries(Path(folder))

    @override
    def again(self) -> str:
        schema, options = self.schema, list[object]()
        if schema.image is not None:
            options += ["--image", IMAGE]
        if schema.labels.kind != "none":
            options += ["--label", LABEL]
            if str(schema.labels) != "int":
                options += ["--labels", schema.labels]
            if can_be_listed(schema.classes):
                options += ["--classes", self.out / CLASSES]
        for field in schema.others:
            options += self._options(field)
        if schema.image is not None and schema.image.store is not None and schema.image.store.mode != "RGB":
            options += ["--mode", schema.image.store.mode]
        masks = {field.encoding for field in schema.fields if field.kind == "mask"}
        if masks == {"raw"}:
            options += ["--mask-store", "raw"]
        return words("packtrain", "pack", self.out / EXPORTED_LIST, "OUT", *options)

    def _options(self, field: Field) -> list[object]:
        kind = KINDS[field.kind]
        plain = kind.by_path or field.indexed
        found: list[object] = [f"--{kind.option}", field.name if plain else f"{field.name}:path"]
        if field.dtype is not None:
            found += ["--dtype", f"{field.name}={np.dtype(field.dtype).name}"]
        if field.shape is not None:
            sizes = ",".join("N" if size is None else str(size) for size in field.shape)
            found += ["--shape", f"{field.name}={sizes or '()'}"]
        if can_be_listed(field.classes):
            found += ["--mask-classes", f"{field.name}={self.out / _mask_classes(field)}"]
        return found + (["--optional", field.name] if field.optional else [])


def _mask_classes(field: Field) -> str:
    return f"classes.{field.name}.txt"


def _file_name(sample: Sample, field: Field, extension: str) -> str:
    if field.name != IMAGE:
        return f"{sample.name}.{field.name}.{extension}"
    suffix = os.path.splitext(sample.path)[1]
    same = _SAME.get(extension, (f".{extension}",))
    return sample.name + (suffix if suffix.lower() in same and suffix.lower() in TORCHVISION_SUFFIXES else same[0])
