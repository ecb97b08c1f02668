"""A report as one page of HTML: no scripts, nothing from a network, and every text of a stranger escaped."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from packtrain._core.errors import UsageError
from packtrain._core.files import file_errors
from packtrain._core.sizes import size

from .charts import Bar, bars, columns, text
from .figures import SUSPICIONS, AlikeGroup, DatasetReport, Histogram, Place, Suspect
from .pictures import pictures_of

if TYPE_CHECKING:
    from ..tune import TuneResult

_LABELS: Final = 30
_REASONS: Final = 50
_GROUPS: Final = 40
_PLACES: Final = 6
_SUSPECTS: Final = 24
Pictures = Mapping[Place, str]
"""JPEGs in base64."""
_MAY: Final = "default-src 'none';style-src 'unsafe-inline';img-src data:"
_STYLE: Final = """
:root{color-scheme:light dark;--ground:#fff;--ink:#1f2933;--soft:#52606d;--line:#d9dfe5;--bar:#7b93ab;--best:#d2691e}
@media(prefers-color-scheme:dark){:root{--ground:#14181d;--ink:#e4e9ee;--soft:#9aa7b4;--line:#333c46;--bar:#6f8aa6;
--best:#f0934a}}
body{margin:0 auto;max-width:62rem;padding:1.5rem 1rem 4rem;background:var(--ground);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;overflow-wrap:anywhere}h2{font-size:1.2rem;margin-top:2.5rem}
p,figcaption{color:var(--soft)}figure{margin:1rem 0}svg{width:100%;max-width:38rem;height:auto;display:block}
svg text{font-size:11px;fill:var(--ink)}svg line{stroke:var(--line)}.bar{fill:var(--bar)}.best{fill:var(--best)}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin:1rem 0}
dl div{border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem}
dt{color:var(--soft);font-size:.85rem}dd{margin:0;font-size:1.25rem;overflow-wrap:anywhere}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.35rem .6rem .35rem 0;border-bottom:1px solid var(--line);
overflow-wrap:anywhere}th{color:var(--soft);font-weight:500;white-space:nowrap}
.cards{display:flex;flex-wrap:wrap;gap:.75rem;margin:.5rem 0;padding-top:.5rem;border-top:1px solid var(--line)}
.cards b{width:5.5rem;font-weight:500}.cards figure{margin:0;width:9rem}.cards img{display:block;margin-bottom:.25rem}
.cards figcaption{font-size:.8rem;line-height:1.35;overflow-wrap:anywhere}
code{font-size:.9em;overflow-wrap:anywhere}
"""


def page_of(report: DatasetReport, charts: Iterable[str] = ()) -> str:
    """Write the page of a report.

    Args:
        report: The report.
        charts: What `chart_stats` has made.
    """
    pictures = pictures_of([*_places(report)])
    sections = [
        _facts(report),
        *_labels(report),
        *_sides(report),
        *_sizes(report),
        *_colours(report),
        *_rejects(report),
        *_alike(report, pictures),
        *_suspects(report, pictures),
        *charts,
    ]
    return _page(report.dataset, "report", sections)


def _page(dataset: str, what: str, sections: Iterable[str]) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_MAY}">'
        f"<title>{text(Path(dataset).name or dataset)}: packtrain {what}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{text(dataset)}</h1>\n" + "\n".join(sections) + "\n</body></html>\n"
    )


def _facts(report: DatasetReport) -> str:
    manifest, suspects = report.summary.manifest, len(report.suspects)
    copies = sum(len(group.places) - 1 for group in report.exact)
    facts = {
        "images": f"{report.summary.rows:,}",
        "classes": "-" if manifest.classes is None else f"{len(manifest.classes):,}",
        "bytes": size(manifest.bytes),
        "shards": f"{len(manifest.shards):,} ({manifest.format})",
        "stored as": str(manifest.store.store),
        "refused lines": f"{manifest.rejects:,}",
        "exact copies": f"{copies:,}",
        "groups that look alike": f"{len(report.near):,}",
        "suspicious": f"{suspects:,}",
    }
    if report.against is not None:
        facts[f"groups also in {Path(report.against).name}"] = f"{len(report.leaks):,}"
    if report.summary.sides:
        facts["groups on several sides"] = f"{len(report.side_leaks):,}"
    if report.summary.version is not None:
        facts["version"] = f"{report.summary.version:,}"
    chosen = "" if report.where is None else f" Only rows with {text(report.where)} were looked at."
    tiles = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts.items())
    return f"<dl>{tiles}</dl><p>Written by {text(manifest.written_by)}.{chosen}</p>"


def _section(title: str, *content: str) -> str:
    return f"<section><h2>{text(title)}</h2>{''.join(content)}</section>"


def _labels(report: DatasetReport) -> Iterator[str]:
    counts = report.summary.label_counts
    if not counts:
        return
    ordered, shown = _shown_labels(counts)
    note = f"{len(counts):,} labels, with {ordered[-1][1]:,} to {ordered[0][1]:,} images each."
    if len(shown) < len(ordered):
        note += f" The {_LABELS // 2} with the most and the {_LABELS // 2} with the fewest are shown."
    rows = [Bar(_label(report, label), count, f"{count:,}") for label, count in shown]
    yield _section("Labels", f"<p>{note}</p>", bars("Images by label", rows))


def _shown_labels(counts: dict[int, int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """All labels with their counts, the most frequent first, and those that have room on the page."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ordered, ordered if len(ordered) <= _LABELS else ordered[: _LABELS // 2] + ordered[-_LABELS // 2 :]


def _label(report: DatasetReport, label: int) -> str:
    classes = report.summary.manifest.classes
    return classes[label] if classes and 0 <= label < len(classes) else str(label)


def _sides(report: DatasetReport) -> Iterator[str]:
    summary = report.summary
    if not summary.sides:
        return
    rows = [("all", *(f"{side.rows:,}" for side in summary.sides.values()))]
    for label, _ in _shown_labels(summary.label_counts or {})[1]:
        counts = [(side.label_counts or {}).get(label, 0) for side in summary.sides.values()]
        rows.append((_label(report, label), *(f"{count:,}" for count in counts)))
    left = summary.on_no_side
    note = f"<p>{left:,} images are on no side: packtrain split puts them on one.</p>" if left else ""
    yield _section("Sides", note, _table(("label", *summary.sides), rows))


def _sizes(report: DatasetReport) -> Iterator[str]:
    charts: list[tuple[str, Histogram | None, Callable[[float], str]]] = [
        ("Longer side, in pixels", report.long_sides, lambda value: f"{value:,.0f}"),
        ("Width over height", report.aspect_ratios, lambda value: f"{value:.2f}"),
        ("Size of the stored image", report.record_bytes, lambda value: size(round(value))),
    ]
    drawn = [columns(title, found, map(shown, found.edges)) for title, found, shown in charts if found is not None]
    if drawn:
        yield _section("Sizes", *drawn)


def _colours(report: DatasetReport) -> Iterator[str]:
    found = report.channels
    if found is None:
        return
    mean, std = (", ".join(f"{value:.4f}" for value in values) for values in (found.mean, found.std))
    yield _section(
        "Colours",
        f"<p>Of {found.images:,} images, evenly spread over the dataset and decoded at full size; "
        "each counts the same.</p>",
        _table(
            ("", "red, green, blue" if len(found.mean) > 1 else "grey"), [("mean", mean), ("standard deviation", std)]
        ),
    )


def _rejects(report: DatasetReport) -> Iterator[str]:
    if report.reject_reasons:
        rows = [(f"{count:,}", reason) for reason, count in report.reject_reasons.items()]
        yield _section(
            "Refused lines", _table(("lines", "reason"), rows[:_REASONS]), _more(len(rows) - _REASONS, "reasons")
        )


def _shown(report: DatasetReport) -> tuple[Sequence[Sequence[AlikeGroup]], dict[str, Sequence[Suspect]]]:
    """The groups and suspects that have room on the page."""
    groups = [found[:_GROUPS] for found in (report.leaks, report.side_leaks, report.exact, report.near)]
    kinds = {kind: [each for each in report.suspects if each.kind == kind][:_SUSPECTS] for kind in SUSPICIONS}
    return groups, {kind: found for kind, found in kinds.items() if found}


def _places(report: DatasetReport) -> Iterator[Place]:
    """The places that have room on the page, each once, but for those that cannot be decoded."""
    groups, suspects = _shown(report)
    of_groups = (place for found in groups for group in found for place in group.places[:_PLACES])
    of_suspects = (each.place for kind, found in suspects.items() if kind != "damaged" for each in found)
    yield from dict.fromkeys(chain(of_groups, of_suspects))


def _alike(report: DatasetReport, pictures: Pictures) -> Iterator[str]:
    (leaks, side_leaks, exact, near), _ = _shown(report)
    note = (
        "So many images look alike that they were not all compared."
        if report.compared_bits is None
        else f"All pairs whose perceptual hashes differ in at most {report.compared_bits} of 64 bits were compared."
    )
    parts = [
        ("Exact copies", exact, len(report.exact), "No two images have the same bytes.", ""),
        ("Images that look alike", near, len(report.near), f"None was found. {note}", note),
    ]
    if report.summary.sides:
        none = f"No image of one side was found on another. {note}"
        parts.insert(0, ("On several sides", side_leaks, len(report.side_leaks), none, note))
    if report.against is not None:
        none = f"No image of {report.against} was found here. {note}"
        parts.insert(0, (f"Also in {report.against}", leaks, len(report.leaks), none, note))
    for title, groups, count, none, about in parts:
        shown = "".join(_group(group, pictures) for group in groups)
        heading = f"{count:,} {'group' if count == 1 else 'groups'}. {about}".strip() if count else none
        yield _section(title, f"<p>{text(heading)}</p>", shown, _more(count - len(groups), "groups"))


def _group(group: AlikeGroup, pictures: Pictures) -> str:
    shown = (
        (place, place.dataset if place.side is None else f"{place.dataset}: {place.side}") for place in group.places
    )
    cards = "".join(_card(place, pictures, what) for place, what in islice(shown, _PLACES))
    more = _more(len(group.places) - _PLACES, "images of this group")
    return f'<div class="cards"><b>{"the same bytes" if group.exact else "alike"}</b>{cards}</div>{more}'


def _suspects(report: DatasetReport, pictures: Pictures) -> Iterator[str]:
    counts = Counter(suspect.kind for suspect in report.suspects)
    for kind, found in _shown(report)[1].items():
        note = f"<p>Images that {text(SUSPICIONS[kind])}: {counts[kind]:,}.</p>"
        cards = "".join(_card(each.place, pictures, each.what) for each in found)
        left = _more(counts[kind] - len(found), "images")
        yield _section(kind.capitalize(), note, f'<div class="cards">{cards}</div>', left)


def _card(place: Place, pictures: Pictures, what: str) -> str:
    jpeg = pictures.get(place)
    image = f'<img alt="" src="data:image/jpeg;base64,{text(jpeg)}">' if jpeg else ""
    return f"<figure>{image}<figcaption>row {place.row}: {text(place.path)}<br>{text(what)}</figcaption></figure>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{text(value)}</td>' for value in row)}</tr>" for row in rows)
    names = "".join(f"<th>{text(name)}</th>" for name in head)
    return f'<div class="wide"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def _more(left: int, what: str) -> str:
    return f"<p>And {left:,} more {what}: <code>packtrain report --json</code> has them all.</p>" if left > 0 else ""


