/** What the allocator got from CUDA, at the peak: which parts are used, by what, and which are holes. */
import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { showInTable } from "./blocks";
import type { Columns } from "./document";
import { bytes, counted, exactBytes, number, share, shortPath, words } from "./format";
import type { Part, Run, Segment } from "./run";
import type { Choice } from "./state";
import { colour, theme } from "./theme";

const ROW = 18, GAP = 4; // pixels
const SCALES = [4, 8, 16, 32, 64]; // rows for everything

interface Group {
  name: string;
  explanation: string;
  segments: Segment[];
}

/** A part of a segment, as far as it is in one row. */
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
  const total = run.segments.reduce((sum, each) => sum + each.bytes, 0);
  const scale = useSignal(1);
  if (!run.segments.length) return null;
  const cached = groups.find((each) => each.name === "Cached whole")?.segments.reduce((sum, each) => sum + each.bytes, 0) ?? 0;
  return (
    <section id="segments" aria-labelledby="segments-title">
      <div class="section-head">
        <h2 id="segments-title">How the allocator holds it <span class="soft">at the peak</span></h2>
        <div class="tools" role="group" aria-label="Size of the segments">
          <button type="button" aria-label="Smaller segments" disabled={scale.value === 0} onClick={() => scale.value--}>−</button>
          <button type="button" aria-label="Larger segments" disabled={scale.value === SCALES.length - 1} onClick={() => scale.value++}>+</button>
        </div>
      </div>
      <p>
        {counted(run.segments.length, "segment")}, {bytes(total)}: {bytes(total - columns.fragmentation_bytes - cached)} used,{" "}
        <strong>{bytes(columns.fragmentation_bytes)} ({share(columns.fragmentation_bytes, total)}) in holes</strong> beside used parts,{" "}
        {bytes(cached)} in whole segments of the cache. {largestHole(run.segments, cached > 0)}
        {columns.slack_bytes > cached && ` Reserved was ${bytes(columns.slack_bytes - cached)} more at another moment.`}
        {!choice.isAtPeak && " This part always shows the peak."}
      </p>
      {groups.map((group) => <Strip key={group.name} run={run} group={group} bytesPerRow={rowBytes(group, total / SCALES[scale.value]!)} choice={choice} />)}
      <p class="hint">Pointing at a part says what it is, a click finds it in the table below. Hatched parts are free.</p>
      <details>
        <summary>The same as a table</summary>
        <div class="scroll">
          <table>
            <thead><tr><th>Segments</th><th class="amount">How many</th><th class="amount">Bytes</th><th class="amount">Used</th><th class="amount">Free</th><th class="amount">Largest free part</th></tr></thead>
            <tbody>
              {groups.map(({ name, segments }) => {
                const size = segments.reduce((sum, each) => sum + each.bytes, 0), used = segments.reduce((sum, each) => sum + each.usedBytes, 0);
                return <tr><th scope="row">{name}</th><td class="amount">{number(segments.length)}</td><td class="amount">{bytes(size)}</td><td class="amount">{bytes(used)}</td><td class="amount">{bytes(size - used)}</td><td class="amount">{bytes(largestFree(segments).largest)}</td></tr>;
              })}
            </tbody>
          </table>
        </div>
      </details>
    </section>
  );
}

/** All groups have one scale, but for one that would not fill a row of its own. */
function rowBytes({ segments }: Group, common: number): number {
  return Math.min(common, segments.reduce((sum, each) => sum + each.bytes, 0));
}

