"""NVIDIA DALI behind the loader's face; needs the extra ``packtrain[dali]``."""

from packtrain._extras.dali.loader import DaliLoader as DaliLoader
from packtrain._extras.dali.webdataset import WebdatasetLoader as WebdatasetLoader

__all__ = ["DaliLoader", "WebdatasetLoader"]
