"""`packtrain info`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from packtrain._core.sizes import size

from .output import one_line, print_json, say
from .paths import PATH

if TYPE_CHECKING:
    from packtrain._readers.dataset.summary import Spread, Summary

_SHOWN_LABELS: Final = 10
_BAR: Final = 30


@click.command("info", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(dataset: Path, as_json: bool) -> None:
    """Show what is in DATASET: counts, bytes, store mode, labels, image sizes, and what wrote it."""
    from packtrain._readers.dataset.summary import summarise

    summary = summarise(dataset)
    if as_json:
        print_json(summary)
        return
    say("\n".join(f"{name:<12} {one_line(text)}" for name, text in _facts(summary)))
    if summary.label_counts is not None:
        say("\n".join(_histogram(summary.label_counts, summary.manifest.classes)))


def _facts(summary: Summary) -> list[tuple[str, str]]:
    manifest, store = summary.manifest, summary.manifest.store
    how = [store.store, store.resize or "", f"quality {store.quality}" if store.store == "jpeg" else "", store.mode]
    facts = [
        ("dataset", f"{summary.dataset} ({manifest.format})"),
        ("store", ", ".join(filter(None, how))),
        (
            "records",
            f"{manifest.records:,} of {manifest.lines:,} lines, {manifest.rejects} refused, "
            f"{manifest.duplicates} repeated",
        ),
        ("shards", f"{len(manifest.shards)}, {size(manifest.bytes)}; index {size(summary.index_bytes)}"),
        ("record", _spread(summary.record_bytes, "bytes")),
        ("width", _spread(summary.width, "pixels")),
        ("height", _spread(summary.height, "pixels")),
        ("sizes", ", ".join(f"{w} x {h} ({count:,})" for w, h, count in summary.commonest_sizes)),
        ("labels", str(manifest.labels)),
        ("written by", manifest.written_by),
    ]
    if summary.orientations:
        turned = ", ".join(f"{value} ({count:,})" for value, count in summary.orientations.items())
        facts.insert(-2, ("orientation", f"{turned}; {'applied' if store.orientation == 'apply' else 'ignored'}"))
    return facts


def _spread(spread: Spread, unit: str) -> str:
    return f"{spread.min:,} to {spread.max:,} {unit}, median {spread.median:,}"


def _histogram(counts: dict[int, int], classes: tuple[str, ...] | None) -> list[str]:
    most = max(counts.values())
    shown = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN_LABELS]
    lines = [f"\n{len(counts):,} labels, {min(counts.values()):,} to {most:,} records each"]
    for label, count in shown:
        name = one_line(classes[label]) if classes and 0 <= label < len(classes) else ""
        lines.append(f"{label:>8} {count:>9,} {'█' * max(1, count * _BAR // most)} {name}".rstrip())
    if len(counts) > len(shown):
        lines.append(f"     ... {len(counts) - len(shown):,} more: --json")
    return lines
