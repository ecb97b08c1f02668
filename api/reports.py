"""Results and progress of packing, indexing, verifying, looking, filling and tuning.

The functions that return them, or call a `progress` function with them, say what they mean.
"""

from packtrain._extras.report.figures import AlikeGroup as AlikeGroup
from packtrain._extras.report.figures import ChannelFigures as ChannelFigures
from packtrain._extras.report.figures import DatasetReport as DatasetReport
from packtrain._extras.report.figures import Histogram as Histogram
from packtrain._extras.report.figures import Place as Place
from packtrain._extras.report.figures import ReportProgress as ReportProgress
from packtrain._extras.report.figures import Suspect as Suspect
from packtrain._extras.tune import TuneResult as TuneResult
from packtrain._growing.status import FillStatus as FillStatus
from packtrain._packer.changing import ChangeReport as ChangeReport
from packtrain._packer.export.exporter import ExportProgress as ExportProgress
from packtrain._packer.export.exporter import ExportReport as ExportReport
from packtrain._packer.foreign.indexer import IndexedField as IndexedField
from packtrain._packer.foreign.indexer import IndexProgress as IndexProgress
from packtrain._packer.foreign.indexer import IndexReport as IndexReport
from packtrain._packer.pack_run import PackProgress as PackProgress
from packtrain._packer.pack_run import PackReport as PackReport
from packtrain._packer.problem import Problem as Problem
from packtrain._packer.removing import RemovalReport as RemovalReport
from packtrain._packer.status import FailedShard as FailedShard
from packtrain._packer.status import PackStatus as PackStatus
from packtrain._packer.status import UnderWay as UnderWay
from packtrain._packer.verifier import VerifyProgress as VerifyProgress
from packtrain._packer.verifier import VerifyReport as VerifyReport

__all__ = [name for name in dir() if not name.startswith("_")]
