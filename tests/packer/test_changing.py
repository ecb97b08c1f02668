"""Laws of datasets that change: a version has what was put into it, for ever, and nothing that is there is written."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import pickle
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.support import FORMATS, encoded, flip, held, packed, picture, tree
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from packtrain import (
    FieldColumn,
    Loader,
    add_field,
    append,
    compact,
    drop_rows,
    drop_version,
    open_dataset,
    purge,
    relabel,
    verify,
)
from packtrain._packer.changing import ChangeReport
from packtrain._readers.dataset.summary import summarise
from packtrain.errors import CorruptFile, ListError, OutputConflict, UnsupportedVersion, UsageError
from packtrain.transforms import CenterCrop

from .conftest import Place

Sample = tuple[bytes, int]


class Images:
    """Image files that differ, and lists of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    def listed(self, count: int) -> tuple[Path, list[Sample]]:
        """A list of new files, and what a dataset of it has to hold."""
        samples, lines = list[Sample](), list[str]()
        for number in itertools.islice(self._numbers, count):
            data = encoded(picture(number, 16 + number % 3, 12))
            (self._folder / f"{number}.jpg").write_bytes(data)
            samples.append((data, number % 5))
            lines.append(f"{number}.jpg {number % 5}")
        listing = self._folder / f"list-{lines[0].split('.')[0]}.txt"
        listing.write_text("\n".join(lines))
        return listing, samples


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path)


@pytest.fixture
def changed(images: Images, tmp_path: Path) -> tuple[Path, list[Sample]]:
    """A dataset of three segments, with dropped rows in two of them, and what it holds."""
    first, samples = images.listed(7)
    out = packed(first, tmp_path / "out", "tar")
    for count in (3, 4):
        listing, more = images.listed(count)
        append(out, listing)
        samples += more
    dropped = {0, 3, 12}
    drop_rows(out, dropped)
    return out, [sample for row, sample in enumerate(samples) if row not in dropped]


def change(
    function: Callable[..., ChangeReport], out: Path | str, *arguments: Any, place: Place | None = None, **options: Any
) -> ChangeReport:
    """Changes a dataset, after a dry run that has to say what will be, and to write nothing."""
    place = place or Place()
    before = place.files(out)
    planned = function(out, *arguments, **options, dry_run=True)
    assert place.files(out) == before, "a dry run has written something"
    report = function(out, *arguments, **options)
    assert replace(planned, dry_run=False, written=(), bytes=0, removal=None) == replace(
        report, packed=None, removal=None
    )
    if planned.removal is not None and report.removal is not None:
        assert set(planned.removal.versions) <= set(report.removal.versions)
        assert set(planned.removal.removed) <= set(report.removal.removed)
    for path in {path for path in place.files(out) if path not in before and not path.endswith(".dropped")}:
        assert any(path.startswith(each.partition("*")[0]) for each in planned.written), path
    return report


def parts_named(out: Path) -> set[str]:
    """What the documents of versions without a mark name."""
    names = set[str]()
    for document in (each for each in out.glob("versions/*.json") if not each.with_suffix(".dropped").exists()):
        for segment in json.loads(document.read_bytes())["segments"]:
            names.add("base.json" if segment["name"] == "base" else f"segments/{segment['name']}")
            names |= {f"layers/{layer['name']}" for layer in segment["layers"]}
            names |= {f"dropped/{segment['dropped']['name']}.npy"} if segment["dropped"] else set()
    return names


def segments(out: Path) -> list[str]:
    """The segments of the newest version."""
    document = max(out.glob("versions/*.json"), default=None)
    return [] if document is None else [each["name"] for each in json.loads(document.read_bytes())["segments"]]


def is_marked(out: Path, number: int) -> bool:
    """True if a version was dropped."""
    return (out / f"versions/{number:08d}.dropped").exists()


