"""Laws of `dataset_report`: planted copies, leaks and oddities are found, and nothing that is damaged ends it."""

from __future__ import annotations

import io
import os
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datasets import NO_IMAGE, make_dataset
from helpers.support import FORMATS, encoded, flip, packed, picture, require_module
from PIL import Image

from packtrain import StoreOptions, append, dataset_report, drop_rows, open_dataset, split
from packtrain._core.version_files import version_numbers
from packtrain._extras.report import looks
from packtrain.errors import UsageError
from packtrain.reports import DatasetReport, ReportProgress

WIDTH, HEIGHT = 320, 240


def scene(seed: int) -> Image.Image:
    return picture(seed, WIDTH, HEIGHT)


def cropped(image: Image.Image, share: float) -> Image.Image:
    return image.crop((0, 0, round(image.width * share), round(image.height * share)))


def truncated() -> Image.Image:
    """Returns what libjpeg makes of the first half of a JPEG."""
    pixels = np.asarray(scene(90)).copy()
    pixels[HEIGHT // 2 :] = 128
    return Image.fromarray(pixels)


IMAGES: dict[str, bytes] = {
    **{f"a{seed}.jpg": encoded(scene(seed), quality=92) for seed in range(6)},
    "copy of a0.jpg": encoded(scene(0), quality=92),
    "again a1.jpg": encoded(scene(1), quality=60),
    "mirrored a2.jpg": encoded(scene(2).transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    "small a3.jpg": encoded(scene(3).resize((160, 120))),
    "part of a4.jpg": encoded(cropped(scene(4), 0.92)),
    "grey.jpg": encoded(Image.new("RGB", (WIDTH, HEIGHT), (90, 90, 90))),
    "grey too.jpg": encoded(Image.new("RGB", (WIDTH, HEIGHT), (30, 120, 30))),
    "tiny.jpg": encoded(picture(91, 31, 40)),
    "long.jpg": encoded(picture(92, 100, 401)),
    "cut off.jpg": encoded(truncated(), quality=95),
}
SUSPECTS = {
    ("truncated", "cut off.jpg"),
    ("one colour", "grey.jpg"),
    ("one colour", "grey too.jpg"),
    ("tiny", "tiny.jpg"),
    ("elongated", "long.jpg"),
}
NEAR = {
    frozenset({"a1.jpg", "again a1.jpg"}),
    frozenset({"a2.jpg", "mirrored a2.jpg"}),
    frozenset({"a3.jpg", "small a3.jpg"}),
    frozenset({"a4.jpg", "part of a4.jpg"}),
}


def list_of(folder: Path, images: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in images.items():
        (folder / name).write_bytes(data)
    listing = folder / "train.txt"
    listing.write_text("".join(f"{name} {number % 2}\n" for number, name in enumerate(images)))
    return listing


def dataset_of(folder: Path, images: dict[str, bytes], format: str = "tar", **options: Any) -> Path:
    return packed(list_of(folder, images), folder / "packed", format, **options)


def changed_of(folder: Path, images: dict[str, bytes]) -> Path:
    """The same images in the same order, in three segments; what each had besides was dropped."""
    names = list(images)
    pieces = [names[:5], names[5:7], names[7:]]
    more = {f"no {number}.jpg": encoded(scene(60)) for number in range(3)}
    lists = [
        list_of(folder / str(number), {name: more.get(name, images.get(name, b"")) for name in (extra, *piece)})
        for number, (extra, piece) in enumerate(zip(more, pieces, strict=True))
    ]
    out = packed(lists[0], folder / "packed", "tar")
    for listing in lists[1:]:
        append(out, listing)
    drop_rows(
        out,
        [
            number
            for number, name in enumerate(open_dataset(out).filename(r) for r in range(len(names) + 3))
            if name in more
        ],
    )
    return out


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dataset_of(tmp_path_factory.mktemp("report"), IMAGES)


def names(groups: Any) -> set[frozenset[str]]:
    return {frozenset(place.path for place in group.places) for group in groups}


def suspects(report: DatasetReport) -> set[tuple[str, str]]:
    return {(suspect.kind, suspect.place.path) for suspect in report.suspects}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("store", ["verbatim", "crop-ready", "coefficients", "raw"])
def test_planted_copies_and_oddities_are_found(tmp_path: Path, format: str, store: str) -> None:
    report = dataset_report(dataset_of(tmp_path, IMAGES, format, store=StoreOptions(store)))
    assert names(report.exact) == {frozenset({"a0.jpg", "copy of a0.jpg"})}
    assert names(report.near) == NEAR
    assert suspects(report) == SUSPECTS
    assert report.leaks == ()
    assert report.compared_bits == 7


def test_a_leak_is_any_group_that_reaches_into_the_other_dataset(dataset: Path, tmp_path: Path) -> None:
    other = dataset_of(
        tmp_path,
        {
            "val a0.jpg": IMAGES["a0.jpg"],
            "val a5.jpg": encoded(scene(5), quality=70),
            "val.jpg": encoded(scene(50)),
            "val again.jpg": encoded(scene(50)),
        },
    )
    report = dataset_report(dataset, against=other)
    assert names(report.leaks) == {
        frozenset({"a0.jpg", "copy of a0.jpg", "val a0.jpg"}),
        frozenset({"a5.jpg", "val a5.jpg"}),
    }
    assert [group.exact for group in report.leaks] == [True, False]
    assert {place.dataset for group in report.leaks for place in group.places} == {str(dataset), str(other)}
    # Those of the other dataset alone are nothing that this report is about.
    assert replace(report, leaks=(), against=None) == dataset_report(dataset)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changed_of(tmp_path_factory.mktemp("changed"), IMAGES)


@pytest.mark.complete
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_changed_dataset_is_what_the_same_rows_are(dataset: Path, changed: Path, num_workers: int) -> None:
    plain, report = dataset_report(dataset), dataset_report(changed, num_workers=num_workers)
    same = {
        name: getattr(plain, name)
        for name in ("long_sides", "aspect_ratios", "record_bytes", "channels", "compared_bits", "leaks", "side_leaks")
    }
    assert {name: getattr(report, name) for name in same} == same
    found = open_dataset(changed)
    for each, other in ((report.exact, plain.exact), (report.near, plain.near)):
        assert names(each) == names(other)
        assert all(found.filename(place.row) == place.path for group in each for place in group.places)
    assert [(each.kind, each.place.row, each.what) for each in report.suspects] == [
        (each.kind, each.place.row, each.what) for each in plain.suspects
    ]
    assert (report.summary.rows, report.summary.version, report.summary.segments) == (len(IMAGES), 4, 3)


def test_a_changed_dataset_leaks_into_another_one(dataset: Path, changed: Path) -> None:
    report = dataset_report(dataset, against=changed)
    assert len(report.leaks) == len(IMAGES) - 5 - 2 + 2
    assert {place.dataset for group in report.leaks for place in group.places} == {str(dataset), str(changed)}


def test_copies_on_two_sides_are_leaks(changed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(changed, out)
    report = split(out, val="40%", stratified=False)
    append(out, list_of(tmp_path / "later", {"later a5.jpg": IMAGES["a5.jpg"], "later a0.jpg": IMAGES["a0.jpg"]}))
    sides = {side: {row[0] for row in rows_on(out, side)} for side in report.sides}
    found = dataset_report(out)
    every = names(found.exact) | names(found.near)
    apart = {group for group in every if all(group & there for there in sides.values())}
    assert 0 < len(apart) < len(every), "the split has to cut some groups, and not others"
    assert names(found.side_leaks) == apart
    for group in found.side_leaks:
        for place in group.places:
            assert place.side == next((side for side, there in sides.items() if place.path in there), None)
    counts = {side: Counter(label for _, label in rows_on(out, side)) for side in sides}
    assert {side: each.label_counts for side, each in found.summary.sides.items()} == counts
    assert {side: each.rows for side, each in found.summary.sides.items()} == report.sides
    assert found.summary.on_no_side == 2


def rows_on(out: Path, side: str) -> list[tuple[str, Any]]:
    """Path and label of the rows on a side of the version before the last one."""
    rows = open_dataset(out, version=version_numbers(out)[-2], split=side)
    return [(rows.filename(row), rows.label(row)) for row in range(len(rows))]


def test_only_rows_that_a_condition_takes_are_looked_at(changed: Path) -> None:
    require_module("polars")
    where = "label = 0"
    found, report = open_dataset(changed), dataset_report(changed, where=where)
    taken = {found.filename(row) for row in range(len(found)) if found.label(row) == 0}
    assert suspects(report) == {(kind, name) for kind, name in SUSPECTS if name in taken}
    assert all(found.filename(suspect.place.row) == suspect.place.path for suspect in report.suspects)
    assert names(report.near) == {group for group in NEAR if group <= taken}
    assert (report.where, report.summary.rows) == (where, len(taken))
    with pytest.raises(UsageError, match=r"no row of .* is like this"):
        dataset_report(changed, where="label = 7")


@pytest.mark.complete
def test_the_number_of_workers_changes_nothing(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from packtrain._extras.report import dataset_report as module

    monkeypatch.setattr(module, "_RECORDS_AT_ONCE", 5)
    assert dataset_report(dataset, num_workers=3) == dataset_report(dataset)


def test_the_figures_are_numpys(dataset: Path) -> None:
    report = dataset_report(dataset)
    pixels = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).reshape(-1, 3) / 255 for data in IMAGES.values()]
    assert report.channels is not None
    means, squares = (
        np.mean([each.mean(axis=0) for each in found], axis=0) for found in (pixels, [p**2 for p in pixels])
    )
    assert report.channels.mean == pytest.approx(means)
    assert report.channels.std == pytest.approx(np.sqrt(squares - means**2))
    assert report.channels.images == len(IMAGES)
    sizes = np.array([Image.open(io.BytesIO(data)).size for data in IMAGES.values()])
    for histogram, values in (
        (report.long_sides, sizes.max(axis=1)),
        (report.aspect_ratios, sizes[:, 0] / sizes[:, 1]),
        (report.record_bytes, np.array([len(data) for data in IMAGES.values()])),
    ):
        assert histogram is not None
        assert (histogram.edges[0], histogram.edges[-1]) == (values.min(), values.max())
        assert histogram.counts == tuple(np.histogram(values, histogram.edges)[0].tolist())
        assert sum(histogram.counts) == len(IMAGES)


def test_grey_images_have_one_channel(tmp_path: Path) -> None:
    report = dataset_report(dataset_of(tmp_path, IMAGES, store=StoreOptions("verbatim", mode="L")))
    assert report.channels is not None
    assert len(report.channels.mean) == 1
    assert names(report.near) == NEAR


def test_only_some_images_are_measured(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from packtrain._extras.report import dataset_report as module

    monkeypatch.setattr(module, "_MEASURED", 4)
    report = dataset_report(dataset)
    chosen = [open_dataset(dataset).image(row) for row in range(0, len(IMAGES), len(IMAGES) // 4)]
    assert report.channels is not None
    assert report.channels.images == len(chosen)
    assert report.channels.mean == pytest.approx(
        np.mean([np.asarray(i).mean(axis=(0, 1)) / 255 for i in chosen], axis=0)
    )


def test_damaged_records_are_suspects(tmp_path: Path) -> None:
    broken = IMAGES["a3.jpg"]
    images = {**{name: IMAGES[name] for name in ("a0.jpg", "a1.jpg")}, "broken.jpg": broken}
    folder = dataset_of(tmp_path, images)
    store = open_dataset(folder).store
    shard = folder / store.manifest.shards[0].name
    flip(shard, int(store.index["offset"][2]) + len(broken) // 2)
    report = dataset_report(folder)
    (suspect,) = report.suspects
    assert (suspect.kind, suspect.place.path) == ("damaged", "broken.jpg")
    assert "crc32c" in suspect.what


def test_an_image_that_kills_its_decoder_costs_only_itself(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = looks._look

    def die_of_long(decode: Any, encoded: Any, **options: bool) -> Any:
        if encoded.height == 401:
            os.kill(os.getpid(), signal.SIGSEGV)
        return look(decode, encoded, **options)

    monkeypatch.setattr(looks, "_look", die_of_long)
    report = dataset_report(dataset)
    (damaged,) = (suspect for suspect in report.suspects if suspect.kind == "damaged")
    assert damaged.place.path == "long.jpg"
    assert damaged.what == "the process that decoded it crashed with SIGSEGV"
    assert names(report.near) == NEAR


def test_after_some_deaths_the_rest_is_left_alone(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "_look", lambda *_, **__: os._exit(3))
    report = dataset_report(dataset)
    reasons = [suspect.what for suspect in report.suspects if suspect.kind == "damaged"]
    assert len(reasons) == len(IMAGES)
    assert sum(reason.startswith("not looked at") for reason in reasons) == len(IMAGES) - 5
    assert report.channels is None


def test_orientations_are_named_where_they_are_ignored(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    images = {"turned.jpg": encoded(scene(0), exif=exif), "upright.jpg": encoded(scene(1))}
    assert suspects(dataset_report(dataset_of(tmp_path / "ignored", images))) == {("turned", "turned.jpg")}
    applied = StoreOptions("jpeg", orientation="apply")
    assert suspects(dataset_report(dataset_of(tmp_path / "applied", images, store=applied))) == set()


def test_refused_lines_are_counted_by_reason(tmp_path: Path) -> None:
    images = {"a.jpg": encoded(scene(0)), "b.jpg": b"no image", "c.jpg": b"no image"}
    report = dataset_report(dataset_of(tmp_path, images, max_rejects="2"))
    assert list(report.reject_reasons.values()) == [2]


def test_progress_counts_every_image_and_then_every_view(dataset: Path) -> None:
    found: list[ReportProgress] = []
    dataset_report(dataset, on_progress=found.append)
    assert {state.total for state in found} == {len(IMAGES)}
    assert (found[0].done, found[-1].done) == (0, len(IMAGES))
    assert [state.view for state in found if state.view] == list(range(1, 13))
    assert {state.views for state in found if state.view} == {12}


def test_what_it_cannot_report_on_is_refused(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is the dataset itself"):
        dataset_report(dataset, against=f"{dataset}/.")
    make_dataset(tmp_path / "words", schema=NO_IMAGE)
    with pytest.raises(UsageError, match="has no images"):
        dataset_report(tmp_path / "words")
