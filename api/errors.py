"""Every error that packtrain raises on purpose; `PacktrainError` is the base of all."""

from packtrain._core.errors import CorruptFile as CorruptFile
from packtrain._core.errors import CorruptRecord as CorruptRecord
from packtrain._core.errors import DatasetError as DatasetError
from packtrain._core.errors import Denied as Denied
from packtrain._core.errors import FillError as FillError
from packtrain._core.errors import GenerationGone as GenerationGone
from packtrain._core.errors import Leased as Leased
from packtrain._core.errors import ListError as ListError
from packtrain._core.errors import LoaderError as LoaderError
from packtrain._core.errors import MissingDependency as MissingDependency
from packtrain._core.errors import NoRoom as NoRoom
from packtrain._core.errors import NoSpace as NoSpace
from packtrain._core.errors import NotADataset as NotADataset
from packtrain._core.errors import NotThere as NotThere
from packtrain._core.errors import OutputConflict as OutputConflict
from packtrain._core.errors import PackError as PackError
from packtrain._core.errors import PacktrainError as PacktrainError
from packtrain._core.errors import RemoteError as RemoteError
from packtrain._core.errors import ShardFailed as ShardFailed
from packtrain._core.errors import SourceChanged as SourceChanged
from packtrain._core.errors import StagingError as StagingError
from packtrain._core.errors import TooManyRejects as TooManyRejects
from packtrain._core.errors import UnreadableFile as UnreadableFile
from packtrain._core.errors import UnsupportedVersion as UnsupportedVersion
from packtrain._core.errors import UsageError as UsageError

__all__ = [name for name in dir() if not name.startswith("_")]

# Tracebacks and pickles give the name that users import: packtrain.errors.CorruptRecord.
for _name in __all__:
    globals()[_name].__module__ = __name__
