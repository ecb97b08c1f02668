"""Packing and verifying datasets.

Nothing is imported here: a worker process that packs needs neither the list nor `verify`, and it starts with every run.
"""
