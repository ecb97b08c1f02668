"""What a loader spends its time on: counters, stage times, the bottleneck, and `watch` for other loaders.

`counters` are the numbers that each process keeps in shared memory, and `timing` measures the stages of the batches it
makes. `figures` is the plain record that the counters add up to, `bottleneck` says in words what the figures mean, and
`stats` is what users see of both. `monitor` measures what can be measured of a loader that is not packtrain's.
"""
