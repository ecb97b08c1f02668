"""NVIDIA DALI behind the loader's face: it decodes what packtrain reads, plans and cuts; on a GPU, it also resizes.

- `graph`: the DALI pipeline, and its arguments for each image.
- `engine`: makes batches with it, in the place of the loader's workers.
- `loader`: `DaliLoader`, for users.
- `arguments`: its arguments.
"""
