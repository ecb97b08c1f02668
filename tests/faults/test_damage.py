"""Damage to a dataset is never taken for data: reading raises or is right, and `verify` says what is damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.damage import assert_named_by_verify, changed, files, flipped, forge, reindexed
from helpers.support import FORMATS, image_set, packed, sources

from packtrain import PackOptions, open_dataset, verify
from packtrain._core.manifest import NEWEST
from packtrain._core.options import LabelSpec, StoreOptions
from packtrain._packer.lists.reader import read_list
from packtrain._packer.planning import outline_plan, plan_shards
from packtrain.errors import CorruptFile, CorruptRecord, DatasetError, NotADataset, PacktrainError, UnsupportedVersion

STORES = {
    "verbatim": StoreOptions("verbatim"),
    "jpeg": StoreOptions("jpeg", "short=24"),
    "raw": StoreOptions("raw"),
    "raw-fixed": StoreOptions("raw", "12x10"),
}
IOS = ("mmap", "pread")
ROWS = 6


@dataclass(frozen=True)
class Row:
    """A sample that a reader must find, learnt without one: from the list, `numpy.load` and the shards' bytes."""

    number: int
    data: bytes
    label: int
    name: str
    line: int
    shard: Path
    offset: int

    def named_in(self, text: str) -> bool:
        """True if a message names this row, so that a person can find it."""
        wanted = (f"row {self.number} ", f"line {self.line},", repr(self.name), self.shard.name)
        return all(part in text for part in wanted)


