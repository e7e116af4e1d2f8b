"""Keeps the user's files as they are: writes go to a scratch folder, checkpoints become files with holes."""
