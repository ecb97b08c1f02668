"""The best number of workers, decoder and prefetch factor for a dataset on this host, and advice on the host itself.

`tune` and `conclude` are for `packtrain tune`; `packtrain doctor` uses the modules `doctor`, `machine` and
`decoder_speed`.
"""

from .conclusion import TuneResult, conclude
from .options import Setting, TuneOptions, TuneTarget
from .trials import SettingResult, Trial
from .tuner import tune

__all__ = ["Setting", "SettingResult", "Trial", "TuneOptions", "TuneResult", "TuneTarget", "conclude", "tune"]
