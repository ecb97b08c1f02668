"""NVIDIA DALI behind the loader's face; needs the extra ``packtrain[dali]``."""

from packtrain._readers.dali.loader import DaliLoader as DaliLoader
from packtrain._readers.dali.webdataset import WebdatasetLoader as WebdatasetLoader

__all__ = ["DaliLoader", "WebdatasetLoader"]
