"""Fills growing caches: takes samples from a source, writes them to shards, publishes generations, makes room.

None of this runs in a training process. See `packtrain._core.generations` for what lies on disk.
"""
