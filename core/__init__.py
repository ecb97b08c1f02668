"""The on-disk contract of packtrain: errors, durable files, manifest, index.

Ground floor of the project: imports numpy, crc32c and the standard library, nothing else.
"""
