"""The options of `packtrain pack` that say which columns of a list hold what."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from packtrain._core.arguments import unexpected
from packtrain._core.errors import UsageError
from packtrain._core.kinds import ADDABLE, KINDS, Kind
from packtrain._core.schema import IMAGE, MASK_ENCODINGS, check_name
from packtrain._core.suggestions import did_you_mean

from .options import adding

if TYPE_CHECKING:
    from packtrain._packer.options import Columns

F = TypeVar("F", bound=Callable[..., Any])
_BY_PATH: Final = ":path"


def column_options(command: F) -> F:
    """Adds the options to a command, whose function takes them as keyword arguments, for `columns_of`."""
    options = [
        click.option("--image", metavar="COL", help="Column of a list with a header: paths of the images."),
        click.option("--label", metavar="COL", help="Column of the labels."),
        *map(_kind_option, KINDS.values()),
        *_array_options(),
        click.option(
            "--mask-classes", metavar="NAME=FILE", multiple=True, help="File of the names of a mask's values."
        ),
        click.option("--mask-store", type=click.Choice(MASK_ENCODINGS), help="How masks are stored.  [default: png]"),
    ]
    return adding(options)(command)


def added_field_options(command: F) -> F:
    """Adds those of the options that say which columns can be added to a dataset, for `columns_of`."""
    return adding([*map(_kind_option, ADDABLE), *_array_options()])(command)


def _kind_option(kind: Kind) -> Callable[[F], F]:
    return click.option(f"--{kind.option}", _keyword(kind), metavar=_form(kind), multiple=True, help=_help(kind))


def _array_options() -> list[Callable[[F], F]]:
    return [
        click.option("--optional", metavar="NAME", multiple=True, help="A field that samples may lack."),
        click.option("--dtype", metavar="NAME=TYPE", multiple=True, help="Type of the values of a field."),
        click.option("--shape", metavar="NAME=SIZES", multiple=True, help="Shape of an array, such as N,4."),
    ]


def columns_of(
    *,
    image: str | None,
    label: str | None,
    optional: Sequence[str],
    mask_classes: Sequence[str],
    mask_store: str | None,
    dtype: Sequence[str],
    shape: Sequence[str],
    **fields: Sequence[str],
) -> Columns | None:
    """Returns the columns that the options name, or None if they name none.

    Raises:
        UsageError: An option is not written as it should be, or names a field that there is not.
    """
    from packtrain._packer.options import Columns, FieldColumn

    named = [(kind.name, *_parse(kind, text)) for kind in KINDS.values() for text in fields.get(_keyword(kind), ())]
    names = [name for _, name, _, _ in named]
    masks = [name for kind, name, _, _ in named if kind == "mask"]
    for name in optional:
        _require_known("--optional", name, names)
    arrays = [name for kind, name, _, _ in named if kind == "array"]
    numbers = [name for kind, name, _, _ in named if kind == "number"]
    classes = {name: Path(path) for name, path in _assigned("--mask-classes", mask_classes, masks, "mask=FILE")}
    dtypes = dict(_assigned("--dtype", dtype, arrays + masks + numbers, "boxes=float32"))
    shapes = {name: _shape(text) for name, text in _assigned("--shape", shape, arrays, "boxes=N,4")}
    if mask_store is not None and not masks:
        raise UsageError("--mask-store is for masks, but there is no --mask")
    if image is None and not named:
        if label is None:
            return None
        raise UsageError(
            f"--label {shlex.quote(label)} names a column of a table, so another option has to name what is stored: "
            "add --image COL. For a list of `path label` lines, the option is --labels"
        )
    return Columns(
        image,
        label,
        tuple(
            FieldColumn(
                name,
                kind,
                column,
                by_path,
                optional=name in optional,
                encoding=(mask_store or "png") if kind == "mask" else "png",
                dtype=dtypes.get(name),
                shape=shapes.get(name),
                classes=classes.get(name),
            )
            for kind, name, column, by_path in named
        ),
    )


def _parse(kind: Kind, text: str) -> tuple[str, str, bool]:
    """Returns name, column and whether its cells are paths, of ``[NAME=]COL[:path]``."""
    from packtrain._packer.lists.suggestions import field_words

    by_path = kind.by_path
    # Where cells are always paths, it may be said all the same.
    if text.endswith(_BY_PATH):
        text, by_path = text.removesuffix(_BY_PATH), True
    name, separator, column = text.partition("=")
    column = column if separator else text
    if not column or not name:
        raise UsageError(f"--{kind.option} {shlex.quote(text)}: no column is named")
    try:
        return check_name(name), column, by_path
    except UsageError as error:
        suffix = _BY_PATH if by_path and not kind.by_path else ""
        words = shlex.join([f"--{kind.option}", field_words(column, kind.name) + suffix])
        raise UsageError(f"{error}, for example: {words}") from None


def _assigned(option: str, texts: Sequence[str], names: Sequence[str], example: str) -> Iterator[tuple[str, str]]:
    """Yields name and value of each ``NAME=VALUE``, where NAME is one of `names`."""
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not value:
            example = f"{names[0]}={example.partition('=')[2]}" if names else example
            form = f"NAME={'FILE' if option == '--mask-classes' else 'VALUE'}"
            raise UsageError(f"{option} {shlex.quote(text)}: expected {form}, such as {example}")
        _require_known(option, name, names)
        yield name, value


def _shape(text: str) -> tuple[int | None, ...]:
    """Reads sizes between commas, of which the first may be N; nothing but ``()`` is the shape of a single value."""
    if text == "()":
        return ()
    if not re.fullmatch(r"(N|\d{1,9})(,\d{1,9})*", text):
        raise unexpected("--shape", text, "sizes such as 3,4 or N,4, where N differs from row to row, or ()")
    return tuple(None if size == "N" else int(size) for size in text.split(","))


def _require_known(option: str, name: str, names: Sequence[str]) -> None:
    if name == IMAGE and name not in names:
        raise UsageError(
            f"{option} image: no sample can be without the image. Name its column with --image-field view=COL instead "
            "of --image"
        )
    if name not in names:
        there = f"the fields are {', '.join(names)}" if names else "there is none"
        raise UsageError(f"{option} {name}: there is no such field; {there}{did_you_mean(name, names)}")


def _keyword(kind: Kind) -> str:
    return kind.option.replace("-", "_")


def _form(kind: Kind) -> str:
    return "[NAME=]COL" if kind.by_path or kind.indexed else f"[NAME=]COL[{_BY_PATH}]"


def _help(kind: Kind) -> str:
    return f"{kind.help} May be repeated."
