"""Concatenation of datasets whose classes and fields mean the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from packtrain._core.errors import UsageError
from packtrain._core.schema import LABEL, PAIR
from packtrain._core.version_schema import differing

from .samples import Samples
from .store import Store

NAMES: Final = "`--classes classes.txt`, a file of all class names, one per line in label order"
"""Gives datasets the same class names."""


def combined(parts: Sequence[Samples]) -> Samples:
    """Samples one after the other, each with its own transforms.

    Raises:
        UsageError: There are none, or a label stands for different classes, or the fields of their samples differ.
    """
    if not parts:
        raise UsageError("concat needs at least one dataset")
    stores = [store for part in parts for store in part.stores]
    require_same_classes(stores)
    _require_names_for_all(stores)
    _check_same_fields(parts)
    if LABEL in (parts[0].fields or PAIR):
        require_same_label_types(parts)
    return Samples(parts)


def require_same_classes(stores: Iterable[Store]) -> None:
    """Makes sure that a label stands for the same class in all datasets. Those without class names are not compared.

    Raises:
        UsageError: It does not.
    """
    known = {classes: store.name for store in stores if (classes := store.schema.classes) is not None}
    longest = max(known, key=len, default=())
    for classes, name in known.items():
        for label, (one, other) in enumerate(zip(longest, classes, strict=False)):
            if one != other:
                raise UsageError(
                    f"{known[longest]} and {name} number their classes differently: label {label} is {one!r} in "
                    f"{known[longest]}, but {other!r} in {name}: pack both with {NAMES}"
                )


def require_same_label_types(parts: Sequence[Samples]) -> None:
    """Makes sure that all labels are of one type and length, unless a `target_transform` makes others of them.

    Raises:
        UsageError: They are not.
    """
    if any(len(part) and part.locate(0)[0].target_transform is not None for part in parts):
        return
    first, *others = (store for part in parts for store in part.stores)
    for other in others:
        one, two = first.schema.labels, other.schema.labels
        if one != two:
            raise UsageError(
                f"{first.name} has labels of type {one}, but {other.name} of type {two}: pack both with the same "
                "labels, or open each with a `target_transform` that makes them alike"
            )


def _require_names_for_all(stores: Sequence[Store]) -> None:
    """Makes sure that all datasets have class names, or none has: together they have one list of names.

    Raises:
        UsageError: Some have.
    """
    named = [store.name for store in stores if store.schema.classes is not None]
    bare = [store.name for store in stores if store.schema.classes is None]
    if named and bare:
        raise UsageError(
            f"{named[0]} has class names, but {bare[0]} has none, so it is not known whether their labels mean the "
            f"same: pack {bare[0]} with {NAMES}"
        )


def _check_same_fields(parts: Sequence[Samples]) -> None:
    """Makes sure that the samples of all parts have the same fields, with the same meaning.

    Raises:
        UsageError: They differ.
    """
    first = parts[0]
    for part in parts[1:]:
        if part.fields != first.fields:
            ours, theirs = (found.fields or "(image, label)" for found in (first, part))
            raise UsageError(f"the samples of the datasets have different fields: {ours} and {theirs}")
        for field in first.schema.fields:
            if field.name in (first.fields or ()) and (key := differing(field, part.schema[field.name])):
                one, other = (getattr(found.schema[field.name], key) for found in (first, part))
                raise UsageError(
                    f"field {field.name}: {key} is {one!r} in {first.stores[0].name}, but {other!r} in "
                    f"{part.stores[0].name}"
                )
