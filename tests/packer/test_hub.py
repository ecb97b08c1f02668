"""Laws of hf:// addresses, with a server of this machine that speaks what huggingface_hub asks the Hub."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest
from helpers.parquet import images, written
from helpers.support import require_module, tree

from packtrain import open_dataset
from packtrain._packer.hub import HubAddress
from packtrain.errors import ListError, RemoteError, UsageError

TOKEN = "hf_of_the_test"
NAME = "owner/fish"


class Hub(ThreadingHTTPServer):
    """A Hub with one dataset, of which a folder has the files.

    Attributes:
        folder: The folder.
        private: True if it takes the token.
        commit: The commit of its main branch, which has had others with the same files.
        downloads: The files that were fetched.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.folder = folder
        self.private = False
        self.commit = "a" * 40
        self.downloads: list[str] = []

    def about(self, path: Path) -> dict[str, object]:
        """The entry of a file in a tree."""
        data = path.read_bytes()
        large = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 9}
        name = str(path.relative_to(self.folder))
        return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest(), "lfs": large}


class _Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        if hub.private and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        if found := re.fullmatch(rf"/api/datasets/{NAME}(/revision/(.+))?", path):
            if found[2] not in (None, "main", "v1", hub.commit):
                return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return self._send(200, json.dumps({"id": NAME, "sha": hub.commit, "siblings": [], "tags": []}).encode())
        if found := re.fullmatch(rf"/api/datasets/{NAME}/tree/([0-9a-f]{{40}})/?(.*)", path):
            if not (hub.folder / found[2]).is_dir():
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            files = sorted(each for each in (hub.folder / found[2]).rglob("*") if each.is_file())
            return self._send(200, json.dumps([hub.about(each) for each in files]).encode())
        if found := re.fullmatch(rf"/datasets/{NAME}/resolve/([0-9a-f]{{40}})/(.+)", path):
            if with_body:
                hub.downloads.append(found[2])
            data = (hub.folder / found[2]).read_bytes()
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            return self._send(200, data, {"ETag": etag, "X-Repo-Commit": found[1]}, with_body=with_body)
        return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, *, with_body: bool = True) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@contextmanager
def running(hub: Hub) -> Iterator[str]:
    thread = Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{hub.server_address[1]}"
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    require_module("huggingface_hub")
    (tmp_path / "fish").mkdir()
    written(tmp_path / "fish" / "data")
    for number, name in enumerate(("train-00000-of-00001", "test-00000-of-00001")):
        (tmp_path / "fish/data" / f"part-{number}.parquet").rename(tmp_path / "fish/data" / f"{name}.parquet")
    (tmp_path / "fish" / "README.md").write_text("# Fish")
    return Hub(tmp_path / "fish")


def pack(endpoint: str, home: Path, source: str, out: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Packs with a cache and a configuration of huggingface_hub of its own, as on another machine."""
    given = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **more}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | given
    command = [sys.executable, "-m", "packtrain", "pack", source, str(out), "--store", "verbatim", "--workers", "1"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.complete
def test_a_pinned_commit_gives_the_same_bytes_on_any_machine_and_continues(hub: Hub, tmp_path: Path) -> None:
    """Without a commit, the address of the one that is packed is told, and another one is another plan."""
    name, first, second = f"hf://datasets/{NAME}/data/train-*.parquet", tmp_path / "first-out", tmp_path / "second-out"
    pinned = name.replace(NAME, f"{NAME}@{hub.commit}")
    with running(hub) as endpoint:
        done = pack(endpoint, tmp_path / "first", name, first)
        assert done.returncode == 0 and f"name it: {pinned}" in done.stderr, done.stderr
        hub.private = True
        done = pack(endpoint, tmp_path / "second", pinned, second, HF_TOKEN=TOKEN)
        assert (done.returncode, "name it" in done.stderr) == (0, False), done.stderr
        assert hub.downloads == ["data/train-00000-of-00001.parquet"] * 2
        hub.private, hub.commit = False, "b" * 40
        other = pack(endpoint, tmp_path / "first", name, first)
        assert other.returncode == 1 and "another plan" in other.stderr, other.stderr
        hub.commit, asked = "a" * 40, len(hub.downloads)
        again = pack(endpoint, tmp_path / "first", pinned, second)
    assert "already complete" in again.stdout and len(hub.downloads) == asked
    assert tree(first) == tree(second)
    dataset = open_dataset(first)
    assert [bytes(dataset.record(row)) for row in range(len(dataset))] == images()[:6]


@pytest.mark.parametrize(
    ("path", "error", "expected"),
    [
        (f"{NAME}x", ListError, "dataset owner/fishx is not at http://127.0.0.1"),
        ("private", ListError, "HF_TOKEN"),
        (f"{NAME}@v9/data", ListError, "has no revision v9"),
        (f"{NAME}/none/*.parquet", ListError, "has no folder none"),
        (f"{NAME}/data/val-*.parquet", ListError, "names no Parquet file"),
        (NAME, UsageError, "several splits: test, train"),
        ("../fish/data", UsageError, "hf://datasets/../fish/data is not the address of a dataset"),
        (
            "commit ../../../../outside",
            RemoteError,
            "does not answer as it should: the commit of the dataset is not 40",
        ),
        ("commit main", RemoteError, "does not answer as it should: the commit of the dataset is not 40"),
        ("gone", RemoteError, "cannot be reached"),
    ],
)
def test_what_is_not_there_is_named(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, path: str, error: type[Exception], expected: str
) -> None:
    from huggingface_hub import constants

    hub.private, special = path == "private", path.partition(" ")[0] in ("private", "commit", "gone")
    if path.startswith("commit"):
        # It would become the name of a folder.
        hub.commit = path.removeprefix("commit ")
    address = HubAddress.of(f"hf://datasets/{NAME if special else path}")
    assert address is not None
    with running(hub) as endpoint:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint if path != "gone" else "http://127.0.0.1:9")
        with pytest.raises(error, match=re.escape(expected)):
            address.fetch()


def test_addresses_have_revisions_and_paths() -> None:
    def parts(text: str) -> tuple[str | None, ...] | None:
        found = HubAddress.of(text)
        return None if found is None else (found.repository, found.revision, found.path)

    assert parts("hf://datasets/a/b") == ("a/b", None, "")
    assert parts("hf://datasets/a/b@v1/c/*.parquet") == ("a/b", "v1", "c/*.parquet")
    assert parts("hf://datasets/a/b@~parquet/c/train") == ("a/b", "refs/convert/parquet", "c/train")
    assert parts("hf://datasets/a/b@refs/pr/3/c") == ("a/b", "refs/pr/3", "c")
    assert parts("hf://datasets/a/b@refs%2Fpr%2F3/c") == ("a/b", "refs/pr/3", "c")
    assert parts("train.txt") is None
    for wrong in ("hf://datasets/a", "hf://a/b/c", "hf://datasets/a/b@/c", "hf://spaces/a/b"):
        with pytest.raises(UsageError, match="hf://datasets/OWNER/NAME/PATH"):
            HubAddress.of(wrong)