function groupsOf(segments: readonly Segment[]): Group[] {
  const largest = [...segments].sort((a, b) => b.bytes - a.bytes || a.address - b.address);
  return [
    { name: "In use", explanation: "for requests above 1 MiB", segments: largest.filter((each) => each.usedBytes && !each.isSmall) },
    { name: "In use, small", explanation: "for requests up to 1 MiB", segments: largest.filter((each) => each.usedBytes && each.isSmall) },
    { name: "Cached whole", explanation: "nothing in them is used; torch.cuda.empty_cache() would give them back", segments: largest.filter((each) => !each.usedBytes) },
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

function largestHole(segments: readonly Segment[], hasCached: boolean): string {
  const { largest, count } = largestFree(segments.filter((each) => each.usedBytes));
  const needs = hasCached ? "a segment of the cache or a new one" : "a new segment";
  if (!count) return "";
  return `${count === 1 ? "The hole is" : `The largest of ${number(count)} holes is`} ${bytes(largest)}: a larger request needs ${needs}.`;
}

/** Segments one after the other, in rows of equal bytes, as lines of text are. */
function Strip({ run, group, bytesPerRow, choice }: { run: Run; group: Group; bytesPerRow: number; choice: Choice }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useSignal(0);
  const chosen = useSignal<number | null>(null);
  useEffect(() => {
    const observer = new ResizeObserver(() => (width.value = canvas.current!.parentElement!.clientWidth));
    observer.observe(canvas.current!.parentElement!);
    return () => observer.disconnect();
  }, []);
  const pieces = useMemo(() => arrange(group.segments, width.value, bytesPerRow), [group, width.value, bytesPerRow]);
  const rows = 1 + (pieces.at(-1)?.y ?? 0);
  useEffect(() => paint(canvas.current!, pieces, width.value, rows, run, chosen.value), [pieces, theme.value, chosen.value]);

  const pieceAt = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const x = event.clientX - box.left, row = Math.floor((event.clientY - box.top) / (ROW + GAP));
    // A seam belongs to the segment before it: on a phone it is as wide as many a segment.
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
    // This part shows the peak; at another moment the block may be gone.
    const isAlive = run.isAlive(block, choice.moment.value);
    showInTable(choice, { words: describe(run, block), labels: new Set([run.label[block]!]) }, isAlive);
  };
  const piece = chosen.value === null ? null : pieces[chosen.value];
  const size = group.segments.reduce((sum, each) => sum + each.bytes, 0);
  return (
    <figure class="strip">
      <figcaption><strong>{group.name}</strong> <span class="soft">{counted(group.segments.length, "segment")}, {bytes(size)}; {group.explanation}; a row is {bytes(bytesPerRow)}</span></figcaption>
      <div class="canvas" style={{ height: `${rows * (ROW + GAP)}px` }}>
        <canvas
          ref={canvas} tabIndex={0} role="img" aria-label={`${group.name}: ${counted(group.segments.length, "segment")}, ${bytes(size)}. Left and right arrow go from part to part, Enter finds it in the table.`}
          onMouseMove={(event) => (chosen.value = pieceAt(event))} onMouseLeave={() => (chosen.value = null)}
          onBlur={() => (chosen.value = null)} onKeyDown={onKeyDown} onClick={(event) => show(pieceAt(event))}
        />
        {piece && (
          <div class="tooltip" role="status" style={{ top: `${(piece.y + 1) * (ROW + GAP)}px`, ...(piece.x > width.value / 2 ? { right: `${Math.max(0, width.value - piece.x - piece.width)}px` } : { left: `${piece.x}px` }) }}>
            <PieceText run={run} piece={piece} />
          </div>
        )}
      </div>
    </figure>
  );
}

function PieceText({ run, piece: { segment, part } }: { run: Run; piece: Piece }) {
  const block = part?.block ?? null;
  return (
    <>
      {block === null ? (
        <><strong>free: {exactBytes(part?.bytes ?? segment.bytes)}</strong>{segment.usedBytes ? <div>a hole beside used parts</div> : <div>the whole segment is in the cache</div>}</>
      ) : (
        <>
          <strong>{exactBytes(run.bytes[block]!)}</strong>
          <div><i style={{ background: `var(--${run.said(block, "category")})` }} />{words(run.said(block, "category")!)}: {describe(run, block)}</div>
          {run.said(block, "module") && <div>{run.said(block, "module")}</div>}
          {run.said(block, "where") && <div>{shortPath(run.said(block, "where")!)}</div>}
        </>
      )}
      <div class="soft">segment 0x{segment.address.toString(16)}, {bytes(segment.bytes)}, {share(segment.usedBytes, segment.bytes)} used{part && `, at +${number(part.offset)}`}</div>
    </>
  );
}

function describe(run: Run, block: number): string {
  return run.said(block, "name") ?? run.said(block, "operator") ?? "unnamed";
}

function arrange(segments: Segment[], width: number, bytesPerRow: number): Piece[] {
  if (!width) return [];
  const numRows = Math.ceil(segments.reduce((sum, each) => sum + each.bytes, 0) / bytesPerRow - 1e-6);
  let pixels = width / bytesPerRow;
  let pieces = inRows(segments, width, pixels);
  // Seams and the least widths take room too: all are drawn that much narrower, but no row is begun for a sliver.
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
      let left = Math.max(part.bytes * pixels, isFirst ? 1.5 : 0.25); // the thinnest of segments can still be seen
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

function paint(canvas: HTMLCanvasElement, pieces: Piece[], width: number, rows: number, run: Run, chosen: number | null): void {
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
