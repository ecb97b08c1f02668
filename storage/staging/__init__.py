"""Staging: verified, shared, leased copies of datasets on fast storage of one machine.

`docs/staging.md` describes the guarantees, and how the folders and locks are used.
"""
