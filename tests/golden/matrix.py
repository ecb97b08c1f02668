"""Writes one small dataset for each way of packing, to compare two versions of packtrain: all files must be the same.

    BEFORE/.venv/bin/python tests/golden/matrix.py before
    AFTER/.venv/bin/python tests/golden/matrix.py after
    diff --recursive --brief before after

Both environments need the same libhdf5, liblmdb and libjpeg, which have a say in the bytes. Only the command line is
used, so this file runs unchanged with versions whose Python names differ.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

# Indexed datasets hold the absolute paths of their shards, so all versions write to the same place.
WORK: Final = Path("/tmp/packtrain-golden-matrix")
SOURCES: Final = WORK / "sources"
ROWS: Final = 24
# Plans and manifests name the version that wrote them.
PROGRAM: Final = (
    "from importlib import metadata; metadata.version = lambda name: '0.1.0'; "
    "import runpy; runpy.run_module('packtrain', run_name='__main__')"
)
TIME: Final = 1_700_000_000

FORMATS: Final = ("tar", "hdf5", "lmdb")
STORES: Final[dict[str, list[str]]] = {
    "verbatim": ["--store", "verbatim"],
    "crop-ready": ["--store", "crop-ready"],
    "coefficients": ["--store", "coefficients"],
    "jpeg": ["--store", "jpeg", "--resize", "short=24", "--quality", "85"],
    "raw": ["--store", "raw", "--resize", "20x16"],
    "raw-sizes": ["--store", "raw", "--resize", "long=24"],
}
FIELDS: Final = [
    *("--image", "image", "--label", "label", "--mask", "mask", "--text", "caption", "--json-field", "meta"),
    *("--array", "boxes", "--array", "pose=pose:path", "--bytes", "blob", "--image-field", "other"),
    *("--dtype", "boxes=float32", "--shape", "boxes=N,4", "--optional", "caption", "--optional", "mask"),
]
NO_IMAGE: Final = ["--text", "caption", "--array", "pose=pose:path", "--json-field", "meta"]


def packings() -> dict[str, list[str]]:
    """The arguments of `packtrain`, without the output folder, by name of the dataset."""
    found: dict[str, list[str]] = {}
    for format in FORMATS:
        for store, options in STORES.items():
            for name, listing, columns in (
                ("plain", "train.txt", ["--labels", "int"]),
                ("fields", "fields.csv", FIELDS),
            ):
                found[f"{format}-{store}-{name}"] = ["pack", listing, *columns, *options, "--format", format]
        found[f"{format}-no-image"] = ["pack", "fields.csv", *NO_IMAGE, "--format", format]
    found |= {
        "classes": ["pack", "names.txt", "--labels", "class"],
        "class-file": ["pack", "train.txt", "--classes", "classes.txt"],
        "floats": ["pack", "floats.txt", "--labels", "float*2"],
        "unlabelled": ["pack", "paths.txt", "--labels", "none"],
        "folder": ["pack", "folder"],
        "json-lines": ["pack", "fields.jsonl", "--image", "image", "--label", "label", "--text", "caption"],
        "kept-order": ["pack", "train.txt", "--keep-order"],
        "other-seed": ["pack", "train.txt", "--seed", "7"],
        "grey": ["pack", "train.txt", "--store", "raw", "--resize", "16x16", "--mode", "L"],
        "upright": ["pack", "train.txt", "--store", "jpeg", "--resize", "short=24", "--orientation", "apply"],
        "raw-masks": ["pack", "fields.csv", *FIELDS, "--mask-store", "raw"],
        "indexed": ["index", "foreign-0.tar", "foreign-1.tar"],
        "indexed-fields": [
            *("index", "foreign-0.tar", "foreign-1.tar", "--label", "json:class"),
            *("--field", "caption=txt", "--field", "seg=seg.png", "--mask", "seg"),
        ],
    }
    return {
        name: [*arguments, "--max-rejects", "50%", *([] if arguments[0] == "index" else ["--shard-size", "12KiB"])]
        for name, arguments in found.items()
    }


def conversions() -> dict[str, list[str]]:
    """The same for what is made of these datasets."""
    found = {
        f"converted-{name}-{format}": [name, "--format", format]
        for name in ("tar-crop-ready-fields", "indexed-fields")
        for format in FORMATS
    } | {
        "converted-raw": ["hdf5-verbatim-fields", "--store", "raw", "--resize", "16x16"],
        "converted-coefficients": ["tar-crop-ready-fields", "--store", "coefficients"],
        "converted-crop-ready": ["tar-coefficients-fields", "--store", "crop-ready"],
    }
    return {name: ["pack", str(WORK / of), *how, "--shard-size", "12KiB"] for name, (of, *how) in found.items()}


def main() -> None:
    """Writes everything, and moves it to the folder that is named."""
    (out,) = (Path(argument).absolute() for argument in sys.argv[1:])
    if out.exists():
        sys.exit(f"{out} exists: name a new folder")
    shutil.rmtree(WORK, ignore_errors=True)
    SOURCES.mkdir(parents=True)
    make_sources()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for step in (packings(), conversions()):
            list(threads.map(packtrain, step.values(), step))
        list(threads.map(in_parts, FORMATS))
    shutil.rmtree(SOURCES)
    shutil.move(WORK, out)
    print(f"{sum(path.is_file() for path in out.rglob('*'))} files of {len(list(out.iterdir()))} datasets in {out}")


def packtrain(arguments: list[str], name: str) -> None:
    """Runs one command."""
    workers = [] if arguments[0] == "merge" else ["--workers", "1"]
    run = [sys.executable, "-c", PROGRAM, *arguments, *workers, str(WORK / name)]
    done = subprocess.run(run, cwd=SOURCES, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: {' '.join(run)}\n{done.stderr}")


def in_parts(format: str) -> None:
    """Packs in three parts, and merges them."""
    name = f"{format}-parts"
    common = ["pack", "train.txt", "--format", format, "--shard-size", "12KiB", "--max-rejects", "50%"]
    for part in (1, 2, 3):
        packtrain([*common, "--part", f"{part}/3"], name)
    packtrain(["merge"], name)


def make_sources() -> None:
    """Makes the lists, images and foreign shards."""
    random = np.random.default_rng(0)
    rows = [_row(number, random) for number in range(ROWS)]
    with open(SOURCES / "fields.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    lines = "".join(
        json.dumps({key: row[key] for key in ("image", "label", "caption")}) + "\n" for row in rows if row["caption"]
    )
    (SOURCES / "fields.jsonl").write_text(lines)
    paths = [row["image"] for row in rows]
    missing = ["missing.jpg"]
    (SOURCES / "train.txt").write_text("".join(f"{path} {n % 5}\n" for n, path in enumerate(paths + missing)))
    (SOURCES / "names.txt").write_text("".join(f"{path} class-{n % 3}\n" for n, path in enumerate(paths)))
    (SOURCES / "floats.txt").write_text("".join(f"{path} {n / 7:.3f} {n}\n" for n, path in enumerate(paths)))
    (SOURCES / "paths.txt").write_text("".join(f"{path}\n" for path in paths))
    (SOURCES / "classes.txt").write_text("".join(f"name {number}\n" for number in range(5)))
    for number, path in enumerate(paths):
        folder = SOURCES / "folder" / f"c{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCES / path, folder)
    for number in range(2):
        _foreign(SOURCES / f"foreign-{number}.tar", rows[number::2])


def _row(number: int, random: np.random.Generator) -> dict[str, Any]:
    width, height = 33 + 7 * (number % 6), 28 + 5 * (number % 4)
    mode = "L" if number % 6 == 4 else "CMYK" if number == 7 else "RGB"
    suffix = "png" if number % 8 == 5 else "jpg"
    names = {key: f"{number:02}-{key}.{end}" for key, end in (("image", suffix), ("other", "jpg"), ("mask", "png"))}
    options: dict[str, Any] = {"quality": 90, "progressive": number % 5 == 1, "subsampling": number % 3}
    if number % 7 == 3:
        exif = Image.Exif()
        exif[0x0112] = 6
        options["exif"] = exif
    _image(random, width, height, mode).save(SOURCES / names["image"], **(options if suffix == "jpg" else {}))
    _image(random, width, height, "RGB").save(SOURCES / names["other"], quality=80)
    mask = Image.fromarray(random.integers(0, 9, (height, width)).astype(np.uint8))
    mask.save(SOURCES / names["mask"])
    np.save(SOURCES / f"{number:02}.npy", random.integers(-9, 9, 3))
    (SOURCES / f"{number:02}.bin").write_bytes(random.bytes(number))
    return {
        **names,
        "mask": "" if number % 9 == 2 else names["mask"],
        "label": number % 5,
        "caption": "" if number % 9 == 4 else f"picture é {number}",
        "meta": json.dumps({"number": number, "tags": ["a"] * (number % 3)}),
        "boxes": json.dumps(random.integers(0, 30, (number % 3, 4)).tolist()),
        "pose": f"{number:02}.npy",
        "blob": f"{number:02}.bin",
    }


def _image(random: np.random.Generator, width: int, height: int, mode: str) -> Image.Image:
    small = Image.fromarray(random.integers(0, 256, (5, 6, 3)).astype(np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def _foreign(path: Path, rows: list[dict[str, Any]]) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, row in enumerate(rows):
            image = (SOURCES / row["image"]).read_bytes()
            members = {Path(row["image"]).suffix: image, ".txt": b"caption", ".cls": b"%d" % row["label"]}
            members[".json"] = json.dumps({"class": row["label"]}).encode()
            if row["mask"]:
                members[".seg.png"] = (SOURCES / row["mask"]).read_bytes()
            for end, data in members.items():
                info = tarfile.TarInfo(f"{number:06}{end}")
                info.size, info.mtime = len(data), TIME
                tar.addfile(info, io.BytesIO(data))
    os.utime(path, (TIME, TIME))


if __name__ == "__main__":
    main()
