"""Training and validation, over any of four back ends.

- `imagenet`: makes the two loaders of the usual ImageNet recipe.
- `train_val`: `TrainVal`, which keeps the two from taking memory at the same time.
- `torch_loader`: the loader in which torch's DataLoader makes the batches.
"""
