/** How long a step takes and what the card does in it: kernel classes and utilization over one steady step. */
import { useComputed, useSignal, type Signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { KernelRow, StepTime } from "./document";
import { milliseconds, percent, words } from "./format";
import { useWidth } from "./width";

const AXIS = 40, BAND = 14, STACK = 150, GAP = 22, CURVES = 90, TICKS = 20; // pixels
const HEIGHT = BAND + 4 + STACK + GAP + CURVES + TICKS;
const FIRST_MODULES = 10;
const NAMED = 3; // classes that the line about a moment names

/** Similar classes have similar colours. */
const COLOURS: Record<string, string> = {
  gemm: "#4a7bd4", bmm: "#7fa3e0", attention: "#8b65c9", recurrent: "#a98bd8",
  conv: "#e58a3c", conv_backward: "#c76d24", grouped_conv: "#efb07a", grouped_conv_backward: "#d99a62",
  depthwise: "#f0c294", depthwise_backward: "#c8a37e",
  batch_norm: "#33a37b", batch_norm_inference: "#33a37b", norm: "#5cbf9b", softmax: "#8fd0b8",
  elementwise: "#4bb0c4", strided: "#86cbd8", foreach: "#dd5f78", reduction: "#cfae2d", pool: "#b7a253",
  indexing: "#b06a8f", copy: "#8d95a5",
};
const colourOf = (kind: string): string => COLOURS[kind] ?? "#727a8a";

const CURVE_NAMES = { gract: "GPU busy", smact: "SMs active", dram_active: "memory bandwidth" };
const CURVES_SHOWN = Object.keys(CURVE_NAMES) as (keyof typeof CURVE_NAMES)[];

export function Performance({ time }: { time: StepTime }) {
  const hovered = useSignal<number | null>(null), chosen = useSignal<number | null>(null);
  const shown = useComputed(() => hovered.value ?? chosen.value);
  const whole = time.timeline.bucket_ms * time.timeline.phase.length;
  return (
    <section id="time" aria-labelledby="time-title">
      <h2 id="time-title">Time of a step</h2>
      <p class="lead">{spaced(time.sentence)} {time.remedy && spaced(time.remedy)}</p>
      <p class="note">
        Estimated, not measured on this card.
        {time.unknown_share >= 0.01 &&
          ` ${percent(time.unknown_share)} of the GPU's time is of operators without a rule: their bytes are a guess.`}
      </p>
      <dl class="activity">
        {time.activity.map(({ label, share, low, high }) => (
          <div>
            <dt>{label}</dt>
            <dd><strong>{percent(share)}</strong> <span class="soft">{percent(low)} to {percent(high)}</span></dd>
          </div>
        ))}
      </dl>
      <Chart time={time} hovered={hovered} chosen={chosen} shown={shown} />
      <p class="at" data-testid="step-moment">
        {shown.value === null ? "Point at the chart, or focus it and use the arrow keys." : about(time, shown.value)}
      </p>
      <p class="phases">
        <span class="soft">Kernels:</span>
        {time.timeline.stack.map(({ kind, label }) => (
          <span><i style={{ background: colourOf(kind) }} />{label}</span>
        ))}
        <span><i class="idle" />nothing runs</span>
      </p>
      <p class="phases">
        <span class="soft">Phases:</span>
        {time.phases.map(({ phase, took }) => (
          <span><i style={{ background: `var(--phase-${phase})` }} />{words(phase)} {took}</span>
        ))}
      </p>
      {time.waits.length > 0 && (
        <details class="waits">
          <summary>Longest waits of the GPU: {time.waits.map(({ took }) => took).join(", ")}</summary>
          <ul>
            {time.waits.map(({ begin_ms, took, before, phase }) => (
              <li>
                {took} from {milliseconds(begin_ms, whole)} on
                {before ? <>, before <code>{before}</code> ({words(phase)})</> : ", to the end of the step"}
              </li>
            ))}
          </ul>
        </details>
      )}
      <div class="kernels">
        <Rows title="GPU time by class of kernel" first="Class" rows={time.classes} />
        {time.modules.length > 0 && <Rows title="Slowest modules" first="Module" rows={time.modules} />}
      </div>
    </section>
  );
}

/** The terminal writes 34%, this page 34 %. */
const spaced = (text: string): string => text.replaceAll("%", "\u00a0%");

/** One bucket in words. */
function about({ timeline }: StepTime, bucket: number): string {
  const { bucket_ms, phase, stack } = timeline;
  const whole = bucket_ms * timeline.gract.length;
  const curves = CURVES_SHOWN.map((each) => `${CURVE_NAMES[each]} ${percent(timeline[each][bucket]!)}`);
  const classes = stack
    .map(({ label, shares }) => ({ label, share: shares[bucket]! }))
    .filter(({ share }) => share >= 0.005)
    .sort((a, b) => b.share - a.share)
    .slice(0, NAMED)
    .map(({ label, share }) => `${label} ${percent(share)}`);
  return (
    `At ${milliseconds(bucket * bucket_ms, whole)}, ${words(phase[bucket]!)}: ${curves.join(", ")}; ` +
    (classes.length ? classes.join(", ") : "nothing runs") + "."
  );
}

interface ChartProps {
  time: StepTime;
  hovered: Signal<number | null>;
  chosen: Signal<number | null>;
  shown: Signal<number | null>;
}

function Chart({ time, hovered, chosen, shown }: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const width = useWidth(place).value;
  const { timeline } = time, { bucket_ms, phase, stack } = timeline;
  const count = phase.length, wide = Math.max(1, width - AXIS - 1), step = wide / count;
  const left = (bucket: number) => AXIS + bucket * step;
  const stackTop = BAND + 4, curvesTop = stackTop + STACK + GAP;
  const bucketAt = (event: MouseEvent) => {
    const x = event.clientX - place.current!.getBoundingClientRect().left - AXIS;
    return x < 0 || x >= wide ? null : Math.floor(x / step);
  };
  const onKey = (event: KeyboardEvent) => {
    const at = chosen.value, by = event.shiftKey ? 10 : 1;
    const moves: Record<string, number | null> = {
      ArrowRight: at === null ? 0 : Math.min(count - 1, at + by),
      ArrowLeft: at === null ? count - 1 : Math.max(0, at - by),
      Home: 0, End: count - 1, Escape: null,
    };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    hovered.value = null;
    chosen.value = moves[event.key]!;
  };
  const bands = runsOf(phase);
  let below = new Array<number>(count).fill(0);
  const layers = stack.map(({ kind, label, shares }) => {
    const above = below.map((value, i) => Math.min(1, value + shares[i]!));
    const path = outline(below, above, left, (share) => stackTop + STACK * (1 - share));
    below = above;
    return <path class="layer" d={path} fill={colourOf(kind)} data-kind={kind}><title>{label}</title></path>;
  });
  const at = shown.value;
  return (
    <div
      ref={place} class="step-chart" tabIndex={0} role="slider" aria-label="Moment of the step"
      aria-valuemin={0} aria-valuemax={count - 1} aria-valuenow={chosen.value ?? 0}
      aria-valuetext={chosen.value === null ? "the whole step" : about(time, chosen.value)}
      onKeyDown={onKey}
      onMouseMove={(event) => (hovered.value = bucketAt(event))}
      onMouseLeave={() => (hovered.value = null)}
      onClick={(event) => (chosen.value = bucketAt(event))}
    >
      <svg width={width} height={HEIGHT} aria-hidden="true">
        {bands.map(({ name, from, to }) => (
          <g>
            <rect x={left(from)} width={(to - from) * step} y={0} height={BAND} fill={`var(--phase-${name})`} />
            {(to - from) * step > 7 * name.length + 6 && name !== "other" && (
              <text class="band" x={left((from + to) / 2)} y={BAND - 3.5}>{name}</text>
            )}
          </g>
        ))}
        <rect class="idle" x={AXIS} y={stackTop} width={wide} height={STACK} />
        {layers}
        <Percents top={stackTop} height={STACK} wide={wide} />
        <Percents top={curvesTop} height={CURVES} wide={wide} />
        {CURVES_SHOWN.map((name, i) => (
          <g class={`curve ${name}`}>
            <path d={line(timeline[name], left, (share) => curvesTop + CURVES * (1 - share))} />
            <text x={AXIS + 4 + i * Math.min(120, wide / 3)} y={curvesTop - 7}>{CURVE_NAMES[name]}</text>
          </g>
        ))}
        {ticksOf(count * bucket_ms, wide).map((ms, i) => (
          <text class={i ? "tick" : "tick first"} x={AXIS + (ms / (count * bucket_ms)) * wide} y={HEIGHT - 5}>
            {milliseconds(ms, count * bucket_ms)}
          </text>
        ))}
        {at !== null && (
          <rect class="here" x={left(at)} y={0} width={Math.max(1, step)} height={curvesTop + CURVES} />
        )}
      </svg>
    </div>
  );
}

function Percents({ top, height, wide }: { top: number; height: number; wide: number }) {
  return (
    <>
      {[0, 0.5, 1].map((share) => (
        <g class="percent">
          <line x1={AXIS} x2={AXIS + wide} y1={top + height * (1 - share)} y2={top + height * (1 - share)} />
          <text x={AXIS - 6} y={top + height * (1 - share) + 4}>{percent(share)}</text>
        </g>
      ))}
    </>
  );
}

function runsOf(phases: readonly string[]): { name: string; from: number; to: number }[] {
  const runs: { name: string; from: number; to: number }[] = [];
  phases.forEach((name, i) => {
    if (runs.at(-1)?.name === name) runs.at(-1)!.to = i + 1;
    else runs.push({ name, from: i, to: i + 1 });
  });
  return runs;
}

type Place = (value: number) => number;

/** The area between two stepped lines. */
function outline(below: readonly number[], above: readonly number[], x: Place, y: Place): string {
  const there = above.map((share, i) => `V${y(share).toFixed(1)}H${x(i + 1).toFixed(1)}`);
  const back = below.map((share, i) => `V${y(share).toFixed(1)}H${x(i).toFixed(1)}`).reverse();
  return `M${x(0).toFixed(1)} ${y(below[0] ?? 0).toFixed(1)}${there.join("")}${back.join("")}Z`;
}

function line(shares: readonly number[], x: Place, y: Place): string {
  const steps = shares.map((share, i) => `V${y(share).toFixed(1)}H${x(i + 1).toFixed(1)}`);
  return `M${x(0).toFixed(1)} ${y(shares[0] ?? 0).toFixed(1)}${steps.join("")}`;
}

/** Round numbers of milliseconds, about 90 pixels apart. */
function ticksOf(whole: number, wide: number): number[] {
  const rough = (whole * 90) / wide, power = 10 ** Math.floor(Math.log10(rough));
  const stride = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough)!;
  const last = whole * (1 - 25 / wide); // the text of a later one would be cut off
  return Array.from({ length: Math.floor(last / stride) + 1 }, (_, i) => i * stride);
}

