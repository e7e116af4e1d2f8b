"""The profile of a machine: a JSON file, schema `foretell.profile/1`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from foretell.errors import UsageError
from foretell.records import LibraryBytes

SCHEMA = "foretell.profile/1"
Direction = Literal["forward", "weights", "data"]
# cuDNN's numbers for the three operations, by which the virtual GPU knows them.
_OPERATIONS: dict[Direction, int] = {"forward": 10, "weights": 11, "data": 12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """How much memory cuDNN asked for to compute one."""

    direction: Direction
    element_bytes: int
    x: tuple[int, ...]
    y: tuple[int, ...]
    w: tuple[int, ...]
    workspace_bytes: int

    def to_line(self) -> str:
        """As native/convolution.c reads it."""
        (n, c, h, width), (_, k, p, q), (_, group_channels, r, s) = self.x, self.y, self.w
        fields = (_OPERATIONS[self.direction], self.element_bytes, n, c, h, width, k, p, q, group_channels, r, s)
        return " ".join(map(str, (*fields, self.workspace_bytes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    device_name: str
    total_bytes: int
    torch_version: str
    cuda_version: str
    cudnn_version: int
    driver_version: str
    context_bytes: int
    libraries: LibraryBytes
    convolutions: tuple[Convolution, ...]

    def workspaces(self) -> str:
        return "".join(f"{convolution.to_line()}\n" for convolution in self.convolutions)


def save(profile: Profile, path: Path) -> None:
    try:
        path.write_text(json.dumps({"schema": SCHEMA, **asdict(profile)}, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise UsageError(f"the profile cannot be written to {path}: {error.strerror}.") from None


def load(path: Path) -> Profile:
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"--profile {path}: {error.strerror}.") from None
    except ValueError:
        raise UsageError(f"--profile {path} is not JSON; `foretell calibrate` writes profiles.") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise UsageError(f"--profile {path}: its schema is {schema!r}, a profile's is {SCHEMA!r}.")
    try:
        return from_plain(document)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"--profile {path} is damaged: {type(error).__name__}: {error}.") from None


def from_plain(document: dict[str, Any]) -> Profile:
    return Profile(
        device_name=str(document["device_name"]),
        total_bytes=int(document["total_bytes"]),
        torch_version=str(document["torch_version"]),
        cuda_version=str(document["cuda_version"]),
        cudnn_version=int(document["cudnn_version"]),
        driver_version=str(document["driver_version"]),
        context_bytes=int(document["context_bytes"]),
        libraries=LibraryBytes(**{name: int(value) for name, value in document["libraries"].items()}),
        convolutions=tuple(_convolution(each) for each in document["convolutions"]),
    )


def _convolution(each: dict[str, Any]) -> Convolution:
    if each["direction"] not in _OPERATIONS:
        raise ValueError(f"direction {each['direction']!r}")
    shapes = {name: tuple(int(size) for size in each[name]) for name in ("x", "y", "w")}
    if any(len(shape) != 4 for shape in shapes.values()):
        raise ValueError(f"shapes {shapes}")
    return Convolution(
        direction=each["direction"],
        element_bytes=int(each["element_bytes"]),
        workspace_bytes=int(each["workspace_bytes"]),
        **shapes,
    )
