"""Laws of datasets that change: a version has what was put into it, for ever, and nothing that is there is written."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.support import FORMATS, encoded, flip, held, packed, picture, tree
from helpers.versions import same
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from packtrain import (
    Columns,
    FieldColumn,
    PackOptions,
    StoreOptions,
    add_field,
    append,
    compact,
    drop_rows,
    drop_version,
    merge_datasets,
    open_dataset,
    pack,
    purge,
    relabel,
    verify,
)
from packtrain._packer.changing import ChangeReport
from packtrain._readers.dataset.summary import summarise
from packtrain.errors import CorruptFile, ListError, OutputConflict, UnsupportedVersion, UsageError

from .conftest import Place

Sample = tuple[bytes, int]
Row = dict[str, Any]
KINDS = {"count": "int64", "score": "float64", "sharp": "bool", "source": "string", "caption": "text"}
"""Fields, all but the last of which lie in the index: what they are, or the types of numbers."""
TEXTS = ("string", "text")
FIELDS = tuple(
    FieldColumn(name, kind, name, by_path=False, optional=True)
    if kind in TEXTS
    else FieldColumn(name, "number", name, by_path=False, optional=True, dtype=kind)
    for name, kind in KINDS.items()
)
COLUMNS = Columns("path", "label", FIELDS)
NOTHING: Row = dict.fromkeys(KINDS)
SHORT = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES = st.fixed_dictionaries(
    {
        "count": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "score": st.none() | st.floats(width=64),
        "sharp": st.none() | st.booleans(),
        "source": SHORT,
        "caption": SHORT,
    }
)


def assert_holds(dataset: Any, rows: list[Row]) -> None:
    """Makes sure that a dataset has these rows, and nothing where a field is not there at all."""
    assert held(dataset) == [(row["image"], row["label"]) for row in rows]
    for name in KINDS:
        there = name in dataset.schema.names
        found = [dataset.value(row, name) if there else None for row in range(len(rows))]
        assert all(map(same, found, [row[name] for row in rows])), (name, found, rows)


def options(format: str, columns: Columns) -> PackOptions:
    """Options by which images stay what they are."""
    return PackOptions(format, StoreOptions("verbatim"), columns=columns)


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
    """The files that documents of versions without a mark name."""
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
    """The files that lie where such parts do; of the first segment, all files or none."""
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
        self.out = self.folder / "out"
        self.count = 0

    def teardown(self) -> None:
        try:
            if self.out.exists():
                assert not verify(self.out).problems
                self.conditions_find_the_same_rows()
        finally:
            shutil.rmtree(self.folder)

    def listed(self, values: list[Row]) -> tuple[Path, list[Row]]:
        """A list of new samples with these values, and what a dataset of it has to hold; each text is its own."""
        rows, lines = list[Row](), list[Row]()
        for each in values:
            self.count += 1
            image, name = encoded(picture(self.count, 16 + self.count % 3, 12)), f"{self.count}.jpg"
            (self.folder / name).write_bytes(image)
            row = self.own(each) | {"label": self.count % 5}
            lines.append({"path": name, **row})
            rows.append({"image": image, **row})
        listing = self.folder / f"list-{self.count}.jsonl"
        listing.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return listing, rows

    def own(self, row: Row) -> Row:
        """The same values, but for texts, which no other sample has."""
        self.count += 1
        return row | {name: f"<{self.count}>{row[name]}" for name in row if KINDS[name] in TEXTS and row[name]}

    def begin(self, rows: list[Row]) -> None:
        self.versions, self.files, self.gone = [rows], tree(self.out), set[int]()

    @initialize(values=st.lists(VALUES, min_size=1, max_size=4), format=st.sampled_from(FORMATS), bare=st.booleans())
    def pack(self, values: list[Row], format: str, bare: bool) -> None:
        listing, rows = self.listed(values)
        pack(listing, self.out, options(format, Columns("path", "label") if bare else COLUMNS))
        self.begin([row | NOTHING for row in rows] if bare else rows)

    @rule(format=st.sampled_from(FORMATS), seed=st.sampled_from([0, None]))
    def pack_again(self, format: str, seed: int | None) -> None:
        self.count += 1
        again = self.folder / f"again {self.count}"
        pack(self.out, again, PackOptions(format, seed=seed))
        self.out = again
        self.begin(self.versions[-1])

    @rule(values=st.lists(VALUES, min_size=1, max_size=2), format=st.sampled_from(FORMATS))
    def merge(self, values: list[Row], format: str) -> None:
        listing, rows = self.listed(values)
        pack(listing, listing.with_suffix(""), options(format, COLUMNS))
        out = self.folder / f"merged {self.count}"
        merge_datasets([self.out, listing.with_suffix("")], out)
        self.out = out
        self.begin(self.versions[-1] + rows)

    @rule(values=st.lists(VALUES, min_size=1, max_size=3), by_dataset=st.booleans())
    def append(self, values: list[Row], by_dataset: bool) -> None:
        source, rows = self.listed(values)
        columns: Columns | None = COLUMNS
        if by_dataset:
            pack(source, source.with_suffix(""), options("tar", COLUMNS))
            source, columns = source.with_suffix(""), None
        report = change(append, self.out, source, columns=columns)
        self.versions.append(self.versions[-1] + rows)
        assert (report.version, report.records, report.added) == (
            len(self.versions),
            len(self.versions[-1]),
            len(rows),
        )
        assert append(self.out, source, columns=columns).version == report.version, "a list was appended twice"

    @rule(data=st.data(), names=st.sets(st.sampled_from(list(KINDS)), min_size=1))
    def add(self, data: st.DataObject, names: set[str]) -> None:
        """Fields of all rows, which take the place of what was there."""
        there, dataset = self.versions[-1], open_dataset(self.out)
        found = data.draw(st.lists(VALUES, min_size=len(there), max_size=len(there)))
        said = [self.own({name: row[name] for name in names}) for row in found]
        lines = [json.dumps({"path": dataset.filename(row), **each}) for row, each in enumerate(said)]
        (self.folder / "added.jsonl").write_text("\n".join(lines[::-1]))
        fields = [field for field in FIELDS if field.name in names]
        change(add_field, self.out, self.folder / "added.jsonl", fields, replace_existing=True)
        self.versions.append([row | each for row, each in zip(there, said, strict=True)])

    @rule(data=st.data())
    def relabel(self, data: st.DataObject) -> None:
        there, dataset = self.versions[-1], open_dataset(self.out)
        said = data.draw(st.dictionaries(st.integers(0, len(there) - 1), st.integers(0, 4), min_size=1))
        listing = self.folder / "labels.txt"
        listing.write_text("".join(f"{dataset.filename(row)} {label}\n" for row, label in said.items()))
        report = change(relabel, self.out, listing)
        if any(there[row]["label"] != label for row, label in said.items()):
            self.versions.append([row | {"label": said.get(n, row["label"])} for n, row in enumerate(there)])
        assert report.version == len(self.versions)

    @precondition(lambda self: len(segments(self.out)) > 1)
    @rule()
    def compact(self) -> None:
        change(compact, self.out)
        self.versions.append(self.versions[-1])
        assert len(segments(self.out)) == 1
        assert compact(self.out).version == len(self.versions), "nothing is left to join"

    @precondition(lambda self: len(self.versions[-1]) > 1)
    @rule(data=st.data(), purged=st.booleans())
    def drop(self, data: st.DataObject, purged: bool) -> None:
        there = self.versions[-1]
        rows = data.draw(st.sets(st.integers(0, len(there) - 1), min_size=1, max_size=len(there) - 1))
        report = change(purge if purged else drop_rows, self.out, rows)
        self.versions += [[]] * (report.version - len(self.versions))
        self.versions[-1] = [each for row, each in enumerate(there) if row not in rows]
        if not purged:
            return
        self.gone |= {number for number in range(1, report.version) if is_marked(self.out, number)}
        now = tree(self.out)
        texts = (there[row][name] for row in rows for name in ("source", "caption"))
        for part in [there[row]["image"] for row in rows] + [text.encode() for text in texts if text]:
            assert not any(part in content for content in now.values()), "the bytes of a row are still there"
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
        for number, rows in enumerate(self.versions, 1) if len(self.versions) > 1 else ():
            if number in self.gone:
                with pytest.raises(UsageError, match=f"version {number} was dropped"):
                    open_dataset(self.out, version=number)
            else:
                assert_holds(open_dataset(self.out, version=number), rows)
        assert_holds(open_dataset(self.out), self.versions[-1])

    @invariant()
    def no_file_is_written_again(self) -> None:
        now = tree(self.out)
        assert {**now, **self.files, "manifest.json": now["manifest.json"]} == now
        self.files = now

    def conditions_find_the_same_rows(self) -> None:
        pytest.importorskip("polars")
        dataset = open_dataset(self.out)
        for name, condition, chosen in (
            ("count", "count < 0", lambda value: value is not None and value < 0),
            ("score", "score is null", lambda value: value is None),
            ("sharp", "sharp", lambda value: value is True),
            ("source", "length(source) > 4", lambda value: len(value or "") > 4),
        ):
            if name in dataset.schema.names:
                rows = [row for row, each in enumerate(self.versions[-1]) if chosen(each[name])]
                assert held(dataset.where(condition)) == [held(dataset)[row] for row in rows], condition


TestChanges = Changes.TestCase
EXAMPLES = max(5, settings().max_examples // 3)
TestChanges.settings = settings(max_examples=EXAMPLES, stateful_step_count=6, deadline=None)


def test_a_list_that_is_there_is_not_appended(images: Images, tmp_path: Path) -> None:
    listing, samples = images.listed(3)
    out = packed(listing, tmp_path / "out", "lmdb", shard_size=700)
    assert append(out, listing).version == 1
    assert held(open_dataset(out)) == samples


def test_a_version_that_is_open_stays(changed: tuple[Path, list[Sample]], images: Images) -> None:
    out, samples = changed
    dataset = open_dataset(out)
    append(out, images.listed(2)[0])
    drop_rows(out, [0])
    assert held(dataset) == samples
    assert held(pickle.loads(pickle.dumps(dataset))) == samples


@pytest.mark.parametrize("name", ["manifest.json", "base.json", "versions/00000004.json", "dropped", "segments"])
def test_damage_is_named(changed: tuple[Path, list[Sample]], name: str) -> None:
    out, _ = changed
    path = out / name
    if path.is_dir():
        path = max(path.rglob("manifest.json" if name == "segments" else "*.npy"))
    flip(path, path.stat().st_size // 2)
    with pytest.raises((CorruptFile, UnsupportedVersion), match=path.name):
        open_dataset(out)


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


def captions(out: Path, listing: Path) -> Path:
    """A list of a caption and two numbers for the rows of a dataset, in another order."""
    dataset = open_dataset(out)
    rows = list(reversed(range(len(dataset))))
    lines = [json.dumps({"path": dataset.filename(row), "says": f"n{row}", "box": [row, 0.5]}) for row in rows]
    listing.write_text("".join(f"{line}\n" for line in lines))
    return listing


CAPTION = FieldColumn("caption", "text", "says", by_path=False)
BOX = FieldColumn("box", "array", "box", by_path=False)


@pytest.mark.complete
def test_records_of_a_layer_lie_in_the_order_of_the_segment(changed: tuple[Path, list[Sample]], tmp_path: Path) -> None:
    out, _ = changed
    change(add_field, out, captions(out, tmp_path / "more.jsonl"), [CAPTION, BOX])
    dataset = open_dataset(out, fields=["caption", "box"])
    for row in range(len(dataset)):
        assert dataset[row].caption == f"n{row}"
        np.testing.assert_array_equal(dataset[row].box, [row, 0.5])
    with pytest.raises(UsageError, match="a field caption already: give another name, or add --replace"):
        add_field(out, tmp_path / "more.jsonl", [CAPTION])
    assert not verify(out).problems, "by_place is that of the segment"
    for layer in out.glob("layers/*"):
        placed = np.load(layer / "index/field.caption.offset.npy")[np.load(layer / "index/by_place.npy")]
        assert (np.diff(placed[placed > 0]) > 0).all()


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


@pytest.mark.parametrize("removing", [drop_rows, purge])
@pytest.mark.parametrize("numpy", [False, True])
@pytest.mark.parametrize("way", ["numbers", "from the end", "mask"])
def test_the_rows_that_go_are_those_of_a_subset(
    way: str, numpy: bool, removing: Callable[..., ChangeReport], images: Images, tmp_path: Path
) -> None:
    listing, samples = images.listed(6)
    out = packed(listing, tmp_path / "out", "tar")
    rows = {"numbers": [4, 1, 4], "from the end": [-2, 1], "mask": [row in (1, 4) for row in range(6)]}[way]
    given: Any = np.array(rows) if numpy else rows
    assert {held(open_dataset(out).subset(given))[row] for row in (0, 1)} == {samples[1], samples[4]}
    removing(out, given)
    assert held(open_dataset(out)) == [sample for row, sample in enumerate(samples) if row not in (1, 4)]


def test_fields_and_classes_go_with_the_last_segment_that_has_them(images: Images, tmp_path: Path) -> None:
    listing, samples = images.listed(2)
    out = tmp_path / "out"
    pack(listing, out, PackOptions("tar", StoreOptions("verbatim"), classes=("a", "b", "c", "d", "e")))
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"path": "0.jpg", "label": 5, "caption": "new"}))
    columns = Columns("path", "label", (FieldColumn("caption", "text", "caption", by_path=False),))
    append(out, more, columns=columns, classes=("a", "b", "c", "d", "e", "f"))
    assert open_dataset(out).schema.names == ("image", "caption")
    drop_rows(out, [2])
    left = open_dataset(out)
    assert (left.schema.names, left.classes) == (("image",), ("a", "b", "c", "d", "e"))
    assert held(left) == samples
    assert not verify(out).problems


def test_what_cannot_be_is_refused(changed: tuple[Path, list[Sample]], images: Images, tmp_path: Path) -> None:
    out, samples = changed
    with pytest.raises(UsageError, match="no row would be left"):
        drop_rows(out, range(len(samples)))
    with pytest.raises(UsageError, match=f"rows 0 to {len(samples)} of a dataset of {len(samples)} rows"):
        drop_rows(out, [0, len(samples)])
    for rows, message in (([1.9], "whole numbers, or a boolean for each"), ([True, False], "a mask of shape")):
        with pytest.raises(UsageError, match=message):
            drop_rows(out, rows)  # type: ignore[arg-type]  # what a caller may give without a type checker
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
