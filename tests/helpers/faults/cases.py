"""Shared by the fault tests: a small list with one bad file, packed by a process in which something goes wrong."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from helpers.faults.campaign import Campaign, Program
from helpers.faults.harness import Action, FaultServer
from helpers.fields import COLUMNS, INDEXED, field_set
from helpers.support import image_set, tree

from packtrain import PackOptions, pack, verify
from packtrain._packer.options import Columns
from packtrain.reports import PackReport

DONE, CLEAN_ERROR = 0, 3
"""Exit codes of `PACK`; anything else is a crash or an error that packtrain did not mean to raise."""

OPTIONS = """
from packtrain import PackOptions
from packtrain._packer.options import Columns, FieldColumn

columns = args["columns"]
if columns is not None:
    columns = Columns(columns["image"], columns["label"], tuple(FieldColumn(**field) for field in columns["fields"]))
options = PackOptions(format=args["format"], shard_size=args["shard_bytes"], columns=columns)
"""
"""Makes `options` of what `Job.args` gives."""

PACK = f"""
from packtrain._core.errors import PacktrainError
from packtrain import pack
{OPTIONS}
try:
    pack(args["source"], args["out"], options, max_rejects="1", retry_rejects=args["retry_rejects"], part=args["part"])
except PacktrainError as error:
    print(f"{{type(error).__name__}}: {{error}}")
    raise SystemExit({CLEAN_ERROR}) from error
"""

MERGE = """
from packtrain import merge

merge(args["out"], max_rejects="1")
"""

NO_LOCKS = """
import errno, fcntl

def flock(*_):
    raise OSError(errno.ENOLCK, "No locks available")

fcntl.flock = flock
"""
"""Before `PACK` or `MERGE`: as on a network file system without locks."""

WARM_UP = f"""
import tempfile
for format in ("tar", "hdf5", "lmdb"):
    with tempfile.TemporaryDirectory() as folder:
        args |= {{"format": format, "out": folder + "/out"}}
        exec({PACK!r}, {{"args": args}})
"""


@dataclass(frozen=True)
class Job:
    """A pack of six samples into three shards, of which the third is refused until its file is fixed.

    Attributes:
        source: The list.
        shard_bytes: Size of a shard.
        format: Container format.
        retry_rejects: True to pack shards with refused lines again.
        columns: The columns of the list; None for a list of images and labels.
        part: The part to pack; None for all.
    """

    source: Path
    shard_bytes: int
    format: str = "tar"
    retry_rejects: bool = False
    columns: Columns | None = None
    part: str | None = None

    @classmethod
    def make(cls, folder: Path) -> Self:
        source = image_set(folder, 6)
        images = list(folder.glob("*.jpg"))
        (folder / "image 2.jpg").write_bytes(b"<html>404</html>")
        mean = sum(path.stat().st_size for path in images) // len(images)
        return cls(source, 2 * mean + 1)

    @classmethod
    def of_fields(cls, folder: Path) -> Self:
        """Samples with an image and fields of most kinds, some of which are missing; one mask is broken."""
        source = field_set(folder, 6)
        names = ("side", "seg", "caption", "boxes")
        fields = tuple(field for field in COLUMNS.fields if field.name in names)
        columns = replace(COLUMNS, fields=(*fields, *INDEXED))
        files = [*folder.glob("?.jpg"), *folder.glob("* side.jpg"), *folder.glob("* seg.png")]
        # A third record does not fit, whether the broken mask is mended or not.
        return cls(source, 24 * sum(path.stat().st_size for path in files) // 60, columns=columns)

    def mended(self, folder: Path) -> Self:
        """The same list without a broken file. Finished datasets of both have the same plan."""
        source = image_set(folder, 6) if self.columns is None else field_set(folder, 6, bad=False)
        return replace(self, source=source, retry_rejects=True)

    @property
    def every(self) -> int:
        """One point in so many is enough: many fields are written by the same calls as an image and a label."""
        return 1 if self.columns is None else 4

    @property
    def options(self) -> PackOptions:
        """The samples to store, and how."""
        return PackOptions(format=self.format, shard_size=self.shard_bytes, columns=self.columns)

    def run(self, out: Path) -> PackReport:
        """Packs in this process."""
        return pack(self.source, out, self.options, max_rejects="1", retry_rejects=self.retry_rejects, part=self.part)

    def packed(self, out: Path) -> dict[str, bytes]:
        """Packs in this process, and returns the files."""
        self.run(out)
        return tree(out)

    def args(self, out: Path) -> dict[str, Any]:
        """The arguments of `PACK`."""
        return {
            "source": os.fspath(self.source),
            "out": os.fspath(out),
            "format": self.format,
            "shard_bytes": self.shard_bytes,
            "retry_rejects": self.retry_rejects,
            "columns": None if self.columns is None else asdict(self.columns),
            "part": self.part,
        }

    def program(self, server: FaultServer, out: Path, code: str = PACK) -> Program:
        """Packs in a separate process, or does what `code` says."""
        return Program(server, code, self.args(out), out)


def assert_completed(out: Path, expected: dict[str, bytes], run: Callable[[Path], PackReport]) -> None:
    """Asserts that `run` completes the dataset and writes no finished shard again."""
    finished = finished_shards(out)
    report = run(out)
    assert report.complete_before or report.resumed >= len(finished)
    assert {name: written(out / name) for name in finished} == finished
    assert_same(out, expected)


def assert_survives(
    campaign: Campaign,
    program: Program,
    run: Callable[[Path], PackReport],
    *actions: Action,
    every: int = 1,
) -> dict[str, bytes]:
    """Asserts that a program may be killed anywhere: readers find no dataset or a sound one, and `run` completes it.

    Args:
        campaign: Chooses the points.
        program: Writes a dataset to its folder.
        run: Does the same in this process.
        actions: What goes wrong.
        every: Takes one in so many points.

    Returns:
        The files of the complete dataset.
    """
    calls = program.undisturbed()
    expected = tree(program.folder)
    for _ in campaign(program, calls, *actions, every=every):
        assert_sound_if_finished(program.folder)
        assert_completed(program.folder, expected, run)
    return expected


def assert_same(out: Path, expected: dict[str, bytes]) -> None:
    """Asserts that the folder holds these files, nothing temporary and no notes, and that `verify` finds no problem."""
    found = tree(out)
    assert sorted(found) == sorted(expected)
    assert [name for name in found if found[name] != expected[name]] == []
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["index"]
    assert_sound(out, found)


def assert_sound_if_finished(out: Path) -> None:
    """Asserts what holds at any moment: a reader finds no dataset or a sound one."""
    if (out / "manifest.json").exists():
        assert_sound(out, tree(out))


_sound: set[bytes] = set()


def assert_sound(out: Path, files: dict[str, bytes]) -> None:
    """Asserts that `verify` finds no problem in `out`, which holds these files. Each content is verified only once."""
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).digest()
    if digest not in _sound:
        assert verify(out).problems == ()
        _sound.add(digest)


def finished_shards(out: Path) -> dict[str, tuple[int, int]]:
    """For each shard with a completion note: what `written` returns for it."""
    notes = (out / "parts").glob("[!.]*.npz")
    return {note.stem: written(out / note.stem) for note in notes}


def written(path: Path) -> tuple[int, int]:
    """A value that changes when a file is written again."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns
