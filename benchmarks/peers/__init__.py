"""The loaders that packtrain is compared with, and packtrain, each used as its own documentation does.

A module has a function for each kind of stream, ``jpeg(folder)``, ``raw(folder)`` (a plain crop), ``raw_rrc(folder)``,
or some of them: an endless stream of `common.Batch` out of what `workloads.prepare` has written into the folder; with
``once=True`` a single pass over it. Whoever needs the images in a format of their own has ``write_jpeg(folder)`` and
``write_raw(folder)``, which run once, before. ``OPTIONS`` says what a reader of the figures should know. No peer's
module needs packtrain: peers live in environments of their own.
"""
