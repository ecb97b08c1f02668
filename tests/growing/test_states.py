"""Any order of filling, reading, promising, dying and starting again keeps the laws of a growing cache.

The model is the list of all samples by number. Each step is followed by a look at everything that somebody reads.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.fillers import SIZES, numbered_sample
from helpers.filling import assert_same_sample, blocks, drop, stored_sample
from helpers.support import ONE_FORMAT
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from packtrain._core.errors import GenerationGone
from packtrain._core.generations import CacheInfo, Generation, generation_numbers, generation_path, promise
from packtrain._growing import filler as filler_module
from packtrain._growing.cache_folder import lock_cache
from packtrain._growing.filler import CacheWriter
from packtrain._growing.options import FillOptions
from packtrain._growing.status import FillFigures
from packtrain._packer.sample_schemas import schema_of
from packtrain._packer.samples import SampleEncoder
from packtrain._readers.dataset.cache_files import CacheFiles
from packtrain._readers.dataset.growing import GenerationStore, newest

BUDGET = 1_800_000
AT = st.integers(0, 1 << 20)


class Waits(BaseException):
    """The filler would wait."""


class Machine(RuleBasedStateMachine):
    """A cache, its filler, and readers."""

    format: str = "tar"
    folder: Path

    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp(dir=self.folder)) / "cache"
        self.root.mkdir()
        schema = schema_of(numbered_sample(0))
        self.info = CacheInfo("0" * 32, self.format, schema.fields, schema.labels)
        self.info.save(self.root)
        self.encoder = SampleEncoder(self.info.schema, bare=self.info.bare)
        self.samples: list[int] = []
        self.next = 0
        self.published = self.first = 0
        self.readers: list[GenerationStore] = []
        self.views: list[tuple[memoryview, bytes]] = []
        self.start()

    def start(self) -> None:
        self.lock = lock_cache(self.root)
        options = FillOptions(budget=BUDGET, headroom=0.5, shard_size=1 << 16)
        self.filler = CacheWriter(self.root, self.info, options, FillFigures(), self.progress)

    def progress(self, figures: FillFigures) -> None:
        assert blocks(self.root) <= BUDGET
        if figures.waiting:
            raise Waits(figures.waiting)

    @rule(count=st.integers(1, 60))
    def fill(self, count: int) -> None:
        for _ in range(count):
            self.next += 1
            try:
                self.filler.add(self.encoder.encode(numbered_sample(self.next)))
            except Waits:
                # Otherwise nobody is in the way.
                assert self.readers or self.views or self.promised()
                break
            self.samples.append(self.next)

    @rule()
    def publish(self) -> None:
        self.filler.publish()
        if self.samples:
            assert generation_numbers(self.root)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.filler.close()
        else:
            # What the kernel does for a process that is killed: its descriptors are closed, its files stay.
            if self.filler._shard is not None:
                self.filler._shard._rows.close()
        del self.filler
        self.lock.close()
        self.start()

    @precondition(lambda self: bool(generation_numbers(self.root)))
    @rule()
    def read(self) -> None:
        self.readers.append(newest(CacheFiles(self.root)))

    @precondition(lambda self: self.readers)
    @rule(which=AT)
    def advance(self, which: int) -> None:
        at = which % len(self.readers)
        before = self.readers[at]
        before.release()
        self.readers[at] = newest(before.opened, before)
        self.readers[at].opened.forget(self.readers[at].generation.first_shard)

    @precondition(lambda self: self.readers)
    @rule(which=AT, kept=st.booleans())
    def leave(self, which: int, kept: bool) -> None:
        reader = self.readers.pop(which % len(self.readers))
        row = which % len(reader)
        if kept and SIZES[stored_sample(reader, row)["who"] % len(SIZES)]:
            view = reader.field("data").read(row)
            assert view is not None
            self.views.append((view, bytes(view)))
        drop(reader)

    @precondition(lambda self: self.views)
    @rule()
    def let_go(self) -> None:
        self.views.pop()

    @precondition(lambda self: self.readers)
    @rule(which=AT)
    def promise(self, which: int) -> None:
        assert promise(self.root, self.readers[which % len(self.readers)].generation.number, 4e9)

    @rule()
    def end_of_promises(self) -> None:
        for number in generation_numbers(self.root):
            os.utime(generation_path(self.root, number), (0, 0))

    @rule(number=AT)
    def open_any(self, number: int) -> None:
        with suppress(GenerationGone):
            drop(GenerationStore.open(CacheFiles(self.root), number % 50))

    def promised(self) -> bool:
        return any(generation_path(self.root, number).stat().st_mtime > 3e9 for number in generation_numbers(self.root))

    @invariant()
    def laws(self) -> None:
        if not hasattr(self, "root"):
            return
        assert blocks(self.root) <= BUDGET
        numbers = generation_numbers(self.root)
        ends = [Generation.load(self.root, number).end_sample for number in numbers[-1:]] or [0]
        # Samples that were never published have no number yet.
        del self.samples[ends[0] + (len(self.filler._shard) if self.filler._shard else 0) :]
        if numbers:
            last = newest(CacheFiles(self.root))
            found = last.generation
            assert found.end_sample >= self.published, "published samples are lost"
            assert found.first_sample >= self.first, "old samples are back"
            self.published, self.first = found.end_sample, found.first_sample
            self.check(last)
            drop(last)
        for reader in self.readers:
            self.check(reader)
        for view, wanted in self.views:
            assert view == wanted

    def check(self, store: GenerationStore) -> None:
        for row in {0, len(store) // 2, len(store) - 1, hash(self.next) % len(store)}:
            assert_same_sample(stored_sample(store, row), numbered_sample(self.samples[store.line(row)]))

    def teardown(self) -> None:
        if hasattr(self, "root"):
            # Once nobody reads, there is room for as much as ever.
            for reader in self.readers:
                drop(reader)
            self.views.clear()
            self.end_of_promises()
            for _ in range(100):
                self.next += 1
                self.filler.add(self.encoder.encode(numbered_sample(self.next)))
                self.samples.append(self.next)
            self.filler.close()
            self.lock.close()
            store = newest(CacheFiles(self.root))
            for row in range(len(store)):
                assert_same_sample(stored_sample(store, row), numbered_sample(self.samples[store.line(row)]))
            shutil.rmtree(self.root.parent)


@pytest.mark.complete
@ONE_FORMAT
def test_laws_hold_in_any_order(format_name: str, memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK", "_PROGRESS", "_REPORTS"):
        monkeypatch.setattr(filler_module, name, 0.0)
    machine = type(f"Machine_{format_name}", (Machine,), {"format": format_name, "folder": memory_path})
    run_state_machine_as_test(machine, settings=settings(max_examples=10, stateful_step_count=25, deadline=None))