def chart_stats(file: Path) -> str:
    """Chart the figures of a loader, of which `file` holds the JSON of ``loader.stats.present.to_dict()``.

    Raises:
        UsageError: It cannot be read, or holds something else.
    """
    with _expected(file, "the JSON of `loader.stats.present.to_dict()`") as found:
        shares = {"waiting for batches": _number(found["wait_share"]), "workers busy": _number(found["busy_share"])}
        seconds = {name: _number(value) for name, value in found["stage_seconds"].items()}
        rate = _number(found["samples_per_second"])
    busy = sum(seconds.values()) or 1.0
    return _section(
        "Loading",
        f"<p>{rate:,.0f} images/s.</p>",
        bars("Share of the time", [Bar(name, share, f"{share:.1%}") for name, share in shares.items()]),
        bars("What workers do", [Bar(name, value, f"{value / busy:.1%}") for name, value in seconds.items()]),
    )


def tune_page(result: TuneResult) -> str:
    """Write the page of what `tune` has found."""
    rows = [
        Bar("{} workers, prefetch {}".format(*row.setting), row.rate, f"{row.rate:,.0f}", row == result.best)
        for row in result.results
    ]
    content = [bars("Images per second", rows), *(f"<p>{text(finding)}</p>" for finding in result.findings)]
    line = f"<p><code>{text(result.line)}</code></p>"
    return _page(result.path, "tune", [_section("Settings", *content, line)])


@contextmanager
def _expected(file: Path, what: str) -> Iterator[Any]:
    """The content of a JSON file; whatever goes wrong with it means that it is not `what`."""
    with file_errors(file, UsageError, verb="read"):
        data = file.read_bytes()
    try:
        yield json.loads(data)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise UsageError(f"{file} is not {what}") from error


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no share, time or rate")
    return float(value)
