"""Forges every value of every document of a dataset, with checksums that are right, and uses the dataset.

A dataset may come from a stranger. Whatever its documents say, each use of it ends with a result or with an error of
packtrain's own, within seconds, and touches nothing outside its own folders.
"""

from __future__ import annotations

import copy
import io
import json
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from helpers.support import soon, tree

from packtrain import Loader, PackOptions, StageOptions, open_dataset, pack, stage, verify
from packtrain._cli.info_cmd import _facts, _histogram
from packtrain._core.document import dump_document
from packtrain._core.index import IndexWriter
from packtrain._core.manifest import Manifest
from packtrain._core.printable import printable
from packtrain._readers.dataset.summary import summarise
from packtrain.errors import PacktrainError
from packtrain.orders import BlockShuffled
from packtrain.reports import PackProgress, VerifyProgress
from packtrain.transforms import CenterCrop, RandomResizedCrop

NESTED: list[Any] = []
for _ in range(300):
    NESTED = [NESTED]
VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 3, 1 << 31, (1 << 62) - 1, 1 << 63, 10**400, 1.5, float("nan"), float("-inf")),
    *("", "x", ".", "..", "../../outside/results.txt", "/etc/passwd", "a\0b", "\x1b[2J\n", "\udcff", "a" * 5000),
    *("manifest.json", "plan.json", "parts", "lmdb", "none", "int*99999", "short=99999", "raw", "|V999", "<M8[D]"),
    *([], {}, [[]], [None] * 3, {"name": "../x", "bytes": 1}, NESTED),
]
NUMBERS = [-(1 << 63), -1, 0, 1, 7, 1 << 31, 1 << 40, (1 << 63) - 1]
"""For columns of the index; each is cut to the column's type."""
Forge = Callable[[Path], None]
Case = tuple[str, Forge]


@dataclass(frozen=True)
class Victims:
    """Datasets to be forged.

    Attributes:
        listing: The list of images.
        complete: A complete dataset.
        begun: The same, not yet complete: one shard and its note.
        journal: A journal of `verify` about the first shard of `complete`.
    """

    listing: Path
    complete: Path
    begun: Path
    journal: str


class _StopError(Exception):
    pass


def victims(folder: Path, listing: Path, options: PackOptions) -> Victims:
    """Packs a list of images, completely and in part."""
    pack(listing, folder / "complete", options, max_rejects="1")

    def stop(state: PackProgress) -> None:
        if state.done:
            raise _StopError

    with suppress(_StopError):
        pack(listing, folder / "begun", options, max_rejects="1", on_progress=stop)
    journal = folder / "journal"

    def stop_verifying(state: VerifyProgress) -> None:
        if state.done:
            raise _StopError

    with suppress(_StopError):
        verify(folder / "complete", journal=journal, on_progress=stop_verifying)
    return Victims(listing, folder / "complete", folder / "begun", journal.read_text())


def changes(value: Any) -> Iterator[tuple[str, Any]]:
    """Every way to replace, remove or add one value inside `value`, by a name that says which."""
    parts: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = list(enumerate(value))[:3]
    for key, inner in parts:
        changed = copy.copy(value)
        del changed[key]
        yield f"{key} removed", changed
        for name, part in [*((repr(bad)[:40], bad) for bad in VALUES), *changes(inner)]:
            changed = copy.copy(value)
            changed[key] = part
            yield f"{key}: {name}", changed
    if isinstance(value, dict):
        yield "a key added", {**value, "surprise": 1}
    if isinstance(value, list) and value:
        yield "repeated", [*value, value[0]]


def documents(victim: Path, name: str) -> Iterator[Case]:
    """Forged versions of manifest.json or plan.json."""
    body = json.loads((victim / name).read_text())
    del body["checksum"]
    for what, changed in changes(body):
        yield f"{name}: {what}", lambda folder, changed=changed: (folder / name).write_bytes(dump_document(changed))  # type: ignore[misc]


def rejects(victim: Path) -> Iterator[Case]:
    """Forged versions of rejects.jsonl, which the manifest confirms."""
    lines = [json.loads(line) for line in (victim / "rejects.jsonl").read_text().splitlines()]
    assert lines

    def forge(folder: Path, changed: list[Any]) -> None:
        data = "".join(json.dumps(line) + "\n" for line in changed).encode()
        (folder / "rejects.jsonl").write_bytes(data)
        manifest = Manifest.load(folder)
        info = replace(manifest.rejects_file, bytes=len(data), crc32c=crc32c(data))
        (folder / "manifest.json").write_bytes(replace(manifest, rejects_file=info).dump())

    for what, changed in changes(lines):
        yield f"rejects.jsonl: {what}", lambda folder, changed=changed: forge(folder, changed)  # type: ignore[misc]


