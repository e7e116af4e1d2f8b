"""The data set of labelled jobs: CSV, gzipped CSV or Parquet, one row a job, with the same columns."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretell import disk, gpus
from foretell.errors import TraceError, UnsupportedError, UsageError
from foretell.features import JobFeatures, features_from, plain_features
from foretell.learn.draws import Draw
from foretell.learn.train import Labelled
from foretell.plain import from_plain, parse_json, to_plain
from foretell.units import format_bytes

SCHEMA = "foretell.dataset/2"
_WITHOUT_TIMES = "foretell.dataset/1"
COLUMNS = ("schema", "kind", "group", "gpu", "torch", "source", "draw", "features", "reserved_bytes", "times")
SAMPLE = Path(__file__).parent / "models" / "sample.csv.gz"
"""A hundred rows, to look at and to test with."""
_MOST_BYTES = 1 << 32
"""Of a file, packed and unpacked: about a million rows. Larger data sets are folders of several files."""
_INDEPENDENT = ("mlp", "cnn", "encoder")
"""Kinds whose jobs are drawn one by one; those of the others share architectures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Of a step on one card. None: not known, as of measured runs."""

    step_ms: float | None = None
    step_low_ms: float | None = None
    step_high_ms: float | None = None
    """With `step_low_ms`, the interval of the time model."""
    busy_ms: float | None = None
    """Something runs on the GPU."""
    host_ms: float | None = None
    """The CPU's own time to issue the step."""
    gract: float | None = None
    gract_low: float | None = None
    gract_high: float | None = None
    smact: float | None = None
    smact_low: float | None = None
    smact_high: float | None = None

    def __post_init__(self) -> None:
        times = (self.step_ms, self.step_low_ms, self.step_high_ms, self.busy_ms, self.host_ms)
        assert all(each is None or each >= 0 for each in times), "a negative time"
        shares = (self.gract, self.gract_low, self.gract_high, self.smact, self.smact_low, self.smact_high)
        assert all(each is None or 0 <= each <= 1 for each in shares), "a share outside of 0 to 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    kind: str
    group: str
    """Rows of one group are never both in training and in a test: one architecture in many sizes."""
    gpu: str
    torch: str
    source: str
    """`virtual`: a label of the virtual GPU; anything else: a measured run."""
    draw: str
    """The job as JSON; empty for a measured run."""
    features: JobFeatures
    reserved_bytes: int
    """0: only its time was measured."""
    times: dict[str, Timing] = field(default_factory=dict)
    """Step time and utilization by card; these do not depend on `gpu`."""

    @property
    def labelled(self) -> Labelled:
        return Labelled(
            features=self.features, gpu=gpus.find(self.gpu), reserved_bytes=self.reserved_bytes, group=self.group,
            source=self.kind,
        )  # fmt: skip


def row_of(draw: Draw, answer: dict[str, Any], *, gpu: str, times: dict[str, Any] | None = None) -> Row:
    """`times`: those of the draw, by card, as plain values."""
    group = draw.key if draw.kind in _INDEPENDENT else draw.group
    features = features_from({"source": "model", "name": draw.kind, **answer["features"]})
    return Row(
        kind=draw.kind, group=group, gpu=gpu, torch=features.torch_version, source="virtual",
        draw=json.dumps(to_plain(draw)), features=features, reserved_bytes=int(answer["reserved_bytes"]),
        times=_times_from(times or {}),
    )  # fmt: skip


def write(path: Path, rows: Sequence[Row]) -> None:
    """By its suffix: .csv, .csv.gz or .parquet."""
    plain = [
        {
            "schema": SCHEMA, "kind": row.kind, "group": row.group, "gpu": row.gpu, "torch": row.torch,
            "source": row.source, "draw": row.draw, "features": json.dumps(plain_features(row.features)),
            "reserved_bytes": row.reserved_bytes, "times": _plain_times(row.times),
        }
        for row in rows
    ]  # fmt: skip
    if path.suffix == ".parquet":
        arrow, parquet = _pyarrow()
        table = arrow.Table.from_pylist(plain).replace_schema_metadata({"schema": SCHEMA})
        content = io.BytesIO()
        parquet.write_table(table, content, compression="zstd")
        disk.write(path, content.getvalue(), is_private=False)
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(plain)
    data = text.getvalue().encode()
    disk.write(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data, is_private=False)


