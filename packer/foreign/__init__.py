"""Other people's WebDataset tars, read in place: what is in them, and the manifest and index that make them a dataset.

`pieces` reads a shard once from front to back, `headers` finds its members, `samples` puts these together to samples,
`records` looks at what each member holds, `fields` decides what the fields are called, `scan` does all this for one
shard in a worker, and `indexer` for all of them.
"""
