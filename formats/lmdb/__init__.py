"""LMDB shards, which any binding of LMDB can read.

A shard is an LMDB data file (``MDB_NOSUBDIR``, suffix ``.mdb``) with these named databases:

- ``images``: key -> the bytes of the image; absent if the dataset has no field called image.
- ``labels``: key -> the label as JSON text (a number or a list of numbers); absent if the dataset has no labels.
- ``fields/NAME``: key -> the bytes of the field; one database for each field that is not the image.

A key is the line number as an 8-byte big-endian unsigned integer. A field that is missing has no key in its database;
one that is empty has a value of no bytes. Open a shard read-only and without a lock file, with room for as many
databases as there are::

    env = lmdb.open("train-000000.mdb", subdir=False, readonly=True, lock=False, max_dbs=2)

The bytes of a value are contiguous in the file: LMDB stores a large value in consecutive pages and a small one inside a
page. Raw images are `.npy` files: a 128-byte header and H x W x C uint8 pixels. Arrays and raw masks are `.npy` files
too, in C order and little-endian; a header that does not fit 128 bytes has 64 bytes more, as often as it takes.
"""
