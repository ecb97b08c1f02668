"""The `Loader` in Hugging Face Accelerate."""

from packtrain._readers.loader.accelerate import PreparedLoader, prepare

__all__ = ["PreparedLoader", "prepare"]
