"""The overlay on disk: maps the user's paths into it, and presents both as one view.

`<overlay>/<absolute path>` holds what the script wrote; the user's own files lie below it, untouched. A deleted file of
the user's leaves a marker (`.deleted-<name>`), and a folder recreated after deletion hides its old content
(`.fresh-folder`). All state is on disk, so the Python processes of one run share it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from . import real_files as real

DELETED = ".foretell-deleted-"
FRESH = ".foretell-fresh-folder"
MOST_LINKS = 40


class OverlayTree:
    def __init__(self, root: str, is_protected: Callable[[str], bool], on_change: Callable[[str, str], None]) -> None:
        self.root = root
        self.is_protected = is_protected
        self._on_change = on_change
        self._is_active = False

    @property
    def is_active(self) -> bool:
        """Whether any process of this run has written anything; until then no path is redirected."""
        if not self._is_active:
            self._is_active = real.exists(self.root)
        return self._is_active

    # Path lookup

    def logical(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> str:
        """The absolute path without links, as the script sees it."""
        text = os.fsdecode(path)
        if not text.startswith("/"):
            base = real.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None else real.getcwd()
            text = f"{self.without_root(base)}/{text}" if text else base
        elif text.startswith(self.root + "/"):
            return text
        return self._resolve(text, follow)

    def without_root(self, path: str) -> str:
        return path[len(self.root) :] if path.startswith(self.root + "/") else path

    def upper(self, logical: str) -> str:
        return self.root + logical

    def find(self, logical: str) -> str | None:
        """Where the content is, in the overlay or below it; None if the script sees no file."""
        upper = self.upper(logical)
        if real.exists(upper):
            return upper
        if real.exists(logical) and not self.hides(logical):
            return logical
        return None

    def hides(self, logical: str) -> bool:
        """Whether the user's file or folder is deleted from the script's view."""
        folder = self.root
        names = logical.strip("/").split("/")
        for name in names:
            if real.exists(f"{folder}/{DELETED}{name}"):
                return True
            if folder != self.root and real.exists(f"{folder}/{FRESH}"):
                return True
            folder = f"{folder}/{name}"
            if not real.is_folder(folder):
                return False
        return False

    def names_in(self, logical: str) -> tuple[set[str], set[str]]:
        """Names in a folder: (in the overlay, below it and not hidden)."""
        upper = self.upper(logical)
        upper_names = set(real.listdir(upper)) if real.is_folder(upper) else set()
        lower_names: set[str] = set()
        if FRESH not in upper_names and real.is_folder(logical) and not self.hides(logical):
            lower_names = set(real.listdir(logical))
        deleted = {name[len(DELETED) :] for name in upper_names if name.startswith(DELETED)}
        shown = {name for name in upper_names if not name.startswith(DELETED) and name != FRESH}
        return shown, lower_names - deleted - shown

    def is_folder(self, logical: str) -> bool:
        found = self.find(logical)
        return found is not None and real.is_folder(found)

    def _resolve(self, path: str, follow: bool) -> str:
        current = ""
        todo = path.split("/")[::-1]
        num_links = 0
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                current = os.path.dirname(current) if current else ""
                continue
            candidate = f"{current}/{name}"
            is_last = not any(todo)
            target = None if is_last and not follow else self._link_target(candidate)
            if target is None:
                current = candidate
                continue
            num_links += 1
            if num_links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                current = ""
            todo.extend(target.split("/")[::-1])
        return current.removesuffix("/") or "/"

    def _link_target(self, logical: str) -> str | None:
        for place in (self.upper(logical), logical):
            try:
                return real.readlink(place)
            except FileNotFoundError:
                continue
            except OSError:  # not a link, or not accessible
                return None
        return None

    # Changes by the script

    def for_writing(self, logical: str, *, keep: bool, given: Any) -> str:
        """The path in the overlay to write this file to; with its present content if `keep`."""
        upper = self.upper(logical)
        below = None if real.exists(upper) else self.find(logical)
        self.make_parent(logical, given)
        if below is not None and keep and not real.is_folder(below):
            real.copy_file(below, upper)
        self._undelete(logical)
        self._on_change(logical, "write")
        return upper

    def make_parent(self, logical: str, given: Any) -> None:
        parent = os.path.dirname(logical)
        if parent != "/" and not self.is_folder(parent):
            number = errno.ENOENT if self.find(parent) is None else errno.ENOTDIR
            raise OSError(number, os.strerror(number), given)
        real.make_folders(self.upper(parent) if parent != "/" else self.root)
        self._is_active = True

    def make_folder(self, logical: str, mode: int, given: Any) -> None:
        if self.find(logical) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), given)
        self.make_parent(logical, given)
        was_hidden = real.exists(logical)
        real.mkdir(self.upper(logical), mode | 0o700)
        self._undelete(logical)
        if was_hidden:
            self._mark(f"{self.upper(logical)}/{FRESH}")

    def delete(self, logical: str) -> None:
        """Delete a file, a link or a whole folder from the script's view."""
        upper = self.upper(logical)
        is_below = real.exists(logical) and not self.hides(logical)
        real.remove_tree(upper)
        if is_below:
            self.make_parent(logical, logical)
            self._mark(self._marker(logical))
            self._on_change(logical, "delete")

    def bring_up(self, logical: str) -> str:
        """Copy an existing file or folder into the overlay, with all its content; returns its path there."""
        upper = self.upper(logical)
        if self.is_folder(logical):
            real.make_folders(upper)
            upper_names, lower_names = self.names_in(logical)
            for name in upper_names | lower_names:
                self.bring_up(f"{logical}/{name}")
        elif not real.exists(upper):
            real.make_folders(os.path.dirname(upper))
            try:
                real.symlink(real.readlink(logical), upper)
            except OSError:
                real.copy_file(logical, upper)
        self._is_active = True
        return upper

    def move(self, source: str, target: str, given: tuple[Any, Any]) -> None:
        """Rename; either side may be unprotected."""
        found = self.find(source) if self.is_protected(source) else source
        if found is None or not real.exists(found):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), *_two(given))
        if self.is_protected(source):
            found = self.bring_up(source)
        place = target
        if self.is_protected(target):
            self.make_parent(target, given[1])
            place = self._make_room(target, found, given)
        self._rename(found, place)
        if self.is_protected(source):
            self.delete(source)
        if self.is_protected(target):
            self._undelete(target)
            if real.is_folder(place) and real.exists(target):
                self._mark(f"{place}/{FRESH}")
            self._on_change(target, "write")

    def _make_room(self, target: str, source: str, given: tuple[Any, Any]) -> str:
        if self.is_folder(target):
            if not real.is_folder(source):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), *_two(given))
            if any(self.names_in(target)):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), *_two(given))
            real.remove_tree(self.upper(target))
        return self.upper(target)

    def _rename(self, source: str, target: str) -> None:
        try:
            real.rename(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV or real.is_folder(source):
                raise
            real.copy_file(source, target)  # the overlay may be on another disk, unlike the script's own rename
            real.unlink(source)

    def _marker(self, logical: str) -> str:
        return f"{self.upper(os.path.dirname(logical)).rstrip('/')}/{DELETED}{os.path.basename(logical)}"

    def _mark(self, path: str) -> None:
        real.close(real.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def _undelete(self, logical: str) -> None:
        marker = self._marker(logical)
        if real.exists(marker):
            real.unlink(marker)


def _two(given: tuple[Any, Any]) -> tuple[Any, None, Any]:
    """Arguments of OSError for two paths."""
    return given[0], None, given[1]
