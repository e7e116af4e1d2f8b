"""Watches the training: steps, phases, the memory history, who owns what, how it ends."""
