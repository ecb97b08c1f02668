"""The loop of a filler: samples come in, shards and generations come out, and the oldest ones make room."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from packtrain._core.errors import NotADataset, UsageError
from packtrain._core.generations import FILLER_LOCK, CacheInfo
from packtrain._core.locks import Lock
from packtrain._core.manifest import FieldInfo
from packtrain._packer.sources import Refused
from packtrain._staging.folder import Folder
from packtrain._staging.notes import allocated_bytes

from .encoding import EncodedSample, Form, Sample, SampleEncoder
from .figures import FillFigures
from .generations import Generations
from .options import FillOptions
from .shard import GrowingShard

Source = Callable[[], Iterator[Sample]]
"""Called without arguments, returns an iterator of samples; it is called again when that ends or fails."""
_LOOK: Final = 0.05
"""Seconds between two looks whether there is room."""


def fill(
    root: Path, source: Source, options: FillOptions, on_progress: Callable[[FillFigures], None] | None = None
) -> FillFigures:
    """Fills a cache from a source, until that ends.

    Args:
        root: The cache's folder; made if it is missing.
        source: Yields the samples.
        options: How.
        on_progress: Called about ten times a second from the calling thread, also while the filler waits.

    Raises:
        UsageError: Another filler works there.
    """
    root.mkdir(parents=True, exist_ok=True)
    try:
        lock = Lock(root / FILLER_LOCK, wait=False)
    except BlockingIOError as error:
        raise UsageError(f"another filler works in {root}: stop it, or choose another folder") from error
    with lock:
        return _Filler(root, options, on_progress or (lambda _: None)).run(source())


class _Filler:
    def __init__(self, root: Path, options: FillOptions, on_progress: Callable[[FillFigures], None]) -> None:
        self.figures = FillFigures()
        self._on_progress = on_progress
        self._root = root
        self._options = options
        self._folder = Folder.open(root)

    def run(self, samples: Iterator[Sample]) -> FillFigures:
        first = next(samples)
        info = self._info(first)
        generations = Generations(self._root, info, int(self._options.budget_bytes * (1 - self._options.headroom)))
        encoder = SampleEncoder(info.schema, bare=info.bare)
        shard: GrowingShard | None = None
        for sample in self._encoded(encoder, first, samples):
            if shard is None:
                self._wait_for_room(generations)
                last = generations.newest
                shard = GrowingShard(self._root, info, last.end_shard, last.end_sample)
            shard.add(sample)
            if shard.bytes >= self._options.shard_bytes:
                generations.publish(shard.finish())
                generations.evict()
                shard = None
        if shard is not None:
            generations.publish(shard.finish())
            generations.evict()
        return self.figures

    def _info(self, first: Sample) -> CacheInfo:
        with suppress(NotADataset):
            return CacheInfo.load(self._root)
        form = Form.of([first])
        fields = tuple(map(FieldInfo.of, form.fields))
        info = CacheInfo(secrets.token_hex(16), self._options.format, fields, form.labels)
        info.save(self._root)
        return info

    def _encoded(self, encoder: SampleEncoder, first: Sample, rest: Iterator[Sample]) -> Iterator[EncodedSample]:
        yield encoder.encode(first)
        for sample in rest:
            with suppress(Refused):
                yield encoder.encode(sample)

    def _wait_for_room(self, generations: Generations) -> None:
        while allocated_bytes(self._folder) + 2 * self._options.shard_bytes > self._options.budget_bytes:
            if not generations.evict():
                time.sleep(_LOOK)
