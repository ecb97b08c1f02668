"""Every format keeps the contract."""

from __future__ import annotations

from contract import oracles
from contract.packing import PackingLaws
from contract.reading import ReadingLaws


class FormatContract(PackingLaws, ReadingLaws):
    """All laws; a format joins by naming its oracle."""


class TestTar(FormatContract):
    oracle = oracles.TAR


class TestHdf5(FormatContract):
    oracle = oracles.HDF5


class TestLmdb(FormatContract):
    oracle = oracles.LMDB