def notes(victim: Path) -> Iterator[Case]:
    """Forged versions of a note of a shard: its facts, its columns, and the archive around them."""
    (path,) = (victim / "parts").glob("*.npz")
    with np.load(io.BytesIO(path.read_bytes()[:-4])) as content:
        sound = dict(content)
    facts = json.loads(sound["facts"].tobytes())

    def forge(folder: Path, columns: dict[str, Any], how: int = zipfile.ZIP_STORED) -> None:
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", how) as archive:
            for name, values in columns.items():
                member = io.BytesIO()
                np.save(member, values, allow_pickle=True)
                archive.writestr(f"{name}.npy", member.getvalue())
        seal(folder, data.getvalue())

    def seal(folder: Path, data: bytes) -> None:
        (folder / "parts" / path.name).write_bytes(data + struct.pack("<I", crc32c(data)))

    for what, changed in changes(facts):
        text = np.frombuffer(json.dumps(changed).encode(), np.uint8)
        yield f"note: {what}", lambda folder, text=text: forge(folder, {**sound, "facts": text})  # type: ignore[misc]
    bad_columns = [np.zeros(0), np.zeros((2, 2)), np.array(["x"]), np.array([{}], object), np.zeros(10**6, "<i8")]
    for name in sound:
        for number, values in enumerate(bad_columns):
            yield (
                f"note: column {name} {number}",
                lambda folder, name=name, values=values: forge(folder, {**sound, name: values}),  # type: ignore[misc]
            )
        rest = {key: values for key, values in sound.items() if key != name}
        yield f"note: without {name}", lambda folder, rest=rest: forge(folder, rest)  # type: ignore[misc]
    yield "note: compressed", lambda folder: forge(folder, sound, zipfile.ZIP_DEFLATED)
    for number, data in enumerate([b"", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), b"\x93NUMPY\1\0", b"\x80\4N."]):
        yield f"note: archive {number}", lambda folder, data=data: seal(folder, data)  # type: ignore[misc]


def indexes(victim: Path) -> Iterator[Case]:
    """Forged values, types and shapes of the columns of the index."""
    manifest = Manifest.load(victim)
    sound = {info.name: np.load(victim / "index" / f"{info.name}.npy") for info in manifest.columns}

    def forge(folder: Path, columns: dict[str, Any]) -> None:
        writer = IndexWriter(folder / "index", manifest.records)
        for name, values in columns.items():
            if name != "blocks" and not name.startswith("path_"):
                writer.add(name, values)
        writer.add_text("path", columns["path_offsets"], columns["path_bytes"])
        (folder / "manifest.json").write_bytes(replace(manifest, columns=writer.finish()).dump())

    def changed(name: str) -> Iterator[tuple[str, Any]]:
        values = sound[name]
        for number in NUMBERS:
            for where in (0, -1, slice(None)):
                forged = values.copy()
                forged[where] = np.array(number).astype(values.dtype)
                yield f"{where} = {number}", forged
        yield "as floats", values.astype("<f8")
        yield "in two dimensions", np.stack([values, values], -1)

    for name in sound:
        if name in ("blocks", "path_bytes"):
            continue
        for what, values in changed(name):
            # Texts are written by their offsets, so that only sound ones can be written with them.
            if name == "path_offsets" and (values.ndim > 1 or values.dtype.str != "<i8"):
                continue
            yield (
                f"index/{name}: {what}",
                lambda folder, name=name, values=values: forge(folder, {**sound, name: values}),  # type: ignore[misc]
            )


def journals(victims: Victims) -> Iterator[Case]:
    """Forged journals of `verify`."""
    lines = [json.loads(line) for line in victims.journal.splitlines()]
    for what, changed in changes(lines):
        text = "".join(json.dumps(line) + "\n" for line in changed)
        yield f"journal: {what}", lambda folder, text=text: (folder.parent / "journal").write_text(text)  # type: ignore[misc]


def read(dataset: Path) -> None:
    """Reads everything that a dataset gives."""
    for io_, transform in (("mmap", None), ("pread", [RandomResizedCrop(8)]), ("mmap", [CenterCrop(8)])):
        found = open_dataset(dataset, transform, io=io_)
        for row in range(min(len(found), 10)):
            for each in (found.label, found.filename, found.line, found.describe, found.record, found.__getitem__):
                with suppress(PacktrainError):
                    each(row)
        with suppress(PacktrainError):
            assert found.targets is not None
        places = np.arange(len(found))
        with suppress(PacktrainError):
            found._samples.places_of(found._samples.rows_at(places))
        assert found.class_to_idx is not None


