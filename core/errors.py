"""Every error that packtrain raises on purpose, grouped by where it can be fixed.

    PacktrainError
    ├── UsageError              the call contradicts itself or names something unknown
    ├── MissingDependency       a package this call needs is not installed
    ├── PackError               packing cannot start or continue
    │   ├── ListError           the list itself is unusable
    │   ├── OutputConflict      the output folder holds something else, or another packer or filler is working in it
    │   ├── TooManyRejects      more lines were refused than --max-rejects allows
    │   ├── ShardFailed         a shard failed for a reason other than the content of its images
    │   └── NoSpace             the file system is full
    ├── StagingError            a dataset cannot be staged, or a staged copy cannot be used
    │   ├── NoRoom              it does not fit: budget, file system, memory or cgroup
    │   └── Leased              the entry that is to be evicted is in use
    ├── FillError               a growing cache gets no samples: its filler failed, or there is none
    ├── RemoteError             an object store cannot be reached, or does not answer as it should
    │   ├── NotThere            there is no such object or bucket
    │   └── Denied              the credentials do not allow it
    ├── LoaderError             a loader cannot continue: a worker died, a transform failed, memory ran out
    └── DatasetError            what lies on disk is not a sound dataset
        ├── NotADataset         no manifest.json: never finished, or not a dataset
        ├── GenerationGone      this state of a growing cache has made room for newer ones
        ├── UnsupportedVersion  written by a newer packtrain
        ├── CorruptFile         manifest, plan, index or shard differs from what was written
        │   └── SourceChanged   found while the dataset was being copied
        ├── UnreadableFile      a file cannot be read: permission, too many open files, a failing disk
        └── CorruptRecord       one record differs from what was written

For a row outside the dataset, Python's own ``IndexError`` is raised. The message of an error holds all the facts, and
its other attributes are optional, so that it survives a ``DataLoader`` worker, which raises ``type(message)`` again.
"""

from __future__ import annotations

from .printable import printable


class PacktrainError(Exception):
    """Base of all errors raised on purpose by packtrain."""

    def __str__(self) -> str:
        # A traceback prints it, and it may quote names and texts of strangers.
        return printable(super().__str__())


class UsageError(PacktrainError):
    """The call contradicts itself or names something unknown."""


class MissingDependency(PacktrainError):
    """A package this call needs is not installed; the message names the command that installs it. Or it needs Linux."""


class PackError(PacktrainError):
    """Packing cannot start or continue."""


class ListError(PackError):
    """The list of images is unusable as a whole."""


class OutputConflict(PackError):
    """The output folder holds something else, or another packer or filler is working in it."""


class TooManyRejects(PackError):
    """More lines were refused than the limit allows."""


class ShardFailed(PackError):
    """A shard failed for a reason other than the content of its images.

    Attributes:
        shard: Name of the shard; None if unknown.
    """

    def __init__(self, message: str, *, shard: str | None = None) -> None:
        super().__init__(message)
        self.shard = shard


class NoSpace(PackError):
    """The file system that holds the output is full."""


class StagingError(PacktrainError):
    """A dataset cannot be staged, or a staged copy cannot be used."""


class NoRoom(StagingError):
    """A dataset does not fit where it is to be staged: budget, file system, memory or cgroup."""


class Leased(StagingError):
    """An entry that is to be evicted is in use."""


class FillError(PacktrainError):
    """A growing cache gets no samples: its filler failed, was killed or says nothing, or there is none."""


class RemoteError(PacktrainError):
    """An object store cannot be reached, or does not answer as it should."""


class NotThere(RemoteError):
    """There is no such object or bucket."""


class Denied(RemoteError):
    """An object store does not let these credentials do what was asked."""


class LoaderError(PacktrainError):
    """A loader cannot continue: a worker died, a transform failed, or memory for its batches ran out."""


class DatasetError(PacktrainError):
    """The dataset on disk is not sound.

    Attributes:
        file: Name of the damaged file, relative to the dataset; None if unknown.
    """

    def __init__(self, message: str, *, file: str | None = None) -> None:
        super().__init__(message)
        self.file = file


class NotADataset(DatasetError):
    """There is no manifest: packing never finished, or the folder is not a dataset."""


class GenerationGone(DatasetError):
    """A generation of a growing cache is no longer there: its oldest samples have made room for new ones."""


class UnsupportedVersion(DatasetError):
    """The dataset was written by a newer packtrain."""


class CorruptFile(DatasetError):
    """A file of the dataset is missing or differs from what was written."""


class SourceChanged(CorruptFile):
    """A file that is being staged differs from what was packed."""


class UnreadableFile(DatasetError):
    """A file of the dataset cannot be read, which says nothing about its content: the message says what to do."""


class CorruptRecord(DatasetError):
    """A record differs from what was written.

    Attributes:
        row: Row of the record; None if unknown.
        line: 0-based line of the record in the list; None if unknown.
    """

    def __init__(
        self, message: str, *, file: str | None = None, row: int | None = None, line: int | None = None
    ) -> None:
        super().__init__(message, file=file)
        self.row = row
        self.line = line


# Tracebacks and pickles give the name that users import: packtrain.errors.CorruptRecord.
for _each in list(globals().values()):
    if isinstance(_each, type) and issubclass(_each, PacktrainError):
        _each.__module__ = "packtrain.errors"
del _each
