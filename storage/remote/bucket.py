"""Object stores, through obstore, in this process: only for processes that are never forked, see `ObjectStore`."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from crc32c import crc32c

from packtrain._core.errors import Denied, RemoteError
from packtrain._core.files import write_at
from packtrain._core.overriding import override
from packtrain._core.stores import known_schemes

from .objects import Head, ListedObject, Objects, not_installed
from .redirects import confined
from .store_errors import Busy, Expired, Passing, Temporary, Unreached, is_silent, refusal
from .urls import Url

try:
    import obstore
    from obstore import exceptions
except ImportError as error:
    raise not_installed() from error

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

Value = TypeVar("Value")

# obstore tries a request again by itself, if the store is busy or the connection breaks, also in the middle of an
# answer, which it then continues. Each pause is a random time from the first one to `base` times the last one, so with
# its default base of 2 they hardly grow: a store that is busy for two seconds would be given up. With 5, the eight
# pauses take about half a minute.
_RETRIES: Final[RetryConfig] = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 5},
}
_CLIENT: Final[ClientConfig] = {"connect_timeout": "5s", "read_timeout": "20s", "timeout": "5min"}

_NO_RETRIES: Final[RetryConfig] = {**_RETRIES, "max_retries": 0}
"""For a store that has not answered yet."""

# What it does not try again is tried again here.
_ATTEMPTS: Final = 3
_FIRST_WAIT: Final = 0.2
_PATIENCE: Final = 30.0
"""Seconds after which nothing is tried again."""
_FIRST_ATTEMPTS: Final = 4
_FIRST_PATIENCE: Final = 4.0
"""The same for a store that has not answered yet and cannot be reached."""

_FRESH_SECONDS: Final = 60.0
"""Seconds after which the time of a file on a web server tells its contents apart, also if clocks differ a little."""
_PART: Final = 16 << 20
"""Bytes of an object that are sent as one request."""
_PIECE: Final = 256 << 10
"""Bytes, at least, of an object that are looked at in one go as they arrive. They stay in the processor's cache."""
_LISTED: Final = 1000
_MOST_AGAIN: Final = 10_000
"""A store that has listed more objects again than this, or others than those of the folder, may never end."""
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


