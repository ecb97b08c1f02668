"""Laws of the "did you mean" of messages."""

from __future__ import annotations

from packtrain._core.suggestions import did_you_mean


def test_one_of_the_known_names_is_meant_if_it_is_similar() -> None:
    assert did_you_mean("tra", ["tar", "hdf5"]) == "; did you mean 'tar'?"
    assert did_you_mean("zip", ["tar", "hdf5"]) == ""
    assert did_you_mean("folder", ["decoder"]) == did_you_mean("normalize", ["world_size"]) == ""
