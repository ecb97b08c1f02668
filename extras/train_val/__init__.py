"""Training and validation over four back ends with one face.

- `torch_loader`: torch's DataLoader makes the batches, in the place of packtrain's workers.
- `options`: the arguments of `TrainVal`, and the loaders that each back end makes of them.
- `memory`: gives freed memory back to the system.
- `train_val`: what users see, `TrainVal`.
"""
