"""The virtual GPU: turns a `Gpu` into the environment in which a process sees that GPU."""

from foretell.virtual.environment import LibraryPaths, are_libraries_there, environment, library_paths

__all__ = ["LibraryPaths", "are_libraries_there", "environment", "library_paths"]