@dataclass(frozen=True)
class Packed:
    """A dataset that tests damage, and what is in it."""

    folder: Path
    listing: Path
    rows: list[Row]

    @classmethod
    def at(cls, folder: Path, listing: Path) -> Packed:
        """The dataset in `folder`; line 2 of the list was refused."""
        columns = {path.stem: np.load(path) for path in (folder / "index").glob("*.npy")}
        shards = sorted(path for path in folder.glob("train-*") if path.suffix != ".idx")
        rows = []
        for number, line in enumerate(columns["line"].tolist()):
            shard, offset = shards[columns["shard"][number]], int(columns["offset"][number])
            data = shard.read_bytes()[offset : offset + int(columns["length"][number])]
            source = sources(listing)[line]
            assert columns["label"][number] == source.label
            rows.append(Row(number, data, source.label, source.name, line, shard, offset))
        return cls(folder, listing, rows)

    @property
    def shards(self) -> list[Path]:
        return sorted({row.shard for row in self.rows})

    @property
    def content(self) -> list[tuple[bytes, int, str]]:
        """The samples that `read` must give."""
        return [(row.data, row.label, row.name) for row in self.rows]

    def read(self, io: str) -> list[tuple[bytes, int, str]]:
        """Everything, through a freshly opened dataset."""
        dataset = open_dataset(self.folder, io=io)
        return [(bytes(dataset.record(n)), dataset.label(n), dataset.filename(n)) for n in range(len(dataset))]  # type: ignore[misc]

    def assert_right_or_refused(self, io: str, case: object) -> None:
        """Reading gives what was packed, or an error of packtrain's own."""
        try:
            found = self.read(io)
        except PacktrainError:
            return
        assert found == self.content, case


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[Path, Path]]:
    """A dataset of five rows in three shards for every format and store mode, and the list it was packed from."""
    listing = image_set(tmp_path_factory.mktemp("images"), ROWS)
    (listing.parent / "image 2.jpg").write_bytes(b"<html>404</html>")
    folder = tmp_path_factory.mktemp("datasets")
    result = {}
    images = read_list(listing, LabelSpec())
    for store, options in STORES.items():
        size = 500
        while len(plan_shards(outline_plan(images, PackOptions(store=options, shard_size=size)), images).shards) > 3:
            size = size * 7 // 5
        for format in FORMATS:
            out = folder / f"{format}-{store}"
            packed(listing, out, format, max_rejects="1", store=options, shard_size=size)
            result[format, store] = (out, listing)
    return result


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=IOS)
def io(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def dataset(models: dict[tuple[str, str], tuple[Path, Path]], tmp_path: Path, format_name: str, store: str) -> Packed:
    """A copy to damage, in every format and store mode in turn."""
    model, listing = models[format_name, store]
    found = Packed.at(shutil.copytree(model, tmp_path / "dataset"), listing)
    assert len(found.rows) == ROWS - 1
    assert len(found.shards) == 3
    return found


@pytest.fixture
def plain(models: dict[tuple[str, str], tuple[Path, Path]], tmp_path: Path, format_name: str) -> Packed:
    """A copy to damage, in every format in turn, stored verbatim."""
    model, listing = models[format_name, "verbatim"]
    return Packed.at(shutil.copytree(model, tmp_path / "dataset"), listing)


def cut(data: bytes) -> Iterable[bytes | None]:
    """The content of a file that was cut, has grown, or is gone (None)."""
    for size in {0, 1, len(data) // 2, len(data) - 1} - {len(data)}:
        yield data[:size]
    yield data + b"\0"
    yield None


@pytest.mark.complete
def test_the_oracle_agrees_with_the_sources(dataset: Packed, io: str, store: str) -> None:
    assert dataset.read(io) == dataset.content
    assert verify(dataset.folder, decode_images=True).problems == ()
    assert [row.line for row in dataset.rows] == [0, 1, 3, 4, 5]
    if store == "verbatim":
        sound = [source.data for number, source in enumerate(sources(dataset.listing)) if number != 2]
        assert [row.data for row in dataset.rows] == sound


def test_a_flipped_byte_of_a_record_is_noticed_and_named(dataset: Packed, io: str) -> None:
    for row in dataset.rows:
        for place in (0, 1, len(row.data) // 2, len(row.data) - 1):
            with changed(row.shard, flipped(row.offset + place)):
                checked = open_dataset(dataset.folder, io=io)
                for read in (checked.record, checked.image, checked.__getitem__):
                    with pytest.raises(CorruptRecord) as caught:
                        read(row.number)
                    assert row.named_in(str(caught.value))
                    facts = caught.value.file, caught.value.row, caught.value.line
                    assert facts == (row.shard.name, row.number, row.line)
                assert checked.label(row.number) == row.label
                for other in dataset.rows:
                    if other is not row:
                        assert checked.record(other.number) == other.data
                        checked.image(other.number)


def damaged_encodings(data: bytes) -> Iterator[bytes]:
    """Records that decoders stumble over in many ways, of the same length."""
    for place in (*range(0, min(700, len(data)), 7), len(data) - 1):
        yield flipped(place, mask=0xFF)(data)
    frame = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    if frame > 0:
        yield data[: frame + 5] + b"\xff" * 4 + data[frame + 9 :]  # 65535 x 65535 pixels
    noise = np.random.default_rng(0).bytes(len(data))
    for magic in (
        b"",
        b"\xff\xd8\xff\xe0",
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        b"BM",
        b"II*\0\x08\0\0\0",
        b"8BPS\0\1",
        b"P6 9",
    ):
        yield (magic + noise)[: len(data)]


def test_what_cannot_be_decoded_is_named_without_the_check_too(dataset: Packed, io: str, store: str) -> None:
    row = dataset.rows[1]
    unchecked = open_dataset(dataset.folder, io=io, check=False)
    messages = []
    for record in damaged_encodings(row.data):
        with row.shard.open("r+b") as file:  # in place: the dataset stays open
            file.seek(row.offset)
            file.write(record)
        try:
            unchecked.image(row.number)
        except CorruptRecord as error:
            messages.append(str(error))
    # Raw pixels in HDF5 have no header, so nothing about them can be wrong.
    assert messages or (row.shard.suffix == ".h5" and "raw" in store)
    assert all(row.named_in(message) for message in messages)


def test_verify_names_each_damaged_record(dataset: Packed) -> None:
    for damaged in (dataset.rows, dataset.rows[::2], dataset.rows[1:2]):
        sound = {shard: shard.read_bytes() for shard in dataset.shards}
        for row in damaged:
            row.shard.write_bytes(flipped(row.offset + len(row.data) // 3)(row.shard.read_bytes()))
        problems = verify(dataset.folder).problems
        named = {problem.row: problem for problem in problems if problem.row is not None}
        assert named.keys() == {row.number for row in damaged}
        for row in damaged:
            problem = named[row.number]
            assert (problem.file, problem.line) == (row.shard.name, row.line)
            assert row.named_in(f"{problem.file}: {problem.message}")
        assert {problem.file for problem in problems} == {row.shard.name for row in damaged}
        for shard, data in sound.items():
            shard.write_bytes(data)


def some_offsets(path: Path) -> Iterator[tuple[int, int]]:
    """Four offsets, the first and the last among them, with a bit to flip at each."""
    size = path.stat().st_size
    return ((offset, 1 << offset % 8) for offset in sorted({*range(0, size, size // 3 + 1), size - 1}) if size)


def all_offsets(path: Path) -> Iterator[tuple[int, int]]:
    """Every offset, with a bit to flip and all of them; four hundred offsets of a shard."""
    size = path.stat().st_size
    step = size // 400 + 1 if path.name.startswith("train-") and path.suffix != ".idx" else 1
    return ((offset, mask) for offset in range(0, size, step) for mask in (1 << offset % 8, 0xFF))


def flip(dataset: Packed, io: str, cases: Iterable[tuple[str, int, int]]) -> None:
    for name, offset, mask in cases:
        with changed(dataset.folder / name, flipped(offset, mask=mask)):
            assert_named_by_verify(dataset.folder, name, (name, offset, mask))
            dataset.assert_right_or_refused(io, (name, offset, mask))


def test_a_flipped_byte_in_any_file_is_never_taken_for_data(plain: Packed, io: str, complete: bool) -> None:
    """The sample has every sixth case, so that two files next to each other have different ones."""
    cases = [(name, *case) for name in files(plain.folder) for case in some_offsets(plain.folder / name)]
    assert len(cases) > 60
    flip(plain, io, cases[:: 2 if complete else 6])


@pytest.mark.stress
@pytest.mark.parametrize("part", range(6))
def test_every_flipped_byte_in_any_file_is_never_taken_for_data(plain: Packed, io: str, part: int) -> None:
    cases = [(name, *case) for name in files(plain.folder) for case in all_offsets(plain.folder / name)]
    assert len(cases) > 9000
    flip(plain, io, cases[part::6])


@pytest.mark.complete
def test_a_cut_or_missing_file_is_never_taken_for_data(dataset: Packed, io: str) -> None:
    """Each file has half of the cases, the next file the other half."""
    for number, name in enumerate(files(dataset.folder)):
        path = dataset.folder / name
        cases = list(cut(path.read_bytes()))
        for data in cases[number % 2 :: 2]:
            with changed(path, lambda _, data=data: data):  # type: ignore[misc]
                case = (name, None if data is None else len(data))
                assert_named_by_verify(dataset.folder, name, case)
                dataset.assert_right_or_refused(io, case)


def test_a_missing_manifest_is_no_dataset(plain: Packed) -> None:
    (plain.folder / "manifest.json").unlink()
    for read in (open_dataset, verify):
        with pytest.raises(NotADataset, match=rf"Run the same pack command again; .*`packtrain status {plain.folder}`"):
            read(plain.folder)
    with pytest.raises(NotADataset, match=r"has no manifest\.json: not a dataset"):
        open_dataset(plain.folder / "index")


def test_a_manifest_of_a_newer_version_is_refused_by_number(plain: Packed) -> None:
    """Even where everything else about it is unknown, such as the place of its checksum."""
    newer = f"version {NEWEST + 1};.* up to {NEWEST}\\b"
    forge(plain.folder / "manifest.json", lambda body: body.update(version=NEWEST + 1))
    for read in (open_dataset, verify):
        with pytest.raises(UnsupportedVersion, match=newer):
            read(plain.folder)
    (plain.folder / "manifest.json").write_text(json.dumps({"version": NEWEST + 1, "all else": "is new"}))
    for read in (open_dataset, verify):
        with pytest.raises(UnsupportedVersion, match=newer):
            read(plain.folder)


Place = Callable[[dict[str, Any]], dict[str, Any]]
PLACES: dict[str, Place] = {
    "shard": lambda body: body["shards"][0],
    "sidecar": lambda body: body["shards"][0]["sidecars"][0],
    "rejects": lambda body: body["rejects_file"],
    "column": lambda body: body["columns"][0],
}
WHERE = {
    "shard": r"shards\[0\]",
    "sidecar": r"shards\[0\]\.sidecars\[0\]",
    "rejects": "rejects_file",
    "column": r"columns\[0\]",
}
OUTSIDE = ["../x", "/x", "..", ".", "", "index/../../x", "sub/x", "x\0y", "//x", 7, None, ["x"]]


@pytest.mark.parametrize("place", PLACES)
def test_a_manifest_that_names_files_elsewhere_is_refused(
    models: dict[tuple[str, str], tuple[Path, Path]], tmp_path: Path, place: str
) -> None:
    """Though its checksum is right, and though a sound file lies there."""
    folder = shutil.copytree(models["tar", "verbatim"][0], tmp_path / "dataset")
    original = PLACES[place](json.loads((folder / "manifest.json").read_text()))["name"]
    inside = folder / (f"index/{original}.npy" if place == "column" else original)
    for copy in (tmp_path / "x", tmp_path / "x.npy"):
        shutil.copy(inside, copy)
    sound = (folder / "manifest.json").read_bytes()
    for name in (*OUTSIDE, str(tmp_path / "x")):
        (folder / "manifest.json").write_bytes(sound)

        def rename(body: dict[str, Any], name: Any = name) -> None:
            PLACES[place](body).update(name=name)

        forge(folder / "manifest.json", rename)
        with pytest.raises(
            CorruptFile, match=rf"manifest\.json is damaged: {WHERE[place]}.name: expected the plain name of a file"
        ):
            open_dataset(folder)
        assert_named_by_verify(folder, "manifest.json", name)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("offset", -1),
        ("offset", -(1 << 62)),
        ("offset", 1 << 20),
        ("offset", (1 << 63) - 1),
        ("length", -1),
        ("length", 1 << 40),
        ("length", (1 << 63) - 1),
        ("shard", 3),
        ("shard", (1 << 32) - 1),
        ("width", -1),
        ("height", 1 << 30),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(
    models: dict[tuple[str, str], tuple[Path, Path]], tmp_path: Path, io: str, column: str, value: int
) -> None:
    """Even though all its checksums are right. Sizes matter only for raw records."""
    model, listing = models["lmdb", "raw"]
    dataset = Packed.at(shutil.copytree(model, tmp_path / "dataset"), listing)
    reindexed(dataset.folder, lambda columns: columns[column].put(1, value))
    opened = open_dataset(dataset.folder, io=io, check=False)
    with pytest.raises(DatasetError, match=r"row 1|names shard"):
        opened.image(1)
    for row in dataset.rows[2:]:
        assert opened.record(row.number) == row.data
