"""Laws of `packtrain view`: what the server tells whom, and what the page makes of it in a real browser."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from socket import gethostname
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from helpers.browser import Page, browser
from helpers.support import encoded, flip, packed, picture, require_module, tool
from PIL import Image

from packtrain import Loader, PackOptions, open_dataset, pack
from packtrain._packer.options import Columns, FieldColumn
from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop

PAYLOAD = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&${7*7}"
COUNT = 60


@dataclass(frozen=True)
class Site:
    """A running `packtrain view`."""

    address: str

    def ask(self, path: str, *, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
        """The answer to a request for a path below the page's own, or for an absolute one."""
        parts = urlsplit(self.address)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        target = path if path.startswith("/") else parts.path + path
        connection.request(method, target, headers={name.replace("_", "-"): value for name, value in headers.items()})
        with closing(connection):
            answer = connection.getresponse()
            return answer, answer.read()

    def json(self, path: str) -> Any:
        """The JSON that an address of the page gives."""
        answer, content = self.ask(path)
        assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
        return json.loads(content)

    def pixels(self, path: str) -> Any:
        """The picture at an address."""
        answer, content = self.ask(path)
        assert (answer.status, answer.headers["Content-Type"]) == (200, "image/png")
        image = Image.open(io.BytesIO(content))
        assert image.format == "PNG"
        return np.asarray(image).astype(int)


