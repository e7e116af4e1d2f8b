"""A training job that is a package, started with `python -m package_form`."""
