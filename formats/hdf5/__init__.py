"""HDF5 shards, which h5py, MATLAB and h5dump can read.

A shard is an HDF5 file (earliest library version, suffix ``.h5``) with these datasets, all contiguous and unfiltered:

- ``images``: the records. If all records are raw and have the same size: uint8 [N, H, W, C]. Otherwise: uint8
  [total bytes], the records one after the other without gaps, delimited by ``offsets``.
- ``offsets``: int64 [N + 1], unless ``images`` is four-dimensional. Record i is ``images[offsets[i]:offsets[i + 1]]``.
- ``shapes``: int32 [N, 3]: height, width and channels. Only if records are raw and their sizes differ.
- ``labels``: int64 or float32, [N] or [N, K], unless the dataset has no labels.
- ``lines``: int64 [N]: the keys.
- ``crc32c``: uint32 [N]: the checksum of each record.

The data of ``images`` begins at a multiple of 4096 bytes. Raw records are only the pixels, in C order.

Each other field has a group ``fields/NAME``, and a dataset without a field called image has no ``images``, ``offsets``,
``shapes`` and ``crc32c`` outside the groups. A group holds:

- ``data``: the records, one after the other without gaps. Arrays have their own type: [N, *shape] if all have one
  shape, [total, *shape[1:]] if the first size differs. Images are like ``images``. Anything else is uint8 [total
  bytes]: text in UTF-8, JSON text in UTF-8, masks as PNG or raw (H x W values, C order, little-endian), bytes as they
  are.
- ``offsets``: int64 [N + 1], unless all records are arrays of one shape, or raw images of one size. Record i is
  ``data[offsets[i]:offsets[i + 1]]``.
- ``shapes``: int32 [N, 2], height and width, for raw masks; [N, 3], as above, for raw images whose sizes differ.
- ``crc32c``: uint32 [N]: the checksum of each record.
- ``present``: uint8 [N]: 1 where the sample has the field, else 0. Only if the field is optional.

In an optional field, a missing record takes no room in ``data``, so there are always ``offsets``, and its entries of
``crc32c`` and ``shapes`` are 0. Arrays of one shape are then [records that are present, *shape], and raw images of one
size likewise. If the image is optional, ``present`` lies beside ``images``. Bool is stored as h5py does, as an
enumeration of int8 with the names FALSE and TRUE; complex numbers as a compound of ``r`` and ``i``.
"""