class Campaign:
    """Uses forged datasets and collects what went wrong.

    Args:
        folder: An empty folder.
        victims: What is forged.
        options: How it was packed.

    Attributes:
        uses: Number of uses so far.
        refused: How many of them ended with an error of packtrain's own.
        failures: What went wrong: a case, and how.
    """

    def __init__(self, folder: Path, victims: Victims, options: PackOptions) -> None:
        self._folder = folder
        self._options = options
        self._victims = victims
        self._outside = folder / "outside"
        self._outside.mkdir()
        for name in ("results.txt", "passwd", "train-000000.tar", "x"):
            (self._outside / name).write_text("mine")
        self._before = tree(self._outside)
        self.uses = self.refused = 0
        self.failures: list[str] = []

    def run(self, case: Case, victim: Path, *uses: Callable[[Path], object]) -> None:
        """Forges a copy of `victim`, and puts it to these uses, each with a copy of its own."""
        name, forge = case
        for use in uses:
            self.uses += 1
            inner = self._folder / "in"
            shutil.copytree(victim, inner / "dataset")
            forge(inner / "dataset")
            try:
                with soon(20), warnings.catch_warnings():
                    warnings.simplefilter("error")
                    use(inner / "dataset")
            except PacktrainError as error:
                self.refused += 1
                if any(ord(char) < 32 and char != "\n" for char in str(error)):
                    self.failures.append(f"{name}: {getattr(use, '__name__', use)} says {str(error)!r}")
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                self.failures.append(f"{name}: {getattr(use, '__name__', use)}: {type(error).__name__}: {error}"[:300])
            found = {path.name for path in self._folder.iterdir()} | {path.name for path in inner.iterdir()}
            if tree(self._outside) != self._before or not found <= {"outside", "in", "dataset", "staged", "journal"}:
                raise AssertionError(f"{name}: {use} touched what is not its own: {found}")
            shutil.rmtree(inner)

    def read(self, dataset: Path) -> None:
        """Opens and reads."""
        read(dataset)

    def info(self, dataset: Path) -> None:
        """Makes what `packtrain info` prints."""
        summary = summarise(dataset)
        lines = [text for _, text in _facts(summary, None)]
        if summary.label_counts is not None:
            lines += _histogram(summary.label_counts, summary.manifest.classes)
        assert all(printable(line).replace("\n", "").isprintable() for line in lines)

    def verify(self, dataset: Path) -> None:
        """Verifies, with a journal."""
        verify(dataset, decode_images=True, journal=dataset.parent / "journal")

    def stage(self, dataset: Path) -> None:
        """Stages."""
        (dataset.parent / "staged").mkdir()
        stage(dataset, StageOptions(dataset.parent / "staged"))

    def pack(self, dataset: Path) -> None:
        """Continues to pack, or packs a missing shard again."""
        for path in list(dataset.glob("train-000001.*"))[:1]:
            path.unlink()
        pack(self._victims.listing, dataset, self._options, max_rejects="1")

    def load(self, dataset: Path) -> None:
        """Trains on it for an epoch, in the order of the disk, with transforms that take whole batches."""
        for size in (8, 30):
            found = open_dataset(dataset, [RandomResizedCrop(size)] if size == 8 else [CenterCrop(size)])
            with Loader(
                found, 2, sampler=BlockShuffled(found, block=1), num_workers=0, fields=("line", "path")
            ) as loader:
                for batch in loader:
                    del batch


def run(folder: Path, listing: Path, options: PackOptions, step: int) -> Campaign:
    """Runs every `step`-th case of each kind."""
    (folder / "victims").mkdir(parents=True)
    (folder / "campaign").mkdir()
    found = victims(folder / "victims", listing, options)
    campaign = Campaign(folder / "campaign", found, options)
    read, info, verify, load = campaign.read, campaign.info, campaign.verify, campaign.load
    for case in list(documents(found.complete, "manifest.json"))[::step]:
        campaign.run(case, found.complete, read, info, verify, campaign.stage, campaign.pack)
    for case in list(documents(found.complete, "plan.json"))[::step]:
        campaign.run(case, found.complete, verify, campaign.stage, campaign.pack)
    for case in list(documents(found.begun, "plan.json"))[::step]:
        campaign.run(case, found.begun, campaign.pack)
    for case in list(rejects(found.complete))[::step]:
        campaign.run(case, found.complete, verify, campaign.pack)
    for case in list(notes(found.begun))[::step]:
        campaign.run(case, found.begun, campaign.pack)
    for case in list(indexes(found.complete))[:: max(1, step // 8)]:
        campaign.run(case, found.complete, read, info, verify, load, campaign.pack)
    for case in list(journals(found))[::step]:
        campaign.run(case, found.complete, verify)
    return campaign
