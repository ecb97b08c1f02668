"""Samples of Hugging Face's `datasets`: Parquet files with images inside, and datasets of that library.

Here they become map-style datasets of plain samples, for `Inputs`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from packtrain._core.errors import ListError, UsageError

from .features import Features, plain_sample
from .hub import HubAddress
from .lists.rows import columns_of
from .options import Columns, PackOptions
from .parquet_samples import PARQUET, ParquetFile, ParquetSamples, named_files, parquet_files


class LibrarySamples:
    """A dataset of the library ``datasets``, whose images stay files.

    Args:
        dataset: The dataset.
        asked: The columns that are asked for, if they are known already.

    Attributes:
        columns: The columns of samples, which the caller sets before it asks for any.
        named: True for names of classes in place of labels, where a column has names.
    """

    columns: Columns
    named: bool = False

    def __init__(self, dataset: Any, asked: Columns | None = None) -> None:
        from datasets import Image

        self.features: Final = Features.of(dataset.features.arrow_schema, asked)
        for name in self.features.images:
            dataset = dataset.cast_column(name, Image(decode=False))
        self._dataset = dataset.with_format(None)
        self._fingerprint = dataset._fingerprint

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return plain_sample(self._dataset[row], self.features, self.columns, named=self.named)

    def missing(self) -> frozenset[str]:
        """The columns in which a value may be missing."""
        table = self._dataset.data
        return frozenset(name for name in table.column_names if table.column(name).null_count)

    def distinct(self, column: str) -> set[str]:
        """The texts in a column."""
        return {text for text in self._dataset.unique(column) if text is not None}


def hugging_face_samples(
    source: Any, options: PackOptions, on_warning: Callable[[str], None] | None = None
) -> tuple[Any, PackOptions] | None:
    """The samples of paths or an object, and options for them; None if it is something else.

    Raises:
        MissingDependency: pyarrow is not installed.
        ListError: A file is no Parquet file, or unlike the others.
        UsageError: A folder has several splits, or the options name a column that there is not, or ask for an order
            that takes too long.
    """
    found: ParquetSamples | LibrarySamples
    if (files := _files(source, on_warning)) is not None:
        found = ParquetSamples(files, options.columns)
        if not found.features.images:
            if isinstance(source, Path):
                return None
            raise ListError(
                f"{files[0].path} has no column of images. If binary values of a column are, name it: --image COLUMN. "
                "If it is a list of paths, pack each list into a dataset of its own"
            )
        if options.seed:
            raise UsageError(
                f"`seed` {options.seed}: rows of Parquet files with images keep their order, since another one would "
                "read a group of rows for each of them. Leave it out; a Loader shuffles"
            )
        options = replace(options, seed=None)
    elif type(source).__module__.partition(".")[0] == "datasets" and hasattr(source, "_fingerprint"):
        found = LibrarySamples(source, options.columns)
    else:
        return None
    features = found.features
    if options.columns is not None:
        columns_of(list(features.dtypes), options.columns.names, files[0].name if files else "the dataset")
    if on_warning is not None and options.columns is None and (names := features.left_out()):
        held = ", ".join(f"{name!r} ({features.dtypes[name]})" for name in names)
        on_warning(f"columns are left out, because values of their types cannot be stored: {held}")
    found.columns = columns = options.columns or features.columns(found.missing())
    classes, label = options.classes, columns.label
    # The numbers of labels are those of the file's own names, and other names may stand in another order.
    found.named = classes is not None
    if classes is None and label is not None:
        classes = features.classes.get(label)
        if features.is_named(label):
            classes = tuple(sorted(found.distinct(label)))
    return found, replace(options, columns=columns, classes=classes or None)


def _files(source: Any, on_warning: Callable[[str], None] | None) -> list[ParquetFile] | None:
    """The Parquet files that a path, a list of paths, or an address names; None for anything else."""
    if isinstance(source, HubAddress):
        return source.fetch(on_warning)
    paths = [source] if isinstance(source, Path) else source
    if not isinstance(paths, list | tuple) or not paths:
        return None
    if isinstance(source, Path):
        return named_files(found) if (found := parquet_files(source)) else None
    if not all(isinstance(path, str | os.PathLike) and os.fspath(path).endswith(PARQUET) for path in paths):
        return None
    return named_files([file for path in paths for file in parquet_files(Path(path))])
