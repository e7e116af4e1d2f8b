"""Ends a training loop in an orderly way once enough steps have been seen."""
