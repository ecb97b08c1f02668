"""Every error that packtrain raises on purpose; `PacktrainError` is the base of all."""

from packtrain._core.errors import (
    CorruptFile,
    CorruptRecord,
    DatasetError,
    FillError,
    GenerationGone,
    Leased,
    ListError,
    LoaderError,
    MissingDependency,
    NoRoom,
    NoSpace,
    NotADataset,
    OutputConflict,
    PackError,
    PacktrainError,
    ShardFailed,
    SourceChanged,
    StagingError,
    TooManyRejects,
    UnreadableFile,
    UnsupportedVersion,
    UsageError,
)

__all__ = [
    "CorruptFile",
    "CorruptRecord",
    "DatasetError",
    "FillError",
    "GenerationGone",
    "Leased",
    "ListError",
    "LoaderError",
    "MissingDependency",
    "NoRoom",
    "NoSpace",
    "NotADataset",
    "OutputConflict",
    "PackError",
    "PacktrainError",
    "ShardFailed",
    "SourceChanged",
    "StagingError",
    "TooManyRejects",
    "UnreadableFile",
    "UnsupportedVersion",
    "UsageError",
]

# Tracebacks and pickles give the name that users import: packtrain.errors.CorruptRecord.
for _name in __all__:
    globals()[_name].__module__ = __name__
