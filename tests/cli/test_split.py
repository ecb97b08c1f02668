"""Laws of `packtrain split`."""

from __future__ import annotations

from pathlib import Path

from helpers.support import image_set, packed

from .conftest import Run


def test_a_side_without_a_row_is_warned_of(run: Run, tmp_path: Path) -> None:
    """Each class has one row, which stays in train."""
    listing = image_set(tmp_path, 4)
    lines = listing.read_text().splitlines()
    listing.write_text("".join(f"{line.rpartition(' ')[0]} {row}\n" for row, line in enumerate(lines)))
    out = packed(listing, tmp_path / "out", "tar")
    outcome = run("split", out, "--val", "50%")
    assert "4 on train, 0 on val" in outcome.out
    assert "no row is on val" in outcome.err and "--not-stratified" in outcome.err
    assert run("split", out, "--val", "50%", "--not-stratified", "--replace").err == ""
