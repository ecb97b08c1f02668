"""The loaders that packtrain is compared with, and packtrain, each used as its own documentation does.

A module has a function for each kind of stream, ``jpeg(folder)``, ``raw(folder)`` (a plain crop), ``raw_rrc(folder)``,
or some of these: an endless stream of `common.Batch` from what `workloads.prepare` wrote into the folder; with
``once=True`` a single pass over it. A peer with a format of its own also has ``write_jpeg(folder)`` and
``write_raw(folder)``, which run once beforehand. ``remote(stream, address, folder, limit)`` reads such a format from an
object store through a cache in the folder, of at most so many bytes; each call of what it returns is an epoch.
``OPTIONS`` lists what a reader of the figures should know. No peer's module needs packtrain: peers have environments of
their own.
"""
