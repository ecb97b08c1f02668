"""Out of a dataset again: image folders, WebDataset tars and Parquet files, which other programs read.

`rows` says which rows there are and how they are cut into parts, `names` what their files are called, and `contents`
what is in these. `plan` is the document by which a stopped run continues. `folder`, `tars` and `parquet` write a part
each time, in a worker, and `exporter` runs it all.
"""
