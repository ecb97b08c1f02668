"""Laws of DaliLoader's batches: none is lost, repeated or out of order, whatever DALI refuses."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.dali import require_dali
from helpers.support import encoded, flip, packed, picture

from packtrain import Loader, open_dataset
from packtrain._extras.dali import engine as engine_module
from packtrain._extras.dali.engine import DaliEngine
from packtrain._extras.dali.graph import DaliPipeline
from packtrain.dali import DaliLoader
from packtrain.errors import CorruptRecord, LoaderError
from packtrain.transforms import RandomCrop, RandomResizedCrop, Resize

ROWS, BATCH = 41, 4
pytestmark = pytest.mark.complete
GIFS = (0, 1, 2, 3, 8, 13, 14, 40)


@pytest.fixture(autouse=True)
def _dali() -> None:
    require_dali()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images that DALI decodes as Pillow does, and some that it refuses: GIFs."""
    folder = tmp_path_factory.mktemp("source")
    for row in range(ROWS):
        image = picture(row, 40 + row, 40)
        (folder / f"{row}.img").write_bytes(encoded(image, "GIF" if row in GIFS else "JPEG"))
    (folder / "train.txt").write_text("".join(f"{row}.img {row}\n" for row in range(ROWS)))
    return folder / "train.txt"


