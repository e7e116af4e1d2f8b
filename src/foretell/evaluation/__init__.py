"""Accuracy of estimates: measured runs, repeated by an engine as a user would run them."""
