"""`packtrain info`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from packtrain._core.printable import one_line
from packtrain._core.sizes import size

from .options import where_option
from .output import print_json, say
from .paths import PATH_OR_URL

if TYPE_CHECKING:
    from packtrain._core.schema import Field
    from packtrain._readers.dataset.summary import FieldSummary, Spread, Summary

_SHOWN_LABELS: Final = 10
_BAR: Final = 30


@click.command("info", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("dataset", type=PATH_OR_URL)
@where_option("Count labels, sizes and bytes only in the rows")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(dataset: Path | str, where: str | None, as_json: bool) -> None:
    """Show counts, bytes, fields, labels and image sizes of DATASET, a folder or an address, and what wrote it."""
    from packtrain._readers.dataset.summary import summarise

    summary = summarise(dataset, where)
    if as_json:
        print_json(summary)
        return
    say("\n".join(f"{name:<12} {one_line(text)}" for name, text in _facts(summary, where)))
    if summary.label_counts:
        say("\n".join(_histogram(summary.label_counts, summary.manifest.classes)))


def _facts(summary: Summary, where: str | None) -> list[tuple[str, str]]:
    manifest = summary.manifest
    facts = [
        ("dataset", f"{summary.dataset} ({manifest.format})"),
        (
            "records",
            f"{manifest.records:,} of {manifest.lines:,} lines, {manifest.rejects} refused, "
            f"{manifest.duplicates} repeated",
        ),
        ("shards", f"{len(manifest.shards)}, {size(manifest.bytes)}; index {size(summary.index_bytes)}"),
        ("labels", str(manifest.labels)),
        ("written by", manifest.written_by),
    ]
    if summary.version is not None:
        facts.insert(1, ("version", f"{summary.version}, of {summary.segments} segment(s): see `packtrain log`"))
    if summary.sides:
        counts = ", ".join(f"{name} {side.rows:,}" for name, side in summary.sides.items())
        left = f"; {summary.on_no_side:,} on no side: run `packtrain split` again" if summary.on_no_side else ""
        facts.append(("split", f"{counts}{left}"))
    if manifest.base is not None:
        facts.insert(3, ("base", f"{manifest.base} (the shards lie there)"))
    if where is not None:
        facts.append(("chosen", f"{summary.rows:,} of {manifest.records:,} records; all below is about these"))
    for field in manifest.schema.fields:
        facts += _field_facts(field, summary.fields[field.name])
    return facts


def _field_facts(field: Field, found: FieldSummary) -> list[tuple[str, str]]:
    facts = [(field.name, _nature(field))]
    if found.record_bytes is not None:
        facts.append(("  record", _spread(found.record_bytes, "bytes")))
    if found.smallest is not None:
        facts.append(("  value", f"{found.smallest} to {found.largest}"))
    if found.width is not None and found.height is not None:
        facts += [
            ("  width", _spread(found.width, "pixels")),
            ("  height", _spread(found.height, "pixels")),
            ("  sizes", ", ".join(f"{w} x {h} ({count:,})" for w, h, count in found.commonest_sizes)),
        ]
    if found.orientations and field.store is not None:
        turned = ", ".join(f"{value} ({count:,})" for value, count in found.orientations.items())
        what = "applied" if field.store.orientation == "apply" else "ignored"
        facts.append(("  orientation", f"{turned}; {what}"))
    if field.optional:
        facts.append(("  missing", f"{found.missing:,}"))
    return facts


def _nature(field: Field) -> str:
    """Describe a field in a few words."""
    words = [] if field.name == field.kind == "image" else [field.kind]
    if (store := field.store) is not None:
        words += [
            store.store,
            store.resize or "",
            f"quality {store.quality}" if store.store_mode.takes_quality else "",
            store.mode,
        ]
    if field.encoding is not None:
        words.append(field.encoding)
    if field.dtype is not None:
        words.append(field.dtype.lstrip("<|"))
    if field.shape is not None:
        words.append(" x ".join("any" if side is None else str(side) for side in field.shape) or "a single value")
    if field.classes is not None:
        words.append(f"{len(field.classes)} classes")
    return ", ".join(filter(None, words))


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
