"""NVIDIA DALI behind the loader's face: it decodes, resizes and flips what packtrain reads, plans and cuts.

- `graph`: the DALI pipeline, and what it gets for each image.
- `engine`: makes batches with it, in the place of the loader's workers.
- `loader`: what users see, `DaliLoader`.
"""