def read(path: Path) -> list[Row]:
    """A file, or all files of a folder."""
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.name.endswith((".csv", ".csv.gz", ".parquet")))
        if not files:
            raise UsageError(f"{path} contains no data set: no .csv, .csv.gz or .parquet.")
        return [row for each in files for row in read(each)]
    try:
        return [_row(each) for each in _plain_rows(path)]
    except (OSError, ValueError, KeyError, csv.Error, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{error}"
        raise TraceError(f"{path}: not a data set of the schema {SCHEMA}: {reason:.300}.") from None


def _plain_rows(path: Path) -> Iterable[dict[str, Any]]:
    if path.suffix == ".parquet":
        _, parquet = _pyarrow()
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
        return rows
    data = disk.read(path, most_bytes=_MOST_BYTES)
    text = (disk.unpack(data, most_bytes=_MOST_BYTES) if path.suffix == ".gz" else data).decode()
    csv.field_size_limit(1 << 26)
    return csv.DictReader(io.StringIO(text))


def _row(plain: dict[str, Any]) -> Row:
    if plain.get("schema") not in (SCHEMA, _WITHOUT_TIMES):
        raise ValueError(f"its schema is {plain.get('schema')!r}")
    texts = (name for name in COLUMNS if name not in ("reserved_bytes", "times"))
    wrong = [name for name in texts if not isinstance(plain.get(name), str)]
    if wrong or not isinstance(plain.get("reserved_bytes"), (int, str)):
        raise ValueError(f"a row without {', '.join(wrong) or 'reserved_bytes'}")
    return Row(
        kind=plain["kind"], group=plain["group"], gpu=plain["gpu"], torch=plain["torch"], source=plain["source"],
        draw=plain["draw"], features=features_from(parse_json(plain["features"])),
        reserved_bytes=int(plain["reserved_bytes"]), times=_times_from(parse_json(plain.get("times") or "{}")),
    )  # fmt: skip


def _plain_times(times: dict[str, Timing]) -> str:
    known = {card: {name: each for name, each in to_plain(one).items() if each is not None}
             for card, one in times.items()}  # fmt: skip
    return json.dumps(known) if known else ""


def _times_from(plain: Any) -> dict[str, Timing]:
    if not isinstance(plain, dict):
        raise ValueError(f"times: {plain!r:.60} is not an object")
    return {gpus.find(card).name: from_plain(Timing, each) for card, each in plain.items()}


def merge(parts: Sequence[Sequence[Row]]) -> tuple[list[Row], int]:
    """All rows, each job once, and how many were left out for that. A measured run takes the place of a label."""
    found: dict[tuple[str, str], Row] = {}
    for row in sorted((row for part in parts for row in part), key=lambda row: row.source == "virtual"):
        found.setdefault((row.draw or json.dumps(plain_features(row.features)), row.gpu), row)
    return list(found.values()), sum(map(len, parts)) - len(found)


def describe(rows: Sequence[Row]) -> Iterator[str]:
    """What is in it, as text."""
    yield f"{len(rows)} jobs; schema {SCHEMA}"
    for title, values in (
        ("kinds", Counter(row.kind for row in rows)),
        ("sources", Counter(row.source for row in rows)),
        ("GPUs", Counter(row.gpu for row in rows)),
        ("torch", Counter(row.torch for row in rows)),
        ("optimizers", Counter(row.features.optimizer or "unknown" for row in rows)),
        ("bytes per element", Counter(str(row.features.element_bytes) for row in rows)),
    ):
        yield f"{title}: {', '.join(f'{name} {count}' for name, count in values.most_common(12))}"
    timed = Counter(card for row in rows for card in row.times)
    if timed:
        cards = ", ".join(f"{name} {count}" for name, count in timed.most_common(12))
        yield f"step times: {sum(bool(row.times) for row in rows)} jobs; {cards}"
    for kind in sorted({row.kind for row in rows if row.reserved_bytes}):
        sizes = sorted(row.reserved_bytes for row in rows if row.kind == kind and row.reserved_bytes)
        parts = [format_bytes(sizes[min(len(sizes) - 1, len(sizes) * i // 4)]) for i in range(5)]
        yield f"reserved, {kind}: {', '.join(parts)} (least, quartiles, most)"
        yield f"  {_histogram(sizes)}"


def _histogram(sizes: Sequence[int]) -> str:
    """Jobs by powers of two, from 16 MiB to 512 GiB."""
    counts = Counter(min(max(size.bit_length() - 25, 0), 14) for size in sizes)
    most = max(counts.values())
    return "".join(" ▁▂▃▄▅▆▇█"[-(-8 * counts[i] // most)] for i in range(15))


def draw_of(text: str) -> Draw:
    return from_plain(Draw, parse_json(text))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UnsupportedError("Parquet needs pyarrow: pip install 'foretell[train]'. Or use .csv.gz.") from None
    return pyarrow, pyarrow.parquet
