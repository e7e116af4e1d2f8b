"""Reports of an `Estimate`, for people and programs. One file per format."""
