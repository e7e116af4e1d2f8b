/** Allocated bytes by category over events, stacked; reserved memory and the limit as lines. */
import { effect, useSignal, type Signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { CategoryName } from "./category";
import { bytes, exactBytes, number, share, when, words } from "./format";
import { firstAbove } from "./run";
import type { Buckets } from "./levels";
import type { Choice } from "./state";
import { colour, theme } from "./theme";

const BAND = 14; // height in pixels of each of the two rows above the plot: steps, phases
const TOOLTIP = 232; // pixels wide
const BINARY_INCREMENTS = Array.from({ length: 45 }, (_, power) => 2 ** power);

interface Hover {
  event: number;
  numEvents: number;
  left: number;
  top: number;
  /** Width of the chart. */
  width: number;
}

export function Timeline({ choice, limit }: { choice: Choice; limit: number }) {
  const place = useRef<HTMLDivElement>(null);
  const hover = useSignal<Hover | null>(null);
  useLayoutEffect(() => draw(place.current!, choice, limit, hover), [choice]);
  const { run } = choice;
  const [from, to] = choice.range.value;
  const isWhole = from === 0 && to === run.numEvents - 1;
  const middle = choice.moment.value >= from && choice.moment.value <= to ? choice.moment.value : (from + to) / 2;
  return (
    <section id="timeline" aria-labelledby="timeline-title">
      <div class="section-head">
        <h2 id="timeline-title">Memory over time</h2>
        <div class="tools" role="toolbar" aria-label="Visible part of the run">
          <StepChoice choice={choice} />
          <button type="button" aria-label="Earlier" onClick={() => choice.pan(-0.5)} disabled={from === 0}>◀</button>
          <button
            type="button" aria-label="Later" onClick={() => choice.pan(0.5)} disabled={to === run.numEvents - 1}
          >
            ▶
          </button>
          <button type="button" aria-label="Zoom out" onClick={() => choice.zoom(0.5, middle)} disabled={isWhole}>
            −
          </button>
          <button type="button" aria-label="Zoom in" onClick={() => choice.zoom(2, middle)}>+</button>
          <button type="button" id="reset" onClick={() => choice.showAll()} disabled={isWhole}>Reset</button>
        </div>
      </div>
      <div
        ref={place} class="chart" tabIndex={0} role="application" aria-roledescription="timeline"
        data-from={from} data-to={to}
        aria-label={
          `Allocated memory by category, events ${from} to ${to}. Arrow keys move the selected moment, plus and ` +
          "minus zoom, 0 shows the whole run, P jumps to the peak. The table below lists the bytes at that moment."
        }
        onKeyDown={(event) => onKey(event, choice, middle)}
      >
        <Tooltip choice={choice} hovered={hover} />
      </div>
      <Legend choice={choice} limit={limit} />
      <Phases choice={choice} />
      <p class="hint">
        Click to select the moment that the sections below show. Scroll to zoom, drag to zoom into a range, double-click
        to show the whole run. Keyboard: arrows, + − 0 P. A pixel that covers several events shows the one with the most
        allocated memory.
      </p>
    </section>
  );
}

function StepChoice({ choice }: { choice: Choice }) {
  const { steps, numEvents } = choice.run;
  const [from, to] = choice.range.value;
  const isWhole = from === 0 && to === numEvents - 1;
  const shown = steps.findIndex((each) => each.begin === from && each.end - 1 === to);
  return (
    <select
      aria-label="Show a step" value={isWhole ? "all" : String(shown)}
      onChange={(event) => {
        const step = steps[Number(event.currentTarget.value)];
        if (step) choice.show(step.begin, step.end - 1);
        else choice.showAll();
      }}
    >
      <option value="all">Whole run</option>
      <option value="-1" hidden>Custom range</option>
      {steps.map(({ step, isTraining }, i) => (
        <option value={i}>{isTraining ? `Step ${step}` : `After step ${step - 1}`}</option>
      ))}
    </select>
  );
}

function onKey(event: KeyboardEvent, choice: Choice, middle: number): void {
  const [from, to] = choice.range.value;
  const stride = Math.max(1, Math.round((to - from) / 200)) * (event.shiftKey ? 10 : 1);
  const actions: Record<string, () => void> = {
    ArrowLeft: () => moveTo(choice, choice.moment.value - stride),
    ArrowRight: () => moveTo(choice, choice.moment.value + stride),
    Home: () => moveTo(choice, from),
    End: () => moveTo(choice, to),
    "+": () => choice.zoom(2, middle),
    "=": () => choice.zoom(2, middle),
    "-": () => choice.zoom(0.5, middle),
    "0": () => choice.showAll(),
    Escape: () => choice.showAll(),
    p: () => moveTo(choice, choice.run.peakEvent),
  };
  const action = actions[event.key] ?? actions[event.key.toLowerCase()];
  if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  action();
}

/** Scrolls along when the moment leaves the view. */
function moveTo(choice: Choice, event: number): void {
  choice.chooseMoment(event);
  const [from, to] = choice.range.value, width = to - from, moment = choice.moment.value;
  if (moment < from || moment > to) choice.show(moment - width / 2, moment + width / 2);
}

function Legend({ choice, limit }: { choice: Choice; limit: number }) {
  const { run } = choice, levels = choice.levels.value, total = choice.allocated.value;
  return (
    <table class="legend">
      <caption class="visually-hidden">Bytes by category at the selected moment</caption>
      <tbody>
        {[...run.stacking].reverse().map((i) => (
          <tr class={levels[i] ? "" : "none"}>
            <th scope="row"><CategoryName name={run.categories[i]!} /></th>
            <td data-category={run.categories[i]} title={exactBytes(levels[i]!)}>{bytes(levels[i]!)}</td>
            <td class="soft">{share(levels[i]!, total)}</td>
          </tr>
        ))}
        <tr>
          <th scope="row"><i class="line reserved" />reserved</th>
          <td>{bytes(run.reservedAt(choice.moment.value))}</td>
          <td />
        </tr>
        <tr>
          <th scope="row"><i class="line limit" />limit</th>
          <td title="Card memory minus context, libraries and other processes">{bytes(limit)}</td>
          <td />
        </tr>
      </tbody>
    </table>
  );
}

/** A legend for the phases, as most bands are too narrow for a name. */
function Phases({ choice: { run } }: { choice: Choice }) {
  const phases = [...new Set(run.spans.phase)].map((each) => run.text(each)!).filter((each) => each !== "other");
  if (!phases.length) return null;
  return (
    <p class="phases">
      <span class="soft">Phases (band above the plot):</span>
      {phases.map((phase) => <span><i style={{ background: `var(--phase-${phase})` }} />{words(phase)}</span>)}
    </p>
  );
}

function Tooltip({ choice, hovered }: { choice: Choice; hovered: Signal<Hover | null> }) {
  const hover = hovered.value;
  if (!hover) return null;
  const { run } = choice, levels = run.levels.at(hover.event), span = run.spanAt(hover.event);
  const shown = [...run.stacking].reverse().filter((i) => levels[i]! > 0);
  // On the side with more space; a phone has too little on either.
  const left = hover.left > hover.width / 2 ? Math.max(0, hover.left - 12 - TOOLTIP) : hover.left + 12;
  return (
    <div
      class="tooltip" role="tooltip" data-event={hover.event}
      style={{ top: `${hover.top}px`, left: `${left}px`, width: `${TOOLTIP}px` }}
    >
      <strong>event {number(hover.event)}</strong>
      {span && <div>{when(span)}</div>}
      {hover.numEvents > 1 && <div class="soft">highest of {number(hover.numEvents)} events here</div>}
      <table>
        <tbody>
          {shown.map((i) => (
            <tr>
              <th><CategoryName name={run.categories[i]!} /></th>
              <td data-category={run.categories[i]} data-bytes={levels[i]}>{bytes(levels[i]!)}</td>
            </tr>
          ))}
          <tr class="sum"><th>allocated</th><td>{bytes(levels.reduce((sum, each) => sum + each, 0))}</td></tr>
          <tr><th>reserved</th><td>{bytes(run.reservedAt(hover.event))}</td></tr>
        </tbody>
      </table>
    </div>
  );
}

/** Creates the chart and redraws it when the selection, the theme or the width changes. Returns the clean-up. */
function draw(place: HTMLElement, choice: Choice, limit: number, hover: Signal<Hover | null>): () => void {
  const { run } = choice;
  let buckets: Buckets = run.levels.buckets(0, run.numEvents - 1, 1);
  const peak = run.levels.at(run.peakEvent).reduce((sum, each) => sum + each, 0);
  const highest = Math.max(run.highestReserved(0, run.numEvents - 1), peak);
  const isLimitNear = limit < highest * 2.5; // otherwise the stack would be a thin line at the bottom
  const top = (isLimitNear ? Math.max(limit, highest) : highest) * 1.09;
  const height = () => (place.clientWidth < 600 ? 260 : 340);
  const bucketAt = (value: number) =>
    Math.max(0, Math.min(buckets.events.length - 1, firstAbove(buckets.edges, value) - 1));
  const eventNames = (_: uPlot, ticks: number[]) => ticks.map((tick) => (Number.isInteger(tick) ? number(tick) : ""));
  const sizes = (_: uPlot, ticks: number[]) =>
    ticks.map((tick) => bytes(tick).replace(".00 ", " ").replace(".0 ", " "));
  const steppedLine = { points: { show: false }, paths: uPlot.paths.stepped!({ align: 1 }) };

  const plot = new uPlot(
    {
      width: place.clientWidth,
      height: height(),
      padding: [2 * BAND + 8, 24, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => () => (choice.showAll(), null) },
      },
      scales: {
        x: { time: false, range: () => [choice.range.value[0], choice.range.value[1] + 1] },
        y: { range: () => [0, top] },
      },
      axes: [
        {
          stroke: () => colour("soft"), grid: { show: false }, ticks: { stroke: () => colour("line") }, size: 28,
          values: eventNames,
        },
        {
          stroke: () => colour("soft"), grid: { stroke: () => colour("line"), width: 1 }, ticks: { show: false },
          size: 66, incrs: BINARY_INCREMENTS, values: sizes,
        },
      ],
      series: [
        {},
        // Cumulative, largest first: each smaller sum is painted over it.
        ...[...run.stacking].reverse().map((i) => ({
          ...steppedLine, width: 0,
          stroke: () => colour(run.categories[i]!), fill: () => colour(run.categories[i]!),
        })),
        { ...steppedLine, width: 1.5, stroke: () => colour("reserved") },
      ],
      hooks: {
        draw: [(chart) => decorate(chart, choice, limit, isLimitNear)],
        setSelect: [
          (chart) => {
            const { left, width } = chart.select;
            const from = chart.posToVal(left, "x"), to = chart.posToVal(left + width, "x");
            if (width > 4) choice.show(Math.floor(from), Math.ceil(to));
            chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          },
        ],
        setCursor: [
          (chart) => {
            const { left, top: y } = chart.cursor;
            if (left == null || left < 0) return void (hover.value = null);
            const bucket = bucketAt(chart.posToVal(left, "x"));
            hover.value = {
              event: buckets.events[bucket]!,
              numEvents: buckets.edges[bucket + 1]! - buckets.edges[bucket]!,
              left: left + chart.over.offsetLeft,
              top: Math.min((y ?? 0) + chart.over.offsetTop, 120),
              width: chart.width,
            };
          },
        ],
      },
    },
    [[], ...run.stacking.map(() => []), []] as unknown as uPlot.AlignedData,
    place,
  );

  plot.over.addEventListener("click", () => hover.value && choice.chooseMoment(hover.value.event));
  plot.over.addEventListener(
    "wheel",
    (event) => {
      if (event.ctrlKey) return; // the browser's own zoom
      event.preventDefault();
      const around = plot.posToVal(event.clientX - plot.over.getBoundingClientRect().left, "x");
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) choice.pan(event.deltaX / 1000);
      else choice.zoom(event.deltaY < 0 ? 1.25 : 0.8, around);
    },
    { passive: false },
  );

  const stopData = effect(() => {
    const [from, to] = choice.range.value;
    buckets = run.levels.buckets(from, to, Math.max(50, Math.floor(place.clientWidth * Math.min(2, devicePixelRatio))));
    plot.setData(stacked(buckets, choice), true);
  });
  const stopLook = effect(() => {
    void [theme.value, choice.moment.value];
    plot.redraw(false);
  });
  const observer = new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: height() }));
  observer.observe(place);
  return () => {
    stopData();
    stopLook();
    observer.disconnect();
    plot.destroy();
  };
}

