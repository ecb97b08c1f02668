"""Laws of `packtrain pack`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.support import encoded, output_of, picture, shard_bytes, sources, tree

from packtrain import PackOptions, open_dataset, pack
from packtrain._cli import pack_cmd, verify_cmd
from packtrain._packer import pack_run as runs
from packtrain._packer import verifier
from packtrain._packer.engine import run_tasks

from .conftest import Run, on_terminal

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def plan(out: Path) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((out / "plan.json").read_bytes())
    return body


def test_it_packs_what_the_library_packs(run: Run, images: Path, tmp_path: Path, format_name: str) -> None:
    chosen = () if format_name == "tar" else ("--format", format_name)
    outcome = run("pack", images, tmp_path / "out", *chosen, "--workers", 1)
    assert (outcome.code, outcome.err) == (0, "")
    assert re.fullmatch(rf"{tmp_path}/out: 12 records in 1 shard\(s\), [\d.]+ KiB in [\d.]+ s\n", outcome.out)
    pack(images, tmp_path / "library", PackOptions(format_name))
    assert tree(tmp_path / "out") == tree(tmp_path / "library")


def test_labels_that_are_names_and_a_csv_file(run: Run, images: Path, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('path,class\n"image 0.jpg",dog\nimage 1.jpg,cat\n')
    outcome = run("pack", tmp_path / "train.csv", tmp_path / "out", "--root", images.parent)
    assert (outcome.code, outcome.out) == (1, "")
    assert "label 'dog' is not an integer. The lines look like --labels class. Type: " in outcome.err
    words = ("--root", images.parent, "--labels", "class")
    assert run("pack", tmp_path / "train.csv", tmp_path / "out", *words).code == 0
    opened = open_dataset(tmp_path / "out")
    assert (opened.classes, opened.targets.tolist()) == (("cat", "dog"), [1, 0])


def test_too_many_bad_lines_come_with_the_advice_that_they_need(run: Run, images: Path, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("image 0.jpg dog\nimage 1.jpg cat\nimage 2.jpg 3\n")
    outcome = run("pack", tmp_path / "train.txt", tmp_path / "out", "--root", images.parent)
    assert "2 of 3 lines refused, 1 allowed" in outcome.err
    command = f"packtrain pack {tmp_path}/train.txt OUT --labels class --root {images.parent}"
    assert outcome.err.endswith(f"The lines look like --labels class. Type: {command}\n")
    (tmp_path / "train.txt").write_text("image 0.jpg 1 0\nimage 1.jpg 0 1\n")
    outcome = run("pack", tmp_path / "train.txt", tmp_path / "out", "--root", images.parent)
    assert "none of 2 sampled files can be read. First: " in outcome.err
    assert "The lines look like --labels int*2. Type: " in outcome.err


def bash(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True)


def test_a_missing_image_comes_with_the_folder_that_was_looked_in(
    run: Run, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.txt").write_text("image 0.jpg 0\n")
    advice = f"Relative paths start from {tmp_path}: if the files lie elsewhere, name another folder (`--root`)"
    outcome = run("pack", "train.txt", "out")
    assert outcome.err == (
        "error: none of 1 sampled files can be read. First: ./image 0.jpg: No such file or directory. " + advice + "\n"
    )
    for number in range(2):
        Path(f"image {number}.jpg").write_bytes(encoded(picture(number)))
    Path("train.txt").write_text("image 0.jpg 0\nimage 1.jpg 0\nimage 2.jpg 0\n")
    outcome = run("pack", "train.txt", "out", "--max-rejects", 0)
    assert f"\n  line 2: 'image 2.jpg': No such file or directory\n{advice}.\nFinished shards are kept." in outcome.err
    Path("image 2.jpg").write_bytes(b"no image")
    assert "Relative paths" not in run("pack", "train.txt", "other", "--max-rejects", 0).err
    assert run("pack", "train.txt", "out", "--root", images.parent, "--retry-rejects").code == 0


@pytest.mark.parametrize("words", ["pack trian.txt out", "pack train.txt out --classes clases.txt --root {root}"])
def test_a_mistyped_file_gets_a_suggestion_with_one_mark_at_the_end(
    run: Run, images: Path, tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.txt").write_bytes(images.read_bytes())
    Path("classes.txt").write_text("a\nb\n")
    for program in ("trian.py", "clases.ipynb"):
        Path(program).touch()
    error = run(*words.format(root=images.parent).split()).err
    assert re.search(r"[^.?!;]; did you mean '(train|classes)\.txt'\?\n$", error)


def test_a_list_through_a_pipe(images: Path, tmp_path: Path) -> None:
    done = bash(
        f"cd {images.parent} && {sys.executable} -m packtrain pack <(head -n 3 train.txt) {tmp_path}/out --json"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["records"] == 3


@pytest.mark.complete
def test_files_of_names_through_pipes(tmp_path: Path) -> None:
    (tmp_path / "seg.png").write_bytes(encoded(picture(1).convert("L"), "PNG"))
    (tmp_path / "train.csv").write_text("path,seg,class\nseg.png,seg.png,dog\n")
    words = f"{tmp_path}/train.csv {tmp_path}/out --image path --mask seg --label class"
    pipes = "--classes <(printf 'cat\\ndog\\n') --mask-classes seg=<(seq 0 255) --workers 1"
    done = bash(f"{sys.executable} -m packtrain pack {words} {pipes}")
    assert (done.returncode, done.stderr) == (0, "")
    opened = open_dataset(tmp_path / "out")
    assert (opened.classes, opened.targets.tolist()) == (("cat", "dog"), [1])
    assert opened.schema["seg"].classes == tuple(map(str, range(256)))
    done = bash(f"seq 0 255 | {sys.executable} -m packtrain pack {words} {pipes.replace('<(seq 0 255)', '/dev/stdin')}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "already complete" in done.stdout


def test_every_option_lands_in_the_plan(run: Run, images: Path, tmp_path: Path) -> None:
    store = "--store jpeg --resize long=30 --quality 50 --mode L --orientation apply"
    words = f"--format hdf5 {store} --shard-size 2KB --seed 7".split()
    assert run("pack", images, tmp_path / "out", *words).code == 0
    body = plan(tmp_path / "out")
    assert body["store"] == {
        "store": "jpeg",
        "resize": "long=30",
        "quality": 50,
        "mode": "L",
        "orientation": "apply",
        "check": False,
    }
    assert [body[name] for name in ("format", "labels", "shard_bytes", "seed", "classes")] == [
        "hdf5",
        "int",
        2000,
        7,
        None,
    ]
    assert len(body["shards"]) > 1


@pytest.mark.parametrize(
    ("words", "seed"), [([], 0), (["--seed", "0"], 0), (["--seed", "-3"], -3), (["--keep-order"], None)], ids=str
)
def test_the_order_is_that_of_seed_0_unless_told_otherwise(
    run: Run, images: Path, tmp_path: Path, words: list[str], seed: int | None
) -> None:
    assert run("pack", images, tmp_path / "out", "--format", "tar", *words).code == 0
    assert plan(tmp_path / "out")["seed"] == seed


def test_labels_root_and_classes(run: Run, images: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\ndog\neel\n")
    (tmp_path / "train.txt").write_text(images.read_text())
    names = ("--root", images.parent, "--classes", tmp_path / "classes.txt")
    assert run("pack", tmp_path / "train.txt", tmp_path / "named", "--format", "tar", *names).code == 0
    assert open_dataset(tmp_path / "named").classes == ("cat", "dog", "eel")
    (tmp_path / "train.txt").write_text(images.read_text().replace(".jpg ", ".jpg 0.25 "))
    vector = ("--root", images.parent, "--labels", "float*2", "--check")
    assert run("pack", tmp_path / "train.txt", tmp_path / "vector", "--format", "tar", *vector).code == 0
    opened = open_dataset(tmp_path / "vector")
    assert opened.targets.tolist() == [[0.25, source.label] for source in sources(images)]
    assert opened.store.manifest.store.check


@pytest.mark.parametrize(
    ("names", "classes", "warning"),
    [
        (["val", "train"], "2 classes: train, val", "by name (train, val) they are parts of a dataset"),
        (["Train_2017"], "1 class: Train_2017", "by name (Train_2017) they are parts of a dataset"),
        (["train", "val", "cat"], "3 classes: cat, train, val", "by name (train, val) they are parts of a dataset"),
        (["images"], "1 class: images", "a folder of images alone with --labels none"),
        (["images", "masks"], "2 classes: images, masks", "by a list with a column for each\n"),
        (["test", "cat"], "2 classes: cat, test", ""),
        (["f", "e", "d", "c", "b", "a"], "6 classes: a, b, c, d, e, ...", ""),
    ],
)
def test_classes_are_named_and_parts_of_a_dataset_are_no_classes(
    run: Run, tmp_path: Path, names: list[str], classes: str, warning: str
) -> None:
    photos, out = tmp_path / "my photos", tmp_path / "my set"
    for name in names:
        (photos / name).mkdir(parents=True)
        (photos / name / "1.jpg").write_bytes(encoded(picture(1)))
    outcome = run("pack", photos, out, "--format", "tar")
    assert (outcome.code, outcome.out.splitlines()[1]) == (0, classes)
    assert warning in outcome.err and bool(outcome.err) == bool(warning)
    (tmp_path / "classes.txt").write_text("".join(f"{name}\n" for name in names))
    assert run("pack", photos, tmp_path / "named", "--classes", tmp_path / "classes.txt").err == ""
    assert run("pack", photos, tmp_path / "plain", "--labels", "none").err == ""


def test_refused_and_repeated_lines_are_mentioned(run: Run, images: Path, tmp_path: Path) -> None:
    listing = tmp_path / "train.txt"
    listing.write_text(images.read_text() + "image 0.jpg 0\nmissing.jpg 1\n")
    outcome = run("pack", listing, tmp_path / "out", "--format", "tar", "--root", images.parent)
    assert outcome.code == 0
    assert (
        f"1 line(s) refused, see {tmp_path}/out/rejects.jsonl\n1 line(s) repeat an earlier one (they were packed too)\n"
    ) in outcome.out
    (images.parent / "missing.jpg").write_bytes(encoded(picture(3)))
    try:
        words = ("--root", images.parent, "--retry-rejects")
        assert "line(s) refused" not in run("pack", listing, tmp_path / "out", "--format", "tar", *words).out
    finally:
        (images.parent / "missing.jpg").unlink()


class TestJson:
    def test_the_report_is_one_document(self, run: Run, images: Path, tmp_path: Path) -> None:
        outcome = run("pack", images, tmp_path / "out", "--format", "tar", "--json")
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.json == {
            "dataset": str(tmp_path / "out"),
            "complete_before": False,
            "packed": 1,
            "resumed": 0,
            "records": 12,
            "bytes": sum(path.stat().st_size for path in (tmp_path / "out").glob("*.tar")),
            "rejects": 0,
            "duplicates": 0,
            "remarks": {},
            "part": None,
            "missing": 0,
            "classes": None,
        }

    def test_so_is_an_error(self, run: Run, images: Path, tmp_path: Path) -> None:
        (tmp_path / "train.txt").write_text("missing.jpg 1\n" + images.read_text())
        words = ("--root", images.parent, "--max-rejects", 0, "--json")
        outcome = run("pack", tmp_path / "train.txt", tmp_path / "out", "--format", "tar", *words)
        assert outcome.code == 1
        assert outcome.json["error"] == "TooManyRejects"
        assert "1 of 13 lines refused, 0 allowed" in outcome.json["message"]
        assert outcome.err == f"error: {outcome.json['message']}\n"


def test_a_missing_list_is_an_error_that_says_what_a_list_is(run: Run, tmp_path: Path) -> None:
    outcome = run("pack", tmp_path / "train.txt", tmp_path / "out")
    assert outcome.code == 1
    assert outcome.err == (
        f"error: there is no list or image folder {tmp_path}/train.txt. Give a file with one `path label` per line, or "
        "a folder with one folder of images per class\n"
    )


def test_what_fails_is_exit_code_1_and_a_plain_message(run: Run, images: Path, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("x")
    outcome = run("pack", images, tmp_path, "--format", "tar")
    assert outcome.code == 1
    assert outcome.err == (
        f"error: {tmp_path} is not empty (precious.txt), and has no plan.json of packtrain's. Choose a new or empty "
        "folder\n"
    )


class TestProgress:
    def test_a_log_gets_plain_lines(
        self, run: Run, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("packtrain._cli.output._LOG_SECONDS", 0)
        monkeypatch.setattr("packtrain._packer.shard._REPORT_SECONDS", 0)
        outcome = run("pack", images, tmp_path / "out", "--format", "tar", "--workers", 1)
        lines = outcome.err.splitlines()
        assert all(re.fullmatch(r"pack: \d+ of 12 \([\d,]+ images/s(, [\d,]+ s left)?\)", line) for line in lines)
        assert [int(line.split()[1]) for line in lines] == [*range(13), 12]
        assert not CONTROL.search(outcome.out + outcome.err)

    def test_json_is_silent(self, run: Run, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("packtrain._cli.output._LOG_SECONDS", 0)
        assert run("pack", images, tmp_path / "out", "--format", "tar", "--json", "--workers", 1).err == ""

    def test_a_terminal_gets_a_bar(self, images: Path, tmp_path: Path) -> None:
        printed, shown = on_terminal("pack", images, tmp_path / "out", "--format", "tar")
        assert "12 records" in printed
        assert b"pack: " in shown
        assert b"12.0/12.0" in shown
        assert b"images/s" in shown


def test_pack_is_installed_as_a_command_of_its_own(run: Run, images: Path, tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("pack")
    assert output_of(script, "--help").replace("Usage: pack", "Usage: packtrain pack") == output_of(
        script.with_name("packtrain"), "pack", "--help"
    )
    assert run(images, tmp_path / "short", "--format", "tar", program="pack").code == 0
    assert run("pack", images, tmp_path / "long", "--format", "tar").code == 0
    assert tree(tmp_path / "short") == tree(tmp_path / "long")


@pytest.mark.complete
def test_all_cores_work_unless_said_otherwise(
    run: Run, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def spy(*arguments: Any, workers: int, **options: Any) -> Any:
        asked.append(workers)
        return run_tasks(*arguments, workers=1, **options)

    for command, module in ((pack_cmd, runs), (verify_cmd, verifier)):
        monkeypatch.setattr(command, "available_cores", lambda: 3)
        monkeypatch.setattr(module, "run_tasks", spy)
    assert run("pack", images, tmp_path / "out", "--shard-size", shard_bytes(images, 2)).code == 0
    assert run("verify", tmp_path / "out").code == 0
    for words in (("pack", images, tmp_path / "two", "--shard-size", 3000), ("verify", tmp_path / "out")):
        assert run(*words, "--workers", 2).code == 0
    assert asked == [3, 3, 2, 2]


class TestParts:
    """Parts of a dataset of six shards, with two lines each."""

    @pytest.fixture
    def options(self, images: Path) -> list[object]:
        return ["--store", "raw", "--resize", "8x8", "--shard-size", 2 * 8 * 8 * 3, "--workers", 1]

    def test_parts_a_status_and_a_merge(self, run: Run, images: Path, options: list[object], tmp_path: Path) -> None:
        out = tmp_path / "out"
        assert run("pack", images, tmp_path / "local", *options).code == 0
        outcome = run("pack", images, out, *options, "--part", "2/3")
        assert (outcome.code, outcome.err) == (0, "")
        assert f"{out}: part 2/3: 2 shard(s) packed in " in outcome.out
        assert f"4 shard(s) of all parts are still missing: packtrain status {out}" in outcome.out

        outcome = run("status", out)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.splitlines() == [
            f"{out}: 2 of 6 shards are done (33 % of the lines)",
            "missing: 4",
            *(f"  train-{number:06d}.tar" for number in (0, 2, 3, 5)),
            "to do what is failed or missing: run the same command again; in Slurm, --array=1,3-4,6 with --part auto/6",
        ]
        outcome = run("merge", out)
        assert (outcome.code, outcome.out) == (1, "")
        assert "4 of 6 shards are missing" in outcome.err

        for part in ("1/2", "2/2"):
            outcome = run("pack", images, out, *options, "--part", part)
        assert f"all shards of all parts are packed: packtrain merge {out}" in outcome.out
        assert f"to finish it: packtrain merge {out}" in run("status", out).out
        assert f"{out}: 12 records in 6 shard(s), " in run("merge", out).out
        assert tree(out) == tree(tmp_path / "local")
        assert "already complete" in run("merge", out).out
        assert run("status", out).out == f"{out}: complete: all 6 shards are done\n"

    def test_json(self, run: Run, images: Path, options: list[object], tmp_path: Path) -> None:
        report = run("pack", images, tmp_path / "out", *options, "--part", "1/2", "--json").json
        assert (report["part"], report["packed"], report["missing"], report["records"]) == ("1/2", 3, 3, 6)
        status = run("status", tmp_path / "out", "--json").json
        assert status["missing"] == [f"train-{number:06d}.tar" for number in (1, 3, 5)]
        assert (status["done"], status["array"], status["part"]) == (3, "2,4,6", "auto/6")
        run("pack", images, tmp_path / "out", *options, "--part", "2/2")
        assert run("merge", tmp_path / "out", "--json").json["records"] == 12
        error = run("merge", tmp_path / "nothing", "--json").json
        assert error["error"] == "OutputConflict"

    def test_in_an_array_it_says_what_it_has_read(
        self, run: Run, images: Path, options: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in {"ID": 4, "MIN": 0, "MAX": 8, "STEP": 4, "COUNT": 3}.items():
            monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
        outcome = run("pack", images, tmp_path / "out", *options, "--part", "auto")
        assert outcome.err == "pack: part 2/3, task 4 of a Slurm array of 3 task(s) from 0 to 8 by 4\n"
        assert run("pack", images, tmp_path / "out", *options, "--part", "auto/7").err == (
            "pack: part 4/7, the number of task 4 of a Slurm array of 3 task(s) from 0 to 8 by 4\n"
        )
