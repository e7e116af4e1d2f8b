/** Bytes per category after any event, computed from checkpoints instead of stored per event. */

interface Blocks {
  readonly numEvents: number;
  readonly begin: Float64Array;
  readonly end: Float64Array;
  readonly bytes: Float64Array;
  readonly label: Uint32Array;
}

const CHECKPOINT = 1024; // events between two stored levels

/** A range of events in as many buckets as a chart has pixels. */
export interface Buckets {
  /** The event with the most allocated memory in each bucket, so that no peak is lost. */
  events: Float64Array;
  /** The first event of each bucket, and one more for the end of the last. */
  edges: Float64Array;
  /** Bytes per category after that event. */
  levels: Float64Array[];
}

export class Levels {
  private readonly numEvents: number;
  /** The changes of an event are those from its offset to the next event's. */
  private readonly offsets: Uint32Array;
  private readonly deltas: Float64Array;
  private readonly categories: Uint8Array;
  private readonly checkpoints: Float64Array;

  constructor(blocks: Blocks, categoryOfLabel: Uint8Array, private readonly numCategories: number) {
    const { numEvents, begin, end, bytes, label } = blocks;
    this.numEvents = numEvents;
    const offsets = new Uint32Array(numEvents + 2);
    for (let i = 0; i < begin.length; i++) {
      offsets[begin[i]! + 2]!++;
      if (end[i]! < numEvents) offsets[end[i]! + 2]!++;
    }
    for (let i = 1; i < offsets.length; i++) offsets[i]! += offsets[i - 1]!;
    this.deltas = new Float64Array(offsets.at(-1)!);
    this.categories = new Uint8Array(offsets.at(-1)!);
    const put = (event: number, delta: number, category: number) => {
      const place = offsets[event + 1]!++; // a counting sort, which also moves each offset to its final place
      this.deltas[place] = delta;
      this.categories[place] = category;
    };
    for (let i = 0; i < begin.length; i++) {
      const category = categoryOfLabel[label[i]!]!;
      put(begin[i]!, bytes[i]!, category);
      if (end[i]! < numEvents) put(end[i]!, -bytes[i]!, category);
    }
    this.offsets = offsets;
    this.checkpoints = this.makeCheckpoints();
  }

  /** Bytes per category after this event. */
  at(event: number): Float64Array {
    const checkpoint = Math.floor(event / CHECKPOINT);
    const level = this.checkpoints.slice(checkpoint * this.numCategories, (checkpoint + 1) * this.numCategories);
    for (let i = this.offsets[checkpoint * CHECKPOINT]!; i < this.offsets[event + 1]!; i++)
      level[this.categories[i]!]! += this.deltas[i]!;
    return level;
  }

  buckets(from: number, to: number, most: number): Buckets {
    const numEvents = to - from + 1, count = Math.max(1, Math.min(most, numEvents));
    const edges = Float64Array.from({ length: count + 1 }, (_, k) => from + Math.floor((k * numEvents) / count));
    const events = new Float64Array(count);
    const levels = Array.from({ length: this.numCategories }, () => new Float64Array(count));
    const level = from > 0 ? this.at(from - 1) : new Float64Array(this.numCategories);
    let total = level.reduce((sum, each) => sum + each, 0);
    for (let k = 0; k < count; k++) {
      let highest = -1;
      for (let event = edges[k]!; event < edges[k + 1]!; event++) {
        for (let i = this.offsets[event]!; i < this.offsets[event + 1]!; i++) {
          level[this.categories[i]!]! += this.deltas[i]!;
          total += this.deltas[i]!;
        }
        if (total <= highest) continue;
        highest = total;
        events[k] = event;
        for (let c = 0; c < this.numCategories; c++) levels[c]![k] = level[c]!;
      }
    }
    return { events, edges, levels };
  }

  private makeCheckpoints(): Float64Array {
    const checkpoints = new Float64Array((Math.floor(this.numEvents / CHECKPOINT) + 1) * this.numCategories);
    const level = new Float64Array(this.numCategories);
    for (let event = 0; event < this.numEvents; event++) {
      if (event % CHECKPOINT === 0) checkpoints.set(level, (event / CHECKPOINT) * this.numCategories);
      for (let i = this.offsets[event]!; i < this.offsets[event + 1]!; i++)
        level[this.categories[i]!]! += this.deltas[i]!;
    }
    return checkpoints;
  }
}
