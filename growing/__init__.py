"""Fillers of growing caches: read samples from a source, write shards, publish generations, make room.

None of this runs in a training process. See `packtrain._core.generations` for what lies on disk.
"""
