"""NVIDIA DALI behind the loader's face; needs ``pip install 'packtrain[dali]'``."""

from packtrain._readers.dali.loader import DaliLoader as DaliLoader

__all__ = ["DaliLoader"]
