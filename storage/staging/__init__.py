"""Staging: verified, shared, leased copies of datasets on fast storage of one machine.

`docs/staging.md` describes the guarantees, and `docs/staging-operation.md` the folders and locks.
"""
