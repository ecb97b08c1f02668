"""Tar shards, which `tar`, `webdataset` and DALI can read.

A shard is a POSIX ustar archive with the suffix ``.tar``. Each sample is consecutive members, in this order:

- ``KEY.EXT``: the bytes of the image. KEY is the line number, in decimal, padded with zeros to nine digits. EXT names
  the encoding in lower case (``jpg``, ``png``, ``npy``, ...).
- The label, unless the dataset has none: ``KEY.cls``, in decimal, for a scalar int; ``KEY.json``, a number or a list of
  numbers, for any other label.
- ``KEY.FIELD.EXT``: the bytes of each other field, in the order of the schema. EXT is that of the image for kind
  ``image``; ``png`` or ``npy`` (raw) for ``mask``; ``txt`` for ``text``; ``json`` for ``json``; ``npy`` for ``array``;
  ``bin`` for ``bytes``.

A field that is missing has no member; one that is empty has a member of no bytes.

Headers are ustar with mode 0644; uid, gid and mtime are 0, and there are no user or group names. So the same records
give the same bytes. The archive ends with two blocks of zeros, without further padding. Beside each shard is
``NAME.idx``, the index for DALI's webdataset reader, version v1.2: a line ``v1.2 COUNT``, then one line per sample with
``EXT OFFSET SIZE NAME`` for each of its members. EXT is here all that follows KEY and the dot, such as ``boxes.npy``.
OFFSET is the offset of the member's data and SIZE its size, both in bytes. A sample without any member has no line.

Raw images are `.npy` files: a 128-byte header and H x W x C uint8 pixels. Arrays and raw masks are `.npy` files too, in
C order and little-endian; a header that does not fit 128 bytes has 64 bytes more, as often as it takes.
"""
