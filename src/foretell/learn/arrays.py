"""Trained models as plain arrays: `NAME.npz` (loaded with `allow_pickle=False`) and its card, `NAME.json`, with the
checksum of the arrays. NumPy is all that is needed."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

from foretell import disk
from foretell.errors import TraceError, UnsupportedError
from foretell.plain import parse_json

SCHEMA = "foretell.model/1"
_LARGEST_FILE = 4 << 20
_LARGEST_ARRAYS = 64 << 20


def numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise UnsupportedError("learned estimates need NumPy: pip install 'foretell[guess]'.") from None
    return numpy


def save(path: Path, arrays: dict[str, Any], card: dict[str, Any]) -> None:
    """`path` without a suffix. The card is written last."""
    content = io.BytesIO()
    numpy().savez_compressed(content, **arrays)
    data = content.getvalue()
    full = {"schema": SCHEMA, "sha256": hashlib.sha256(data).hexdigest(), **card}
    disk.write(path.with_suffix(".npz"), data, is_private=False)
    disk.write(path.with_suffix(".json"), json.dumps(full, indent=1) + "\n", is_private=False)


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Refuses arrays that are not those of the card."""
    try:
        card = read_card(path)
        data = path.with_suffix(".npz").read_bytes()
        if len(data) > _LARGEST_FILE:
            raise ValueError(f"it has {len(data)} bytes, and a model at most {_LARGEST_FILE}")
        if hashlib.sha256(data).hexdigest() != card.get("sha256"):
            raise ValueError("its arrays are not those that its card describes: the file was changed or is damaged")
        return _unpacked(data), card
    except (OSError, ValueError) as error:
        raise cannot_use(path, error) from None


def read_card(path: Path) -> dict[str, Any]:
    card = parse_json(path.with_suffix(".json").read_bytes())
    if not isinstance(card, dict) or card.get("schema") != SCHEMA:
        raise ValueError(f"its card is not of the schema {SCHEMA}")
    return card


def cannot_use(path: Path, error: Exception) -> TraceError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return TraceError(f"cannot use the model {path.with_suffix('.npz')}: {reason}.")


def _unpacked(data: bytes) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            num_bytes = sum(member.file_size for member in archive.infolist())
        if num_bytes <= _LARGEST_ARRAYS:
            with numpy().load(io.BytesIO(data), allow_pickle=False) as arrays:
                return dict(arrays)
    except Exception as error:  # of zipfile, zlib, and the Python tokenizer that reads NumPy's headers
        raise ValueError(f"its arrays are damaged: {error}") from None
    raise ValueError(f"its arrays would take {num_bytes} bytes, and may at most {_LARGEST_ARRAYS}")
