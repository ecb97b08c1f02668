"""A bounded local cache of a dataset that lies in an object store."""
