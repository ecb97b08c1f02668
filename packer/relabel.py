"""Gives rows of a dataset other labels, or its classes other names: writes a layer of labels beside segments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packtrain._core.arguments import checks_names, flag, instance, path_of
from packtrain._core.errors import UsageError
from packtrain._core.suggestions import did_you_mean
from packtrain._core.version_files import LAYERS
from packtrain._core.versions import Change, Layer, Version
from packtrain._readers.dataset.kept import is_kept
from packtrain._readers.dataset.versioned import newest_stores
from packtrain._storage.remote.urls import place_of

from .changing import ChangeReport, require_plain_names, would_be
from .index_layer import IndexLayer
from .layers import with_layers
from .listing import Listing, all_entries
from .lists.reader import read_class_names, read_list
from .matching import MISSING, matched, require_sound
from .object_workplace import workplace_at
from .options import Columns
from .workplace import Workplace


@checks_names()
def relabel(
    dataset: str | os.PathLike[str],
    source: str | os.PathLike[str] | None = None,
    *,
    key: str | None = None,
    label: str | None = None,
    label_names: bool | None = None,
    classes: Path | tuple[str, ...] | None = None,
    rename: dict[str, str] | None = None,
    dry_run: bool = False,
) -> ChangeReport:
    """Gives rows of a dataset other labels, or its classes other names, as a new version. Earlier ones keep theirs.

    Rows that the list does not name keep their labels, and all rows keep their sides if the dataset is split. Labels
    stay of the type that they are. If a run stops for any reason, the same call does what is left to do.

    Args:
        dataset: The folder or the address of the dataset.
        source: A list of paths and labels: lines as `packtrain.pack` takes them, CSV, TSV, JSON lines or Parquet. The
            paths are those of the list that was packed, byte for byte. None to change only the names of classes.
        key: Name of the column of the paths; None: ``"path"``, or the first of a list whose lines are path and label.
        label: Name of the column of the labels; None: ``"label"``, or the rest of such a line.
        label_names: True if the label on each line is the name of a class, False if it is a number; see
            `packtrain.append`.
        classes: Class names in label order, or a file with one per line: those of the dataset, which may have other
            names, and new ones at the end. None: those that it has.
        rename: Other names for classes, by the names that they have.
        dry_run: True to write nothing, and report what would be written.

    Returns:
        The new version, or the newest one if it says all this already.

    Raises:
        ListError: The list cannot be read; or a key is there twice, in the list or in the dataset, or names no sample.
        UsageError: The dataset has no labels, or they do not fit the class names; or there is no such class.
        OutputConflict: Another process does the same.
        PacktrainError: The dataset cannot be read, or not be written to.
    """
    flag("dry_run", dry_run)
    listed = None if source is None else path_of("source", source)
    if source is None and classes is None and not rename:
        raise UsageError("say what is to change: a list of labels, `classes` or `rename`")
    if classes is not None and rename:
        raise UsageError("`classes` and `rename` both say what classes are called: leave out one of them")
    names = None if classes is None else read_class_names(classes)
    with workplace_at(place_of("dataset", dataset)) as place:
        newest = place.newest()
        if newest.labels.kind == "none":
            raise UsageError(
                f"{place.address} has no labels that could be others: add a field of numbers (`packtrain add-field`)"
            )
        wanted = _Wanted(place, names, instance("rename", rename or {}, dict))
        known = wanted.classes_of(newest)
        if listed is not None:
            if label_names is None:
                require_plain_names(place, newest, listed)
            by_name = flag("label_names", label_names or False)
            table = _read(listed, newest, known, key, label, by_name)
            wanted = replace(wanted, listed=listed, table=table, labels=_labels(table))
        found, rows = wanted.layers(newest)
        if not found:
            return ChangeReport(place.address, newest.number, newest.records, dry_run=dry_run)
        if dry_run:
            paths = (f"{LAYERS}/{place.expected_name(layer.plan)}" for layer in found)
            return replace(would_be(place, newest, newest.records, *paths), relabelled=rows)
        place.begin()
        before = newest

        def labelled(newest: Version) -> Version:
            """The version that follows `newest`, with the labels that are wanted; `newest` if it has them."""
            nonlocal before, found, rows
            # What was written for an earlier version is nobody's.
            stack.close()
            if newest != before:
                before, (found, rows) = newest, wanted.layers(newest)
            if not found:
                return newest
            layers = dict[str, list[Layer]]()
            for layer in found:
                output = stack.enter_context(place.writing(f"{LAYERS}/{place.name_of(layer.plan)}"))
                layers[layer.segment.name] = [layer.packed(place.folder, output)]
            return with_layers(place, layers, Change("relabel", wanted.change), newest)

        with ExitStack() as stack:
            version = place.publish(labelled)
    return ChangeReport(place.address, version.number, version.records, relabelled=rows)


def _read(
    listed: Path, version: Version, classes: tuple[str, ...] | None, key: str | None, label: str | None, by_name: bool
) -> Listing:
    """Reads the list, whose labels become numbers of the classes as they are to be."""
    if listed.is_dir():
        raise UsageError(f"{listed} is a folder: give a list of paths and labels")
    table = read_list(
        listed,
        version.labels,
        columns=Columns(image="path" if key is None else key, label="label" if label is None else label),
        classes=classes,
        by_name=by_name,
        or_lines=key is None and label is None,
    )
    require_sound(table, listed)
    if classes is None and table.classes is not None:
        raise UsageError(
            f"the labels in {listed} are names, but the dataset has no class names: give numbers, or say which names "
            "its classes have (`classes`)"
        )
    return table


def _labels(table: Listing) -> npt.NDArray[Any]:
    """The labels of all rows of a list, [rows] or [rows, K]."""
    labels = np.empty(table.labels.shape(len(table)), table.labels.dtype)
    for ordinal, entry in enumerate(all_entries(table)):
        labels[ordinal] = entry.label
    return labels


@dataclass(frozen=True)
class _Wanted:
    """The labels and class names that are wanted, whatever the newest version is.

    Attributes:
        place: The dataset.
        classes: The class names; None: as they are.
        rename: Other names for some of them.
        listed: Path of the list; None if there is none.
        table: The list.
        labels: Its labels, [rows] or [rows, K].
    """

    place: Workplace
    classes: tuple[str, ...] | None
    rename: dict[str, str]
    listed: Path | None = None
    table: Listing | None = None
    labels: npt.NDArray[Any] | None = None

    def classes_of(self, version: Version) -> tuple[str, ...] | None:
        """The class names in the version after this one.

        Raises:
            UsageError: They do not fit those that there are.
        """
        there = version.classes or ()
        if self.classes is not None:
            if str(version.labels) != "int":
                raise UsageError(f"`classes` needs labels int, but those of {self.place.address} are {version.labels}")
            if len(self.classes) < len(there):
                raise UsageError(
                    f"{self.place.address} has {len(there):,} class names, and these are only {len(self.classes):,}: "
                    "name all of its classes, and new ones at the end"
                )
            return self.classes
        for old in self.rename:
            if (count := there.count(old)) != 1:
                how = f"{count} classes {old!r}: name all, by `classes`" if count else f"no class {old!r}"
                raise UsageError(f"{self.place.address} has {how}{did_you_mean(old, () if count else there)}")
        names = tuple(self.rename.get(name, name) for name in there)
        if len(set(names)) < len(set(there)):
            twice = next(name for name in self.rename.values() if names.count(name) > 1)
            raise UsageError(
                f"two classes of {self.place.address} would be called {twice!r}: give rows of one the other label"
            )
        return None if version.classes is None else names

    def layers(self, version: Version) -> tuple[list[IndexLayer], int]:
        """The layers that make a version the one that is wanted, and for how many rows; raises as `relabel`."""
        folder, classes = self.place.folder, self.classes_of(version)
        self.place.bring_indexes(version)
        stores = newest_stores(folder, version, index_only=True)
        matches: Mapping[str, npt.NDArray[np.int64]] = {}
        if self.table is not None and self.listed is not None:
            matches = matched(folder, version, self.table, self.listed, optional=True)
        layers, count = list[IndexLayer](), 0
        for segment, store in zip(version.segments, stores, strict=True):
            labels, kept = store.all_labels(), is_kept(folder, segment)
            match = matches.get(segment.name, np.full(segment.records, MISSING))
            rows = np.flatnonzero(kept & (match != MISSING))
            if self.labels is not None:
                other = self.labels[match[rows]] != labels[rows]
                rows = rows[other.any(axis=1) if other.ndim > 1 else other]
            if not len(rows) and classes == version.classes:
                continue
            changed = labels.copy()
            if self.labels is not None:
                changed[rows] = self.labels[match[rows]]
            if classes is not None and classes != version.classes:
                self._require_names(changed[kept], classes)
            layers.append(IndexLayer.of_labels(folder, segment, changed, classes))
            count += len(rows)
        return layers, count

    def _require_names(self, labels: npt.NDArray[Any], classes: tuple[str, ...]) -> None:
        wrong = labels[(labels < 0) | (labels >= len(classes))]
        if len(wrong):
            raise UsageError(
                f"{self.place.address} has a label {wrong[0]}, but there are {len(classes):,} class names, whose "
                f"labels are 0 to {len(classes) - 1:,}"
            )

    @property
    def change(self) -> str:
        """The change in a line for people."""
        if self.listed is not None:
            return f"relabelled rows by {self.listed.name}"
        return f"renamed {', '.join(self.rename)}" if self.rename else "named classes"
