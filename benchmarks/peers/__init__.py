"""The loaders that packtrain is compared with, and packtrain, each used as its own documentation does.

A module has a function for each case, ``jpeg(folder)`` and ``raw(folder)`` or one of the two: an endless stream of
`common.Batch` out of what `loading.prepare` has written into the folder. Whoever needs the images in a format of their
own has ``write_jpeg(folder)`` and ``write_raw(folder)``, which run once, before. ``OPTIONS`` says what a reader of the
figures should know. No peer's module needs packtrain: peers live in environments of their own.
"""
