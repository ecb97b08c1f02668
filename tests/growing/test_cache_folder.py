"""Laws of the filler's folder: what another user prepared, or could change, is refused and not touched."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from packtrain import GrowingCache
from packtrain._core.generations import GENERATIONS, LOG, READERS, SHARDS, STATUS, TEMPORARY
from packtrain._core.manifest import CACHE
from packtrain._growing.cache_folder import FILES, FOLDERS, lock_cache
from packtrain._growing.options import FillOptions
from packtrain._growing.process import run
from packtrain.errors import OutputConflict

STRANGER = 12345
OPTIONS = FillOptions(budget="4MiB", shard_size="128KiB")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def few() -> Iterator[dict[str, np.ndarray]]:
    return ({"x": np.full(2000, number, np.float32)} for number in range(20))


def seen(folder: Path) -> dict[str, object]:
    """All that a folder holds, with what a touch would change."""
    found: dict[str, object] = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        found[str(path)] = status.st_ino, status.st_mode, status.st_mtime_ns, content
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with files that this user must not lose."""
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    for name in ("cache-000009.tar", "cache-000009.index.npy", "notes"):
        (home / name).write_text("years of work")
    return home


class TestWhatSomebodyPrepared:
    @pytest.mark.parametrize("kind", ["link", "broken link", "fifo", "of another", "other kind"])
    @pytest.mark.parametrize("name", [CACHE, STATUS, LOG, SHARDS, GENERATIONS, READERS, TEMPORARY])
    def test_is_refused_by_name_and_nothing_is_touched(self, tmp_path: Path, home: Path, name: str, kind: str) -> None:
        root = tmp_path / "cache"
        root.mkdir(mode=0o755)
        path = root / name
        match kind:
            case "link":
                path.symlink_to(home if name in FOLDERS else home / "notes")
            case "broken link":
                path.symlink_to(home / "nothing yet")
            case "fifo":
                os.mkfifo(path)
            case "of another":
                if os.geteuid():
                    pytest.skip("only root makes what belongs to others")
                path.mkdir() if name in FOLDERS else path.touch()
                os.chown(path, STRANGER, STRANGER)
            case "other kind":
                path.touch() if name in FOLDERS else path.mkdir()
        before = seen(tmp_path)
        with pytest.raises(OutputConflict, match=f"{name} is not a (file|folder) that packtrain made"):
            run(root, few, OPTIONS)
        assert seen(tmp_path) == before

    def test_a_log_with_a_second_name_is_refused(self, tmp_path: Path, home: Path) -> None:
        root = tmp_path / "cache"
        root.mkdir(mode=0o755)
        (root / LOG).hardlink_to(home / "notes")
        with pytest.raises(OutputConflict, match=r"filler\.log is not a file that packtrain made"):
            run(root, few, OPTIONS)


