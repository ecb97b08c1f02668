"""Shows what is in a dataset on one page: counts, sizes, colours, duplicates, leaks, and images that look wrong."""
