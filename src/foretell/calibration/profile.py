"""The profile of a machine, schema `foretell.profile/1`: a JSON file if it was measured on the card, a TOML file if it
was fitted to measured runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from foretell import disk
from foretell.errors import UsageError
from foretell.plain import from_plain, parse_json, to_plain
from foretell.records import Profile
from foretell.units import MIB

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMA = "foretell.profile/1"
_MOST_BYTES = 16 * MIB


def render(profile: Profile) -> str:
    return json.dumps({"schema": SCHEMA, **to_plain(profile)}, indent=1) + "\n"


def render_toml(profile: Profile, notes: Sequence[str] = ()) -> str:
    """For profiles without convolutions. `notes` are comments at its top."""
    values = to_plain(profile)
    libraries = values.pop("libraries")
    del values["convolutions"]
    lines = [f"# {note}" for note in notes]
    lines += [f"{name} = {json.dumps(value)}" for name, value in {"schema": SCHEMA, **values}.items()]
    return "\n".join([*lines, "", "[libraries]", *(f"{name} = {size}" for name, size in libraries.items())]) + "\n"


def load(path: Path) -> Profile:
    is_toml = path.suffix == ".toml"
    try:
        data = disk.read(path, most_bytes=_MOST_BYTES)
        document = tomllib.loads(data.decode("utf-8")) if is_toml else parse_json(data)
    except OSError as error:
        raise UsageError(f"--profile {path}: {error.strerror or error}.") from None
    except (ValueError, RecursionError):  # also a TOMLDecodeError
        kind = "TOML" if is_toml else "JSON"
        raise UsageError(f"--profile {path}: not {kind}. Create a profile with `foretell calibrate`.") from None
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
    taken = {
        "context": profile.context_bytes,
        "context_above": profile.context_above_bytes,
        **asdict(profile.libraries),
    }
    for name, size in taken.items():
        if not 0 <= size < profile.total_bytes:
            raise ValueError(f"{name} takes {size} bytes of the {profile.total_bytes} of the GPU")
    if profile.context_below_bytes > profile.context_bytes:
        raise ValueError(f"context_below_bytes: {profile.context_below_bytes} is more than the context")
    for each in profile.convolutions:
        if min(*each.x, *each.y, *each.w, each.element_bytes) < 1:
            raise ValueError(f"a convolution has the sizes {each.x}, {each.y}, {each.w}")
    return profile
