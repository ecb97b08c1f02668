"""What stands beside the loader: DALI, loaders for training and validation, and what finds out why training is slow."""
