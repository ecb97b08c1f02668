"""The `Loader` in Hugging Face Accelerate."""

from packtrain._readers.loader.accelerate import PreparedLoader as PreparedLoader
from packtrain._readers.loader.accelerate import prepare as prepare

__all__ = ["PreparedLoader", "prepare"]
