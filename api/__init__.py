"""packtrain packs an image training set once, stages it next to the GPU, and feeds it to a PyTorch training loop.

    from packtrain import Loader, open_dataset
    from packtrain.transforms import RandomHorizontalFlip, RandomResizedCrop

The public interface is this page together with `packtrain.transforms`, `packtrain.orders`, `packtrain.reports`,
`packtrain.staging`, `packtrain.accelerate`, `packtrain.dali` and `packtrain.errors`, and for tests `packtrain.testing`.
Anything whose name begins with an underscore may change in any version. Names are imported when they are first used, so
``import packtrain`` loads neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packtrain._core.options import LabelSpec as LabelSpec
    from packtrain._core.options import StoreOptions as StoreOptions
    from packtrain._extras.report.dataset_report import dataset_report as dataset_report
    from packtrain._extras.train_val.imagenet import imagenet_loaders as imagenet_loaders
    from packtrain._extras.train_val.train_val import TrainVal as TrainVal
    from packtrain._extras.tune import TuneOptions as TuneOptions
    from packtrain._extras.tune import tune as tune
    from packtrain._extras.watch import watch as watch
    from packtrain._growing.cache import GrowingCache as GrowingCache
    from packtrain._growing.random_records import RandomRecords as RandomRecords
    from packtrain._growing.random_slices import RandomSlices as RandomSlices
    from packtrain._packer.add_field import add_field as add_field
    from packtrain._packer.changing import append as append
    from packtrain._packer.changing import drop_rows as drop_rows
    from packtrain._packer.export.exporter import export as export
    from packtrain._packer.foreign.indexer import index_shards as index_shards
    from packtrain._packer.joining import compact as compact
    from packtrain._packer.merge import merge as merge
    from packtrain._packer.merge_datasets import merge_datasets as merge_datasets
    from packtrain._packer.options import Columns as Columns
    from packtrain._packer.options import FieldColumn as FieldColumn
    from packtrain._packer.options import PackOptions as PackOptions
    from packtrain._packer.pack import pack as pack
    from packtrain._packer.parts import Part as Part
    from packtrain._packer.purging import purge as purge
    from packtrain._packer.ray_engine import RayEngine as RayEngine
    from packtrain._packer.relabel import relabel as relabel
    from packtrain._packer.removing import drop_version as drop_version
    from packtrain._packer.split import split as split
    from packtrain._packer.status import pack_status as pack_status
    from packtrain._packer.verifier import verify as verify
    from packtrain._readers.dataset.image_dataset import ImageDataset as ImageDataset
    from packtrain._readers.dataset.image_dataset import PackedDataset as PackedDataset
    from packtrain._readers.dataset.image_dataset import concat as concat
    from packtrain._readers.dataset.image_dataset import open_dataset as open_dataset
    from packtrain._readers.loader import Loader as Loader
    from packtrain._readers.loader import Ragged as Ragged
    from packtrain._storage.staging.options import StageOptions as StageOptions
    from packtrain._storage.staging.stager import stage as stage

    from . import accelerate as accelerate
    from . import dali as dali
    from . import errors as errors
    from . import orders as orders
    from . import reports as reports
    from . import staging as staging
    from . import transforms as transforms

    __version__: str

# What the imports above say to type checkers, once more for the first use of a name; a test compares the two.
_HOMES = {
    "_core.options": ("LabelSpec", "StoreOptions"),
    "_extras.report.dataset_report": ("dataset_report",),
    "_extras.train_val.imagenet": ("imagenet_loaders",),
    "_extras.train_val.train_val": ("TrainVal",),
    "_extras.tune": ("TuneOptions", "tune"),
    "_extras.watch": ("watch",),
    "_growing.cache": ("GrowingCache",),
    "_growing.random_records": ("RandomRecords",),
    "_growing.random_slices": ("RandomSlices",),
    "_packer.add_field": ("add_field",),
    "_packer.changing": ("append", "drop_rows"),
    "_packer.export.exporter": ("export",),
    "_packer.foreign.indexer": ("index_shards",),
    "_packer.joining": ("compact",),
    "_packer.merge": ("merge",),
    "_packer.merge_datasets": ("merge_datasets",),
    "_packer.options": ("Columns", "FieldColumn", "PackOptions"),
    "_packer.pack": ("pack",),
    "_packer.parts": ("Part",),
    "_packer.purging": ("purge",),
    "_packer.ray_engine": ("RayEngine",),
    "_packer.relabel": ("relabel",),
    "_packer.removing": ("drop_version",),
    "_packer.split": ("split",),
    "_packer.status": ("pack_status",),
    "_packer.verifier": ("verify",),
    "_readers.dataset.image_dataset": ("ImageDataset", "PackedDataset", "concat", "open_dataset"),
    "_readers.loader": ("Loader", "Ragged"),
    "_storage.staging.options": ("StageOptions",),
    "_storage.staging.stager": ("stage",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = ("accelerate", "dali", "errors", "orders", "reports", "staging", "transforms")

__all__ = sorted([*_HOME_OF, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        from packtrain._core.installing import require_linux

        require_linux()
        return getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name == "__version__":
        from importlib import metadata

        return metadata.version(__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
