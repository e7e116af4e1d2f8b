"""The profile of a machine: a JSON file, schema `foretell.profile/1`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from foretell import disk
from foretell.errors import UsageError
from foretell.plain import from_plain, parse_json, to_plain
from foretell.records import Profile
from foretell.units import MIB

SCHEMA = "foretell.profile/1"
_MOST_BYTES = 16 * MIB


def render(profile: Profile) -> str:
    return json.dumps({"schema": SCHEMA, **to_plain(profile)}, indent=1) + "\n"


def load(path: Path) -> Profile:
    try:
        document = parse_json(disk.read(path, most_bytes=_MOST_BYTES))
    except OSError as error:
        raise UsageError(f"--profile {path}: {error.strerror or error}.") from None
    except ValueError:
        raise UsageError(f"--profile {path}: not JSON. Create a profile with `foretell calibrate`.") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise UsageError(f"--profile {path}: the schema is {schema!r}, but a profile has {SCHEMA!r}.")
    try:
        return profile_of(document)
    except ValueError as error:
        raise UsageError(f"--profile {path}: damaged: {error}.") from None


def profile_of(document: dict[str, object]) -> Profile:
    """Build a profile; other keys of the document are ignored."""
    profile = from_plain(Profile, document, others="ignore")
    taken = {"context": profile.context_bytes, **asdict(profile.libraries)}
    for name, size in taken.items():
        if not 0 <= size < profile.total_bytes:
            raise ValueError(f"{name} takes {size} bytes of the {profile.total_bytes} of the GPU")
    for each in profile.convolutions:
        if min(*each.x, *each.y, *each.w, each.element_bytes) < 1:
            raise ValueError(f"a convolution has the sizes {each.x}, {each.y}, {each.w}")
    return profile
