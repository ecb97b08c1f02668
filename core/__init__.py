"""The on-disk contract of packtrain: errors, durable files, manifest, index.

The lowest room of the project: it imports numpy, crc32c and the standard library, and nothing else.
"""