class TestWhoCanChangeIt:
    @pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777])
    def test_a_folder_that_others_write_to_is_refused(self, tmp_path: Path, mode: int) -> None:
        root = tmp_path / "a cache"
        root.mkdir()
        root.chmod(mode)
        with pytest.raises(OutputConflict, match=f"other users may .*: run `chmod go-w '{root}'`"):
            run(root, few, OPTIONS)
        assert not list(root.iterdir())
        root.chmod(0o755)
        run(root, few, OPTIONS)

    @pytest.mark.parametrize("name", FOLDERS)
    def test_so_is_one_in_it(self, tmp_path: Path, name: str) -> None:
        run(tmp_path / "cache", few, OPTIONS)
        (tmp_path / "cache" / name).chmod(0o775)
        with pytest.raises(OutputConflict, match=f"other users may write to .*{name}: run `chmod go-w "):
            run(tmp_path / "cache", few, OPTIONS)

    @pytest.mark.parametrize("mode", [0o777, 0o775])
    def test_so_is_one_on_the_way(self, tmp_path: Path, mode: int) -> None:
        (tmp_path / "open" / "mine").mkdir(parents=True)
        (tmp_path / "open").chmod(mode)
        with pytest.raises(
            OutputConflict, match=f"other users may rename files in .*: run .*`chmod \\+t {tmp_path}/open`"
        ):
            run(tmp_path / "open" / "mine" / "cache", few, OPTIONS)
        assert not list((tmp_path / "open" / "mine").iterdir())
        (tmp_path / "open").chmod(mode | stat.S_ISVTX)
        run(tmp_path / "open" / "mine" / "cache", few, OPTIONS)

    def test_nobody_else_may_write_to_what_is_made(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            run(tmp_path / "new" / "cache", few, OPTIONS)
        finally:
            os.umask(before)
        made = [path for path in (tmp_path / "new").rglob("*") if path.is_dir()]
        assert len(made) == 1 + len(FOLDERS)
        assert not any(path.stat().st_mode & 0o022 for path in (tmp_path / "new", *made))

    def test_a_link_of_ones_own_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir(mode=0o755)
        (tmp_path / "way").symlink_to("disk/../disk")
        run(tmp_path / "way" / "cache", few, OPTIONS)
        assert (tmp_path / "disk" / "cache" / CACHE).exists()


@needs_root
class TestAnotherUser:
    @pytest.fixture
    def public(self) -> Iterator[Path]:
        """A folder like /tmp, which another user reaches."""
        with tempfile.TemporaryDirectory() as made:
            public = Path(made)
            public.chmod(0o1777)
            yield public

    @pytest.mark.parametrize("way", ["cache", "cache/below", "link", "link/below"])
    def test_what_belongs_to_them_is_refused(self, public: Path, home: Path, way: str) -> None:
        (public / "cache").mkdir(mode=0o755)
        (public / "link").symlink_to(home)
        for name in ("cache", "link"):
            os.chown(public / name, STRANGER, STRANGER, follow_symlinks=False)
        before = seen(public) | seen(home)
        with pytest.raises(
            OutputConflict, match=rf"{way.partition('/')[0]} (is a link that )?belongs to user {STRANGER}"
        ):
            run(public / way, few, OPTIONS)
        with pytest.raises(OutputConflict, match=f"belongs to user {STRANGER}"):
            GrowingCache(public / way, "4MiB", shard_size="128KiB").fill("helpers.fillers:few", outlive=True)
        assert seen(public) | seen(home) == before

    def test_a_filler_that_they_claim_is_not_believed(self, public: Path) -> None:
        run(public / "cache", few, OPTIONS)
        for path in (public / "cache", *(public / "cache").iterdir()):
            os.chown(path, STRANGER, STRANGER)
        with lock_cache(public / "cache"), pytest.raises(OutputConflict, match=f"belongs to user {STRANGER}"):
            GrowingCache(public / "cache", "4MiB", shard_size="128KiB").fill("helpers.fillers:few")

    def test_one_who_is_faster_is_found_out(self, public: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make = os.mkdir

        def late(name: str, mode: int, *, dir_fd: int) -> None:
            (public / "cache").symlink_to(home)
            os.chown(public / "cache", STRANGER, STRANGER, follow_symlinks=False)
            make(name, mode, dir_fd=dir_fd)

        before = seen(home)
        monkeypatch.setattr(os, "mkdir", late)
        with pytest.raises(OutputConflict, match=f"cache is a link that belongs to user {STRANGER}"):
            run(public / "cache", few, OPTIONS)
        assert seen(home) == before

    def test_one_who_swaps_while_it_fills_cannot(self, public: Path, home: Path) -> None:
        before = seen(home)
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            with suppress(BaseException):
                os.close(ours)
                os.setgid(STRANGER)
                os.setuid(STRANGER)
                # Ends when the other end of the pipe, of which this process keeps none, is closed.
                while os.write(theirs, b"."):
                    for path in (public / "cache", *(public / "cache" / name for name in (*FOLDERS, *FILES))):
                        with suppress(OSError):
                            path.rename(public / "gone")
                            path.symlink_to(home)
                            os.write(theirs, b"!")
            os._exit(0)
        os.close(theirs)
        # Whoever is first in a folder like /tmp has the name, so this is about what happens from then on.
        (public / "cache").mkdir(mode=0o755)
        with os.fdopen(ours, "rb", buffering=0) as said:
            assert said.read(1) == b"."
            figures = run(public / "cache", few, OPTIONS).figures
            assert b"!" not in said.read(1 << 16)
        os.waitpid(child, 0)
        assert figures.samples == 20
        assert len(GrowingCache(public / "cache").dataset()) == 20
        assert seen(home) == before
