"""Synthetic runs for the page: the tensors of a transformer in the order of training, at any scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foretell import gpus
from foretell.records import (
    Activity,
    ActivityTimeline,
    Advice,
    Attribution,
    Block,
    Category,
    Cause,
    Estimate,
    KernelTime,
    Leak,
    OutOfMemory,
    PeakMemory,
    Performance,
    Phase,
    RankEstimate,
    Segment,
    Span,
    StepPeak,
    StepTime,
    Wait,
    World,
)
from foretell.units import GIB, MIB

ROOT = "LlamaForCausalLM"
CODE = "/home/ada/llm/train.py"
MODEL_CODE = "/opt/venv/lib/python3.12/site-packages/transformers/models/llama/modeling_llama.py"


@dataclass
class Recorder:
    """Numbers allocations and frees as they happen, and collects the fields of an `Attribution`."""

    event: int = 0
    step: int = 0
    phase: Phase = "other"
    made: list[dict[str, object]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=lambda: [Span(begin=0, step=0, phase="other")])
    reserved: list[tuple[int, int]] = field(default_factory=list)
    allocated: int = 0
    peak: tuple[int, int] = (0, 0)
    """Event and bytes."""

    def enter(self, phase: Phase, step: int) -> None:
        self.phase, self.step = phase, step
        self.spans.append(Span(begin=self.event, step=step, phase=phase))

    def make(
        self,
        num_bytes: int,
        category: Category,
        *,
        module: str | None = None,
        name: str | None = None,
        operator: str | None = None,
        line: int = 0,
    ) -> int:
        file = CODE if module is None or category in ("parameter", "optimizer_state") else MODEL_CODE
        self.made.append(
            {
                "address": 0x7F00_0000_0000 + 512 * len(self.made),
                "bytes": -(-num_bytes // 512) * 512,
                "requested_bytes": num_bytes,
                "begin": self.event,
                "end": None,
                "category": category,
                "name": name,
                "module": module,
                "operator": operator,
                "phase": self.phase,
                "step": self.step,
                "where": f"{file}:{line}" if line else None,
            }
        )
        self._change(-(-num_bytes // 512) * 512)
        return len(self.made) - 1

    def free(self, number: int) -> None:
        self.made[number]["end"] = self.event
        size = self.made[number]["bytes"]
        assert isinstance(size, int)
        self._change(-size)

    def _change(self, num_bytes: int) -> None:
        self.allocated += num_bytes
        if self.allocated > self.peak[1]:
            self.peak = (self.event, self.allocated)
        # A cache that never shrinks, in segments of 20 MiB.
        wanted = -(-int(self.allocated * 1.02) // (20 * MIB)) * 20 * MIB
        if wanted > (self.reserved[-1][1] if self.reserved else 0):
            self.reserved.append((self.event, wanted))
        self.event += 1

    def attribution(self) -> Attribution:
        blocks = tuple(Block(**each) for each in self.made)  # type: ignore[arg-type]
        event = self.peak[0]
        alive = [i for i, each in enumerate(blocks) if each.begin <= event and (each.end is None or each.end > event)]
        segments = segments_of(blocks, alive)
        free = [
            sum(size for _, size, block in segment.parts if block is None)
            for segment in segments
            if any(block is not None for _, _, block in segment.parts)
        ]
        reserved = max(self.reserved[-1][1], sum(segment.bytes for segment in segments))
        changes = [*(each for each in self.reserved if each[0] < event), (event, reserved)]
        return Attribution(
            device=0,
            num_events=self.event,
            blocks=blocks,
            spans=tuple(self.spans),
            reserved=tuple(changes),
            peak_event=event,
            at_peak=tuple(sorted(alive, key=lambda i: -blocks[i].bytes)),
            fragmentation_bytes=sum(free),
            slack_bytes=max(0, reserved - self.peak[1] - sum(free)),
            segments=segments,
        )


def segments_of(blocks: Sequence[Block], alive: Sequence[int]) -> tuple[Segment, ...]:
    """Small blocks in segments of 2 MiB, medium ones in 20 MiB, large ones alone; a gap before every seventh block."""
    segments: list[Segment] = []
    address = 0x7F10_0000_0000
    open_parts: dict[int, list[tuple[int, int, int | None]]] = {}

    def close(size: int, is_small: bool, parts: list[tuple[int, int, int | None]]) -> None:
        nonlocal address
        used = sum(part[1] for part in parts)
        if used < size:
            parts = [*parts, (used, size - used, None)]
        segments.append(Segment(address=address, bytes=size, is_small=is_small, parts=tuple(parts)))
        address += size + 2 * MIB

    for number in alive:
        size = blocks[number].bytes
        if size > 10 * MIB:
            # Some segments were made for a larger block and reused.
            room = size * 5 // 4 if number % 11 == 10 else size
            close(-(-room // (2 * MIB)) * 2 * MIB, False, [(0, size, number)])
            continue
        room = 2 * MIB if size <= MIB else 20 * MIB
        parts = open_parts.setdefault(room, [])
        hole = size if number % 7 == 6 else 0
        used = sum(part[1] for part in parts)
        if used + hole + size > room:
            close(room, room == 2 * MIB, parts)
            parts, used, hole = [], 0, 0
            open_parts[room] = parts
        if hole:
            parts.append((used, hole, None))
        parts.append((used + hole, size, number))
    for room, parts in open_parts.items():
        if parts:
            close(room, room == 2 * MIB, parts)
    held = sum(segment.bytes for segment in segments)
    for share in (200, 500, 2000, 2000):
        size = max(1, held // share // (20 * MIB)) * 20 * MIB
        close(size, False, [(0, size, None)])
    close(2 * MIB, True, [(0, 2 * MIB, None)])
    return tuple(segments)


def transformer(
    *,
    num_layers: int = 4,
    num_steps: int = 3,
    hidden: int = 1024,
    tokens: int = 2048,
    vocabulary: int = 32000,
    has_equal_batches: bool = True,
) -> Attribution:
    """Training in bf16 with AdamW: about 75 events per layer and step."""
    run = Recorder()
    intermediate = hidden * 43 // 16
    weights: list[tuple[str, str, int]] = [(f"{ROOT}.model.embed_tokens", "weight", vocabulary * hidden)]
    matrices = {
        "self_attn.q_proj": hidden * hidden,
        "self_attn.k_proj": hidden * hidden,
        "self_attn.v_proj": hidden * hidden,
        "self_attn.o_proj": hidden * hidden,
        "mlp.gate_proj": hidden * intermediate,
        "mlp.up_proj": hidden * intermediate,
        "mlp.down_proj": hidden * intermediate,
    }
    for layer in range(num_layers):
        here = f"{ROOT}.model.layers.{layer}"
        weights += [(f"{here}.{name}", "weight", count) for name, count in matrices.items()]
        weights += [(f"{here}.{name}", "weight", hidden) for name in ("input_layernorm", "post_attention_layernorm")]
    weights += [(f"{ROOT}.model.norm", "weight", hidden), (f"{ROOT}.lm_head", "weight", vocabulary * hidden)]
    full_name = {module: f"{module}.{name}" for module, name, _ in weights}

    for module, _, count in weights:
        run.make(2 * count, "parameter", module=module, name=full_name[module], operator="aten::to", line=31)
    run.make(4 * 64, "buffer", module=f"{ROOT}.model.rotary_emb", name="model.rotary_emb.inv_freq", line=31)
    leaf = {module: count for module, _, count in weights}
    states: set[str] = set()
    longest = tokens

    for step in range(num_steps):
        if not has_equal_batches:
            tokens = longest - 7919 * step % (longest // 2)
        run.enter("forward", step)
        batch = run.make(8 * tokens, "input", operator="aten::to", line=58)
        saved: list[list[int]] = []
        if step == 0:
            run.make(8 * MIB + 128 * 1024, "workspace", operator="cublas", line=61)
        embedded = run.make(2 * tokens * hidden, "activation", module=f"{ROOT}.model.embed_tokens",
                            operator="aten::embedding", line=160)  # fmt: skip
        for layer in range(num_layers):
            saved.append(_forward_layer(run, f"{ROOT}.model.layers.{layer}", hidden, intermediate, tokens))
        logits = run.make(2 * tokens * vocabulary, "activation", module=f"{ROOT}.lm_head", operator="aten::mm", line=51)
        loss = run.make(4 * tokens * vocabulary, "activation", module=ROOT, operator="aten::_log_softmax", line=520)

        run.enter("backward", step)
        gradients: dict[str, int] = {}

        def backward_of(module: str, kept: dict[str, int] = gradients) -> None:
            kept[module] = run.make(2 * leaf[module], "gradient", module=module, name=full_name[module],
                                    operator="aten::mm", line=62)  # fmt: skip

        grad_logits = run.make(4 * tokens * vocabulary, "temporary", module=ROOT,
                               operator="aten::_log_softmax_backward_data", line=62)  # fmt: skip
        run.free(loss)
        run.free(logits)
        backward_of(f"{ROOT}.lm_head")
        run.free(grad_logits)
        for layer in reversed(range(num_layers)):
            here = f"{ROOT}.model.layers.{layer}"
            for name in reversed(matrices):
                passing = run.make(2 * tokens * (intermediate if "mlp" in name else hidden), "temporary",
                                   module=f"{here}.{name}", operator="aten::mm", line=62)  # fmt: skip
                backward_of(f"{here}.{name}")
                run.free(passing)
            for name in ("input_layernorm", "post_attention_layernorm"):
                backward_of(f"{here}.{name}")
            for number in reversed(saved.pop()):
                run.free(number)
        backward_of(f"{ROOT}.model.norm")
        backward_of(f"{ROOT}.model.embed_tokens")
        run.free(embedded)

        run.enter("optimizer", step)
        for module, _, count in weights:
            if module not in states:
                states.add(module)
                for state in ("exp_avg", "exp_avg_sq"):
                    run.make(4 * count, "optimizer_state", module=module, name=f"{full_name[module]}.{state}",
                             operator="aten::zeros_like", line=64)  # fmt: skip
        for module, _, count in weights[:: max(1, len(weights) // 12)]:
            run.free(run.make(4 * count, "temporary", module=module, operator="aten::_foreach_sqrt", line=64))
        for number in gradients.values():
            run.free(number)
        run.free(batch)
        run.enter("other", step)
    return run.attribution()


def _forward_layer(run: Recorder, here: str, hidden: int, intermediate: int, tokens: int) -> list[int]:
    """One layer: the blocks that backward will need, in order. Temporaries come and go in between."""
    narrow, wide = 2 * tokens * hidden, 2 * tokens * intermediate
    kept: list[int] = []

    def keep(size: int, part: str, operator: str, line: int) -> None:
        kept.append(run.make(size, "activation", module=f"{here}.{part}", operator=operator, line=line))

    def passing(size: int, part: str, operator: str, line: int) -> None:
        run.free(run.make(size, "temporary", module=f"{here}.{part}", operator=operator, line=line))

    passing(2 * narrow, "input_layernorm", "aten::pow", 70)
    keep(4 * tokens, "input_layernorm", "aten::rsqrt", 71)
    keep(narrow, "input_layernorm", "aten::mul", 72)
    for name in ("q_proj", "k_proj", "v_proj"):
        keep(narrow, f"self_attn.{name}", "aten::linear", 241)
    passing(narrow, "self_attn", "aten::neg", 150)
    passing(narrow, "self_attn", "aten::cat", 152)
    keep(narrow, "self_attn", "aten::_scaled_dot_product_flash_attention", 262)
    keep(4 * tokens * 32, "self_attn", "aten::_scaled_dot_product_flash_attention", 262)
    keep(narrow, "self_attn.o_proj", "aten::linear", 270)
    keep(narrow, "post_attention_layernorm", "aten::mul", 72)
    keep(4 * tokens, "post_attention_layernorm", "aten::rsqrt", 71)
    for name in ("gate_proj", "up_proj"):
        keep(wide, f"mlp.{name}", "aten::linear", 182)
    keep(wide, "mlp.act_fn", "aten::silu", 182)
    keep(wide, "mlp", "aten::mul", 182)
    passing(wide, "mlp.down_proj", "aten::to", 182)
    keep(narrow, "mlp.down_proj", "aten::linear", 182)
    return kept


def estimate_for(attribution: Attribution, *, gpu: str = "a100-80gb", is_out_of_memory: bool = False) -> Estimate:
    reserved = attribution.reserved[-1][1]
    allocated = sum(attribution.blocks[i].bytes for i in attribution.at_peak)
    device = reserved + 18 * MIB + 480 * MIB
    peak = PeakMemory(
        allocated_bytes=allocated, reserved_bytes=reserved, library_bytes=18 * MIB, context_bytes=480 * MIB,
        device_low_bytes=device - 200 * MIB, device_high_bytes=device + 512 * MIB, request_bytes=device + GIB,
    )  # fmt: skip
    num_steps = max(span.step for span in attribution.spans) + 1
    oom = OutOfMemory(
        step=1, phase="backward", requested_bytes=2 * GIB, where=f"{CODE}:62",
        message="CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which "
        "1.12 GiB is free.",
    )  # fmt: skip
    return Estimate(
        engine="virtual", verdict="oom" if is_out_of_memory else "fits", gpu=gpus.find(gpu),
        torch_version="2.15.0+cu132", cuda_version="13.2", peak=peak, peak_step=0,
        steps=tuple(
            StepPeak(index=i, peak_allocated_bytes=allocated, peak_reserved_bytes=reserved) for i in range(num_steps)
        ),
        oom=oom if is_out_of_memory else None, phases_seen=("forward", "backward", "optimizer"),
        caveats=("what the script does at train.py:71 depends on unknown values: kernels are not executed",),
        num_unknown_reads=2,
        redirected_writes=(), not_sent=(), seconds={"total": 14.2, "script": 12.9},
        command=("train.py", "--model", "llama-7b", "--batch-size", "4", "--bf16"), library_names=("cuBLAS",),
        attribution=attribution,
        causes=(
            Cause(name="context", below_bytes=160 * MIB, above_bytes=400 * MIB, request_bytes=800 * MIB,
                  why="the memory of an empty process is a guess for this card"),
            Cause(name="libraries", below_bytes=40 * MIB, above_bytes=112 * MIB, request_bytes=224 * MIB,
                  why="what cuBLAS and cuDNN load differs between their versions and cards"),
        ),
    )  # fmt: skip


ADVICE = (
    Advice(title="Recompute activations in backward", how="model.gradient_checkpointing_enable()",
           saved_bytes=21 * GIB, peak_reserved_bytes=53 * GIB, basis="measured", price="a third more time per step"),
    Advice(title="8-bit optimizer states", how="bitsandbytes.optim.AdamW8bit(model.parameters())",
           saved_bytes=36 * GIB, peak_reserved_bytes=38 * GIB, basis="measured", price="states in 8 bits"),
    Advice(title="Expandable segments", how="PYTORCH_ALLOC_CONF=expandable_segments:True",
           saved_bytes=700 * MIB, peak_reserved_bytes=73 * GIB, basis="estimated", price="nothing"),
)  # fmt: skip
LEAKS = (
    Leak(
        where=f"{CODE}:66", module=None, bytes_per_step=3 * MIB, held_bytes=9 * MIB, num_blocks=3,
        held_by=(f"losses (a growing list of tensors, {CODE}:68)",),
    ),
)  # fmt: skip


def ranks_for(attributions: Sequence[Attribution]) -> list[Estimate]:
    """An estimate of each rank, largest first; another rank stands for the last and was not run for the page."""
    found = sorted(map(estimate_for, attributions), key=lambda each: -each.peak.device_bytes)
    rows = tuple(
        RankEstimate(rank=i, stands_for=(i,), local_rank=i, verdict="fits", peak=each.peak, num_steps=3,
                     spare_bytes=each.gpu.total_bytes - each.peak.device_bytes)
        for i, each in enumerate(found)
    )  # fmt: skip
    missing = replace(rows[-1], rank=len(rows), stands_for=(len(rows), len(rows) + 1), local_rank=None)
    size = len(rows) + 2
    return [
        replace(each, world=World(size=size, ranks_run=tuple(range(size)), worst_rank=i), ranks=(*rows, missing))
        for i, each in enumerate(found)
    ]


def performance() -> Performance:
    """A step of 400 ms in buckets of 4: the host issues nothing at first, then a third forward, the rest backward, and
    the optimizer's kernels at the end."""

    def between(begin: int, end: int, share: float = 1.0) -> tuple[float, ...]:
        return tuple(share if begin <= at < end else 0.0 for at in range(100))

    def shares(*, gpu: float, spread: float) -> Activity:
        each = (gpu, 0.93 * gpu, 0.9 * gpu, 0.4 * gpu, 0.5 * gpu, 0.1 * gpu, 0.35 * gpu)
        names = ("gpu", "gract", "smact", "smocc", "tensor_active", "fp32_active", "dram_active")
        return Activity(**{name: min(1.0, spread * share) for name, share in zip(names, each, strict=True)})

    def row(name: str, ms: float, module: str | None) -> KernelTime:
        return KernelTime(name=name, ms=ms, share=ms / 380, of_peak=0.62, of_bandwidth=0.31, module=module)

    phase: tuple[Phase, ...] = (*["forward"] * 33, *["backward"] * 60, *["optimizer"] * 7)
    layer = f"{ROOT}.model.layers.*"
    return Performance(
        time=StepTime(
            kind="training", step_ms=400.0, step_low_ms=350.0, step_high_ms=510.0, gpu_busy_ms=380.0, host_ms=61.0,
            loader_ms=0.0, copy_ms=2.0, bound="gpu", samples_per_second=10.0,
            phases={"forward": 132.0, "backward": 240.0, "optimizer": 28.0}, host_factor=1.25,
            host_factor_source="typical",
        ),
        activity=shares(gpu=0.95, spread=1.0), activity_low=shares(gpu=0.95, spread=0.8),
        activity_high=shares(gpu=0.95, spread=1.2),
        timeline=ActivityTimeline(
            bucket_ms=4.0, gract=between(5, 100), smact=between(5, 100, 0.8), dram_active=between(5, 93, 0.3),
            phase=phase,
            kernels=(
                ("gemm", between(5, 93, 0.6)), ("attention", between(5, 93, 0.25)),
                ("elementwise", between(5, 93, 0.15)), ("foreach", between(93, 100)),
            ),
            waits=(Wait(begin_ms=0.0, ms=20.0, before="aten::embedding", phase="forward"),),
        ),
        kernels=(
            row("gemm", 211.0, f"{layer}.mlp.up_proj"), row("attention", 88.0, f"{layer}.self_attn"),
            row("elementwise", 53.0, f"{layer}.mlp.act_fn"), row("foreach", 28.0, None),
        ),
        modules=(
            row(f"{layer}.mlp.up_proj", 120.0, None), row(f"{layer}.self_attn", 88.0, None),
            *(row(f"{ROOT}.part_{number}", 3.0, None) for number in range(10)),
        ),
        unknown_share=0.03, joules=120.0,
    )  # fmt: skip
