"""Transforms with the names, parameters and pixels of torchvision that see a record before it is decoded."""