function stacked({ events, edges, levels }: Buckets, { run }: Choice): uPlot.AlignedData {
  const count = events.length;
  // A bucket extends to the first event of the next one; the last needs an explicit end.
  const closed = (values: ArrayLike<number>) =>
    Float64Array.from({ length: count + 1 }, (_, k) => values[Math.min(k, count - 1)]!);
  const sums: Float64Array[] = [];
  let sum = new Float64Array(count);
  for (const category of run.stacking) {
    sum = sum.map((value, k) => value + levels[category]![k]!);
    sums.unshift(closed(sum));
  }
  const reserved = Float64Array.from({ length: count }, (_, k) => run.highestReserved(edges[k]!, edges[k + 1]! - 1));
  return [edges, ...sums, closed(reserved)] as unknown as uPlot.AlignedData;
}

/** Draws steps and phases above the plot, the limit, and the selected moment. */
function decorate(chart: uPlot, choice: Choice, limit: number, isLimitNear: boolean): void {
  const { ctx, bbox } = chart, scale = devicePixelRatio, { run } = choice;
  const [from, to] = choice.range.value;
  const x = (event: number) => Math.max(bbox.left, Math.min(bbox.left + bbox.width, chart.valToPos(event, "x", true)));
  const write = (text: string, left: number, right: number, y: number, ink: string) => {
    ctx.fillStyle = ink;
    if (ctx.measureText(text).width < right - left - 6 * scale) ctx.fillText(text, (left + right) / 2, y);
  };
  ctx.save();
  ctx.font = `${10.5 * scale}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";

  const band = BAND * scale, phaseTop = bbox.top - band - 3 * scale, stepTop = phaseTop - band - scale;
  const { begin, phase } = run.spans;
  for (let i = Math.max(0, firstAbove(begin, from) - 1); i < begin.length && begin[i]! <= to; i++) {
    const left = x(begin[i]!), right = x(begin[i + 1] ?? run.numEvents), name = run.text(phase[i]!)!;
    if (right - left < 0.2) continue; // with thousands of steps, less than a pixel each
    ctx.fillStyle = colour(`phase-${name}`);
    ctx.fillRect(left, phaseTop, right - left, band);
    if (name !== "other") write(name, left, right, phaseTop + band / 2, colour("phase-ink"));
  }
  const { steps } = run;
  const areSeparate = x(steps[0]?.end ?? 0) - x(steps[0]?.begin ?? 0) > 3 || steps.length < 200;
  let written = -Infinity;
  for (const step of steps) {
    if (step.end <= from || step.begin > to) continue;
    const left = x(step.begin), right = x(step.end);
    if (areSeparate && step.begin >= from && step.begin > 0) {
      ctx.fillStyle = colour("step");
      ctx.fillRect(left, stepTop, Math.max(1, scale / 2), bbox.top + bbox.height - stepTop);
    }
    const room = Math.max(right - left, 34 * scale); // label only some of many narrow steps
    if (left < written) continue;
    const name = step.isTraining ? `step ${step.step}` : `after step ${step.step - 1}`;
    const text = room > 60 * scale ? name : step.isTraining ? String(step.step) : "";
    if (right - left >= room) write(text, left, right, stepTop + band / 2, colour("soft"));
    else write(text, left, left + room, stepTop + band / 2, colour("soft"));
    written = left + room;
  }

  ctx.strokeStyle = colour("limit");
  ctx.lineWidth = 1.5 * scale;
  const y = isLimitNear ? chart.valToPos(limit, "y", true) : bbox.top + 14 * scale;
  if (isLimitNear) line(ctx, [bbox.left, y, bbox.left + bbox.width, y], [6 * scale, 4 * scale]);
  ctx.fillStyle = colour("limit");
  const caption = `${isLimitNear ? "" : "↑ "}limit ${bytes(limit)}`;
  const end = bbox.left + ctx.measureText(caption).width + 12 * scale;
  const isLeft = (event: number) => event >= from && event <= to && x(event + 0.5) < end;
  const isLeftTaken = [run.peakEvent, choice.moment.value].some(isLeft);
  ctx.textAlign = isLeftTaken ? "right" : "left";
  ctx.fillText(caption, isLeftTaken ? bbox.left + bbox.width - 5 * scale : bbox.left + 5 * scale, y - 7 * scale);

  const mark = (event: number, ink: string, isLine: boolean) => {
    if (event < from || event > to) return;
    const at = x(event + 0.5);
    ctx.strokeStyle = ctx.fillStyle = ink;
    if (isLine) line(ctx, [at, bbox.top, at, bbox.top + bbox.height], []);
    ctx.beginPath();
    ctx.moveTo(at, bbox.top + 7 * scale);
    ctx.lineTo(at - 5 * scale, bbox.top);
    ctx.lineTo(at + 5 * scale, bbox.top);
    ctx.fill();
  };
  mark(run.peakEvent, colour("limit"), false);
  mark(choice.moment.value, colour("text"), true);
  ctx.restore();
}

function line(ctx: CanvasRenderingContext2D, [x0, y0, x1, y1]: [number, number, number, number], dash: number[]): void {
  ctx.setLineDash(dash);
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
}
