"""The plan of an export, by which a run that was stopped continues: what is exported, how, and in which parts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, Self

import numpy as np

from packtrain._core.document import dump_document, load_document, parse_document
from packtrain._core.errors import OutputConflict
from packtrain._core.files import make_folder, write_file
from packtrain._core.manifest import Sha256
from packtrain._core.typed import MOST, Between, OneOf

from ..options import usual_shard_bytes
from .rows import Ints, SourceRows

PLAN: Final = ".packtrain-export.json"
"""Hidden, because what reads image folders or finds Parquet files takes other names for its own."""
FORMS: Final = ("folder", "webdataset", "parquet")
_VERSION: Final = 1
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class ExportPlan:
    """The plan of an export.

    Attributes:
        to: What it is exported to.
        source_sha256: Which rows of which datasets, see `SourceRows.sha256`.
        rows: Number of rows.
        part_bytes: The bytes of records after which a part ends.
    """

    to: Annotated[str, OneOf(FORMS)]
    source_sha256: Sha256
    rows: Annotated[int, Between(1, MOST)]
    part_bytes: Annotated[int, Between(1, MOST)]

    @classmethod
    def of(cls, to: str, source: SourceRows, sizes: Ints, part_bytes: int | None) -> Self:
        """The plan for these rows, whose records have these sizes."""
        return cls(to, source.sha256(), len(source), part_bytes or usual_shard_bytes(int(sizes.sum())))

    def bounds(self, sizes: Ints) -> list[int]:
        """The first row of each part, and the number of rows."""
        starts = np.cumsum(sizes) - sizes
        return [*np.flatnonzero(np.diff(starts // self.part_bytes, prepend=-1)).tolist(), self.rows]

    def settle(self, folder: Path) -> None:
        """Writes the plan to `folder`, unless it is there.

        Raises:
            OutputConflict: There is the plan of another export.
            CorruptFile: What is there is damaged.
        """
        path = folder / PLAN
        make_folder(folder)
        try:
            # By a link, which only one of several that begin at the same time can make.
            write_file(path, [dump_document({"version": _VERSION, **asdict(self)})], exclusive=True)
        except FileExistsError:
            there = parse_document(type(self), load_document(path, newest=_VERSION, most=_MOST_BYTES), path)
        else:
            return
        if there == self:
            return
        if there.to != self.to:
            what = f"to {there.to}, and not to {self.to}"
        elif there.rows != self.rows or there.source_sha256 != self.source_sha256:
            what = "of another dataset, or of other rows"
        else:
            what = f"with `shard_size` {there.part_bytes} bytes, and not {self.part_bytes}"
        raise OutputConflict(
            f"{folder} holds an export {what}. Choose a new folder, or repeat what was asked for then to continue it"
        )
