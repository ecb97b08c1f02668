"""Laws of `packtrain staged`: it shows what is there, and keeps the copies that somebody needs."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from helpers.support import flip, image_set, packed, shard_bytes, tree

from packtrain import StageOptions, open_dataset, stage
from packtrain._storage.staging.source import SourceDataset, overhead_bytes
from packtrain.staging import Staged, entries

from .conftest import Run


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("staged")
    made = []
    for name, count in (("cats", 12), ("dogs", 20)):
        listing = image_set(folder / f"images of {name}", count)
        made.append(packed(listing, folder / name, "tar", shard_size=shard_bytes(listing, 5)))
    return made[0], made[1]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


@pytest.fixture
def staged(datasets: tuple[Path, Path], place: Path) -> tuple[Staged, Staged]:
    """Two entries that nobody reads."""
    cats, dogs = (stage(dataset, StageOptions(to=place)) for dataset in datasets)
    cats.lease.close()
    dogs.lease.close()
    return cats, dogs


def names(place: Path) -> set[str]:
    return {entry.id.split("-")[0] for entry in entries(place)}


class TestList:
    def test_an_empty_place(self, run: Run, place: Path) -> None:
        outcome = run("staged", "list", "--to", place)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.startswith(f"0 staged in {place}, 0 B; room for ")
        assert not list(place.iterdir())

    def test_a_place_that_is_not_there(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for name in ("none", "file"):
            for words in (["list"], ["evict", "--all"], ["evict", "cats"], ["pin", "cats"], ["repair", "cats"]):
                outcome = run("staged", *words, "--to", tmp_path / name)
                assert (outcome.code, outcome.out) == (1, ""), words
                assert f"{tmp_path / name} is not a folder" in outcome.err

    def test_a_line_for_each(self, run: Run, staged: tuple[Staged, Staged], place: Path) -> None:
        cats, dogs = staged
        os.utime(place.glob(f"packtrain-*/.locks/{cats.id[-16:]}.lease").__next__(), (time.time() - 7300,) * 2)
        run("staged", "pin", "dogs", "--to", place)
        with open_dataset(dogs.path).store:
            lines = run("staged", "list", "--to", place).out.splitlines()
        head, first, second, total = (" ".join(line.split()) for line in lines)
        assert head == "id size shards state last used read by safe until"
        assert first.startswith(f"{cats.id} ") and first.endswith(" KiB 3/3 complete 2 h ago - -")
        assert second.startswith(f"{dogs.id} ") and second.endswith(f" KiB 4/4 complete 0 s ago {os.getpid()} pinned")
        assert total.startswith(f"2 staged in {place}, ") and "; room for " in total and "(limit: " in total

    def test_a_promise_is_shown(self, run: Run, datasets: tuple[Path, Path], place: Path) -> None:
        run("stage", datasets[0], "--to", place, "--grace", "90m")
        assert run("staged", "list", "--to", place).out.splitlines()[1].endswith(" -        for 90 min")

    def test_json(self, run: Run, staged: tuple[Staged, Staged], place: Path) -> None:
        found = run("staged", "list", "--to", place, "--json").json
        assert found["to"] == str(place)
        assert [entry["path"] for entry in found["entries"]] == [str(each.path) for each in staged]
        assert [entry["bytes"] for entry in found["entries"]] == [entry.bytes for entry in entries(place)]
        assert found["room"]["bytes"] > 0

    def test_a_partial_one(self, run: Run, datasets: tuple[Path, Path], place: Path) -> None:
        source = SourceDataset.load(datasets[1])
        budget = sum(file.allocated for file in source.files) + overhead_bytes(source.manifest) - 1
        outcome = run("stage", datasets[1], "--to", place, "--partial", "--budget", budget, "--json")
        assert (outcome.json["local_shards"], outcome.json["shards"]) == (3, 4)
        assert " 3/4  partial " in run("staged", "list", "--to", place).out


class TestEvict:
    @pytest.mark.parametrize("how", ["id", "beginning", "beginning of the key", "path", "path with slash"])
    def test_one(self, run: Run, staged: tuple[Staged, Staged], place: Path, how: str) -> None:
        cats, _ = staged
        words = {
            "id": (cats.id, "--to", place),
            "beginning": ("cats", "--to", place),
            "beginning of the key": (cats.id.rpartition("-")[2][:6], "--to", place),
            "path": (cats.path,),
            "path with slash": (f"{cats.path}/",),
        }[how]
        size = next(entry.bytes for entry in entries(place) if entry.id == cats.id)
        outcome = run("staged", "evict", *words)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out == f"{cats.id}: evicted, {size / 1024:.1f} KiB\n"
        assert not cats.path.exists() and names(place) == {"dogs"}

    def test_all(self, run: Run, staged: tuple[Staged, Staged], place: Path) -> None:
        found = run("staged", "evict", "--all", "--to", place, "--json").json
        assert {entry["id"] for entry in found["evicted"]} == {each.id for each in staged}
        assert names(place) == set()
        assert run("staged", "evict", "--all", "--to", place).out == f"nothing is staged in {place}\n"

    def test_what_is_read_stays(self, run: Run, staged: tuple[Staged, Staged], place: Path) -> None:
        with open_dataset(staged[0].path).store:
            outcome = run("staged", "evict", "cats", "dogs", "--to", place)
            assert (outcome.code, outcome.out) == (1, "")
            assert f"{staged[0].id} is being read by process {os.getpid()}" in outcome.err
            assert names(place) == {"cats", "dogs"}
            gone, kept = run("staged", "evict", "--all", "--to", place).out.splitlines()
            assert gone.startswith(f"{staged[1].id}: evicted, ")
            assert kept.startswith(f"kept: {staged[0].id} is being read by process {os.getpid()}")
        assert names(place) == {"cats"}

    def test_what_is_pinned_stays(self, run: Run, staged: tuple[Staged, Staged], place: Path) -> None:
        assert run("staged", "pin", "cats", "--to", place).out == f"{staged[0].id}: pinned\n"
        outcome = run("staged", "evict", "cats", "--to", place, "--force")
        assert outcome.code == 1 and "is pinned" in outcome.err
        kept = run("staged", "evict", "--all", "--to", place).out.splitlines()[-1]
        assert kept == f"kept: {staged[0].id} is pinned: run `packtrain staged unpin {staged[0].id} --to {place}` first"
        assert names(place) == {"cats"}
        assert run("staged", "unpin", staged[0].path).out == f"{staged[0].id}: not pinned\n"
        run("staged", "evict", "--all", "--to", place)
        assert names(place) == set()

    def test_what_was_promised_stays_but_for_force(self, run: Run, datasets: tuple[Path, Path], place: Path) -> None:
        for which, why in (("cats", "was printed recently"), ("--all", "is in its grace period: ")):
            path = Path(run("stage", datasets[0], "--to", place, "--grace", "90m").out.rstrip("\n"))
            outcome = run("staged", "evict", which, "--to", place)
            assert outcome.code == (which != "--all")
            assert why in outcome.out + outcome.err
            assert f"`packtrain staged evict {path.name} --force --to {place}`" in outcome.out + outcome.err
            assert names(place) == {"cats"}
            assert run("staged", "evict", which, "--to", place, "--force").out.startswith(f"{path.name}: evicted")
            assert names(place) == set()

    @pytest.mark.parametrize(
        ("words", "code", "message"),
        [
            ([], 2, "name the copies to evict, or use --all"),
            (["cats", "--all"], 2, "name the copies to evict, or use --all"),
            (["cat"], 2, "'cat' is too short for the id of a copy: give at least 4 characters"),
            ([""], 2, "'' is too short"),
            (["s"], 1, "there is no staged copy 's'"),
            (["mice"], 1, "there is no staged copy 'mice'; existing copies: cats-"),
            (["/a/packtrain-0/x"], 2, "these copies are in several folders (/a, "),
        ],
    )
    def test_wrong_usage(
        self, run: Run, staged: tuple[Staged, Staged], place: Path, words: list[str], code: int, message: str
    ) -> None:
        outcome = run("staged", "evict", *words, "--to", place)
        assert (outcome.code, outcome.out) == (code, "") and message in outcome.err
        assert names(place) == {"cats", "dogs"}


class TestStrays:
    def test_they_are_named(self, run: Run, staged: tuple[Staged, Staged], place: Path) -> None:
        stray = staged[0].path.parent / ".trash" / "notes"
        stray.touch()
        for words in (["list"], ["evict", "--all"]):
            outcome = run("staged", *words, "--to", place)
            assert outcome.code == 0
            assert f"leaves them alone: {stray}. Move or delete them" in outcome.err
        assert names(place) == set() and stray.exists()


class TestTheOnlyCopy:
    def test_it_goes_only_by_name_and_force(
        self, run: Run, datasets: tuple[Path, Path], place: Path, tmp_path: Path
    ) -> None:
        source = shutil.copytree(datasets[0], tmp_path / "cats")
        only = Path(run("stage", source, "--to", place, "--grace", "0").out.rstrip("\n"))
        shutil.rmtree(source)
        for words in (["--all"], ["--all", "--force"]):
            outcome = run("staged", "evict", *words, "--to", place)
            assert outcome.code == 0
            assert outcome.out.startswith(
                f"kept: {only.name} may be the only copy: its source {source} no longer holds"
            )
            assert f"`packtrain staged evict {only.name} --force --to {place}`" in outcome.out
        (kept,) = run("staged", "evict", "--all", "--to", place, "--json").json["kept"]
        assert kept["id"] == only.name and "may be the only copy" in kept["why"]
        outcome = run("staged", "evict", only)
        assert outcome.code == 1
        assert f"may be the only copy: its source {source} no longer holds it" in outcome.err
        assert f"`packtrain staged evict {only.name} --force --to {place}`" in outcome.err
        assert only.is_dir()
        assert run("staged", "evict", only.name, "--force", "--to", place).code == 0
        assert not only.exists()


class TestRepair:
    def test_only_what_is_damaged_is_copied_again(
        self, run: Run, datasets: tuple[Path, Path], staged: tuple[Staged, Staged]
    ) -> None:
        entry = staged[0].path
        before = {path.name: path.stat().st_ino for path in entry.glob("*.tar")}
        (entry / "train-000001.tar").chmod(0o600)
        flip(entry / "train-000001.tar", 3000)
        assert run("verify", entry).code == 1
        outcome = run("staged", "repair", entry)
        size = (entry / "train-000001.tar").stat().st_size
        assert (outcome.code, outcome.out.splitlines()) == (
            0,
            [f"{entry / 'train-000001.tar'}: repaired", f"{staged[0].id}: 1 file(s) repaired, {size / 1024:.1f} KiB"],
        )
        assert run("verify", entry).code == 0
        after = {path.name: path.stat().st_ino for path in entry.glob("*.tar")}
        assert {name for name in before if before[name] != after[name]} == {"train-000001.tar"}
        copied = tree(entry)
        del copied["staged.json"]
        assert copied == tree(datasets[0])

    def test_what_is_sound(self, run: Run, staged: tuple[Staged, Staged]) -> None:
        assert run("staged", "repair", staged[0].path).out == f"{staged[0].id}: no damage found\n"
        assert run("staged", "repair", staged[0].path, "--json").json == {"files": [], "bytes": 0}

    def test_what_is_no_entry(self, run: Run, datasets: tuple[Path, Path], place: Path) -> None:
        for words in ([datasets[0]], ["cats", "--to", place]):
            outcome = run("staged", "repair", *words)
            assert (outcome.code, outcome.out) == (1, "") and "there is no staged copy" in outcome.err
