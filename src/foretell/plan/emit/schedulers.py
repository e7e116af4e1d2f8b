"""Settings of schedulers that are not Kubernetes: Slurm, Ray, SkyPilot, dstack."""

from __future__ import annotations

from foretell import gpus
from foretell.errors import UnsupportedError
from foretell.plan.emit.decision import Decision, ceil, comment
from foretell.units import GIB, format_bytes

_RAY_UNITS = 10_000
"""Of a card: Ray's resolution (https://docs.ray.io/en/latest/ray-core/scheduling/resources.html)."""


def slurm(decision: Decision) -> list[str]:
    """https://slurm.schedmd.com/gres.html#Sharding"""
    shards = ceil(decision.request_bytes, decision.shard_bytes)
    most = decision.estimate.gpu.total_bytes // decision.shard_bytes
    if decision.is_whole_card or shards > most:
        return ["#SBATCH --gres=gpu:1"]
    return [
        comment(f"1 shard is {format_bytes(decision.shard_bytes)} (--shard-size): this card has {most}."),
        comment("Slurm counts shards but does not enforce them. Without shards, ask for a whole card: --gres=gpu:1"),
        f"#SBATCH --gres=shard:{shards}",
    ]


def ray(decision: Decision) -> list[str]:
    """A share of one card, as in https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html"""
    total = decision.estimate.gpu.total_bytes
    units = min(_RAY_UNITS, ceil(decision.request_bytes * _RAY_UNITS, total))
    return [
        comment(f"A share of a card with {format_bytes(total)}: on another card it is another amount of memory."),
        comment("Ray counts shares but does not enforce them. Use: train.options(**ray_options).remote()"),
        f'ray_options = {{"num_gpus": {1 if units == _RAY_UNITS else units / _RAY_UNITS}}}',
    ]


def skypilot(decision: Decision) -> list[str]:
    """`_parse_accelerators_from_str` of sky/resources.py has the syntax, catalogs/*/common/metadata.csv of
    skypilot-catalog the sizes."""
    size, hint = _class_gb(decision), []
    if size > 80:
        hint = [comment("SkyPilot has listed larger cards with 80 GB: if it finds none, name one, such as H200.")]
    return [*_about_class(decision), *hint, "resources:", f"  accelerators: nvidia:{size}GB+"]


def dstack(decision: Decision) -> list[str]:
    """https://dstack.ai/docs/concepts/tasks/#resources: `24GB` would be exactly 24 GB, and without a count it may be
    several cards."""
    return [*_about_class(decision), "resources:", f"  gpu: nvidia:{_class_gb(decision)}GB..:1"]


def _about_class(decision: Decision) -> list[str]:
    name = decision.estimate.gpu.name
    return [
        comment("The smallest size of which every known card has that much for programs: 24 GB may be 22 GiB."),
        comment(f"On another card than {name} the job may need a little more or less; an old one may lack kernels."),
    ]


def _class_gb(decision: Decision) -> int:
    """The smallest size, in GB as sold, of which no card of the table is too small."""
    sold = [(gpus.sold_bytes(gpu) // GIB, gpu.total_bytes) for gpu in gpus.all_gpus()]
    too_small = max((size for size, total_bytes in sold if total_bytes < decision.request_bytes), default=0)
    larger = [size for size, _ in sold if size > too_small]
    if not larger:
        size = format_bytes(decision.request_bytes)
        raise UnsupportedError(f"the job asks for {size}, and no GPU of `foretell gpus` has as much.")
    return min(larger)
