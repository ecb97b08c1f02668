"""Measures what a loader spends its time on: counters, stage times, and the bottleneck.

`counters` are the numbers that each process keeps in shared memory, and `timing` measures the stages of the batches it
makes. `figures` is the plain record that the counters add up to, `bottleneck` says in words what the figures mean, and
`stats` is what users see of both.
"""
