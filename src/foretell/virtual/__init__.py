"""The virtual GPU: the environment in which a process sees a `Gpu`."""

from foretell.virtual.environment import LibraryPaths, are_libraries_there, environment, library_paths

__all__ = ["LibraryPaths", "are_libraries_there", "environment", "library_paths"]
