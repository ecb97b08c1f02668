"""Map-style datasets with the contract of torchvision's ImageFolder: the public classes."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, Final, Self, cast

import numpy.typing as npt
from torch.utils.data import Dataset

from packtrain._codec.decoders import DECODERS, Decoder
from packtrain._codec.pillow import pillow_conflict
from packtrain._codec.record_forms import as_image_file
from packtrain._core.arguments import checks_names, choice, flag, items, unexpected, whole
from packtrain._core.errors import UnsupportedVersion, UsageError
from packtrain._core.overriding import override
from packtrain._core.printable import printable
from packtrain._core.schema import IMAGE, PAIR, Schema
from packtrain._core.versions import Version, load_version
from packtrain._storage.location import Location
from packtrain._storage.remote.urls import place_of
from packtrain._storage.staging.version_documents import VersionDocuments, is_changed

from ..transforms.views import composed
from .combined import combined
from .kept import KeptRows
from .opened import open_store, open_version
from .query import Rows
from .rows import owned
from .samples import PackedSamples, Samples, TransformLike
from .shards import IO
from .sides import has_sides, not_split
from .sound import Check, checked_check
from .store import Label, RecordStore
from .versioned import rows_on_sides, segment_stores

if TYPE_CHECKING:
    from PIL.Image import Image

    from packtrain._storage.staging.options import StageOptions
    from packtrain._storage.streams.client import ChunkCache

# Number of folders that are named in a `repr`.
_SHOWN: Final = 3


class ImageDataset(Dataset[Any]):
    """Samples by row; `open_dataset`, `concat` and `subset` make datasets.

    ``dataset[row]`` is ``(image, label)``: a PIL image in the dataset's pixel mode and an int (or float, or an array
    [K]), each through the transform that the packed dataset was opened with. With `fields`, it is a named tuple of
    these fields, see `open_dataset`. Negative rows count from the end. A row outside the dataset raises IndexError, a
    damaged one `packtrain.errors.CorruptRecord`.
    """

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    @override
    def __getitem__(self, row: int) -> Any:
        sample = self._samples.make(_checked(row))
        return sample if type(sample) is tuple else owned(sample)

    @property
    def schema(self) -> Schema:
        """The stored fields of a sample, each with its kind, and type and names of the labels.

        ``schema["mask"].classes`` are the names of a mask's values. In a concatenation, it is that of the first part.
        """
        return self._samples.schema

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the parts of a sample, in order."""
        return self._samples.fields or PAIR

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by label, or None."""
        return self._samples.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label by class name; empty without class names."""
        return {name: label for label, name in enumerate(self.classes or ())}

    @property
    def targets(self) -> npt.NDArray[Any]:
        """All labels, in row order, without `target_transform`: an array [rows] or [rows, K].

        That of a packed dataset is the index itself, which cannot be written to.

        Raises:
            UsageError: The dataset has no labels.
            CorruptFile: The index is damaged.
        """
        return self._samples.labels

    @property
    def transform(self) -> TransformLike | Sequence[TransformLike] | None:
        """The transform of the images: one of packtrain's as it was given, otherwise a `Compose`.

        ``print(dataset.transform)`` shows for each transform of a `Compose` what becomes of it: *fused* runs on the
        stored record, *on tensors* once the pixels are there, and *through PIL* takes a PIL image, with all that
        follows it.

        Another one takes effect with the next row, and with the next pass of a loader over this dataset. Subsets and
        concatenations that were made before keep theirs.

        Raises:
            UsageError: The dataset is a concatenation of datasets with different transforms.
        """
        return self._samples.transform

    @transform.setter
    def transform(self, transform: TransformLike | Sequence[TransformLike] | None) -> None:
        self._samples = self._samples.with_transform(transform)

    def record(self, row: int, field: str = IMAGE) -> memoryview:
        """The stored bytes of a field of `row`: a read-only memoryview, without a copy if the dataset is mapped.

        Raises:
            IndexError: There is no such row.
            UsageError: `row` is not a whole number, there is no such field, or the row is without it.
            CorruptFile: Its shard is missing or truncated, or the index is damaged there.
            CorruptRecord: The bytes differ from what was written.
        """
        packed, row = self._samples.locate(_checked(row))
        return packed.store.record(row, field)

    def image_file(self, row: int, field: str = IMAGE) -> bytes:
        """Return an image of `row` as a file: its stored bytes, or of a coefficient record a JPEG of the same pixels.

        Raises:
            UsageError: As `record`; or images are stored as pixels, or `field` is no image.
            CorruptFile: As `record`.
            CorruptRecord: As `record`; or the coefficient record is damaged.
            MissingDependency: It is a coefficient record, and there is no C extension.
        """
        packed, row = self._samples.locate(_checked(row))
        record, stored = packed.store.record(row, field), packed.store.schema[field].store
        if stored is None or stored.store_mode.is_raw:
            what = f"{field} is no image" if stored is None else f"{field} is stored as pixels, not as files"
            raise UsageError(f"{packed.store.name}: {what}: take dataset.value({row}, {field!r})")
        try:
            return bytes(as_image_file(record))
        except ValueError as error:
            raise packed.store.field(field).undecodable(row, error) from error

    def image(self, row: int) -> Image:
        """The decoded image of `row`, without `transform`; None if the row is without it.

        Raises:
            UsageError: The dataset has no images.
            CorruptRecord: As `record`, or the stored bytes cannot be decoded.
        """
        image: Image = self.value(row, IMAGE)
        return image

    def value(self, row: int, field: str) -> Any:
        """The value of a field of `row`, whether or not samples have it, without `transform`.

        Args:
            row: The row.
            field: Name of a stored field, or ``"label"``.

        Returns:
            A PIL image; a mask [height, width], uint8 or, if it has 16 bits, int32; a str; what a JSON text holds; an
            array, read-only, if possible a view of the record; bytes; or a label. None if the row is without the field.

        Raises:
            IndexError: There is no such row.
            UsageError: `row` is not a whole number, or there is no such field.
            CorruptFile: Its shard is missing or truncated, or the index is damaged there.
            CorruptRecord: The bytes differ from what was written, or hold something else.
        """
        packed, row = self._samples.locate(_checked(row))
        return packed.value(row, field)

    def label(self, row: int) -> Label:
        """The label of `row`, without `target_transform`: int, float, or an array [K]."""
        packed, row = self._samples.locate(_checked(row))
        return packed.store.label(row)

    def filename(self, row: int) -> str:
        """The path of `row` as it stands in the list."""
        return self._samples.filename(_checked(row))

    def line(self, row: int) -> int:
        """The 0-based line of `row` in the list."""
        return self._samples.line(_checked(row))

    def describe(self, row: int) -> str:
        """Names `row` for a person: dataset, row, line, path and shard."""
        return self._samples.describe(_checked(row))

    def subset(self, rows: Iterable[int]) -> ImageDataset:
        """The given rows, in the given order. Its `with_transform` gives them a transform of their own.

        Args:
            rows: Row numbers, negative ones counted from the end, or booleans [rows], True for those to take.

        Raises:
            IndexError: A row is outside this dataset.
            UsageError: `rows` are not whole numbers.
        """
        return ImageDataset(self._samples.chosen(rows))

    def where(self, expression: str) -> ImageDataset:
        """The rows that a filter takes, in the same order; only the index is read. It takes ``packtrain[query]``.

        Args:
            expression: A condition as SQL has it, such as ``"width > 512 and label in ('cat', 'dog')"``. See
                docs/querying.md: which columns there are, and what may be asked of them. A row of which the condition
                is null, because a value that it needs is missing, is left out.

        Raises:
            UsageError: The expression cannot be read, names something unknown, or is no condition.
            MissingDependency: polars is not installed.
            CorruptFile: The index is damaged.
        """
        return ImageDataset(self._samples.where(expression))

    def with_transform(self, transform: TransformLike | Sequence[TransformLike] | None) -> Self:
        """The same rows with another transform, over the same open shards; `target_transform` stays."""
        other = copy.copy(self)
        other._samples = self._samples.with_transform(transform)
        return other

    def __repr__(self) -> str:
        paths = [repr(store.name) for store in self._samples.stores]
        more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
        return f"{type(self).__name__}({self._size()} of {', '.join(paths[:_SHOWN])}{more}, {self._transform_shown()})"

    def _repr_html_(self) -> str:
        """Makes what a notebook shows; whatever is wrong with the dataset, it is no error to look at it."""
        from .thumbnails import html_of

        try:
            return html_of(self._samples, repr(self))
        except Exception as error:
            return f"<code>{escape(printable(f'{self!r}: {error}'))}</code>"

    def _size(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes is not None else ""
        fields = f", fields={self.field_names}" if self._samples.fields is not None else ""
        return f"{len(self)} rows{classes}{fields}"

    def _transform_shown(self) -> str:
        try:
            # A `Compose` shows itself in several lines.
            return f"transform={' '.join(repr(self.transform).split())}"
        except UsageError:
            return "several transforms"


class PackedDataset(ImageDataset):
    """A dataset on disk; `open_dataset` makes one."""

    _samples: PackedSamples

    @property
    def store(self) -> RecordStore:
        """The records of the dataset."""
        return cast(RecordStore, self._samples.packed[0].store)

    @property
    def decoder(self) -> Decoder:
        """The decoder of the images, with its `name` and `version`."""
        return self._samples.packed[0].decoder

    @property
    def target_transform(self) -> TransformLike | None:
        """Called with each label, or None."""
        return self._samples.packed[0].target_transform

    @target_transform.setter
    def target_transform(self, target_transform: TransformLike | None) -> None:
        self._samples = cast(PackedSamples, self._samples.with_target_transform(target_transform))

    @override
    def __repr__(self) -> str:
        store, stored = self.store, f"{self.store.manifest.format}, {_stored(self.store.schema)}"
        return (
            f"{type(self).__name__}({store.name!r}, {self._size()}, {stored}, io={store.io!r}, "
            f"decoder={self.decoder.name!r}, {self._transform_shown()})"
        )


@dataclass(frozen=True)
class VersionPlace:
    """A dataset of versions, and options for all of them, which `open_dataset` explains.

    Attributes:
        location: Where the dataset lies.
        of_store: Makes the samples of a store, with given transforms.
        stage: Where a version is staged to; None to read it where it is.
        budget: What a version may take there whose shards lie in a store, as it was given; None: all of it is copied.
        io: As it was given.
        check: As it was given.
        split: Names of the sides whose rows are read; None for all rows.
    """

    location: Location
    of_store: Callable[..., PackedSamples]
    stage: str | os.PathLike[str] | StageOptions | None
    budget: str | int | None
    io: str
    check: Check
    split: Sequence[str] | None


class VersionDataset(PackedDataset):
    """A version of a dataset that was changed; `open_dataset` makes one.

    Attributes:
        version: Number of the version.
    """

    _samples: Samples  # type: ignore[assignment]  # of all segments

    def __init__(
        self,
        place: VersionPlace,
        number: int | None,
        transform: TransformLike | Sequence[TransformLike] | None,
        target_transform: TransformLike | None,
    ) -> None:
        self._place = place
        # What is held is released at the end of the function, when the stores hold leases of their own.
        self._folder, caches, remote, _held = open_version(
            place.location, place.stage, place.budget, number, check=place.check
        )
        version = load_version(self._folder, number if self._folder == place.location else None)
        self.version: Final = version.number
        sides = place.split
        stores = segment_stores(self._folder, version, place.io, place.check, sides or (), copied=remote, caches=caches)
        if sides is not None:
            kept: Sequence[Rows | KeptRows | None] = rows_on_sides(self._folder, version, stores, sides)
        else:
            kept = [None if each.dropped is None else KeptRows(self._folder, each) for each in version.segments]
        if transform is not None and len(stores) > 1:
            # One for all segments: what is planned by one transform is copied in one call.
            transform = composed(transform)
        parts = [place.of_store(store, transform=transform, target_transform=target_transform) for store in stores]
        chosen = [part if rows is None else Samples([part], rows) for part, rows in zip(parts, kept, strict=True)]
        super().__init__(chosen[0] if len(chosen) == 1 else Samples(chosen))

    def earlier(self) -> Iterator[Version]:
        """The versions before this one that may be opened, newest first; raises what `VersionDocuments` raises."""
        split = self._place.split
        for version, _, dropped in VersionDocuments(self._place.location).history(below=self.version):
            if not dropped and (split is None or has_sides(version, split)):
                yield version

    def at(self, number: int) -> VersionDataset:
        """Another version with the same transforms; raises what `open_dataset` raises."""
        return VersionDataset(self._place, number, self.transform, self.target_transform)

    @property
    @override
    def store(self) -> RecordStore:
        raise UsageError(f"{self._folder} consists of segments: dataset.record(row) reads of any of them")

    @override
    def __repr__(self) -> str:
        first = self._samples.packed[0]
        return (
            f"{type(self).__name__}({os.fspath(self._folder)!r}, version {self.version}, {self._size()}, "
            f"{_stored(self.schema)}, io={first.store.io!r}, decoder={first.decoder.name!r}, {self._transform_shown()})"
        )


def _stored(schema: Schema) -> str:
    """Return the store mode of images, and the fields if there are others."""
    shown = [
        f"{field.name}: {field.store.store if field.store is not None else field.kind}{'?' * field.optional}"
        for field in schema.fields
    ]
    return schema.fields[0].store.store if schema.plain and schema.fields[0].store else f"{{{', '.join(shown)}}}"


def _checked(row: int) -> int:
    """A row as a Python integer."""
    if isinstance(row, slice):
        raise unexpected("row", row, "a whole number; subset(range(...)) takes several rows")
    return whole("row", row)


def samples_of(dataset: object) -> Samples | None:
    """The samples of a packtrain dataset; None for any other object."""
    return dataset._samples if isinstance(dataset, ImageDataset) else None


def instead_of(dataset: object) -> str:
    """The end of a message about a dataset that is not packtrain's: what to write for torch's Subset of one that is."""
    ours = isinstance(getattr(dataset, "dataset", None), ImageDataset) and hasattr(dataset, "indices")
    return "; in place of torch's Subset, write dataset.subset(subset.indices)" if ours else ""


def caches_of(dataset: object) -> tuple[ChunkCache, ...]:
    """The caches that the records of a dataset are read from, each once; none for a dataset that is at hand."""
    samples = samples_of(dataset)
    stores = () if samples is None else samples.stores
    return tuple(dict.fromkeys(store.chunks for store in stores if store.chunks is not None))


def is_remote(dataset: object) -> bool:
    """True if a part of a dataset was opened in an object store, also where a copy of it is read."""
    samples = samples_of(dataset)
    return samples is not None and any(store.remote for store in samples.stores)


@checks_names()
def concat(datasets: Sequence[ImageDataset]) -> ImageDataset:
    """Datasets one after the other, as one; each keeps its own transforms.

    Raises:
        UsageError: There are none, one is no packtrain dataset, a label stands for different classes, only some have
            class names, or their fields differ.
    """
    expected = "a list of datasets from open_dataset, subset or concat"
    given = items("datasets", datasets, expected)
    known = [part for part in map(samples_of, given) if part is not None]
    if len(known) < len(given):
        raise unexpected("datasets", given, expected + next(filter(None, map(instead_of, given)), ""))
    return ImageDataset(combined(known))


@checks_names()
def open_dataset(
    path: str | os.PathLike[str],
    transform: TransformLike | Sequence[TransformLike] | None = None,
    target_transform: TransformLike | None = None,
    *,
    io: str = "auto",
    check: Check = True,
    decoder: str = "auto",
    scaled: bool = False,
    stage: str | os.PathLike[str] | StageOptions | None = None,
    budget: str | int | None = None,
    fields: Sequence[str] | None = None,
    version: int | None = None,
    split: str | Sequence[str] | None = None,
) -> PackedDataset:
    """Opens a packed dataset of any format, in a folder or in an object store.

    A dataset in an object store is read through a cache on this machine, of which it takes at most `budget` bytes. See
    docs/streaming.md: what fits into the budget is fetched once; of a larger dataset, the cache keeps a part, which
    changes as an epoch goes on.

    With `fields`, packtrain's transforms act on the image, on all other images and on masks alike, with the same random
    numbers; masks with the nearest value. Of other callables, transforms of ``torchvision.transforms.v2`` get all of
    these together, as a dict of PIL images and ``tv_tensors.Mask``; any other callable gets the image alone.

    Args:
        path: The folder that `packtrain pack` wrote, or its address in an object store, such as
            ``"s3://bucket/imagenet"``.
        transform: Any callable, called with each PIL image as in torchvision; or one of `packtrain.transforms`, or a
            list or `Compose` of them (torchvision's `Compose`, too). These see the encoded record and decode
            only what they need. If there are no others, images are tensors, uint8 [channels, height, width]; a foreign
            callable after them gets a PIL image. None: images are PIL images; where neither Pillow nor pillow-simd is
            installed, they are such tensors.
        target_transform: Called with each label.
        io: ``"mmap"``, ``"pread"``, or ``"auto"``: pread on network file systems, where a mapped read that fails is a
            SIGBUS, mmap elsewhere.
        check: Compare each record with its checksum: True: whenever it is read; False: never; ``"first"``: when it is
            first read, and not again, once it has been found sound, as long as this dataset is open in this process
            and those that it starts. A dataset that is read through a cache takes ``"first"`` for True.
        decoder: ``"pillow"``, ``"extension"``, ``"simplejpeg"``, or ``"auto"``: the fastest one whose pixels
            equal Pillow's on this machine. The dataset's `decoder` says which one it is.
        scaled: Let the decoder shrink large JPEGs before they are resized: faster, with slightly different pixels.
        stage: A folder for staged copies, such as ``"/dev/shm"``, or `packtrain.StageOptions`: the dataset is copied
            there unless it is there already (`packtrain.stage`), and read from there. The copy is safe from eviction
            as long as the dataset lives, here or in a worker process. With an address in an object store, which needs
            it: the folder that the cache is made in, on a local disk or in memory. A complete copy that is there is
            read in place of a cache.
        budget: Bytes that the cache of a dataset in an object store may take, as a number or a text such as
            ``"200GiB"``; None: as many as the whole dataset takes, if staging would allow that.
        fields: What a sample is to have, in this order: names of stored fields, ``"label"``, and ``"crop"``, which is
            int64 [5]: left, top, width and height of the part of the stored image that was taken, in pixels, and 1 if
            it was mirrored. A sample is then a named tuple (``sample.mask``), in which a mask is a tensor [height,
            width], uint8 or, if it has 16 bits, int32, an array a numpy array, and what a row is without is None.
            Fields that are not asked for are not read. None: a sample is ``(image, label)``.
        version: Number of the version of a dataset that was changed; None: the newest one. It stays the same as long
            as the dataset is open, whatever others change.
        split: The side of the rows to open, or several, of a dataset that `packtrain.split` has split: ``"train"``,
            ``"val"``, ``"test"``, or ``"fold-0"`` and so on; None: all rows.

    Returns:
        A map-style dataset; `torch.utils.data.DataLoader` takes it under any start method.

    Raises:
        NotADataset: `path` has no manifest.
        UnsupportedVersion: It was written by a newer packtrain.
        CorruptFile: Manifest or index is damaged.
        MissingDependency: `decoder` is not installed.
        UsageError: There is no such decoder, transform or field; or no image, and `fields` is None; or a cache cannot
            honour one of the `StageOptions`; or the dataset was not split, no row is on this side, or rows that were
            appended since are on none.
        NoRoom: There is no room to stage it, or for the cache.
        RemoteError: The object store does not give it.
        StagingError: It cannot be staged there; or `path` was a staged copy, but has been evicted.
    """
    if problem := pillow_conflict():
        warnings.warn(problem, RuntimeWarning, stacklevel=3)
    if not isinstance(path, (str, os.PathLike)):
        raise unexpected("path", path, "the folder of a packed dataset")
    choice("io", io, IO)
    choice("decoder", decoder, DECODERS)
    check, scaled = checked_check(check), flag("scaled", scaled)
    sides = (split,) if isinstance(split, str) else split if split is None else items("split", split, "names of sides")
    of_store = partial(PackedSamples, decoder=decoder, scaled=scaled, fields=fields)
    store = None
    try:
        store = open_store(path, stage, budget, io=io, check=check)
    except UnsupportedVersion:
        # Only who meets one asks: most datasets have no versions.
        if not is_changed(place_of("path", path)):
            raise
    if store is None:
        place = VersionPlace(place_of("path", path), of_store, stage, budget, io, check, sides)
        return VersionDataset(place, version, transform, target_transform)
    if sides is not None:
        raise not_split(os.fspath(path))
    if version is not None:
        raise UsageError(f"version={version}: {os.fspath(path)} has never been changed, so it has no versions")
    return PackedDataset(of_store(store, transform=transform, target_transform=target_transform))
