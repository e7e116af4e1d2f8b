"""Pods of Kubernetes: with a whole card, with a MIG slice, and with a share of a card under KAI, HAMi and Volcano."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foretell import gpus
from foretell.errors import UnsupportedError
from foretell.plan.emit.decision import Decision, comment
from foretell.units import MIB, format_bytes

_CUDA_PERCENT = 94
"""Of what the driver reports, CUDA leaves this much to programs at least, on the cards of the table."""


def kubernetes(decision: Decision) -> list[str]:
    """A whole card of a node with enough memory; the label is that of GPU Feature Discovery
    (https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery#generated-labels)."""
    wanted = decision.request_mib * 100 // _CUDA_PERCENT
    label = min(wanted, decision.estimate.gpu.total_bytes // MIB - 1)  # the card itself is large enough
    return [
        comment("Kubernetes gives whole cards. GPU Feature Discovery labels nodes with the memory of their cards."),
        *_pod(
            limits={"nvidia.com/gpu": 1},
            affinity=(
                "affinity:",
                "  nodeAffinity:",
                "    requiredDuringSchedulingIgnoredDuringExecution:",
                "      nodeSelectorTerms:",
                "        - matchExpressions:",
                "            - key: nvidia.com/gpu.memory",
                "              operator: Gt",
                f'              values: ["{label}"]  # MiB, with what the driver keeps for itself',
            ),
        ),
    ]


def kai(decision: Decision) -> list[str]:
    """https://github.com/NVIDIA/KAI-Scheduler/tree/main/docs/gpu-sharing"""
    queue = {"kai.scheduler/queue": "default-queue  # yours"}
    if decision.is_whole_card:
        return _pod(limits={"nvidia.com/gpu": 1}, labels=queue, scheduler="kai-scheduler")
    return [
        comment("KAI counts memory but does not enforce it. Nodes need the label nvidia.com/gpu.memory."),
        *_pod(
            labels=queue,
            annotations={"gpu-memory": f'"{decision.request_mib}"  # MiB'},
            scheduler="kai-scheduler",
        ),
    ]  # fmt: skip


def hami(decision: Decision) -> list[str]:
    """https://github.com/Project-HAMi/HAMi/blob/master/docs/config.md. The CUDA context counts: src/cuda/context.c of
    HAMi-core adds it. Without a number the pod would get `defaultMem`."""
    if decision.is_whole_card:
        return _pod(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 100})
    return [
        comment("HAMi enforces this limit: beyond it the job runs out of memory. MiB, if memoryFactor is 1."),
        *_pod(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": decision.request_mib}),
    ]


def volcano(decision: Decision) -> list[str]:
    """https://github.com/volcano-sh/volcano/blob/master/docs/user-guide/how_to_use_volcano_vgpu.md; enforced by
    HAMi-core."""
    if decision.is_whole_card:
        return _pod(limits={"volcano.sh/vgpu-number": 1}, scheduler="volcano")
    return [
        comment("Volcano enforces this limit: beyond it the job runs out of memory. MiB, if gpu-memory-factor is 1."),
        *_pod(
            limits={"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": decision.request_mib}, scheduler="volcano"
        ),
    ]


def mig(decision: Decision) -> list[str]:
    """The smallest slice of the card, by the name of the strategy `mixed`
    (https://docs.nvidia.com/datacenter/cloud-native/kubernetes/latest/index.html)."""
    card = decision.estimate.gpu.name.partition(":")[0]
    slices = [gpu for gpu in gpus.all_slices() if gpu.name.startswith(f"{card}:")]
    enough = [gpu for gpu in slices if gpu.total_bytes >= decision.request_bytes]
    if not slices:
        known = dict.fromkeys(gpu.name.partition(":")[0] for gpu in gpus.all_slices())
        raise UnsupportedError(f"no MIG profiles are known for {card}. They are known for {', '.join(known)}.")
    if not enough:
        raise UnsupportedError(
            f"the job asks for {format_bytes(decision.request_bytes)}, which no MIG slice of {card} has. "
            "Use --emit kubernetes for a whole card."
        )
    best = min(enough, key=lambda gpu: (gpu.total_bytes, gpu.num_sms))
    profile = best.name.partition(":")[2]
    run = "" if best == decision.estimate.gpu else f" The job may need less or more on it: --gpu {best.name}"
    return [
        comment(f"{profile} has {format_bytes(best.total_bytes)} and {best.num_sms} SMs.{run}"),
        comment(f"Made by `nvidia-smi mig -cgi {profile} -C`. In Slurm: --gres=gpu:TYPE:1, by the site's name."),
        *_pod(limits={f"nvidia.com/mig-{profile}": 1}),
    ]


def _pod(
    *,
    limits: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    scheduler: str | None = None,
    affinity: Sequence[str] = (),
) -> list[str]:
    """What to add to a manifest, as a pod of its own."""
    lines = ["apiVersion: v1", "kind: Pod", "metadata:", "  name: train"]
    for key, values in (("labels", labels), ("annotations", annotations)):
        if values:
            lines += [f"  {key}:", *(f"    {name}: {value}" for name, value in values.items())]
    lines += ["spec:", *([f"  schedulerName: {scheduler}"] if scheduler else []), "  restartPolicy: Never"]
    lines += [f"  {line}" for line in affinity]
    lines += ["  containers:", "    - name: train", "      image: your-image"]
    if limits:
        quantities = (f'          {name}: "{count}"' for name, count in limits.items())  # strings in the API
        lines += ["      resources:", "        limits:", *quantities]
    return lines