function Rows({ title, first, rows }: { title: string; first: string; rows: readonly KernelRow[] }) {
  const isAll = useSignal(false);
  const shown = isAll.value ? rows : rows.slice(0, FIRST_MODULES);
  return (
    <div class="scroll">
      <table>
        <caption>{title}</caption>
        <thead>
          <tr>
            <th>{first}</th>
            <th class="amount">Time</th>
            <th class="amount">Share</th>
            <th class="amount" title="FLOPs, relative to what the card sustains">Of peak</th>
            <th class="amount" title="Bytes, relative to the bandwidth that the card sustains">Of bandwidth</th>
          </tr>
        </thead>
        <tbody>
          {shown.map(({ label, kind, module, took, share, of_peak, of_bandwidth }) => (
            <tr>
              <td>
                {kind && <i style={{ background: colourOf(kind) }} />}
                {kind ? label : <code>{label}</code>}
                {module && <code class="mostly" title="Most of it is spent here">{module}</code>}
              </td>
              <td class="amount">{took}</td>
              {[share, of_peak, of_bandwidth].map((part) => <td class="amount">{percent(part)}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > FIRST_MODULES && (
        <button type="button" class="link" onClick={() => (isAll.value = !isAll.value)}>
          {isAll.value ? `Show the slowest ${FIRST_MODULES}` : `Show all ${rows.length}`}
        </button>
      )}
    </div>
  );
}
