"""Starts the hooks when torch is imported and when CUDA is initialised; runs scripts and functions in warm forks."""
