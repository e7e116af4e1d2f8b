/** The allocator's segments at the peak: which parts are in use, by what, and which are free. */
import { useSignal } from "@preact/signals";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { showInTable } from "./blocks";
import { CategoryName } from "./category";
import type { Columns } from "./document";
import { bytes, counted, exactBytes, number, share, shortPath } from "./format";
import type { Part, Run, Segment } from "./run";
import type { Choice } from "./state";
import { colour, theme } from "./theme";
import { useWidth } from "./width";

const ROW = 18, GAP = 4; // pixels
const SCALES = [4, 8, 16, 32, 64]; // rows for everything

const CACHED = "Cached, unused";

interface Group {
  name: string;
  explanation: string;
  segments: Segment[];
}

/** The part of a segment that lies in one row. */
interface Piece {
  segment: Segment;
  part: Part | null;
  x: number;
  y: number;
  width: number;
}

export function Segments({ choice, columns }: { choice: Choice; columns: Columns }) {
  const { run } = choice;
  const groups = useMemo(() => groupsOf(run.segments), [run]);
  const total = bytesOf(run.segments);
  const scale = useSignal(1);
  if (!run.segments.length) return null;
  const cached = bytesOf(groups.find((each) => each.name === CACHED)?.segments ?? []);
  return (
    <section id="segments" aria-labelledby="segments-title">
      <div class="section-head">
        <h2 id="segments-title">Allocator segments <span class="soft">at the peak</span></h2>
        <div class="tools" role="group" aria-label="Scale of the segments">
          <button
            type="button" aria-label="Smaller segments" disabled={scale.value === 0} onClick={() => scale.value--}
          >
            −
          </button>
          <button
            type="button" aria-label="Larger segments" disabled={scale.value === SCALES.length - 1}
            onClick={() => scale.value++}
          >
            +
          </button>
        </div>
      </div>
      <p>
        {counted(run.segments.length, "segment")}, {bytes(total)}:{" "}
        {bytes(total - columns.fragmentation_bytes - cached)} in use,{" "}
        <strong>
          {bytes(columns.fragmentation_bytes)} ({share(columns.fragmentation_bytes, total)}) lost to fragmentation
        </strong>,{" "}
        {bytes(cached)} cached in unused segments. {largestGap(run.segments, cached > 0)}
        {columns.slack_bytes > cached &&
          ` Reserved memory peaked ${bytes(columns.slack_bytes - cached)} higher at another moment.`}
        {!choice.isAtPeak && " This section always shows the peak."}
      </p>
      {groups.map((group) => (
        <Strip
          key={group.name} run={run} group={group} choice={choice}
          bytesPerRow={rowBytes(group, total / SCALES[scale.value]!)}
        />
      ))}
      <p class="hint">
        Hover over a part to see what it is; click to find it in the table below. Hatched parts are free.
      </p>
      <details>
        <summary>Show as a table</summary>
        <div class="scroll">
          <table>
            <thead>
              <tr>
                <th>Segments</th>
                <th class="amount">Count</th>
                <th class="amount">Size</th>
                <th class="amount">In use</th>
                <th class="amount">Free</th>
                <th class="amount">Largest gap</th>
              </tr>
            </thead>
            <tbody>
              {groups.map(({ name, segments }) => {
                const size = bytesOf(segments), used = segments.reduce((sum, each) => sum + each.usedBytes, 0);
                return (
                  <tr>
                    <th scope="row">{name}</th>
                    <td class="amount">{number(segments.length)}</td>
                    <td class="amount">{bytes(size)}</td>
                    <td class="amount">{bytes(used)}</td>
                    <td class="amount">{bytes(size - used)}</td>
                    <td class="amount">{bytes(largestFree(segments).largest)}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      </details>
    </section>
  );
}

function bytesOf(segments: readonly Segment[]): number {
  return segments.reduce((sum, each) => sum + each.bytes, 0);
}

/** Groups share one scale, except a group that would not fill a row. */
function rowBytes({ segments }: Group, common: number): number {
  return Math.min(common, bytesOf(segments));
}

function groupsOf(segments: readonly Segment[]): Group[] {
  const largest = [...segments].sort((a, b) => b.bytes - a.bytes || a.address - b.address);
  const used = largest.filter((each) => each.usedBytes);
  const small = used.filter((each) => each.isSmall);
  return [
    { name: "In use", explanation: "for requests above 1 MiB", segments: used.filter((each) => !each.isSmall) },
    { name: "In use, small pool", explanation: "for requests up to 1 MiB", segments: small },
    {
      name: CACHED,
      explanation: "torch.cuda.empty_cache() would release them",
      segments: largest.filter((each) => !each.usedBytes),
    },
  ].filter((group) => group.segments.length);
}

function largestFree(segments: readonly Segment[]): { largest: number; count: number } {
  let largest = 0, count = 0;
  for (const segment of segments)
    for (const part of segment.parts) {
      if (part.block !== null) continue;
      largest = Math.max(largest, part.bytes);
      count++;
    }
  return { largest, count };
}

function largestGap(segments: readonly Segment[], hasCached: boolean): string {
  const { largest, count } = largestFree(segments.filter((each) => each.usedBytes));
  const needs = hasCached ? "a cached or a new segment" : "a new segment";
  if (!count) return "";
  const which = count === 1 ? "The only gap is" : `The largest of ${number(count)} gaps is`;
  return `${which} ${bytes(largest)}; a larger request needs ${needs}.`;
}

/** Segments laid out like text: one after another, in rows of equal size. */
function Strip({ run, group, bytesPerRow, choice }: { run: Run; group: Group; bytesPerRow: number; choice: Choice }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame);
  const chosen = useSignal<number | null>(null);
  const pieces = useMemo(() => arrange(group.segments, width.value, bytesPerRow), [group, width.value, bytesPerRow]);
  const rows = 1 + (pieces.at(-1)?.y ?? 0);
  useLayoutEffect(
    () => paint(canvas.current!, pieces, width.value, rows, run, chosen.value),
    [pieces, theme.value, chosen.value],
  );

  const pieceAt = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const x = event.clientX - box.left, row = Math.floor((event.clientY - box.top) / (ROW + GAP));
    // A seam counts as part of the segment before it: on a phone it is as wide as many segments.
    const found = pieces.findIndex((each) => each.y === row && x >= each.x && x < each.x + each.width + 1);
    return found < 0 ? null : found;
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Enter") show(chosen.value);
    if (!by) return;
    event.preventDefault();
    chosen.value = Math.max(0, Math.min(pieces.length - 1, (chosen.value ?? -1) + by));
  };
  const show = (i: number | null) => {
    const block = i === null ? null : pieces[i]?.part?.block;
    if (block == null) return;
    // This section shows the peak; at the selected moment the block may be gone.
    const isAlive = run.isAlive(block, choice.moment.value);
    showInTable(choice, { words: describe(run, block), labels: new Set([run.label[block]!]) }, isAlive);
  };
  const piece = chosen.value === null ? null : pieces[chosen.value];
  const count = counted(group.segments.length, "segment"), size = bytes(bytesOf(group.segments));
  return (
    <figure class="strip">
      <figcaption>
        <strong>{group.name}</strong>{" "}
        <span class="soft">{count}, {size}; {group.explanation}; {bytes(bytesPerRow)} per row</span>
      </figcaption>
      <div ref={frame} class="canvas" style={{ height: `${rows * (ROW + GAP)}px` }}>
        <canvas
          ref={canvas} tabIndex={0} role="img"
          aria-label={
            `${group.name}: ${count}, ${size}. ` +
            "Left and right arrow keys move between parts, Enter finds the block in the table."
          }
          onMouseMove={(event) => (chosen.value = pieceAt(event))} onMouseLeave={() => (chosen.value = null)}
          onBlur={() => (chosen.value = null)} onKeyDown={onKeyDown} onClick={(event) => show(pieceAt(event))}
        />
        {piece && (
          <div class="tooltip" role="status" style={tooltipPlace(piece, width.value)}>
            <PieceTooltip run={run} piece={piece} />
          </div>
        )}
      </div>
    </figure>
  );
}

/** Below the piece; aligned with its right edge in the right half, so that it stays within the page. */
function tooltipPlace({ x, y, width }: Piece, whole: number) {
  const top = `${(y + 1) * (ROW + GAP)}px`;
  return x > whole / 2 ? { top, right: `${Math.max(0, whole - x - width)}px` } : { top, left: `${x}px` };
}

function PieceTooltip({ run, piece: { segment, part } }: { run: Run; piece: Piece }) {
  const block = part?.block ?? null;
  return (
    <>
      {block === null ? (
        <>
          <strong>free: {exactBytes(part?.bytes ?? segment.bytes)}</strong>
          <div>{segment.usedBytes ? "gap in a segment that is in use" : "the whole segment is cached"}</div>
        </>
      ) : (
        <>
          <strong>{exactBytes(run.bytes[block]!)}</strong>
          <div><CategoryName name={run.labelOf(block, "category")!} />: {describe(run, block)}</div>
          {run.labelOf(block, "module") && <div>{run.labelOf(block, "module")}</div>}
          {run.labelOf(block, "where") && <div>{shortPath(run.labelOf(block, "where")!)}</div>}
        </>
      )}
      <div class="soft">
        segment 0x{segment.address.toString(16)}, {bytes(segment.bytes)}, {share(segment.usedBytes, segment.bytes)} used
        {part && `, offset ${number(part.offset)}`}
      </div>
    </>
  );
}

function describe(run: Run, block: number): string {
  return run.labelOf(block, "name") ?? run.labelOf(block, "operator") ?? "unnamed";
}

function arrange(segments: Segment[], width: number, bytesPerRow: number): Piece[] {
  if (!width) return [];
  const numRows = Math.ceil(segments.reduce((sum, each) => sum + each.bytes, 0) / bytesPerRow - 1e-6);
  let pixels = width / bytesPerRow;
  let pieces = inRows(segments, width, pixels);
  // Seams and minimum widths take space too: shrink everything a little rather than start a row for a sliver.
  for (let tries = 0; tries < 6 && pieces.at(-1)!.y >= numRows; tries++) {
    const { x, y, width: last } = pieces.at(-1)!;
    pixels *= (0.995 * numRows) / (y + (x + last) / width);
    pieces = inRows(segments, width, pixels);
  }
  return pieces;
}

function inRows(segments: Segment[], width: number, pixels: number): Piece[] {
  const pieces: Piece[] = [];
  let x = 0, y = 0;
  for (const segment of segments) {
    const parts = segment.parts.length ? segment.parts : [{ offset: 0, bytes: segment.bytes, block: null }];
    let isFirst = true;
    if (x > width - 3) [x, y] = [0, y + 1];
    for (const part of parts) {
      let left = Math.max(part.bytes * pixels, isFirst ? 1.5 : 0.25); // so that even the thinnest segment is visible
      while (left > 0.01) {
        if (x >= width - 0.01) [x, y] = [0, y + 1];
        const here = Math.min(left, width - x);
        pieces.push({ segment, part, x, y, width: here });
        isFirst = false;
        x += here;
        left -= here;
      }
    }
    x += 1; // a seam between segments
  }
  return pieces;
}

function paint(
  canvas: HTMLCanvasElement, pieces: Piece[], width: number, rows: number, run: Run, chosen: number | null,
): void {
  const scale = devicePixelRatio, height = rows * (ROW + GAP);
  canvas.width = Math.max(1, width * scale);
  canvas.height = Math.max(1, height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d")!;
  context.scale(scale, scale);
  const colours = run.categories.map((category) => colour(category));
  const hatched = hatching(context);
  for (const { part, x, y, width: wide } of pieces) {
    const block = part?.block ?? null, top = y * (ROW + GAP);
    if (block === null) {
      context.fillStyle = colour("panel");
      context.fillRect(x, top, wide, ROW);
    }
    context.fillStyle = block === null ? hatched : colours[run.category(block)]!;
    context.fillRect(x, top, wide > 2 ? wide - 0.5 : wide, ROW);
  }
  if (chosen !== null && pieces[chosen]) {
    const { x, y, width: wide } = pieces[chosen];
    context.strokeStyle = colour("text");
    context.lineWidth = 2;
    context.strokeRect(x + 1, y * (ROW + GAP) + 1, Math.max(2, wide - 2), ROW - 2);
  }
}

function hatching(context: CanvasRenderingContext2D): CanvasPattern {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const ink = tile.getContext("2d")!;
  ink.strokeStyle = colour("hatch");
  ink.lineWidth = 1.2;
  ink.beginPath();
  for (const shift of [-6, 0, 6]) {
    ink.moveTo(shift, 6);
    ink.lineTo(shift + 6, 0);
  }
  ink.stroke();
  return context.createPattern(tile, "repeat")!;
}
