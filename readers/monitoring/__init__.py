"""What a loader does with its time: counters, stages, the bottleneck, and `watch` for loaders that are not ours."""
