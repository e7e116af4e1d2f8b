"""Changes made to the training from outside: skipped initialisation, and the alternatives that advice tries."""
