"""NVIDIA DALI behind the loader's face; needs the extra ``packtrain[dali]``."""

from packtrain._extras.dali.loader import DaliLoader as DaliLoader

__all__ = ["DaliLoader"]
