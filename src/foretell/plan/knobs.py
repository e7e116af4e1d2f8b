"""Knobs: what can be turned between the runs of a search, and how each is set in a job.

A command-line option, an environment variable, a key of a configuration file, the batch size of the DataLoader that
feeds the training, the optimizer and the precision. None of them changes a file of the user's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from foretell.errors import UsageError
from foretell.jobs import Job
from foretell.plan import config_files
from foretell.runs.worlds import check_size

Kind = Literal["arg", "env", "config-key", "dataloader", "optimizer", "precision", "gpus"]
UNCHANGED = "script"
"""The value of an optimizer or a precision that leaves the one of the script."""
_NUMBER = re.compile(r"[+-]?[0-9][0-9_.,e+-]*")
_LARGEST_CONFIG = 16 << 20


class Knob(Protocol):
    """What a search turns. `name` is shown, and `kind` says how it is set."""

    @property
    def kind(self) -> Kind: ...
    @property
    def name(self) -> str: ...

    def value_in(self, job: Job) -> str | None:
        """The value it has in the job; None if that cannot be seen. Raises `UsageError` if the job has no such knob."""

    def set(self, job: Job, value: str) -> Job:
        """The job with this value."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An option of the command (`--batch-size`, `-b`), a word such as `train.batch_size=8` (`train.batch_size=`, as of
    Hydra; `--batch_size=` for scripts that take an option and its value only in one word), or a placeholder in the
    command (`{N}`)."""

    name: str
    kind: Literal["arg"] = "arg"

    def __post_init__(self) -> None:
        if not self.name.strip("-+=") or any(character.isspace() for character in self.name):
            raise UsageError(
                f"--arg={self.name}: must be an option of the script (--arg=--batch-size), a setting "
                "(--arg=train.batch_size=) or a placeholder in the command (--arg={N})."
            )

    def value_in(self, job: Job) -> str | None:
        if self._is_placeholder:
            if not any(self.name in word for word in job.command):
                raise UsageError(f"--arg={self.name}: the command does not contain {self.name}.")
            return None
        found = [self._value_at(job.command, number) for number in range(1, len(job.command))]
        return next((value for value in reversed(found) if value is not None), None)

    def set(self, job: Job, value: str) -> Job:
        if self._is_placeholder:
            return replace(job, command=tuple(word.replace(self.name, value) for word in job.command))
        words = list(job.command)
        numbers = [number for number in range(1, len(words)) if self._value_at(job.command, number) is not None]
        for number in numbers:
            if words[number] == self.name:
                words[number + 1] = value
            else:
                words[number] = words[number][: -len(self._value_at(job.command, number) or "")] + value
        if not numbers:
            is_one_word = self._setting is not None or _is_like_the_others(self.name, words[1:])
            words += [f"{self._setting or self.name}={value}"] if is_one_word else [self.name, value]
        return replace(job, command=tuple(words))

    @property
    def _is_placeholder(self) -> bool:
        return self.name.startswith("{") and self.name.endswith("}")

    @property
    def _setting(self) -> str | None:
        """Its name without `=`, if it is set by a single word."""
        return None if self.name.startswith("-") and not self.name.endswith("=") else self.name.removesuffix("=")

    def _value_at(self, words: Sequence[str], number: int) -> str | None:
        """The value given by this word, or by the next one; None if the word is another one."""
        word = words[number]
        if self._setting is not None:
            match = re.fullmatch(rf"\+{{0,2}}{re.escape(self._setting)}=(.+)", word)
            return match[1] if match else None
        if word == self.name:
            following = words[number + 1 : number + 2]
            if not following or (following[0].startswith("-") and not _NUMBER.fullmatch(following[0])):
                raise UsageError(f"--arg={self.name}: the command has {self.name} without a value.")
            return following[0]
        if word.startswith(f"{self.name}=") and word != f"{self.name}=":
            return word[len(self.name) + 1 :]
        is_glued = re.fullmatch("-[A-Za-z]", self.name) and re.fullmatch(rf"{self.name}[0-9]+", word)
        return word[2:] if is_glued else None


def _is_like_the_others(name: str, words: Sequence[str]) -> bool:
    """Whether the command gives long options and their values in one word, and never in two: nanoGPT and others accept
    nothing else, and every usual parser accepts it."""
    options = [word for word in words if word.startswith("--") and len(word) > 2]
    return name.startswith("--") and bool(options) and all("=" in word for word in options)


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable."""

    name: str
    kind: Literal["env"] = "env"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.name):
            raise UsageError(f"--env {self.name}: not the name of an environment variable.")

    def value_in(self, job: Job) -> str | None:
        return job.variables().get(self.name)

    def set(self, job: Job, value: str) -> Job:
        others = [each for each in job.environment if each[0] != self.name]
        return replace(job, environment=tuple(sorted([*others, (self.name, value)])))


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key of a YAML, JSON or TOML file: `train.yaml:data.batch_size`. The script finds a changed copy at the path of
    the file; the file itself stays as it is."""

    name: str
    kind: Literal["config-key"] = "config-key"

    def __post_init__(self) -> None:
        if not all(self._parts):
            raise UsageError(f"--config-key {self.name}: must be FILE:KEY, for example train.yaml:data.batch_size.")
        if self._file.suffix not in config_files.FORMATS:
            known = ", ".join(config_files.FORMATS)
            raise UsageError(f"--config-key {self.name}: {self._file} is none of {known}, which can be changed.")

    def value_in(self, job: Job) -> str | None:
        value = config_files.value_of(self._text(job), self._file, self._key)
        return None if value is None else str(value)

    def set(self, job: Job, value: str) -> Job:
        place = self._place(job)
        text = dict(job.files).get(place) or self._text(job)
        changed = config_files.changed(text, self._file, self._key, value)
        others = [each for each in job.files if each[0] != place]
        return replace(job, files=tuple(sorted([*others, (place, changed)])))

    @property
    def _parts(self) -> tuple[str, str]:
        file, _, key = self.name.rpartition(":")
        return file, key

    @property
    def _file(self) -> Path:
        return Path(self._parts[0])

    @property
    def _key(self) -> str:
        return self._parts[1]

    def _place(self, job: Job) -> Path:
        return Path(os.path.realpath(job.folder / self._file))

    def _text(self, job: Job) -> str:
        from foretell import disk

        try:
            return disk.read(self._place(job), most_bytes=_LARGEST_CONFIG).decode()
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"--config-key {self.name}: cannot read {self._file}: {reason}.") from None
        except UnicodeDecodeError:
            raise UsageError(f"--config-key {self.name}: {self._file} is not text.") from None


@dataclass(frozen=True, slots=True)
class LoaderBatch:
    """The batch size of the DataLoaders that feed the training (`plan/loaders.py` finds them)."""

    loaders: tuple[str, ...] = ()
    """Their marks, as the observing run has noted them."""
    batch_size: int | None = None
    """What the script gives them."""
    name: str = "batch size"
    kind: Literal["dataloader"] = "dataloader"

    def value_in(self, job: Job) -> str | None:
        return None if self.batch_size is None else str(self.batch_size)

    def set(self, job: Job, value: str) -> Job:
        assert self.loaders, "no DataLoader has been observed"
        return _with_alternative(job, "dataloader-batch-size", f"{value}@{','.join(self.loaders)}")


@dataclass(frozen=True, slots=True)
class Setting:
    """An optimizer or a precision, changed from outside (docs/advice.md)."""

    kind: Literal["optimizer", "precision"]

    @property
    def name(self) -> str:
        return self.kind

    def value_in(self, job: Job) -> str | None:
        return UNCHANGED

    def set(self, job: Job, value: str) -> Job:
        known = SETTINGS[self.kind]
        if value not in known:
            raise UsageError(f"--{self.kind} {value}: must be one of {', '.join(known)}.")
        word = known[value]
        return job if word is None else _with_alternative(job, *word)


@dataclass(frozen=True, slots=True)
class WorldSize:
    """How many GPUs the whole job has, with a rank on each."""

    name: str = "GPUs"
    kind: Literal["gpus"] = "gpus"

    def value_in(self, job: Job) -> str | None:
        return None if job.world_size is None else str(job.world_size)

    def set(self, job: Job, value: str) -> Job:
        if not re.fullmatch("[0-9]{1,6}", value):
            raise UsageError(f"{value} GPUs: must be a number (1 or more).")
        check_size(int(value))
        return replace(job, world_size=int(value))


SETTINGS: dict[str, dict[str, tuple[str, str] | None]] = {
    "optimizer": {
        UNCHANGED: None,
        "fused": ("optimizer-implementation", "fused"),
        "for-loop": ("optimizer-implementation", "for-loop"),
        "adafactor": ("optimizer", "adafactor"),
        "8bit": ("optimizer", "8bit"),
    },
    "precision": {
        UNCHANGED: None,
        "bfloat16": ("autocast", "bfloat16"),
        "float16": ("autocast", "float16"),
    },
}
"""The words of `inside/change/alternatives.py`."""


def _with_alternative(job: Job, name: str, value: str) -> Job:
    others = [word for word in job.options.alternatives if word.partition("=")[0] != name]
    return replace(job, options=replace(job.options, alternatives=(*others, f"{name}={value}")))
