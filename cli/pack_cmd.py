"""`packtrain pack`, also installed as `pack`."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from packtrain._core.cores import available_cores
from packtrain._core.errors import UsageError
from packtrain._core.options import FORMATS, ORIENTATIONS, PIXEL_MODES
from packtrain._core.printable import one_line
from packtrain._core.sizes import size
from packtrain._core.store_modes import STORE_MODES

from .columns import column_options, columns_of
from .options import max_rejects_option, where_option
from .output import print_json, progress, run, say, warn
from .paths import PATH, PATH_OR_URL, SOURCE
from .words import named

if TYPE_CHECKING:
    from packtrain._core.options import StoreOptions
    from packtrain._packer.options import PackOptions
    from packtrain._packer.pack_run import PackProgress, PackReport
    from packtrain._packer.ray_engine import RayEngine

_REMARKS: Final = 8
_FUNCTION: Final = "expected MODULE:FUNCTION, as in my_data:sample for the function sample in my_data.py"
_CLASSES: Final = 5


@click.command("pack", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("words", nargs=-1, metavar="LIST OUT", type=SOURCE)
@where_option("Pack only the rows")
@click.option(
    "--format",
    type=click.Choice(list(FORMATS)),
    help="Container of the shards.  [default: tar; for a dataset, the one it has]",
)
@click.option(
    "--root",
    type=PATH_OR_URL,
    help="Folder that relative paths start from; default: the folder of the list.",
)
@click.option(
    "--labels",
    default="int",
    metavar="int|int*K|float|float*K|class|none",
    help="What follows the path on each line; class: the name of a class. Names are numbered in the order of "
    "--classes, or sorted as text (10 before 3).",
)
@column_options
@click.option("--function", metavar="MODULE:FUNCTION", help="Makes a sample of each input; LIST is then MODULE:INPUTS.")
@click.option("--classes", type=PATH, help="File of class names, one per line, in label order.")
@click.option("--allow-empty", is_flag=True, help="Also accept class folders without images.")
@click.option(
    "--store",
    type=click.Choice(list(STORE_MODES)),
    help="How pixels are stored.  [default: crop-ready; for a dataset, the mode it has]",
)
@click.option(
    "--resize", metavar="short=256|long=500|256x256", help="New size of the images; short and long never enlarge."
)
@click.option("--quality", type=click.IntRange(1, 100), help="Quality of the JPEGs with --store jpeg.  [default: 90]")
@click.option(
    "--mode",
    type=click.Choice(PIXEL_MODES),
    help="Pixel mode that readers deliver.  [default: RGB; for a dataset, the one it has]",
)
@click.option(
    "--orientation",
    type=click.Choice(ORIENTATIONS),
    help="What to do with an EXIF orientation.  [default: ignore; for a dataset, as when it was packed]",
)
@click.option(
    "--shard-size",
    metavar="SIZE",
    help="Target size of a shard.  [default: 1/64 of the data, but at least 16MiB and at most 512MiB]",
)
@click.option("--seed", type=int, help="Seed that shuffles the order of the records.  [default: 0]")
@click.option("--keep-order", is_flag=True, help="Keep the order of the list.")
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: all available cores]")
@max_rejects_option
@click.option(
    "--spool", type=PATH, help="Folder for shards until they are uploaded.  [default: the system's temporary folder]"
)
@click.option("--retry-rejects", is_flag=True, help="Pack shards that have refused lines again.")
@click.option(
    "--engine", type=click.Choice(["local", "ray"]), default="local", help="Pack on this machine, or on a Ray cluster."
)
@click.option("--address", metavar="auto|HOST:PORT", help="Ray cluster.  [default: RAY_ADDRESS]")
@click.option("--ray-log", is_flag=True, help="Show what Ray logs.")
@click.option(
    "--check",
    is_flag=True,
    help="Decode every image before it is stored, not only suspects, and compare transcoded ones with their source.",
)
@click.option("--part", metavar="I/N|auto|auto/N", help="Pack part I of N, on one of several machines; auto: in Slurm.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    words: tuple[Path | str, ...],
    workers: int | None,
    max_rejects: str,
    retry_rejects: bool,
    spool: Path | None,
    engine: str,
    address: str | None,
    ray_log: bool,
    part: str | None,
    function: str | None,
    as_json: bool,
    **choices: Any,
) -> None:
    """Pack the images that LIST names (`path label` per line), or an image folder (class/name.jpg), into OUT.

    LIST may also be a CSV or TSV file with a header, JSON lines (.jsonl) or a Parquet file, whose columns are named:

    packtrain pack train.csv out --image path --label class --mask seg --text caption

    If packing stops at any point, the same command continues from there. Lines that cannot be packed are listed
    in OUT/rejects.jsonl.

    LIST may be a folder with a dataset, packed or indexed, which is packed once more, with the same rows. Records that
    do not change are copied; only other images, and masks that are resized with them, are decoded.

    LIST may be MODULE:NAME, the name of inputs in Python, or of a function that returns or yields samples: dicts of a
    field's name and its value. --function makes a sample of each input.

    LIST may be Parquet files with images inside: a file, a folder, a pattern in quotes, or an address on the Hugging
    Face Hub, such as 'hf://datasets/OWNER/NAME/data/train-*.parquet'.

    LIST, OUT and --root may be addresses in an object store, such as s3://bucket/imagenet.

    Several machines that share OUT can pack a part each at the same time, with --part. `packtrain status OUT` shows
    their progress, and `packtrain merge OUT` makes the dataset.
    """
    from packtrain._codec.pillow import pillow_conflict
    from packtrain._packer.listing import is_items
    from packtrain._packer.pack import pack
    from packtrain._packer.parts import Part
    from packtrain._packer.user_code import load_named

    source, out = named(words, "LIST", "OUT")
    warn(pillow_conflict())
    options = _options(source, **choices)
    samples = _samples(source)
    if function is not None and samples is None:
        raise UsageError(f"--function makes samples of inputs, and {source} is none: name them, as MODULE:INPUTS")
    if samples is None or is_items(samples):
        workers = workers if engine == "ray" else workers or available_cores()
    cluster = _cluster(engine, address, ray_log)
    one = None if part is None else Part.parse(part)
    if one is not None and one.origin:
        say(f"pack: part {one}, {one.origin}", err=True)
    start = time.monotonic()
    # Ray prints what it has to say of workers and nodes that die.
    elsewhere = nullcontext() if cluster is None else redirect_stdout(sys.stderr)
    streamed = samples is not None and not is_items(samples)
    with elsewhere, progress("pack", quiet=as_json, note=rejects_note) as show, _stoppable(streamed=streamed):
        report = pack(
            source if samples is None else samples,
            out,
            options,
            function=None if function is None else load_named(function, _FUNCTION),
            num_workers=workers,
            max_rejects=max_rejects,
            retry_rejects=retry_rejects,
            spool=spool,
            engine=cluster,
            part=one,
            on_progress=show,
            on_warning=warn,
        )
    if as_json:
        print_json(report)
    else:
        say(describe_report(report, time.monotonic() - start))


@contextmanager
def _stoppable(*, streamed: bool) -> Iterator[None]:
    """Says at Ctrl-C what is so of samples that come one by one."""
    try:
        yield
    except KeyboardInterrupt as error:
        if not streamed:
            raise
        raise KeyboardInterrupt(
            "stopped, and nothing was kept: samples that come one by one are packed in one go, so the same command "
            "begins again"
        ) from error


def _samples(source: Path | str) -> Any:
    """Return what MODULE:NAME names, or what it returns if it is a function; None if the source is a path."""
    from packtrain._packer.listing import is_items
    from packtrain._packer.user_code import is_named, load_named, with_line

    name = str(source)
    if not is_named(name) or Path(name).exists():
        return None
    found = load_named(name, "")
    # A class or a factory makes the function.
    for _ in range(2):
        if callable(found) and not isinstance(found, Iterable) and not is_items(found):
            try:
                found = found()
            except (Exception, SystemExit) as error:
                raise UsageError(f"source {name}: {with_line(error, __file__)}") from error
    if isinstance(found, str | bytes | os.PathLike) or not (isinstance(found, Iterable) or is_items(found)):
        raise UsageError(
            f"source {name}: an object of type {type(found).__name__}, neither samples nor a function that yields them"
        )
    return found


def _cluster(engine: str, address: str | None, log: bool) -> RayEngine | None:
    if engine == "ray":
        from packtrain._packer.ray_engine import RayEngine

        return RayEngine(address, log)
    if address is not None or log:
        raise UsageError("--address and --ray-log are options of --engine ray")
    return None


def _options(
    source: Path | str, *, seed: int | None, keep_order: bool, store: str | None, **choices: Any
) -> PackOptions:
    from packtrain._packer.options import PackOptions

    if keep_order and seed is not None:
        raise UsageError("--seed and --keep-order contradict each other")
    pixels = {name: choices.pop(name) for name in ("resize", "quality", "mode", "orientation", "check")}
    kept = ("format", "root", "labels", "classes", "allow_empty", "shard_size", "where")
    same = {name: choices.pop(name) for name in kept}
    return PackOptions(
        store=_store(source, store, **pixels),
        columns=columns_of(**choices),
        seed=None if keep_order else seed or 0,
        **same,
    )


def _store(source: Path | str, store: str | None, **pixels: Any) -> StoreOptions | None:
    """Return the store options. Those that are not given stay as a dataset has them; None keeps all."""
    from packtrain._core.manifest import MANIFEST, Manifest, is_dataset
    from packtrain._core.options import StoreOptions
    from packtrain._core.version_files import has_versions
    from packtrain._core.versions import load_version

    given = {name: value for name, value in pixels.items() if value not in (None, False)}
    if isinstance(source, Path) and is_dataset(source):
        if store is None and given:
            raise UsageError(f"--{next(iter(given))} says how pixels are stored: also say --store")
        if store is None or not (source / MANIFEST).exists():
            return None
        held = (load_version if has_versions(source) else Manifest.load)(source).schema
        if was := next((field.store for field in held.fields if field.store), None):
            given = {"mode": was.mode, "orientation": was.orientation} | given
    return StoreOptions(**given) if store is None else StoreOptions(store, **given)


def rejects_note(state: PackProgress) -> str:
    """Says how many lines were refused so far, if any."""
    return f"{state.rejects} rejects" if state.rejects else ""


def describe_report(report: PackReport, seconds: float) -> str:
    """Describe a run of `pack` or `merge` for people."""
    if report.part is not None and not report.complete_before:
        return describe_part(report, seconds)
    what = f"{report.records:,} records in {report.packed + report.resumed} shard(s), {size(report.bytes)}"
    if report.complete_before:
        text = f"{report.dataset}: already complete: {what}"
    else:
        again = f", {report.resumed} shard(s) from before" if report.resumed else ""
        text = f"{report.dataset}: {what} in {seconds:.1f} s{again}"
    if report.classes:
        more = ", ..." if len(report.classes) > _CLASSES else ""
        names = ", ".join(one_line(name) for name in report.classes[:_CLASSES])
        text += f"\n{len(report.classes):,} {'class' if len(report.classes) == 1 else 'classes'}: {names}{more}"
    if report.rejects:
        text += f"\n{report.rejects} line(s) refused, see {report.dataset / 'rejects.jsonl'}"
    if report.duplicates:
        text += f"\n{report.duplicates} line(s) repeat an earlier one (they were packed too)"
    return text + _remarks(report)


def describe_part(report: PackReport, seconds: float) -> str:
    """Describe a run of `pack --part` for people."""
    out = shlex.quote(str(report.dataset))
    again = f", {report.resumed} from before" if report.resumed else ""
    text = (
        f"{report.dataset}: part {report.part}: {report.packed} shard(s) packed in {seconds:.1f} s{again}: "
        f"{report.records:,} records, {size(report.bytes)}"
    )
    if report.rejects:
        text += f"\n{report.rejects} line(s) refused so far, which the merge will list"
    if report.missing:
        text += f"\n{report.missing} shard(s) of all parts are still missing: packtrain status {out}"
    else:
        text += f"\nall shards of all parts are packed: packtrain merge {out}"
    return text + _remarks(report)


def _remarks(report: PackReport) -> str:
    text = "".join(f"\n{count:,} record(s): {remark}" for remark, count in list(report.remarks.items())[:_REMARKS])
    if len(report.remarks) > _REMARKS:
        rest = sum(list(report.remarks.values())[_REMARKS:])
        text += f"\n{rest:,} record(s) with {len(report.remarks) - _REMARKS} other remarks: see --json"
    return text


def main() -> None:
    """Entry point of the command `pack`."""
    run(command)
