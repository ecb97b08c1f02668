"""Other people's WebDataset tars, read in place: what is in them, and the manifest and index that make them a dataset.

`shard_files` reads a shard once from front to back, `headers` finds its members, `records` looks at what each member
holds, `plan` decides what the fields are called, `scan` does all this for one shard in a worker, and `indexer` for all
of them.
"""
