"""Watches the training: steps, phases, memory history, owners of memory, end of the process."""
