"""Laws of what may be asked for: every text form, and what is said of wrong ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packtrain import PackOptions
from packtrain._core.options import LabelSpec, ResizeRule, StoreOptions
from packtrain._core.sizes import parse_bytes
from packtrain._packer.options import reject_limit
from packtrain.errors import UsageError


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
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1iB", "1 2", "1PB", "1e9", "1,5GB", "nan"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a number with a unit, such as 512MiB or 2GB"):
        parse_bytes(text)


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


@pytest.mark.parametrize("text", ["", "%", "-1", "0.5", "5 %", "1e3", "all", "1%%"])
def test_other_limits_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected a percentage or a count, such as 0\.1% or 20"):
        reject_limit(text, 100)


@pytest.mark.parametrize(
    ("text", "rule", "size"),
    [("short=256", "short", (256, 256)), ("long=1", "long", (1, 1)), ("320x200", "exact", (320, 200))],
)
def test_resize_reads_back_what_it_prints(text: str, rule: str, size: tuple[int, int]) -> None:
    resize = ResizeRule.parse(text)
    assert (resize.rule, (resize.width, resize.height), str(resize)) == (rule, size, text)


@pytest.mark.parametrize(
    "text",
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
)
def test_other_resizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected short=256, long=500 or 256x256 \(width x height\)"):
        ResizeRule.parse(text)


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


@pytest.mark.parametrize(
    "text", ["", "Int", "str", "int*", "int*0", "int*-1", "none*2", "int*2*2", "float * 2", "int[2]"]
)
def test_other_labels_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected int, int\*K, float\*K or none"):
        LabelSpec.parse(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"store": "crop"}, "store 'crop': expected one of crop-ready, verbatim, jpeg, raw"),
        ({"store": "raw", "mode": "RGBA"}, "mode 'RGBA': expected one of RGB, L"),
        ({"store": "raw", "orientation": "yes"}, "orientation 'yes': expected one of ignore, apply"),
        ({"store": "jpeg", "quality": 0}, "quality 0: expected 1 to 100"),
        ({"store": "jpeg", "quality": 101}, "quality 101: expected 1 to 100"),
        ({"store": "raw", "resize": "small"}, "resize 'small'"),
        ({"resize": "short=256"}, "crop-ready keeps each image's pixels, so --resize needs --store jpeg or raw"),
        (
            {"store": "verbatim", "resize": "short=256"},
            "verbatim keeps each image's pixels, so --resize needs --store jpeg or raw",
        ),
        ({"orientation": "apply"}, "so --orientation apply needs --store jpeg or raw"),
    ],
)
def test_store_options_that_contradict_themselves_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StoreOptions(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "tra"}, "format 'tra': expected one of tar, hdf5, lmdb; did you mean 'tar'?"),
        ({"format": "zip"}, "format 'zip': expected one of tar, hdf5, lmdb$"),
        ({"shard_bytes": 0}, "shard size 0: expected at least one byte"),
        ({"classes": Path("c"), "labels": LabelSpec("int", 2)}, r"class names need labels int, not int\*2"),
    ],
)
def test_pack_options_that_contradict_themselves_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(PackOptions(), **options)
