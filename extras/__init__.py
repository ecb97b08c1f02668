"""Beside the loader: DALI, training with validation, and tools that find out why training is slow."""
