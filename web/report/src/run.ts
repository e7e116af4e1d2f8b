/** The blocks of a run as typed arrays, and the queries of the views. */
import type { Columns } from "./document";
import { Levels } from "./levels";

const LOWEST_FIRST = [
  "parameter", "buffer", "optimizer_state", "gradient", "input", "workspace", "activation", "temporary",
];

export class Run {
  readonly numEvents: number;
  readonly peakEvent: number;
  readonly categories: readonly string[];
  /** From the bottom of the stack to the top: what lives longest is at the bottom. */
  readonly stacking: readonly number[];
  readonly begin: Float64Array;
  /** `Infinity`: never freed. */
  readonly end: Float64Array;
  readonly bytes: Float64Array;
  readonly rounding: Float64Array;
  readonly step: Uint32Array;
  readonly label: Uint32Array;
  readonly labels: Columns["labels"];
  readonly levels: Levels;
  readonly segments: readonly Segment[];
  readonly spans: Columns["spans"];
  readonly steps: readonly Step[];
  private readonly strings: readonly (string | null)[];
  private readonly reservedEvents: Float64Array;
  private readonly reservedBytes: Float64Array;

  constructor(readonly columns: Columns) {
    const { blocks, labels } = columns;
    this.numEvents = columns.num_events;
    this.peakEvent = columns.peak_event;
    this.categories = columns.categories;
    this.stacking = LOWEST_FIRST.map((category) => columns.categories.indexOf(category));
    this.strings = columns.strings;
    this.labels = labels;
    this.spans = columns.spans;
    // Constructors and plain loops: `from` with a callback takes several times as long, and this delays opening.
    this.begin = new Float64Array(blocks.begin);
    this.end = new Float64Array(blocks.lifetime);
    for (let i = 0; i < this.begin.length; i++) {
      if (i) this.begin[i]! += this.begin[i - 1]!;
      this.end[i] = this.end[i] ? this.end[i]! + this.begin[i]! : Infinity;
    }
    this.bytes = new Float64Array(blocks.bytes);
    this.rounding = new Float64Array(blocks.rounding);
    this.step = new Uint32Array(blocks.step);
    this.label = new Uint32Array(blocks.label);
    this.reservedEvents = new Float64Array(columns.reserved.event);
    this.reservedBytes = new Float64Array(columns.reserved.bytes);
    this.levels = new Levels(this, new Uint8Array(labels.category), columns.categories.length);
    this.segments = segmentsOf(columns.segments);
    this.steps = stepsOf(columns);
  }

  get numBlocks(): number {
    return this.bytes.length;
  }

  text(number: number): string | null {
    return this.strings[number] ?? null;
  }

  get texts(): readonly (string | null)[] {
    return this.strings;
  }

  labelOf(block: number, field: keyof Columns["labels"]): string | null {
    const value = this.labels[field][this.label[block]!]!;
    return field === "category" ? this.categories[value]! : this.text(value);
  }

  category(block: number): number {
    return this.labels.category[this.label[block]!]!;
  }

  isAlive(block: number, event: number): boolean {
    return this.begin[block]! <= event && this.end[block]! > event;
  }

  reservedAt(event: number): number {
    const after = firstAbove(this.reservedEvents, event);
    return after ? this.reservedBytes[after - 1]! : 0;
  }

  /** The most reserved bytes within the events `from..to`. */
  highestReserved(from: number, to: number): number {
    const { reservedEvents, reservedBytes } = this;
    let highest = this.reservedAt(from);
    for (let i = firstAbove(reservedEvents, from); i < reservedEvents.length && reservedEvents[i]! <= to; i++)
      highest = Math.max(highest, reservedBytes[i]!);
    return highest;
  }

  spanAt(event: number): { step: number; phase: string } | null {
    const after = firstAbove(this.spans.begin, event);
    if (!after) return null;
    return { step: this.spans.step[after - 1]!, phase: this.text(this.spans.phase[after - 1]!)! };
  }
}

export interface Step {
  step: number;
  begin: number;
  /** The first event after the step. */
  end: number;
  /** Otherwise it is what ran after the last step. */
  isTraining: boolean;
}

function stepsOf({ spans, strings, num_events }: Columns): Step[] {
  const found: Step[] = [];
  spans.begin.forEach((begin, i) => {
    const step = spans.step[i]!, last = found.at(-1);
    const isTraining = step === 0 || !["evaluation", "other"].includes(strings[spans.phase[i]!] ?? "other");
    if (last?.step === step) {
      last.isTraining ||= isTraining;
      return;
    }
    if (last) last.end = begin;
    found.push({ step, begin, end: num_events, isTraining });
  });
  return found.filter((each) => each.end > each.begin);
}

export interface Segment {
  address: number;
  bytes: number;
  isSmall: boolean;
  usedBytes: number;
  parts: Part[];
}

export interface Part {
  offset: number;
  bytes: number;
  /** null: free. */
  block: number | null;
}

function segmentsOf(columns: Columns["segments"]): Segment[] {
  let next = 0;
  return columns.bytes.map((size, i) => {
    const parts: Part[] = [];
    let usedBytes = 0;
    for (const end = next + columns.num_parts[i]!; next < end; next++) {
      const block = columns.part_block[next]! - 1, size = columns.part_bytes[next]!;
      parts.push({ offset: columns.part_offset[next]!, bytes: size, block: block < 0 ? null : block });
      if (block >= 0) usedBytes += size;
    }
    return { address: columns.address[i]!, bytes: size, isSmall: columns.is_small[i] === 1, usedBytes, parts };
  });
}

/** How many of the ascending numbers do not exceed the limit. */
export function firstAbove(ascending: ArrayLike<number>, limit: number): number {
  let low = 0, high = ascending.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle]! <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}