@contextmanager
def viewing(*words: object, by_ssh: bool = False) -> Iterator[Site]:
    command = [sys.executable, "-m", "packtrain", "view", *map(str, words), "--no-browser"]
    environment = {name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"}
    if by_ssh:
        environment["SSH_CONNECTION"] = "192.0.2.1 50000 192.0.2.2 22"
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            site = Site(process.stdout.readline().strip())
            yield site
        finally:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        port = urlsplit(site.address).port
        tunnel = f"to open it on your own machine, first run there: ssh -L {port}:127.0.0.1:{port} {gethostname()}\n"
        assert (process.returncode, out, err) == (0, "", tunnel * by_ssh + "Ctrl-C ends it\n")


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose paths, classes and captions are markup, of which row 3 is damaged."""
    folder = tmp_path_factory.mktemp("strange")
    with (folder / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "class", "caption", "boxes"])
        for number in range(COUNT):
            name = f"{number:02} <img src=x onerror=alert(3)>.jpg"
            (folder / name).write_bytes(encoded(picture(number, 64, 48)))
            writer.writerow([name, f"{PAYLOAD} {number % 3}", f"{PAYLOAD}\n\x1b[31m{number}", "[[8, 8, 40, 30]]"])
    fields = (
        FieldColumn("caption", "text", "caption", by_path=False),
        FieldColumn("boxes", "array", "boxes", by_path=False),
    )
    pack(folder / "train.csv", folder / "out", PackOptions(columns=Columns("path", "class", fields)))
    (shard,) = (folder / "out").glob("*.tar")
    flip(shard, int(np.load(folder / "out/index/offset.npy")[3]) + 30)
    return folder / "out"


@pytest.fixture(scope="module")
def site(strange: Path) -> Iterator[Site]:
    with viewing(strange, "--transform", "rrc48", "--seed", 5, "--boxes", "boxes") as found:
        yield found


@pytest.mark.complete
class TestServer:
    def test_only_who_knows_the_secret_gets_anything(self, site: Site) -> None:
        secret = urlsplit(site.address).path.strip("/")
        assert len(secret) >= 32
        for path in ("/", "/favicon.ico", f"/{secret[:-1]}x/", f"/{secret}", "//", f"/x/{secret}/", "/%C3%A9/"):
            answer, content = site.ask(path)
            assert (answer.status, content) == (403, b"403 Forbidden\n"), path
        assert site.ask("")[0].status == 200

    def test_a_tunnel_with_another_port_is_told_to_take_the_same(self, strange: Path) -> None:
        with viewing(strange, by_ssh=True) as site:
            port = urlsplit(site.address).port or 0
            answer, content = site.ask("", Host=f"127.0.0.1:{port - 1}")
            advice = f"403 Take the same port on both sides of a tunnel: ssh -L {port}:127.0.0.1:{port}\n"
            assert (answer.status, content.decode()) == (403, advice)

    @pytest.mark.parametrize(
        "headers",
        [
            {"Host": "evil.example"},
            {"Host": "127.0.0.1"},
            {"Host": "127.0.0.1.evil.example:{port}"},
            {"Host": ""},
            {"Sec_Fetch_Site": "cross-site"},
            {"Sec_Fetch_Site": "same-site"},
        ],
    )
    def test_other_sites_get_nothing(self, site: Site, headers: dict[str, str]) -> None:
        port = str(urlsplit(site.address).port)
        for path in ("", "about", "rows", "image?row=0"):
            answer, content = site.ask(path, **{name: value.format(port=port) for name, value in headers.items()})
            assert (answer.status, content) == (403, b"403 Forbidden\n")
        assert site.ask("about", Host=f"localhost:{port}")[0].status == 200
        assert site.ask("about", Sec_Fetch_Site="same-origin")[0].status == 200

    def test_every_answer_forbids_what_the_page_does_not_need(self, site: Site) -> None:
        for path in ("", "page.js", "about", "image?row=0", "nothing", "/"):
            answer, _ = site.ask(path)
            rules = dict(rule.strip().split(" ", 1) for rule in answer.headers["Content-Security-Policy"].split(";"))
            assert rules.pop("default-src") == "'none'"
            assert set(rules.values()) == {"'self'", "'none'"}
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
    def test_nothing_can_be_sent(self, site: Site, method: str) -> None:
        assert site.ask("about", method=method)[0].status == 501

    @pytest.mark.parametrize(
        "path",
        [
            *("x", "page.html", "../server.py", "..%2fserver.py", "page/../page.js", "image/", "image?row=x"),
            *(f"image?row={COUNT}", "image?row=-1", "image?row=0&side=1", "image?row=0&side=99999", "rows?size=0"),
            *(
                "rows?size=9999",
                "rows?place=-1",
                f"rows?place={'9' * 30}",
                "image?row=0&seen=2",
                "image?row=0&seen=1&epoch=1e3",
            ),
        ],
    )
    def test_there_is_nothing_else(self, site: Site, path: str) -> None:
        assert site.ask(path)[0].status == 404

    def test_pictures_are_drawn_anew_and_are_what_the_loader_hands_out(self, site: Site, strange: Path) -> None:
        dataset = open_dataset(strange, [RandomResizedCrop(48), RandomHorizontalFlip()])
        stored = site.pixels("image?row=7&side=64&overlays=0")
        assert (stored == np.asarray(dataset.image(7))).all()
        with Loader(dataset, 1, seed=5, num_workers=0) as loader:
            for epoch in (0, 2):
                loader.set_epoch(epoch)
                seen = site.pixels(f"image?row=7&side=48&seen=1&overlays=0&epoch={epoch}")
                assert (seen == loader.sample(7)[0].permute(1, 2, 0).numpy()).all()
        boxed = site.pixels("image?row=7&side=64")
        assert boxed[8, 20].tolist() == [255, 64, 64] != stored[8, 20].tolist()

    def test_damage_is_seen_and_harms_nobody_else(self, site: Site) -> None:
        damaged = site.pixels("image?row=3&side=64")
        assert damaged[0, 0].tolist() == [201, 42, 42]
        assert (site.pixels("image?row=3&side=64&seen=1")[0, 0] == damaged[0, 0]).all()
        assert [row["row"] for row in site.json("rows?size=5")["rows"]] == [0, 1, 2, 3, 4]

    def test_texts_come_as_they_are_without_control_characters(self, site: Site) -> None:
        (row,) = site.json("rows?place=7&size=1")["rows"]
        assert row["path"].endswith("07 <img src=x onerror=alert(3)>.jpg")
        assert row["texts"]["label"] == f"{PAYLOAD} 1 (1)"
        assert row["texts"]["caption"] == f"{PAYLOAD}\n\\x1b[31m7"

    def test_pages_follow_each_other(self, site: Site) -> None:
        found: list[int] = []
        place: int | None = 0
        while place is not None:
            page = site.json(f"rows?size=25&place={place}")
            found += [row["row"] for row in page["rows"]]
            place = page["next"]
        assert found == list(range(COUNT))
        assert site.json("rows?size=2&row=58") == site.json("rows?size=2&place=58")
        assert site.json("rows?row=999999")["rows"] == []

    def test_a_search_finds_paths_and_classes(self, site: Site) -> None:
        def found(text: str) -> list[int]:
            return [row["row"] for row in site.json(f"rows?size=200&search={quote(text)}")["rows"]]

        assert found("7 <IMG") == [7, 17, 27, 37, 47, 57]
        assert found("7*7} 2") == list(range(2, COUNT, 3))
        assert found("no such text") == found("0 <img src=x onerror=alert(3)>.jpg0") == []


@pytest.mark.complete
def test_a_filter_chooses_the_rows(strange: Path) -> None:
    require_module("polars")
    with viewing(strange, "--where", "label_id = 1 and row >= 20") as site:
        expected = [row for row in range(20, COUNT) if row % 3 == 1]
        about = site.json("about")
        assert (about["rows"], about["total"], about["transform"]) == (len(expected), COUNT, None)
        assert [row["row"] for row in site.json("rows?size=200")["rows"]] == expected
        assert [row["row"] for row in site.json("rows?size=3&row=30")["rows"]] == [31, 34, 37]
        assert [row["row"] for row in site.json("rows?size=9&search=4%20<")["rows"]] == [34]


@pytest.mark.complete
def test_a_port_can_be_asked_for_and_must_be_free(images: Path, tmp_path: Path) -> None:
    folder = packed(images, tmp_path / "out", "tar")
    with viewing(folder) as site:
        port = str(urlsplit(site.address).port)
        command = [sys.executable, "-m", "packtrain", "view", str(folder), "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--port={port}: Address already in use: leave it out to take one that is free" in done.stderr
    with viewing(folder, "--port", port) as site:
        assert str(urlsplit(site.address).port) == port
        assert site.json("about")["rows"] == 12


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browser(tool("chromium", "chromium"), tmp_path) as found:
        yield found


LOADED = "document.querySelectorAll('#grid > *').length > 0 && [...document.images].every((image) => image.complete)"


@pytest.mark.complete
class TestPage:
    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_markup_of_strangers_is_text_and_the_console_is_silent(self, site: Site, page: Page, theme: str) -> None:
        page.look(1200, 800, theme)
        page.open(site.address)
        page.wait(LOADED)
        assert page.run("document.querySelectorAll('#grid > *').length") == 24
        page.run("document.querySelector('#grid > *:nth-child(8)').click()")
        page.wait(f"document.getElementById('detail').open && {LOADED}")
        fields = page.run("[...document.querySelectorAll('dd')].map((field) => field.textContent)")
        assert fields[0].endswith("07 <img src=x onerror=alert(3)>.jpg")
        assert fields[1:3] == [f"{PAYLOAD} 1 (1)", f"{PAYLOAD}\n\\x1b[31m7"]
        assert page.run("document.querySelectorAll('script').length") == 1
        assert all(page.run("[...document.images].map((image) => image.naturalWidth > 0)"))
        shade = page.run("getComputedStyle(document.body).backgroundColor")
        brightness = sum(map(int, re.findall(r"\d+", shade)[:3])) / 3
        assert (brightness > 127) == (theme == "light")
        assert page.said == []
        assert [address for address in page.asked if not address.startswith((site.address, "about:"))] == []

    def test_keys_do_what_the_mouse_does(self, site: Site, page: Page) -> None:
        title = "document.getElementById('detail-title').textContent"
        page.look(1200, 800, "light")
        page.open(site.address)
        page.wait(LOADED)
        page.press("ArrowDown")
        page.press("ArrowRight")
        page.press("Enter")
        page.wait("document.getElementById('detail').open")
        assert page.run(title).startswith("Row 1 ")
        page.press("ArrowLeft")
        page.wait(f"{title}.startsWith('Row 0 ')")
        page.press("m")
        page.wait("[...document.images].every((image) => image.src.includes('overlays=0'))")
        # The picture that was open gets the focus by an event, which may come later.
        page.run(
            "new Promise((done) => { const detail = document.getElementById('detail');"
            " detail.addEventListener('close', () => { document.activeElement.blur(); done(true); });"
            " document.getElementById('close').click(); })"
        )
        page.press("ArrowRight")
        page.wait("document.querySelector('#grid > *').textContent.startsWith('24 ')")
        page.press("ArrowLeft")
        page.wait("document.querySelector('#grid > *').textContent.startsWith('0 ')")
        page.press("/")
        for letter in "17 <":
            page.press(letter, letter)
        page.press("Enter")
        page.wait("document.querySelectorAll('#grid > *').length === 1")
        assert page.run("document.querySelector('#grid > *').textContent").startswith("17 ")
        assert page.run("document.getElementById('count').textContent") == "1 found: rows 17 to 17"
        assert page.said == []

    @pytest.mark.parametrize(
        ("field", "text", "said"),
        [
            ("row", "1,000,000", f"{COUNT} rows; here: {COUNT - 24} to {COUNT - 1}"),
            ("row", "5 0", f"{COUNT} rows; here: 50 to {COUNT - 1}"),
            ("search", "nothing is called so", "Nothing found"),
        ],
    )
    def test_what_is_not_there_is_no_riddle(self, site: Site, page: Page, field: str, text: str, said: str) -> None:
        page.look(1200, 800, "light")
        page.open(site.address)
        page.wait(LOADED)
        page.run(f"document.getElementById('{field}').value = '{text}'")
        page.run("document.getElementById('find').requestSubmit()")
        page.wait(f"document.getElementById('count').textContent === '{said}'")
        assert page.said == []

    def test_it_fits_a_phone(self, site: Site, page: Page) -> None:
        page.look(360, 740, "light")
        page.open(site.address)
        page.wait(LOADED)
        assert page.run("document.documentElement.scrollWidth") <= 360
        page.run("document.querySelector('#grid > *').click()")
        page.wait("document.getElementById('detail').open")
        assert page.run("document.getElementById('detail').scrollWidth") <= 360
        assert page.said == []
