"""Laws of the reordering: what was added comes back in the order of the list."""

from __future__ import annotations

import tempfile

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packtrain._core.index import text_column
from packtrain._packer.reordering import ColumnType, Reordering, picked_texts


@given(
    texts=st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=5)), max_size=30),
    gaps=st.sets(st.integers(0, 40)),
    at_once=st.integers(1, 12),
    batch=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_columns_and_texts_come_in_the_order_of_the_list(
    texts: list[tuple[bytes, bytes]], gaps: set[int], at_once: int, batch: int, seed: int
) -> None:
    # The oracle: all of it in memory. Entry n of the list has the n-th text, but gaps have none.
    entries = np.setdiff1d(np.arange(len(texts) + len(gaps)), np.array(sorted(gaps)))[: len(texts)]
    texts = texts[: len(entries)]
    count = int(max([*entries, *gaps], default=-1)) + 1
    missing = np.setdiff1d(np.arange(count), entries)
    added = np.random.default_rng(seed).permutation(len(entries))
    with tempfile.TemporaryFile(buffering=0) as file:
        forms = {"double": ColumnType("<i4"), "pair": ColumnType("<f4", (2,))}
        rows = Reordering(file.fileno(), count, forms, ("one", "other"), at_once)
        for start in range(0, len(added), batch):
            ordinals = entries[some := added[start : start + batch]]
            columns = {"double": (2 * ordinals).astype("<i4"), "pair": np.stack([ordinals, -ordinals], 1).astype("<f4")}
            added_texts = {
                name: text_column((texts[number][which] for number in some), len(some))
                for which, name in enumerate(("one", "other"))
            }
            rows.add(ordinals, columns, added_texts)
        empty = [np.empty(0, np.int64)]
        assert np.concatenate([*empty, *rows.ordinals()]).tolist() == entries[added].tolist()
        assert np.concatenate([*empty, *rows.column("double", missing)]).tolist() == (2 * entries).tolist()
        assert [pair for piece in rows.column("pair", missing) for pair in piece.tolist()] == [
            [entry, -entry] for entry in entries.tolist()
        ]
        assert rows.records == len(texts)
        for which, name in enumerate(("one", "other")):
            offsets, data = text_column((each[which] for each in texts), len(texts))
            assert np.concatenate(list(rows.text_offsets(name, missing))).tolist() == offsets.tolist()
            assert b"".join(piece.tobytes() for piece in rows.texts(name, missing)) == data.tobytes()
            assert rows.text_bytes[name] == len(data)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50))))
def test_texts_are_picked_by_where_they_lie(spans: list[tuple[int, int]]) -> None:
    source = np.arange(100, dtype=np.uint8)
    starts, sizes = (np.array([span[n] for span in spans], np.int64) for n in (0, 1))
    assert picked_texts(source, starts, sizes).tobytes() == b"".join(
        source[start : start + size].tobytes() for start, size in spans
    )
