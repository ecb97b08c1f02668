"""Laws of what may be asked for: every text form, and what is said of wrong ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import pytest
from helpers.making import sample, stream

from packtrain import PackOptions, RayEngine, dataset_report, pack, verify
from packtrain._cli import pack_cmd
from packtrain._core.kinds import KINDS
from packtrain._core.options import (
    FORMATS,
    ORIENTATIONS,
    PIXEL_MODES,
    LabelSpec,
    ResizeRule,
    StoreOptions,
)
from packtrain._core.schema import MASK_ENCODINGS
from packtrain._core.sizes import parse_bytes
from packtrain._core.store_modes import STORE_MODES
from packtrain._growing.options import FillOptions
from packtrain._packer.options import FieldColumn, reject_limit
from packtrain.errors import ListError, TooManyRejects, UsageError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1000", 1000),
        ("7B", 7),
        ("512MiB", 512 << 20),
        ("512mib", 512 << 20),
        ("2GB", 2_000_000_000),
        ("1.5K", 1500),
        ("0.5KiB", 512),
        (" 3 TB ", 3 * 10**12),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes("budget", text) == count


@pytest.mark.parametrize(
    ("text", "lines", "allowed"),
    [
        ("0", 10**6, 0),
        ("20", 5, 20),
        ("0%", 10**6, 0),
        ("0.1%", 1, 1),
        ("0.1%", 1999, 1),
        ("0.1%", 2000, 2),
        ("100%", 7, 7),
        (" 50% ", 3, 1),
        ("0.29%", 10_000, 29),
        ("0.000001%", 100, 1),
    ],
)
def test_how_many_rejects_a_text_allows(text: str, lines: int, allowed: int) -> None:
    assert reject_limit(text, lines) == allowed


@pytest.mark.parametrize(
    ("text", "rule", "size"),
    [("short=256", "short", (256, 256)), ("long=1", "long", (1, 1)), ("320x200", "exact", (320, 200))],
)
def test_resize_reads_back_what_it_prints(text: str, rule: str, size: tuple[int, int]) -> None:
    resize = ResizeRule.parse(text)
    assert (resize.rule, (resize.width, resize.height), str(resize)) == (rule, size, text)


@pytest.mark.parametrize(
    ("text", "dtype", "fields", "shape"),
    [
        ("int", "<i8", 1, (9,)),
        ("float", "<f4", 1, (9,)),
        ("int*1", "<i8", 1, (9, 1)),
        ("float*40", "<f4", 40, (9, 40)),
        ("none", "<i8", 0, (9,)),
    ],
)
def test_label_spec_reads_back_what_it_prints(text: str, dtype: str, fields: int, shape: tuple[int, ...]) -> None:
    spec = LabelSpec.parse(text)
    assert (str(spec), spec.dtype, spec.fields, spec.shape(9)) == (text, dtype, fields, shape)


def test_class_stands_for_names_of_classes_as_on_the_command_line() -> None:
    assert PackOptions(labels="class") == PackOptions(label_names=True)  # type: ignore[arg-type]


OTHERS: dict[str, tuple[Callable[[str], object], list[str], str]] = {
    "sizes": (
        lambda text: parse_bytes("budget", text),
        ["", "MiB", "-1", "1iB", "1 2", "1PB", "1e9", "1,5GB", "nan"],
        r"^budget='.*': expected a number with a unit, such as 512MiB or 2GB",
    ),
    "limits": (
        lambda text: reject_limit(text, 100),
        ["", "%", "-1", "0.5", "5 %", "1e3", "all", "1%%"],
        r"expected a percentage or a count, such as 0\.1% or 20",
    ),
    "resizes": (
        ResizeRule.parse,
        [
            "",
            "256",
            "short",
            "short=",
            "short=0",
            "long=-1",
            "0x5",
            "5x0",
            "05x5",
            "5X5",
            "short=1e3",
            "5x5x5",
            "1000000x1",
        ],
        r"expected short=256, long=500 or 256x256 \(width x height\)",
    ),
    "labels": (
        LabelSpec.parse,
        ["", "Int", "str", "int*", "int*0", "int*-1", "none*2", "int*2*2", "float * 2", "int[2]"],
        r"expected int, int\*K, float, float\*K or none",
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_texts_are_refused(what: str) -> None:
    parse, texts, message = OTHERS[what]
    for text in texts:
        with pytest.raises(UsageError, match=message):
            parse(text)


INPUTS: dict[str, Any] = {"source": range(9), "function": sample}


def made(options: type, **values: Any) -> Callable[[], object]:
    return lambda: options(**values)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (made(StoreOptions, store="jpeg", quality=0), "quality=0: expected a whole number from 1 to 100"),
        (made(StoreOptions, store="jpeg", quality=101), "quality=101: expected a whole number from 1 to 100"),
        (made(StoreOptions, store="jpeg", quality=90.0), r"quality=90\.0: expected a whole number from 1 to 100"),
        (made(StoreOptions, store="jpeg", quality=True), "quality=True: expected a whole number"),
        (made(StoreOptions, store="raw", resize="small"), "resize='small'"),
        (made(StoreOptions, store="jpeg", resize=256), "resize=256: expected a str"),
        (
            made(StoreOptions, resize="short=256"),
            "crop-ready keeps each image's pixels, so --resize needs --store jpeg",
        ),
        (made(StoreOptions, orientation="apply"), "so --orientation apply needs --store jpeg or raw"),
        (made(StoreOptions, store=["raw"]), r"store=\['raw'\]: expected one of crop-ready"),
        (made(StoreOptions, store="verbatin"), "did you mean 'verbatim'"),
        (made(StoreOptions, check="yes"), "check='yes': expected True or False"),
        (made(PackOptions, shard_size=0), "shard_size=0: expected a whole number from 1 to"),
        (made(PackOptions, shard_size=1.5), r"shard_size=1\.5: expected a whole number"),
        (made(PackOptions, shard_size="big"), "shard_size='big': expected a number with a unit"),
        (made(PackOptions, shard_size="9" * 5000 + "TiB"), "shard_size='9+\\.\\.\\. .*: expected a number with a unit"),
        (made(PackOptions, shard_size="9999999999TiB"), r"shard_size=\d+: expected a whole number from 1 to"),
        (made(PackOptions, classes="c", labels=LabelSpec("int", 2)), r"`classes` needs `labels` int, not int\*2"),
        (made(PackOptions, classes="c", labels="none"), "`classes` needs `labels` int, not none"),
        (made(PackOptions, classes=["cat", 7]), r"classes=\['cat', 7\]: expected a path"),
        (made(PackOptions, labels="int*K"), r"labels='int\*K': expected a number for K, such as int\*4"),
        (made(PackOptions, labels=int), "labels=<class 'int'>: expected a LabelSpec"),
        (made(PackOptions, root=5), "root=5: expected a path"),
        (made(PackOptions, seed="0"), "seed='0': expected a whole number"),
        (made(PackOptions, seed=True), "seed=True: expected a whole number"),
        (made(PackOptions, store=StoreOptions(quality=50)), "quality=50 applies to store mode jpeg only, not to crop-"),
        (made(PackOptions, store=StoreOptions("raw", quality=50)), "quality=50 applies to store mode jpeg only"),
        (made(PackOptions, store=StoreOptions("jpeg", resize="70000x8")), "sides have at most 65500 pixels in mode"),
        (made(FieldColumn, name="a", kind="array", column="a", by_path=False, dtype="float46"), "dtype='float46'"),
        (made(FieldColumn, name="a", kind="text", column="a", by_path=False, classes=Path("n")), "are for masks"),
        (made(FieldColumn, name="a", kind="text", column="a", by_path=False, encoding="raw"), "not for text"),
        (made(LabelSpec, kind="int", count=0), "count=0: expected a whole number, at least 1"),
        (made(LabelSpec, kind="none", count=2), "labels of kind none have no values"),
        (made(ResizeRule, rule="short", width=0, height=0), "width=0: expected a whole number, at least 1"),
        (lambda: verify(".", num_workers=0), "num_workers=0: expected a whole number, at least 1"),
        (lambda: dataset_report(".", num_workers=-1), "num_workers=-1: expected a whole number"),
        (lambda: verify(None), "path=None: expected a path"),  # type: ignore[arg-type]
        (lambda: verify(".", journal=5), "journal=5: expected a path"),  # type: ignore[arg-type]
        (lambda: verify(".", on_progress="x"), "on_progress='x': expected a function"),  # type: ignore[arg-type]
    ],
)
def test_options_that_nothing_can_follow_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


LABELS = ("int", "int*K", "float", "float*K", "class", "none")
CHOICES: dict[type, dict[str, tuple[str, ...]]] = {
    PackOptions: {"format": tuple(FORMATS), "store": tuple(STORE_MODES), "labels": LABELS},
    FillOptions: {"format": tuple(FORMATS)},
    StoreOptions: {"store": tuple(STORE_MODES), "mode": PIXEL_MODES, "orientation": ORIENTATIONS},
    LabelSpec: {"kind": ("int", "float", "none")},
    ResizeRule: {"rule": ("short", "long", "exact")},
    FieldColumn: {"kind": tuple(KINDS), "encoding": MASK_ENCODINGS},
}
FREE = {"where", "resize", "name", "classes", "column", "dtype", "budget", "shard_size", "rate"}
"""Texts of which there is no end."""
NEEDED: dict[type, dict[str, Any]] = {
    FillOptions: {"budget": "1GiB"},
    ResizeRule: {"rule": "short", "width": 8, "height": 8},
    FieldColumn: {"name": "a", "kind": "text", "column": "a", "by_path": False},
}


@pytest.mark.parametrize("options", CHOICES, ids=lambda options: options.__name__)
def test_a_wrong_name_is_answered_with_every_name_that_there_is(options: type) -> None:
    texts = {field.name for field in fields(options) if "str" in str(field.type) or "Literal" in str(field.type)}
    assert texts <= CHOICES[options].keys() | FREE
    for name, choices in CHOICES[options].items():
        # Names of another type are as wrong as others.
        for wrong in ("no such name", 7):
            with pytest.raises(UsageError, match=rf"^{name}='?{wrong}'?: expected ") as caught:
                options(**NEEDED.get(options, {}) | {name: wrong})
            assert set(choices) <= set(re.split(r"[ ,;]+", str(caught.value)))


def test_the_choices_of_the_command_are_those_of_the_options() -> None:
    for option in pack_cmd.command.params:
        if isinstance(option.type, click.Choice) and option.name in ("store", "mode", "orientation"):
            assert tuple(option.type.choices) == CHOICES[StoreOptions][option.name]
        if option.name == "labels":
            assert option.metavar == "|".join(LABELS)


def test_texts_stand_for_what_they_say(tmp_path: Path) -> None:
    texts: dict[str, Any] = {"store": "jpeg", "labels": "float*4", "root": str(tmp_path), "shard_size": "64MiB"}
    options = PackOptions(**texts)
    same = PackOptions(store=StoreOptions("jpeg"), labels=LabelSpec("float", 4), root=tmp_path, shard_size=64 << 20)
    assert options == same
    assert hash(options) == hash(same)
    assert replace(options, seed=None) == replace(same, seed=None)
    classes: Any = "names.txt"
    assert PackOptions(classes=classes).classes == Path("names.txt")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": "tar"}, "options='tar': expected a PackOptions"),
        ({"options": StoreOptions()}, "options=.*: expected a PackOptions"),
        ({"num_workers": 0}, "num_workers=0: expected a whole number, at least 1"),
        ({"num_workers": 2.0}, r"num_workers=2\.0: expected a whole number"),
        ({"max_rejects": -1}, "max_rejects=-1: expected a whole number, at least 0"),
        ({"max_rejects": "9" * 400 + "%"}, "max_rejects='9+"),
        ({"max_rejects": "9" * 5000}, "max_rejects='9+"),
        ({"max_rejects": 0.1}, r"max_rejects=0\.1: expected a percentage or a count"),
        ({"max_rejects": True}, "max_rejects=True: expected a percentage or a count"),
        ({"on_progress": 5}, "on_progress=5: expected a function"),
        ({"source": None}, "source=None: expected a path"),
        ({"out": 7}, "out=7: expected a path"),
        ({"function": sample}, r"`function` makes samples of inputs.*train.txt is a list"),
        ({"source": b"abc"}, "expected a path, or samples"),
        ({"source": {"a": 1}}, "expected a path, or samples"),
        ({"source": [], "function": sample}, "there are no inputs"),
        (
            {"source": range(9), "function": lambda _: sample(1), "num_workers": 2},
            r"cannot be sent to workers.*top level of a module.*num_workers",
        ),
        ({**INPUTS, "options": PackOptions(label_names=True)}, "Give a file of them as `classes`"),
        (
            {**INPUTS, "options": PackOptions(labels=LabelSpec("float", 2))},
            "and the first samples have int",
        ),
        ({**INPUTS, "options": PackOptions(allow_empty=True)}, "`allow_empty` is for image folders"),
        ({**INPUTS, "options": PackOptions(root=Path("s3://bucket/images"))}, "paths in samples are of this machine"),
        ({"source": stream(9), "part": "1/2"}, "`part`: samples that come one by one.*Leave it out; or give inputs"),
        ({"source": stream(9), "engine": RayEngine("auto")}, "`engine`: samples that come one by one"),
        ({"source": stream(9), "num_workers": 2}, "`num_workers`: samples that come one by one"),
        ({"source": stream(9), "retry_rejects": True}, "`retry_rejects`: samples that come one by one"),
        ({"source": stream(9), "spool": "/dev/shm"}, "`spool`: samples that come one by one"),
        ({"source": stream(9), "out": "s3://bucket/out"}, r"pack\(folder, 's3://bucket/out'\)"),
        ({"part": 3}, "part=3: expected "),
        ({"part": "1/2", "engine": print}, "leave out `part`, or `engine`"),
        ({"part": "1/3", "retry_rejects": True}, "`retry_rejects` replaces finished shards.* leave out `part`"),
    ],
)
def test_arguments_of_pack_that_make_no_sense_are_refused(
    images: Path, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises((UsageError, ListError), match=message):
        pack(**{"source": images, "out": tmp_path / "out", **arguments})
    assert not (tmp_path / "out").exists()


def test_a_count_of_rejects_may_be_a_number(images: Path, tmp_path: Path) -> None:
    listing = tmp_path / "two more.txt"
    listing.write_text(images.read_text() + "missing.jpg 0\nmissing too.jpg 0\n")
    options = PackOptions(store=StoreOptions("verbatim"), root=images.parent)
    assert pack(str(listing), tmp_path / "out", options, max_rejects=2).rejects == 2
    with pytest.raises(TooManyRejects):
        pack(str(listing), tmp_path / "none", options, max_rejects=1)
    assert not verify(str(tmp_path / "out"), journal=str(tmp_path / "journal")).problems


def test_the_type_of_a_field_may_be_spelled_as_numpy_does() -> None:
    for text in ("float64", "f8", ">f8", "<f8"):
        assert FieldColumn("boxes", "array", "boxes", False, dtype=text).dtype == "<f8"
