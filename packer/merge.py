"""Makes a dataset of shards that were packed in parts, without the list: notes say all that is needed."""

from __future__ import annotations

import os
from typing import Final

from packtrain._core.arguments import checks_names
from packtrain._core.errors import OutputConflict, PackError, PacktrainError
from packtrain._core.files import file_errors, locked
from packtrain._core.manifest import MANIFEST, PLAN
from packtrain._storage.remote.urls import place_of

from .merge_notes import merge_notes, remove_leftovers, remove_notes
from .notes import PARTS
from .options import reject_limit
from .output import Output
from .places import output_at
from .plan import Plan
from .rejects import RejectGuard
from .reopen import manifest_of
from .reports import PackReport, dataset_report
from .traces import FAILED, PACKED, PACKING

_KNOWN: Final = (".npz", PACKING, FAILED, PACKED)


@checks_names()
def merge(out: str | os.PathLike[str], *, max_rejects: str | int = "0.1%") -> PackReport:
    """Makes a dataset of the shards in `out`, when all of its parts are packed.

    Anybody who can write there may do so, at any time and any number of times, also at the same time: the bytes are
    those of a dataset that was packed without parts.

    Args:
        out: Folder of the dataset, or its address in an object store.
        max_rejects: How many lines of the whole list may be refused, see `pack`. Each part counts those of its own
            shards; here they are added up.

    Returns:
        What the dataset holds; `complete_before` is True if there was nothing left to do.

    Raises:
        UsageError: An argument has the wrong type.
        OutputConflict: Nothing was packed in `out`, a packer without parts is working there, or there are notes of
            shards that its plan does not have.
        PackError: Shards are missing, also of a finished dataset, or hold other lines than planned; the message names
            them.
        TooManyRejects: More lines were refused than allowed.
        CorruptFile: The plan, or the manifest of a finished dataset, is damaged.
        UnreadableFile: The note of a shard cannot be read.
    """
    with output_at(place_of("out", out)) as output:
        return merge_output(output, max_rejects)


def merge_output(output: Output, max_rejects: str | int) -> PackReport:
    """Merges what lies in an output; see `merge`."""
    folder = output.folder
    with file_errors(folder):
        output.prepare()
        plan = plan_in(output)
        limit = reject_limit(max_rejects, plan.lines)
        with locked(folder / PLAN, shared=True):
            if (folder / MANIFEST).exists():
                return _finish(output, plan, complete_before=True)
            try:
                _refuse_foreign_notes(output, plan)
                merge_notes(output, plan, guard=RejectGuard(limit, plan.lines))
            except (PacktrainError, OSError):
                # Another merge was faster, and has removed notes or files of this one.
                if not (folder / MANIFEST).exists():
                    raise
            return _finish(output, plan, complete_before=False)


def plan_in(output: Output) -> Plan:
    """Reads the plan of an output in which something was packed.

    Raises:
        OutputConflict: There is none.
    """
    try:
        return Plan.load(output.folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise OutputConflict(f"{output.address} has no {PLAN}: nothing was packed there. Is the path right?") from error


def _refuse_foreign_notes(output: Output, plan: Plan) -> None:
    planned = {shard.name for shard in plan.shards}
    for path in sorted((output.folder / PARTS).glob("[!.]*")):
        if path.suffix not in _KNOWN or path.stem not in planned:
            raise OutputConflict(
                f"{output.address / PARTS / path.name} is of no shard that {PLAN} has, so it came from elsewhere: "
                "remove it and merge again"
            )


def _finish(output: Output, plan: Plan, *, complete_before: bool) -> PackReport:
    """Removes what is no longer needed from a finished dataset."""
    folder = output.folder
    manifest = manifest_of(output, plan)
    if lost := [info.name for info in manifest.shards if not output.holds(info)]:
        more = f" and {len(lost) - 1} others" if lost[1:] else ""
        raise PackError(
            f"the dataset in {output.address} is finished, but has lost {lost[0]}{more} since. Run the command that "
            "packed it again, without --part; it packs what is missing"
        )
    if (folder / PARTS).exists():
        remove_notes(folder)
    remove_leftovers(folder)
    output.finish()
    return dataset_report(output, manifest, complete_before=complete_before)
