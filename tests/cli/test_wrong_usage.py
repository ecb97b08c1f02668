"""Wrong usage is exit code 2: what is wrong is told, nothing is printed on standard output, and nothing is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.support import packed

from packtrain._core.options import StoreOptions

from .conftest import Run

PACK = "pack {list} {new} --format tar"
STAGE = "stage {set} --to {place}"
PHOTOS = " ".join(["a.jpg"] * 1200)
WRONG = {
    "pack {list} {new} --format zip": "'zip' is not one of 'tar', 'hdf5', 'lmdb'",
    f"{PACK} --formt tar": "No such option",
    f"{PACK} --store crop": "'crop' is not one of",
    f"{PACK} --seed 1 --keep-order": "--seed and --keep-order contradict each other",
    f"{PACK} --labels words": "--labels='words': expected one of int, int*K, float, float*K, class, none",
    f"{PACK} --shard-size big": "--shard-size='big': expected a number with a unit",
    f"{PACK} --max-rejects some": "--max-rejects='some': expected a percentage or a count",
    f"{PACK} --resize short=8": "so --resize needs --store jpeg or raw",
    f"{PACK} --store raw --resize 8": "--resize='8': expected short=256",
    f"{PACK} --quality 0": "0 is not in the range 1<=x<=100",
    f"{PACK} --quality 50": "--quality=50 applies to store mode jpeg only, not to crop-ready",
    f"{PACK} --workers 0": "0 is not in the range x>=1",
    f"{PACK} --labels none --classes {{list}}": "`--classes` needs `--labels` int, not none",
    "pack {list} {new} --where x": "is no dataset, and only the rows of one can be chosen",
    "pack LIST OUT --part 0/4": "part 0/4: parts are counted from 1",
    "pack LIST OUT --part 5": "part='5': expected I/N",
    "pack OUT": "expected LIST OUT, found OUT",
    f"pack {PHOTOS}": "a.jpg a.jpg a.jpg a.jpg a.jpg and 1,195 more. To pack images without a list, give",
    "pack {raw} {new} --resize 20x20": "--resize says how pixels are stored: also say --store",
    "pack {raw} {new} --seed 1 --keep-order": "contradict",
    "pack {raw} {new} --text caption": "is a dataset, which says what its rows are: leave out `columns`",
    "pack {raw} {new} --labels float": "is a dataset, which says what its rows are: leave out `--labels`",
    f"{STAGE} --budget many": "--budget='many': expected a number with a unit",
    f"{STAGE} --reserve -1": "--reserve='-1'",
    f"{STAGE} --grace soon": "--grace='soon': expected seconds, or a number with a unit",
    f"{STAGE} --threads 0": "--threads",
    f"{STAGE} --bugdet 1G": "--bugdet",
    f"{STAGE} python train.py": "unexpected extra arguments (python train.py)",
    f"{STAGE} train.py -- true": "unexpected extra argument (train.py)",
    f"{STAGE} --": "-- must be followed by a command to run",
    "fill {new}": "expected MODULE:FUNCTION CACHE, found {new}",
    "fill m:f {new}": "--budget is missing",
    "fill m:f {new} --budget much": "much",
    "fill m:f {new} --budget 1GiB --headroom 3": "headroom=3",
    "fill --records D --slices F --shape 4 {new}": "cannot be combined",
    "fill --slices F {new}": "go together",
    "fill --shape 4 m:f {new}": "go together",
    "fill --records D m:f {new}": "expected CACHE, found m:f {new}",
    "tune {set} --transform rcc224": "did you mean 'rrc224'",
    "tune {set} --transform nowhere:train": "cannot be imported",
    "tune {set} --seconds 0": "--seconds",
    "tune {set} --seconds nan": "seconds",
    "tune {set} --batch-size 0": "--batch-size",
    "tune {set} --max-workers -1": "--max-workers",
    "tune {set} --out no/such/folder/page.html": "there is no folder",
    "report {set}": "add --out report.html, or --json",
    "report {set} --out no/such/folder/page.html": "there is no folder",
}


@pytest.fixture(scope="module")
def datasets(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A list, and datasets of it."""
    folder = tmp_path_factory.mktemp("datasets")
    store = StoreOptions("raw", mode="L", orientation="apply")
    return {
        "list": images,
        "set": packed(images, folder / "set", "tar"),
        "raw": packed(images, folder / "raw", "lmdb", store=store),
    }


@pytest.mark.parametrize("line", list(WRONG), ids=lambda line: line[:60])
def test_what_is_wrong_is_told_and_nothing_is_made(
    run: Run, datasets: dict[str, Path], tmp_path: Path, line: str
) -> None:
    places = {**datasets, "new": tmp_path / "new", "place": tmp_path / "place"}
    places["place"].mkdir()
    outcome = run(*line.format(**places).split())
    assert (outcome.code, outcome.out) == (2, "")
    assert WRONG[line].format(**places) in outcome.err
    assert [path.name for path in tmp_path.rglob("*")] == ["place"]
