"""The profile of a machine: a JSON file, schema `foretell.profile/1`."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from foretell.errors import UsageError
from foretell.plain import from_plain, to_plain
from foretell.records import Profile

SCHEMA = "foretell.profile/1"


def render(profile: Profile) -> str:
    return json.dumps({"schema": SCHEMA, **to_plain(profile)}, indent=1) + "\n"


def load(path: Path) -> Profile:
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"--profile {path}: {error.strerror}.") from None
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
    names = {each.name for each in fields(Profile)}
    return from_plain(Profile, {name: value for name, value in document.items() if name in names})
