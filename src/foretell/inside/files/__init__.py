"""Protects the user's files: writes go to a scratch folder, checkpoints become sparse files."""
