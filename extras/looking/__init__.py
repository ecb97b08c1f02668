"""Looking at a dataset: a sheet of pictures, in a file or in a terminal."""
