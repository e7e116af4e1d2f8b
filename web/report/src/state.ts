/** What the reader has selected; all views follow it. */
import { computed, signal } from "@preact/signals";
import type { Run } from "./run";

export class Choice {
  /** The selected event. */
  readonly moment;
  /** First and last event that the timeline shows. */
  readonly range;
  readonly categories = signal<ReadonlySet<number>>(new Set());
  readonly onlyAlive = signal(true);
  readonly search = signal("");
  /** Restricts the table to the blocks below a node of the tree. */
  readonly place = signal<Place | null>(null);
  readonly levels;
  readonly allocated;

  constructor(readonly run: Run) {
    this.moment = signal(run.peakEvent);
    this.range = signal<readonly [number, number]>([0, run.numEvents - 1]);
    this.levels = computed(() => run.levels.at(this.moment.value));
    this.allocated = computed(() => this.levels.value.reduce((sum, each) => sum + each, 0));
  }

  get isAtPeak(): boolean {
    return this.moment.value === this.run.peakEvent;
  }

  chooseMoment(event: number): void {
    this.moment.value = Math.max(0, Math.min(this.run.numEvents - 1, Math.round(event)));
  }

  /** At least a few events wide, and within the run. */
  show(from: number, to: number): void {
    const last = this.run.numEvents - 1;
    const width = Math.min(last, Math.max(8, Math.round(to - from)));
    const first = Math.max(0, Math.min(last - width, Math.round(from)));
    this.range.value = [first, first + width];
  }

  showAll(): void {
    this.show(0, this.run.numEvents - 1);
  }

  zoom(factor: number, around: number): void {
    const [from, to] = this.range.value;
    const width = (to - from) / factor, left = (around - from) / Math.max(1, to - from);
    this.show(around - width * left, around + width * (1 - left));
  }

  pan(part: number): void {
    const [from, to] = this.range.value;
    const by = (to - from) * part;
    this.show(from + by, to + by);
  }
}

export interface Place {
  words: string;
  labels: ReadonlySet<number>;
}
