"""Learned estimators: the data set they are trained on, its generator, and their training.

Torch, NumPy and LightGBM are imported where they are needed, never by `foretell --help`."""