def parts_there(out: Path) -> set[str]:
    """What lies where such parts do; of the first segment, all files or none."""
    alone = {path.name for path in out.iterdir()} - {"manifest.json", "versions", "segments", "layers", "dropped"}
    assert not alone or {"base.json", "plan.json", "index", "rejects.jsonl"} < alone
    return {"base.json"} & alone | {
        str(path.relative_to(out)) for place in ("segments", "layers", "dropped") for path in out.glob(f"{place}/*")
    }


class Changes(RuleBasedStateMachine):
    """Any changes one after the other, beside a list of what each version has to hold."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.images = Images(self.folder)
        self.out = self.folder / "out"

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(count=st.integers(1, 5), format=st.sampled_from(FORMATS))
    def pack(self, count: int, format: str) -> None:
        listing, samples = self.images.listed(count)
        packed(listing, self.out, format)
        self.versions, self.files, self.gone = [samples], tree(self.out), set[int]()

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        listing, samples = self.images.listed(count)
        report = change(append, self.out, listing)
        self.versions.append(self.versions[-1] + samples)
        assert (report.version, report.records, report.added) == (len(self.versions), len(self.versions[-1]), count)
        assert append(self.out, listing).version == report.version, "a list was appended twice"

    @precondition(lambda self: len(self.versions[-1]) > 1)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        there = self.versions[-1]
        rows = data.draw(st.sets(st.integers(0, len(there) - 1), min_size=1, max_size=len(there) - 1))
        change(drop_rows, self.out, rows)
        self.versions.append([sample for row, sample in enumerate(there) if row not in rows])

    @rule(data=st.data())
    def relabel(self, data: st.DataObject) -> None:
        there, dataset = self.versions[-1], open_dataset(self.out)
        said = data.draw(st.dictionaries(st.integers(0, len(there) - 1), st.integers(0, 4), min_size=1))
        listing = self.folder / "labels.txt"
        listing.write_text("".join(f"{dataset.filename(row)} {label}\n" for row, label in said.items()))
        samples = [(image, said.get(row, label)) for row, (image, label) in enumerate(there)]
        report = change(relabel, self.out, listing)
        if samples != there:
            self.versions.append(samples)
        assert report.version == len(self.versions)

    @precondition(lambda self: len(segments(self.out)) > 1)
    @rule()
    def compact(self) -> None:
        change(compact, self.out)
        self.versions.append(self.versions[-1])
        assert len(segments(self.out)) == 1
        assert compact(self.out).version == len(self.versions), "nothing is left to join"

    @precondition(lambda self: len(self.versions[-1]) > 1)
    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        there = self.versions[-1]
        rows = data.draw(st.sets(st.integers(0, len(there) - 1), min_size=1, max_size=len(there) - 1))
        report = change(purge, self.out, rows)
        self.versions += [[]] * (report.version - len(self.versions))
        self.versions[-1] = [sample for row, sample in enumerate(there) if row not in rows]
        self.gone |= {number for number in range(1, report.version) if is_marked(self.out, number)}
        now = tree(self.out)
        for row in rows:
            assert not any(there[row][0] in content for content in now.values()), "the bytes of a row are still there"
        self.files = {path: content for path, content in self.files.items() if path in now}
        assert parts_there(self.out) == parts_named(self.out)

    @precondition(lambda self: len(self.versions) > 1)
    @rule(data=st.data())
    def drop_version(self, data: st.DataObject) -> None:
        numbers = data.draw(st.sets(st.integers(1, len(self.versions) - 1), min_size=1))
        planned = drop_version(self.out, numbers, dry_run=True)
        assert tree(self.out).keys() == self.files.keys(), "a dry run has changed something"
        assert replace(planned, dry_run=False) == drop_version(self.out, numbers)
        assert drop_version(self.out, numbers).removed == ()
        self.gone |= numbers
        for number in numbers:
            self.versions[number - 1] = []
        self.files = {path: data for path, data in self.files.items() if path in tree(self.out)}
        assert parts_there(self.out) == parts_named(self.out)

    @invariant()
    def each_version_is_what_it_was(self) -> None:
        for number, samples in enumerate(self.versions, 1) if len(self.versions) > 1 else ():
            if number in self.gone:
                with pytest.raises(UsageError, match=f"version {number} was dropped"):
                    open_dataset(self.out, version=number)
            else:
                assert held(open_dataset(self.out, version=number)) == samples
        assert held(open_dataset(self.out)) == self.versions[-1]

    @invariant()
    def no_file_is_written_again(self) -> None:
        now = tree(self.out)
        assert {**now, **self.files, "manifest.json": now["manifest.json"]} == now
        self.files = now


TestChanges = Changes.TestCase
EXAMPLES = max(10, settings().max_examples // 4)
TestChanges.settings = settings(max_examples=EXAMPLES, stateful_step_count=6, deadline=None)


def test_a_list_that_is_there_is_not_appended(images: Images, tmp_path: Path) -> None:
    listing, samples = images.listed(3)
    out = packed(listing, tmp_path / "out", "lmdb", shard_size=700)
    assert append(out, listing).version == 1
    assert held(open_dataset(out)) == samples


def test_old_readers_refuse_by_number(changed: tuple[Path, list[Sample]]) -> None:
    body = json.loads((changed[0] / "manifest.json").read_bytes())
    assert body["version"] == 3


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_reads_the_same(changed: tuple[Path, list[Sample]], method: str) -> None:
    out, samples = changed
    dataset = open_dataset(out)
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        assert pool.submit(held, dataset).result() == samples


def test_a_loader_gives_each_sample_once(changed: tuple[Path, list[Sample]]) -> None:
    out, samples = changed
    with Loader(open_dataset(out, [CenterCrop(8)]), 4, shuffle=True, num_workers=2, fields=["row"]) as loader:
        rows = np.concatenate([batch[2] for batch in loader])
    assert sorted(rows) == list(range(len(samples)))


def test_a_version_that_is_open_stays(changed: tuple[Path, list[Sample]], images: Images) -> None:
    out, samples = changed
    dataset = open_dataset(out)
    append(out, images.listed(2)[0])
    drop_rows(out, [0])
    assert held(dataset) == samples
    assert held(pickle.loads(pickle.dumps(dataset))) == samples


def test_an_append_writes_what_is_appended(changed: tuple[Path, list[Sample]], images: Images) -> None:
    out, _ = changed
    before = tree(out)
    append(out, images.listed(1)[0])
    added = {name: len(data) for name, data in tree(out).items() if name not in before}
    assert all(name.startswith(("segments/", "versions/")) for name in added)
    assert sum(added.values()) < 32 * 1024


@pytest.mark.parametrize("name", ["manifest.json", "base.json", "versions/00000004.json", "dropped", "segments"])
def test_damage_is_named(changed: tuple[Path, list[Sample]], name: str) -> None:
    out, _ = changed
    path = out / name
    if path.is_dir():
        path = max(path.rglob("manifest.json" if name == "segments" else "*.npy"))
    flip(path, path.stat().st_size // 2)
    with pytest.raises((CorruptFile, UnsupportedVersion), match=path.name):
        open_dataset(out)


def test_verify_reads_every_segment_once(changed: tuple[Path, list[Sample]]) -> None:
    out, _ = changed
    assert (verify(out).records, verify(out).problems, len(verify(out).orphans)) == (14, (), 0)
    (out / "segments" / "0123456789abcdef").mkdir()
    shards = [out / "list-0-000000.tar", *out.glob("segments/*/*.tar")]
    for shard in shards:
        flip(shard, 600)
    report = verify(out)
    assert report.orphans == ("segments/0123456789abcdef",)
    assert {problem.file for problem in report.problems} == {str(shard.relative_to(out)) for shard in shards}


@pytest.mark.parametrize("number", [1, 2, 4])
def test_verify_names_a_damaged_version(changed: tuple[Path, list[Sample]], number: int) -> None:
    out, _ = changed
    flip(out / f"versions/0000000{number}.json", 200)
    assert [problem.file for problem in verify(out).problems] == [f"versions/0000000{number}.json"]


def test_info_counts_what_the_newest_version_has(changed: tuple[Path, list[Sample]]) -> None:
    out, samples = changed
    summary = summarise(out)
    labels = [label for _, label in samples]
    assert (summary.version, summary.segments, summary.manifest.records) == (4, 3, len(samples))
    assert summary.label_counts == {label: labels.count(label) for label in sorted(set(labels))}
    sizes = sorted(len(data) for data, _ in samples)
    bytes = summary.fields["image"].record_bytes
    assert bytes is not None
    assert (bytes.min, bytes.max) == (sizes[0], sizes[-1])


def captions(out: Path, listing: Path, chosen: Callable[[int], bool] = lambda row: True) -> Path:
    """A list of a caption and two numbers for some of the rows of a dataset, in another order."""
    dataset = open_dataset(out)
    rows = [row for row in reversed(range(len(dataset))) if chosen(row)]
    lines = [json.dumps({"path": dataset.filename(row), "says": f"n{row}", "box": [row, 0.5]}) for row in rows]
    listing.write_text("".join(f"{line}\n" for line in lines))
    return listing


CAPTION = FieldColumn("caption", "text", "says", by_path=False)
BOX = FieldColumn("box", "array", "box", by_path=False)


def test_added_fields_belong_to_their_samples(
    changed: tuple[Path, list[Sample]], tmp_path: Path, images: Images
) -> None:
    out, samples = changed
    before = tree(out)
    report = change(add_field, out, captions(out, tmp_path / "more.jsonl"), [CAPTION, BOX])
    assert (report.version, report.records) == (5, len(samples))
    dataset = open_dataset(out, fields=["image", "label", "caption", "box"])
    for row, sample in enumerate(samples):
        assert (bytes(dataset.record(row)), dataset[row].label) == sample
        assert dataset[row].caption == f"n{row}"
        np.testing.assert_array_equal(dataset[row].box, [row, 0.5])
    assert {**tree(out), **before} == tree(out), "a file was written again"
    assert not verify(out).problems
    assert held(open_dataset(out, version=4)) == samples
    # What comes later is without it.
    append(out, images.listed(1)[0])
    newest = open_dataset(out)
    assert newest.value(len(samples), "caption") is None
    pytest.importorskip("polars")
    assert [len(newest.where(f"caption is {what}null")) for what in ("", "not ")] == [1, len(samples)]


def test_records_of_a_layer_lie_in_the_order_of_the_segment(changed: tuple[Path, list[Sample]], tmp_path: Path) -> None:
    out, _ = changed
    add_field(out, captions(out, tmp_path / "more.jsonl"), [CAPTION])
    for folder in (out, *out.glob("segments/*")):
        orders = [np.load(layer / "index/by_place.npy") for layer in out.glob("layers/*")]
        assert any(np.array_equal(np.load(folder / "index/by_place.npy"), order) for order in orders)
    offset = {layer: np.load(layer / "index/field.caption.offset.npy") for layer in out.glob("layers/*")}
    for layer, offsets in offset.items():
        placed = offsets[np.load(layer / "index/by_place.npy")]
        assert (np.diff(placed[placed > 0]) > 0).all()


def test_a_field_may_be_missing_or_replaced(changed: tuple[Path, list[Sample]], tmp_path: Path) -> None:
    out, samples = changed
    listing = captions(out, tmp_path / "some.jsonl", lambda row: row % 2 == 0)
    add_field(out, listing, [replace(CAPTION, optional=True), replace(BOX, optional=True)])
    dataset = open_dataset(out, fields=["caption", "box"])
    assert [dataset[row].caption for row in range(len(dataset))] == [
        None if row % 2 else f"n{row}" for row in range(len(samples))
    ]
    with pytest.raises(UsageError, match="a field caption already"):
        add_field(out, listing, [replace(CAPTION, optional=True)])
    add_field(out, captions(out, tmp_path / "all.jsonl"), [CAPTION], replace_existing=True)
    dataset = open_dataset(out, fields=["caption", "box"])
    assert [dataset[row].caption for row in range(len(dataset))] == [f"n{row}" for row in range(len(samples))]
    assert dataset[1].box is None


def test_keys_that_do_not_fit_are_named(changed: tuple[Path, list[Sample]], tmp_path: Path) -> None:
    out, _ = changed
    listing = captions(out, tmp_path / "all.jsonl")
    lines = listing.read_text().splitlines(keepends=True)
    for text, message in [
        ("".join(lines[1:]), r"has nothing for some samples .*13\.jpg.*--optional"),
        ("".join([*lines, lines[3]]), r"line 11 has the same key as line 3: "),
        (
            "".join([*lines, json.dumps({"path": "x.jpg", "says": "", "box": [1, 2]})]),
            r"1 keys name no sample .*'x\.jpg'",
        ),
    ]:
        listing.write_text(text)
        with pytest.raises(ListError, match=message):
            add_field(out, listing, [CAPTION])
    listing.write_text("".join(lines))
    with pytest.raises(UsageError, match="a mask cannot be added"):
        add_field(out, listing, [FieldColumn("seg", "mask", "says", by_path=True)])
    append(out, _again(tmp_path))
    with pytest.raises(ListError, match=r"several samples have the same path, such as '13\.jpg'"):
        add_field(out, listing, [CAPTION])


def _again(folder: Path) -> Path:
    """A list of an image that the dataset has."""
    (folder / "again.txt").write_text("13.jpg 3\n")
    return folder / "again.txt"


def content(out: Path) -> list[tuple[Any, ...]]:
    """All that the rows of a dataset hold: paths, labels and the records of each field."""
    dataset = open_dataset(out)
    return [
        (
            dataset.filename(row),
            dataset.label(row),
            *(dataset.value(row, name) is not None and bytes(dataset.record(row, name)) for name in FIELDS),
        )
        for row in range(len(dataset))
    ]


FIELDS = ("image", "caption", "box")


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_joined_stays_byte_for_byte(images: Images, tmp_path: Path, place: Place, format: str) -> None:
    """With fields that some rows or segments are without, in any container, and with shards of several sizes."""
    out = packed(images.listed(6)[0], tmp_path / "out", format, shard_size=900)
    append(out, images.listed(5)[0])
    optional = [replace(CAPTION, optional=True), replace(BOX, optional=True)]
    add_field(out, captions(out, tmp_path / "some.jsonl", lambda row: row % 3 > 0), optional)
    append(out, images.listed(2)[0])
    drop_rows(out, [0, 7, 11])
    before, schema = content(out), open_dataset(out).schema
    change(compact, place.put(out), place=place, num_workers=place.workers)
    place.here(out)
    assert content(out) == before
    assert open_dataset(out).schema.names == schema.names
    assert open_dataset(out).schema.classes == schema.classes
    assert not verify(out).problems
    document = json.loads(max(out.glob("versions/*.json")).read_bytes())
    assert document["change"] == {"kind": "compact", "text": "joined 3 segments into 1"}
    # It goes on as before.
    listing, samples = images.listed(2)
    append(out, listing)
    assert [(row[2], row[1]) for row in content(out)[-2:]] == samples
    drop_version(out, range(1, 6))
    assert content(out)[:-2] == before


def test_nothing_of_a_purged_row_is_left(images: Images, tmp_path: Path, place: Place) -> None:
    """Neither record, path nor caption, wherever the row was: in a layer, an old segment, or dropped before."""
    out = packed(images.listed(4)[0], tmp_path / "out", "tar")
    append(out, images.listed(4)[0])
    dataset = open_dataset(out)
    listing = tmp_path / "captions.jsonl"
    secret = {row: f"the secret of row {row}" for row in range(8)}
    listing.write_text("".join(json.dumps({"path": f"{row}.jpg", "says": secret[row]}) + "\n" for row in range(8)))
    add_field(out, listing, [CAPTION])
    append(out, images.listed(1)[0])
    compact(out, segments_under="1GB")
    drop_rows(out, [6])
    records = [bytes(dataset.record(row)) for row in range(8)]
    before = tree(out)
    with pytest.raises(OutputConflict, match=r"version 2 is open by process"):
        purge(out, [1])
    assert tree(out) == before
    del dataset
    there = place.put(out)
    report = change(purge, there, [1], place=place)
    place.settle(there)
    place.here(out)
    assert (report.version, report.records, report.dropped) == (8, 7, 1)
    now = tree(out)
    for row in (1, 6):
        for part in (records[row], f"{row}.jpg".encode(), secret[row].encode()):
            assert any(part in data for data in before.values())
            assert not [name for name, data in now.items() if part in data]
    left = open_dataset(out, fields=["label", "caption"])
    rows = [row for row in range(9) if row not in (1, 6)]
    assert [left.filename(row) for row in range(7)] == [f"{row}.jpg" for row in rows]
    assert [left[row].caption for row in range(7)] == [secret.get(row) for row in rows]
    assert not verify(out).problems
    with pytest.raises(UsageError, match=f"^{there}: there is nothing to remove: say which rows"):
        purge(there)


def test_segments_that_are_large_or_stored_otherwise_are_not_joined(images: Images, tmp_path: Path) -> None:
    out = packed(images.listed(30)[0], tmp_path / "out", "tar")
    for count in (1, 2, 40, 3):
        append(out, images.listed(count)[0])
    before, names = held(open_dataset(out)), segments(out)
    size = 1 + max(path.stat().st_size for path in out.glob(f"segments/{names[2]}/*.tar"))
    assert compact(out, segments_under=size).joined == 2
    assert (segments(out)[0], *segments(out)[2:]) == (names[0], *names[3:])
    assert held(open_dataset(out)) == before


def test_rows_are_dropped_by_a_condition(changed: tuple[Path, list[Sample]]) -> None:
    """Its rows are those of the newest version, whatever segment they are in."""
    pytest.importorskip("polars")
    out, samples = changed
    left = [sample for row, sample in enumerate(samples) if sample[1] != 2 and row != 10]
    assert change(drop_rows, out, where="label = 2 or row = 10").dropped == len(samples) - len(left)
    assert held(open_dataset(out)) == left


def test_what_cannot_be_is_refused(changed: tuple[Path, list[Sample]], images: Images, tmp_path: Path) -> None:
    out, samples = changed
    with pytest.raises(UsageError, match="no row would be left"):
        drop_rows(out, range(len(samples)))
    with pytest.raises(UsageError, match=f"rows 0 to {len(samples)} of a dataset of {len(samples)} rows"):
        drop_rows(out, [0, len(samples)])
    with pytest.raises(UsageError, match="either `rows` or `where`"):
        drop_rows(out)
    with pytest.raises(UsageError, match="no row to drop"):
        drop_rows(out, [])
    with pytest.raises(UsageError, match="version 9 does not exist; there are 1, 2, 3, 4"):
        open_dataset(out, version=9)
    listing, _ = images.listed(1)
    with pytest.raises(UsageError, match="never been changed"):
        open_dataset(packed(listing, tmp_path / "other", "tar"), version=1)
    with pytest.raises(UnsupportedVersion, match="has versions"):
        packed(listing, out, "tar")