class Bucket(Objects):
    """`Objects` in this process.

    Which server and which credentials: what obstore finds in the environment, for example ``AWS_ENDPOINT_URL`` and
    ``AWS_ACCESS_KEY_ID``, or the machine's own identity.

    A store that has answered once is waited for if it goes away for a while. One that cannot be reached at first is
    given up within a few seconds: most often its address is wrong.

    Args:
        patient: True if stores are known to have answered, to another process: they are waited for from the beginning.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self._patient = patient
        self._stores: dict[tuple[str, bool], Any] = {}
        self._answered: set[str] = set()

    @override
    def head(self, url: Url) -> Head:
        meta = self._tried(url, "read", lambda store: _head(store, url))
        # A weak entity tag may stay when bytes change. Web servers make strong ones of times in whole seconds, so they
        # say nothing of a file that is still being written.
        tag, changed = meta["e_tag"] or "", meta["last_modified"]
        tag = "" if tag.startswith("W/") else tag
        fresh = not url.writable and time.time() - changed.timestamp() < _FRESH_SECONDS
        stamp = "" if not tag or fresh else f"{meta['size']}:{tag}:{changed.isoformat()}"
        return Head(int(meta["size"]), stamp, _nanoseconds(changed), tag)

    @override
    def read(self, url: Url, most: int) -> bytes:
        def whole(store: Any) -> bytes:
            answer = obstore.get(store, url.key)
            if (size := answer.meta["size"]) > most:
                raise RemoteError(f"{url} has {size} bytes, at most {most} were expected: is it the right object?")
            data = bytes(answer.bytes())
            _require(url, len(data), size)
            return data

        return self._tried(url, "read", whole)

    @override
    def read_into(self, url: Url, offset: int, view: memoryview) -> None:
        def part(store: Any) -> None:
            for start, piece in _arriving(store, url, offset, len(view)):
                view[start : start + len(piece)] = piece

        if view:
            self._tried(url, "read", part)

    @override
    def read_range(self, url: Url, offset: int, size: int) -> memoryview:
        def part(store: Any) -> memoryview:
            data = memoryview(obstore.get_range(store, url.key, start=offset, length=size))
            _require(url, len(data), size)
            return data.cast("B")

        return self._tried(url, "read", part) if size else memoryview(b"")

    @override
    def copy_into(self, url: Url, offset: int, size: int, descriptor: int) -> int:
        def part(store: Any) -> int | OSError:
            found = 0
            for start, piece in _arriving(store, url, offset, size):
                found = crc32c(piece, found)
                try:
                    write_at(descriptor, piece, offset + start)
                except OSError as error:
                    return error
            return found

        found = self._tried(url, "read", part) if size else 0
        if isinstance(found, OSError):
            raise found  # here, where it is not taken for one of the store's
        return found

    @override
    def checksum(self, url: Url) -> int:
        def whole(store: Any) -> int:
            answer = obstore.get(store, url.key)
            found = length = 0
            for piece in answer.stream(_PIECE):
                view = memoryview(piece)
                found, length = crc32c(view, found), length + len(view)
            _require(url, length, answer.meta["size"])
            return found

        return self._tried(url, "read", whole)

    @override
    def list(self, url: Url) -> Iterator[ListedObject]:
        prefix = f"{url.key}/" if url.key else ""
        seen: set[str] = set()
        pages: Iterator[Any] | None = None
        passed = 0

        def page(store: Any) -> Any:
            nonlocal pages, passed
            try:
                if pages is None:
                    pages, passed = iter(obstore.list(store, prefix or None, chunk_size=_LISTED)), 0
                return next(pages, None)
            except BaseException:
                pages = None  # the next attempt begins anew
                raise

        _require_store(url, "list")
        while found := self._tried(url, "list", page):
            for each in found:
                name = each["path"][len(prefix) :]
                # Some programs mark a folder by an empty object, whose key is that of the folder and a slash.
                if name and each["path"].startswith(prefix) and name not in seen:
                    seen.add(name)
                    yield ListedObject(name, int(each["size"]), _nanoseconds(each["last_modified"]))
            passed += len(found)
            if passed > len(seen) + _MOST_AGAIN:
                raise RemoteError(f"{url} cannot be listed: the store names the same objects again and again")

    @override
    def write(self, url: Url, data: bytes, *, new: bool = False) -> bool:
        attempts = 0

        def put(store: Any) -> bool:
            nonlocal attempts
            attempts += 1
            try:
                obstore.put(store, url.key, data, mode="create" if new else "overwrite", use_multipart=False)
            except exceptions.AlreadyExistsError:
                # An earlier attempt may have written it, and only the answer was lost.
                return attempts > 1 and bytes(obstore.get(store, url.key).bytes()) == data
            return True

        _require_store(url, "write")
        return self._tried(url, "write", put)

    @override
    def upload(self, url: Url, path: Path) -> None:
        _require_store(url, "write")
        # What is wrong with the file is said by Python.
        with path.open("rb") as file:
            size = file.seek(0, 2)
        self._tried(url, "write", lambda store: obstore.put(store, url.key, path, chunk_size=_PART))
        if (found := self.size(url)) != size:
            raise RemoteError(f"{url} has {found} bytes after {size} were sent: did somebody else write it?")

    @override
    def remove(self, url: Url) -> None:
        def delete(store: Any) -> None:
            try:
                obstore.delete(store, url.key)
            except FileNotFoundError:
                return

        _require_store(url, "remove")
        self._tried(url, "remove", delete)

    @override
    def close(self) -> None:
        self._stores.clear()

    def _tried(self, url: Url, verb: str, action: Callable[[Any], Value]) -> Value:
        """The result of an action, which is tried again if it failed in a way that may pass."""
        began, attempt = time.monotonic(), 0
        while True:
            known = self._patient or url.base in self._answered
            try:
                result = action(self._store(url, known))
            except (RemoteError, Passing) as error:
                found: RemoteError | Temporary = error
            except (exceptions.BaseError, OSError, ValueError, NotImplementedError) as error:
                found = refusal(url, verb, error)
            else:
                self._answered.add(url.base)
                return result
            # Raised here, where obstore's error is no longer its context: that one may show what nobody is to see.
            if isinstance(found, Expired):
                # Another store asks anew for credentials.
                self._answered.add(url.base)
                self._stores.pop((url.base, known), None)
            elif not isinstance(found, Passing | Busy):
                raise found
            elif not known and not isinstance(found, Unreached):
                # It is there: from here on it is waited for.
                self._answered.add(url.base)
                known = True
            elif isinstance(found, Busy):
                # obstore has tried again already.
                raise RemoteError(str(found))
            attempt += 1
            attempts, patience = (_ATTEMPTS, _PATIENCE) if known else (_FIRST_ATTEMPTS, _FIRST_PATIENCE)
            if attempt == attempts or time.monotonic() - began > patience:
                raise (Denied if isinstance(found, Expired) else RemoteError)(str(found))
            # Jitter, so that many machines that a store sends away do not all come back at once.
            time.sleep(_FIRST_WAIT * 2**attempt * random.uniform(0.5, 1.0))

    def _store(self, url: Url, known: bool) -> Any:
        found = self._stores.get((url.base, known))
        if found is None:
            retries = _RETRIES if known else _NO_RETRIES
            found = obstore.store.from_url(url.base, client_options={**_CLIENT, **confined(url)}, retry_config=retries)
            # Another thread may have been faster.
            found = self._stores.setdefault((url.base, known), found)
        return found


def patient_bucket() -> Bucket:
    """A bucket for a process that is started when a store has answered."""
    return Bucket(patient=True)


def _nanoseconds(time: datetime) -> int:
    """A time in nanoseconds since 1970."""
    # A microsecond is the least that a datetime holds; a floating-point number of seconds does not.
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000


def _head(store: Any, url: Url) -> Any:
    try:
        return obstore.head(store, url.key)
    except exceptions.BaseError as error:
        if is_silent(error):
            # It refuses this, too, and says why: credentials may have expired, or a clock be wrong.
            obstore.get(store, url.key)
        raise


def _arriving(store: Any, url: Url, offset: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The pieces of a range, and where in it each begins: what is done with one finds it in the processor's cache."""
    answer = obstore.get(store, url.key, options={"range": (offset, offset + size)})
    length = 0
    for piece in answer.stream(_PIECE):
        if length + len(piece) > size:
            raise Passing(f"{url}: more than the {size} bytes that were asked for arrived")
        yield length, piece
        length += len(piece)
    _require(url, length, size)


def _require(url: Url, found: int, expected: int) -> None:
    if found != expected:
        raise Passing(f"{url}: {found} bytes arrived of {expected}")


def _require_store(url: Url, verb: str) -> None:
    if not url.writable:
        raise RemoteError(
            f"cannot {verb} {url}: packtrain only reads single objects from web servers; give the address of an object "
            f"store ({known_schemes(writable=True)})"
        )
