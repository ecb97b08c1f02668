"""Looks after the chunks of a cache: makes room, fetches what is wanted next, and says what cannot be had.

It knows nothing of sockets. What clients want it is told by its methods, and what becomes of the chunks that somebody
waits for is their result. One thread decides, and others fetch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Hashable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from packtrain._core.errors import CorruptFile, CorruptRecord, NoRoom, PacktrainError, RemoteError, UsageError
from packtrain._core.files import FULL
from packtrain._core.index import Index
from packtrain._core.manifest import Manifest
from packtrain._core.printable import printable
from packtrain._core.sizes import size

from ..remote.objects import Objects
from ..staging.documents import ORIGIN, STREAMED, read_origin
from ..staging.folder import Folder
from .chunk_files import ChunkFiles
from .chunks import ChunkTable
from .failures import Ceiling, Failures
from .fetching import ChunkSource, Workers, Wrong
from .layout import OPEN_AGAIN, WHOLE, WRONG, Present, overhead_of
from .order_files import OrderFiles
from .policy import IN_FLIGHT, Policy, Reading, least_bytes

_MORE_IN_FLIGHT: Final = 8
"""Chunks that are fetched in addition if somebody waits for them."""
_MOST_AHEAD: Final = 1 << 12
_STUCK_SECONDS: Final = 60.0
"""Seconds for which a waiting client waits for the room of chunks that went."""
_MOST_IN_FLIGHT: Final = 512 << 20
"""Bytes of chunks that are fetched at the same time, unless it is one chunk."""
_GATHER_SECONDS: Final = 3.0
"""Seconds that a new fetcher waits for clients of the one before it, which may allow more than the first that comes."""
_LINGER_SECONDS: Final = 1.0
"""Seconds that readers have to let go of a chunk before another one goes instead."""


class Outcome(NamedTuple):
    """Answer to those who wait for a chunk.

    Attributes:
        chunk: Its number.
        problem: Why it cannot be had.
        wrong: It is there, but some of its records are wrong: what to tell those who do not compare them.
    """

    chunk: int
    problem: PacktrainError | None
    wrong: CorruptRecord | None = None


class CacheManager:
    """Looks after the chunks of one cache.

    Args:
        entry: Folder of the cache.
        objects: The object store.

    Attributes:
        url: Address of the dataset.
        policy: What is wanted, and who holds what.
        woken: A socket that can be read when a chunk has been fetched, or has failed.

    Raises:
        CorruptFile: The cache is damaged.
        UnreadableFile: It cannot be read.
    """

    def __init__(self, entry: Path, objects: Objects) -> None:
        self._entry = entry
        manifest = Manifest.load(entry / STREAMED)
        index = Index.of(entry / STREAMED, manifest)
        self._table: Final = ChunkTable.mended(entry, manifest, index)
        Present.mend(entry, len(self._table))
        url = read_origin(Folder.open(entry))
        if url is None:
            raise CorruptFile(f"{entry / ORIGIN} is damaged. {OPEN_AGAIN}", file=ORIGIN)
        self.url: Final = url
        self._source: Final = ChunkSource(url, manifest, index, self._table, objects)
        self._files: Final = ChunkFiles(entry, self._table)
        self._allocated: Final = self._table.allocated
        self.policy: Final = Policy(self._table.bounds, self._allocated, 0)
        found = self._files.take_stock()
        for chunk in found:
            self.policy.arrived(chunk)
        self._budget = 0
        self._hold_all()
        self._orders: Final = OrderFiles(entry, len(self._table))
        self._orders.remove_unused()
        self._fixed: Final = overhead_of(entry, len(self._table))
        self._overhead = self._fixed + self._orders.bytes
        self._workers: Final = Workers(self._source, self._files, IN_FLIGHT + _MORE_IN_FLIGHT)
        self.woken: Final = self._workers.woken
        self._wrong: Final = dict[int, tuple[Wrong, ...]]()
        """Records that are wrong, of chunks that are there."""
        self._ahead: Final = dict[int, None]()
        self._failures: Final = Failures()
        self._ceiling: Final = Ceiling(entry)
        self._stuck_until = 0.0
        self._fetched = self._fetched_bytes = 0
        self._workers.sync(found)

    def __len__(self) -> int:
        """Number of chunks of the dataset."""
        return len(self._table)

    @property
    def fetching(self) -> bool:
        """True if chunks are under way to the cache, or on to the medium."""
        return bool(self.policy.fetching) or self._workers.syncing

    @property
    def restless(self) -> bool:
        """True if there may soon be something to decide although nobody says anything."""
        return bool(self._files.gone_bytes() or self._failures or self._ceiling.bytes is not None)

    def check(self) -> None:
        """Makes sure that the cache is still the one that was opened.

        Raises:
            StagingError: Somebody has removed it, or put another in its place.
        """
        self._files.check()

    def close(self) -> None:
        """Ends its threads, and closes what it has open."""
        self._workers.close()

    def figures(self) -> dict[str, Any]:
        """Return the figures of the cache, as `State` answers them."""
        policy = self.policy
        return {
            "budget": self._budget,
            "overhead": self._overhead,
            "orders": self._overhead - self._fixed,
            "used": policy.used + self._files.gone_bytes(),
            "present": int(policy.present.sum()),
            "chunks": len(self._table),
            "fetched": self._fetched,
            "fetched_bytes": self._fetched_bytes,
            "needed": policy.needed(),
            "headroom": self._headroom(),
        }

    # What clients want

    def allow(self, budget: int) -> None:
        """The cache may take so many bytes. If it takes more, chunks go once somebody uses it, but not at once."""
        if budget < self._budget:
            self._hold_all()
        self._budget = budget
        self._set_budget()

    def _hold_all(self) -> None:
        """Keeps what is there for now: others may come with a larger budget, and whoever comes now may be refused."""
        self._held = self.policy.used
        self._held_until = time.monotonic() + _GATHER_SECONDS
        self._used = False

    def ask(self, chunk: int, *, suspect: bool = False, check: bool = False, since: float = 0.0) -> bool:
        """Somebody waits for a chunk. Returns True if it is there.

        Args:
            chunk: Its number.
            suspect: True if its file is said to be damaged.
            check: True if whoever waits compares each record with its checksum.
            since: When whoever waits has come: what was wrong in the object store before that may have been mended.
        """
        self._used = True
        there = bool(self.policy.present[chunk])
        enough = there and self._files.has(chunk) and (check or chunk not in self._wrong)
        if enough and not (suspect and self._damaged(chunk, since)):
            return True
        if there:
            # Its file was damaged or deleted by somebody else, or the store may have other records by now.
            self._evict(chunk)
        self._failures.end_pause(chunk)
        self.policy.ask(chunk)
        return False

    def known_problem(self, chunk: int, *, check: bool, since: float) -> CorruptRecord | None:
        """Why a chunk cannot be had that was wrong two times, a short time ago. Args: as for `ask`."""
        return None if check and chunk in self._wrong else self._failures.believed(chunk, since)

    def ahead(self, chunks: Iterable[int]) -> None:
        """Chunks that will be asked for soon."""
        self._used = True
        self._ahead.update(dict.fromkeys(chunks))
        while len(self._ahead) > _MOST_AHEAD:
            del self._ahead[next(iter(self._ahead))]

    def fill(self, on: bool) -> None:
        """Somebody wants all chunks; or no longer. Calls are counted."""
        self._used |= on
        self.policy.fill(on)

    def register(self, reader: Hashable, reading: Reading, others: Collection[str], order: str | None = None) -> None:
        """A rank says where it is for the first time.

        Args:
            reader: Who says it.
            reading: Where it is.
            others: The jobs that use the cache already, for the message.
            order: Digest of the chunks of its order; None: they are those of the cache.

        Raises:
            UsageError: The budget does not hold its windows. It is forgotten.
            CorruptFile: The file of the order is not there, or damaged.
        """
        self.policy.read(reader, reading, None if order is None else self._orders.load(order))
        self._set_overhead()
        need = self._with_headroom(self.policy.needed())
        if need > self._budget - self._overhead:
            self.policy.forget(reader)
            fewest = self._with_headroom(self.policy.needed() + least_bytes(self._allocated, 1, 1))
            raise UsageError(self._too_small(need, fewest, others))
        self._used = True

    def read(self, reader: Hashable, reading: Reading, order: str | None = None) -> None:
        """A rank that is registered says where it is. Args and raises: as for `register`."""
        self._used = True
        self.policy.read(reader, reading, None if order is None else self._orders.load(order))

    def forget(self, reader: Hashable) -> None:
        """A rank has left, or whoever is none."""
        if self.policy.forget(reader):
            self._orders.remove_unused()
            self._set_overhead()

    # What becomes of it

    def results(self) -> list[Outcome]:
        """Return the outcomes of what was fetched since the last call."""
        for chunk, why in self._workers.synced():
            if why is None:
                self._failures.end_pause(chunk)
            else:
                self._lost(chunk, why)
        outcomes = []
        for chunk, problem, wrong in self._workers.results():
            if problem is not None:
                outcomes += self._failed(chunk, problem)
                continue
            self._fetched += 1
            self._fetched_bytes += int(self._table.bytes[chunk])
            self.policy.arrived(chunk)
            self._files.show(chunk, WRONG if wrong else WHOLE)
            # Its pause, if it had one, lasts until that has succeeded.
            self._workers.sync([chunk])
            outcomes.append(Outcome(chunk, None, self._known_wrong(chunk, wrong)))
        return outcomes

    def reclaim(self) -> None:
        """Take back the room of what has gone, and of a file system that was full."""
        self._files.delete_gone()
        self._ceiling.lift()
        self._set_budget()

    def decide(self) -> tuple[list[Outcome], bool]:
        """Evict and fetch what is to be evicted and fetched now.

        Returns:
            Chunks that cannot be had; and whether chunks have gone that those who wait may have mapped.
        """
        now, policy = time.monotonic(), self.policy
        outcomes, gone = list[Outcome](), False
        for chunk in policy.victims(0) or ():
            self._evict(chunk)
        paused = self._failures.paused()
        wanted = policy.wanted(IN_FLIGHT, but=paused)
        known = {*wanted, *policy.fetching, *paused}
        later = 0
        for chunk in [*wanted, *(chunk for chunk in self._ahead if chunk not in known and not policy.present[chunk])]:
            if not self._slot_for(chunk):
                break
            need = int(self._allocated[chunk])
            victims = self._victims(chunk, later + need, now)
            if victims is None:
                outcomes += self._cannot(chunk, later + need, now)
                self._ahead.clear()
                break
            for victim in victims:
                self._evict(victim)
            if victims and self._files.gone_bytes():
                self._stuck_until = now + _STUCK_SECONDS
                gone = True
            if policy.free < later + need:
                # There will be room when readers have let go of what has gone.
                later += need
                continue
            self._ahead.pop(chunk, None)
            policy.begin(chunk)
            self._workers.fetch(chunk)
        return outcomes, gone

    def _damaged(self, chunk: int, since: float) -> bool:
        if chunk in self._wrong and self._failures.outdated(chunk, since):
            return True
        data = self._files.read(chunk)
        return data is None or self._source.wrong_in(chunk, data) != self._wrong.get(chunk, ())

    def _known_wrong(self, chunk: int, wrong: tuple[Wrong, ...]) -> CorruptRecord | None:
        if not wrong:
            self._failures.sound(chunk)
            return None
        self._wrong[chunk] = wrong
        error = self._source.corrupt(chunk, wrong[0])
        self._failures.corrupt(chunk, error)
        log(f"chunk {chunk}: {error}" + (f"; and {len(wrong) - 1} others in it" if wrong[1:] else ""))
        return error

    def _evict(self, chunk: int) -> None:
        self.policy.gone(chunk)
        self._wrong.pop(chunk, None)
        self._files.remove(chunk)
        self._set_budget()

    def _lost(self, chunk: int, why: OSError) -> None:
        """Gives up a chunk that the medium does not take. Unless somebody waits, it is not fetched again at once."""
        log(f"chunk {chunk} is given up: the disk does not take it: {why}")
        if self.policy.present[chunk]:
            self._evict(chunk)
        if why.errno in FULL:
            self._full(int(self._allocated[chunk]))
        self._failures.pause(chunk)

    def _failed(self, chunk: int, problem: BaseException) -> list[Outcome]:
        waiting = self.policy.awaited(chunk)
        self.policy.failed(chunk)
        if isinstance(problem, OSError) and problem.errno in FULL:
            # Whoever waits gets the next room that can be made.
            need = int(self._allocated[chunk])
            self._full(need)
            if waiting:
                self.policy.ask(chunk)
                if self.policy.victims(need, chunk) is not None:
                    return []
                self.policy.unask(chunk)
            problem = self._ceiling.error(self.policy.used, self._budget)
        self._failures.pause(chunk)
        if not isinstance(problem, PacktrainError):
            problem = RemoteError(f"{self.url}: chunk {chunk} cannot be fetched: {type(problem).__name__}: {problem}")
        if isinstance(problem, CorruptRecord):
            self._failures.corrupt(chunk, problem)
        log(f"chunk {chunk}: {problem}")
        return [Outcome(chunk, problem)]

    # Room

    def _full(self, need: int) -> None:
        """The file system has no room for `need` bytes: as much as there is now is what fits."""
        self._ceiling.set(self.policy.used + self._files.gone_bytes(), need)
        self._set_budget()

    def _set_budget(self) -> None:
        """Tells the policy what chunks may take."""
        most = max(0, self._budget - self._overhead)
        if self._ceiling.bytes is not None:
            most = min(most, self._ceiling.bytes)
        if not self._used or time.monotonic() < self._held_until:
            most = max(most, self._held)
        self.policy.budget = most - self._files.gone_bytes()

    def _set_overhead(self) -> None:
        self._overhead = self._fixed + self._orders.bytes
        self._set_budget()

    def _headroom(self) -> int:
        """Bytes of the chunks that are fetched at the same time."""
        largest = int(self._allocated.max(initial=0))
        return min(IN_FLIGHT * largest, max(largest, _MOST_IN_FLIGHT), int(self._allocated.sum()))

    def _with_headroom(self, windows: int) -> int:
        return min(windows + self._headroom(), self.policy.read_bytes() or int(self._allocated.sum()))

    def _slot_for(self, chunk: int) -> bool:
        policy = self.policy
        under_way = sum(int(self._allocated[each]) for each in policy.fetching)
        # Who waits for a chunk does not wait for others as well that only will be needed.
        most = IN_FLIGHT + _MORE_IN_FLIGHT if policy.awaited(chunk) else IN_FLIGHT
        return len(policy.fetching) < most and (
            not under_way or under_way + int(self._allocated[chunk]) <= _MOST_IN_FLIGHT
        )

    def _victims(self, chunk: int, need: int, now: float) -> list[int] | None:
        """Choose the chunks that go so that `need` bytes are free, now or soon, for a chunk and those before it.

        Returns None if they will not be.
        """
        # Who does not let go at once may not do so for long: it is not waited for a second time.
        soon = self._files.gone_bytes(now - _LINGER_SECONDS)
        return [] if self.policy.free + soon >= need else self.policy.victims(need - soon, chunk)

    def _cannot(self, chunk: int, need: int, now: float) -> list[Outcome]:
        """Return the outcome for those who wait for a chunk if there will be no room for it."""
        if self.policy.fetching or not self.policy.awaited(chunk):
            return []
        if self._files.gone_bytes():
            # Readers still have mapped what went.
            if now < self._stuck_until:
                return []
            error = self._stuck(need)
        elif self._ceiling.bytes is not None:
            error = self._ceiling.error(self.policy.used, self._budget)
        elif need > self.policy.budget:
            error = NoRoom(
                f"chunk {chunk} takes {size(need)}, and the cache {self._entry} may take {size(self._budget)}, of "
                f"which {size(self._overhead)} are its index: raise the budget"
            )
        else:
            return []
        self.policy.unask(chunk)
        return [Outcome(chunk, error)]

    def _too_small(self, need: int, fewest: int, jobs: Collection[str]) -> str:
        fits = fewest <= self._budget - self._overhead
        # Not to how much: this may be the share of a segment in the budget of its dataset.
        missing = -(-(need + self._overhead - self._budget) // (1 << 20))
        shared = f" for this job and {', '.join(jobs)} together" if jobs else ""
        return (
            f"the cache {self._entry} needs {size(need + self._overhead)}{shared}, and its budget is "
            f"{size(self._budget)}: raise the budget by {missing} MiB or more"
            + (", or use fewer lanes= or a smaller window= of ChunkShuffled" if fits else "")
        )

    def _stuck(self, need: int) -> NoRoom:
        pids = self._files.holders()
        by = f" by process {', '.join(map(str, pids))}" if pids else ""
        return NoRoom(
            f"there is no room for {size(need)} in the cache {self._entry}, whose budget is {size(self._budget)}: "
            f"{size(self._files.gone_bytes())} of it are still mapped{by}. End what hangs, let go of records "
            "that are kept, or raise the budget"
        )


def log(message: str) -> None:
    """Writes a line to the fetcher's log, unless the disk is full."""
    with suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(message)}\n")
        sys.stderr.flush()