@pytest.fixture(scope="module")
def out(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(source, tmp_path_factory.mktemp("packed") / "out", "tar")


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """DALI gets every image, so that it fails at those that it refuses."""
    monkeypatch.setattr(engine_module, "decodes", lambda image: True)


def loader(kind: type[Loader], dataset: Any, **options: Any) -> Loader:
    given = {"shuffle": True, "seed": 5, **({"num_workers": 0} if kind is Loader else {"num_threads": 2}), **options}
    return kind(dataset, BATCH, **given)


def wanted(dataset: Any, epochs: int = 1, **options: Any) -> list[tuple[torch.Tensor, ...]]:
    with warnings.catch_warnings(), loader(Loader, dataset, **options) as found:
        warnings.simplefilter("ignore")
        return [batch for _ in range(epochs) for batch in found]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert all(map(torch.equal, one, other))


def counted(patch: pytest.MonkeyPatch) -> list[DaliPipeline]:
    """Gets the pipelines that are made from now on."""
    made: list[DaliPipeline] = []
    build = DaliPipeline.__init__

    def counting(self: DaliPipeline, *given: Any) -> None:
        made.append(self)
        build(self, *given)

    patch.setattr(DaliPipeline, "__init__", counting)
    return made


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.filterwarnings("ignore:DALI refuses")
def test_what_dali_refuses_is_decoded_by_packtrain(out: Path, depth: int, shuffle: bool) -> None:
    dataset = open_dataset(out, transform=[RandomCrop(24)])
    with loader(DaliLoader, dataset, prefetch_factor=depth, shuffle=shuffle) as found:
        assert_same([batch for _ in range(3) for batch in found], wanted(dataset, 3, shuffle=shuffle))


@pytest.mark.usefixtures("blind")
def test_a_refusal_costs_once_and_is_named_once(out: Path) -> None:
    dataset = open_dataset(out, transform=[RandomCrop(24)])
    with pytest.MonkeyPatch.context() as patch:
        made = counted(patch)
        with loader(DaliLoader, dataset) as found, warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            list(found)
            first = len(made)
            list(found)
            assert found.stats.total.refused == 2 * len(GIFS)
    names = [str(each.message) for each in told if "DALI refuses" in str(each.message)]
    assert len(names) == len(GIFS)
    assert all(sum(f"{row}.img" in name for name in names) >= 1 for row in GIFS)
    assert len(made) == first


@pytest.mark.usefixtures("blind")
@pytest.mark.filterwarnings("ignore:DALI refuses")
def test_a_pass_may_end_anywhere(out: Path) -> None:
    dataset = open_dataset(out, transform=[RandomCrop(24)])
    chance = random.Random(0)
    expected = wanted(dataset, 12)
    steps = len(expected) // 12
    with loader(DaliLoader, dataset) as found:
        for epoch in range(12):
            # A single batch would be a look, which ends no epoch.
            count = chance.randrange(2, steps + 1)
            batches = [batch for _, batch in zip(range(count), found, strict=False)]
            assert_same(batches, expected[epoch * steps : epoch * steps + count])
            if epoch % 4 == 3:
                found.close()


def test_a_transform_may_change_between_epochs(out: Path) -> None:
    dataset = open_dataset(out, transform=[RandomCrop(24)])
    with loader(DaliLoader, dataset) as found, loader(Loader, dataset) as reference:
        for transform in ([RandomCrop(24)], [RandomCrop((24, 24))], [RandomCrop(20)], [RandomCrop((30, 20))]):
            found.transform = reference.transform = transform
            assert_same(list(found), list(reference))


def test_a_transform_that_gives_the_same_size_keeps_the_pipeline(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch)
    with loader(DaliLoader, open_dataset(out, transform=[RandomCrop(24)])) as found:
        for transform in ([RandomCrop(24)], [Resize((24, 24))], [RandomResizedCrop(24)]):
            found.transform = transform
            list(found)
    assert len(made) == 1


@pytest.fixture
def broken(source: Path, tmp_path: Path) -> tuple[Path, tuple[int, ...]]:
    """A dataset with damaged records, and their rows."""
    out = packed(source, tmp_path / "out", "tar")
    rows = (0, 5, 6, 7, 22, 40)
    shard = next(out.rglob("*.tar"))
    whole = shard.read_bytes()
    for row in rows:
        flip(shard, whole.index((source.parent / f"{row}.img").read_bytes()) + 200)
    return out, rows


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("sight", ["blind", "sighted"])
@pytest.mark.filterwarnings("ignore:DALI refuses", "ignore:left out")
def test_damaged_records_are_left_out(
    check: bool, sight: str, broken: tuple[Path, tuple[int, ...]], request: pytest.FixtureRequest
) -> None:
    if sight == "blind":
        request.getfixturevalue("blind")
    path, rows = broken
    dataset = open_dataset(path, transform=[RandomCrop(24)], check=check)
    with loader(DaliLoader, dataset, on_error="skip", fields=("row", "path")) as found:
        batches = [batch for _ in range(2) for batch in found]
        skipped = found.skipped
    with loader(Loader, dataset, on_error="skip", fields=("row", "path")) as reference:
        others = [batch for _ in range(2) for batch in reference]
        assert skipped == reference.skipped
    if check:
        assert skipped == 2 * len(rows)
    for one, other in zip(batches, others, strict=True):
        assert torch.equal(one[2], other[2]) and one[3] == other[3] and torch.equal(one[1], other[1])
        assert one[0].shape == other[0].shape


@pytest.mark.usefixtures("blind")
@pytest.mark.filterwarnings("ignore:DALI refuses", "ignore:left out")
def test_images_that_nobody_decodes_are_left_out_or_raised(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = packed(source, tmp_path / "out", "tar")
    shard = next(out.rglob("*.tar"))
    whole = shard.read_bytes()
    rows = (1, 2, 10, 30, 31, 40)
    for row in rows:
        # Its end of file, so that both refuse it.
        data = (source.parent / f"{row}.img").read_bytes()
        at = whole.index(data)
        with shard.open("r+b") as file:
            file.seek(at + len(data) // 2)
            file.write(bytes(len(data) - len(data) // 2))
    dataset = open_dataset(out, transform=[RandomCrop(24)], check=False)
    with loader(DaliLoader, dataset, shuffle=False, on_error="skip", fields=("row",)) as found:
        for epoch in range(1, 3):
            seen = torch.cat([batch[2] for batch in found]).tolist()
            assert found.skipped == epoch * (ROWS - len(seen)) > 0
            assert set(range(ROWS)) - set(seen) <= set(rows)
    lost = sorted(set(range(ROWS)) - set(seen))
    with loader(DaliLoader, dataset, shuffle=False, fields=("row",)) as found:
        batches: list[Any] = []
        with pytest.raises(CorruptRecord, match=rf"row {lost[0]}.*{lost[0]}\.img"):
            batches.extend(found)
        assert len(batches) == lost[0] // BATCH


def test_failures_that_are_not_about_an_image_are_named(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = open_dataset(out, transform=[RandomCrop(24)])
    expected = wanted(dataset, 2)
    with loader(DaliLoader, dataset) as found:
        batches = iter(found)
        next(batches)

        def fails(self: DaliPipeline) -> Any:
            raise RuntimeError("encountered:\n\nCan't allocate 5 bytes on host.\nThe pipeline is no longer valid.")

        with monkeypatch.context() as patch:
            patch.setattr(DaliPipeline, "next", fails)
            patch.setattr(DaliEngine, "_tried", lambda self, inputs: {})
            with pytest.raises(LoaderError, match=r"DALI failed: Can't allocate 5 bytes on host\.$"):
                next(batches)
        # A pass that failed is not begun again.
        assert_same(list(found), expected[len(expected) // 2 :])
