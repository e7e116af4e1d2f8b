/** The document that foretell.report.html writes: its types and how to decode it. */

export interface Document extends Shown {
  schema: string;
  version: string;
  view: string;
  /** null: the job is one process. */
  world: World | null;
  /** Other ranks that the reader can pick. */
  others: Shown[];
}

/** One process, or one rank and those like it. */
export interface Shown {
  estimate: Estimate;
  capacity: Capacity;
  /** null: not asked for, or not known. */
  time: StepTime | null;
  attribution: Columns;
}

export interface World {
  /** How many were run. */
  title: string;
  rows: {
    ranks: string;
    /** What went wrong. */
    remark: string;
    peak: Estimate["peak"];
    spare_bytes: number;
    /** 0: that of the verdict; n: the nth of `others`; null: not in the page. */
    view: number | null;
    /** Of its allocated peak; null: not in the page. */
    by_category: Record<string, number> | null;
  }[];
}

export interface Estimate {
  engine: string;
  verdict: "fits" | "oom";
  /** The verdict in words. */
  label: string;
  gpu: { name: string; device_name: string; compute_capability: string; total_bytes: number };
  /** Which ranks the numbers are of; null: the job is one process. */
  of_rank: string | null;
  torch: string;
  cuda: string | null;
  peak: Record<
    | "allocated_bytes" | "reserved_bytes" | "library_bytes" | "context_bytes"
    | "device_bytes" | "device_low_bytes" | "device_high_bytes" | "request_bytes",
    number
  >;
  used_by_others_bytes: number;
  is_context_given: boolean;
  library_names: string[];
  /** How many were run, and where the peak was. */
  steps: string;
  peaks: StepPeak[];
  oom: {
    step: number; phase: string; requested_bytes: number; message: string; where: string | null;
    /** Each process fits on its own, but together they need more than the card has. */
    is_together: boolean;
  } | null;
  /** Title and text of each row about the batches. */
  batches: [string, string][];
  ended_early: string[];
  /** All processes together. */
  device_bytes: number;
  /** Several processes that used the GPU at the same time; the peaks are those of the largest. */
  together: { num_processes: number; device_bytes: number; reserved_bytes: number } | null;
  /** What a job that ran out of memory needs; null: it fits, or that is not known. */
  need: { device_bytes: number; reserved_bytes: number; request_bytes: number; smallest_gpus: string[] } | null;
  need_unknown: string | null;
  /** What ended the run before its time; null: the run is complete. */
  ended_by: { kind: string; message: string } | null;
  /** What the interval and the request consist of. */
  causes: { title: string; below_bytes: number; above_bytes: number; request_bytes: number; why: string }[];
  caveats: string[];
  command: string[];
  advice: Advice[];
  leaks: Leak[];
}

/** How much of the card the job can use. */
export interface Capacity {
  /** Card memory minus what other processes use. */
  available_bytes: number;
  spare_bytes: number;
  /** What PyTorch can reserve: the available memory minus context and libraries. */
  reservable_bytes: number;
}

/** The peak of some steps that look the same, or of something outside the steps. */
export interface StepPeak {
  place: string;
  /** Allocated and reserved. */
  sizes: [string, string];
  is_peak: boolean;
}

export interface Advice {
  title: string;
  how: string;
  saved_bytes: number;
  peak_reserved_bytes: number;
  basis: "measured" | "estimated";
  price: string;
  verdict: "fits" | "oom";
}

export interface Leak {
  where: string | null;
  module: string | null;
  bytes_per_step: number;
  held_bytes: number;
  num_blocks: number;
  held_by: string[];
}

/** Time and utilization of a steady step; times in words are those of the terminal. Shares are from 0 to 1. */
export interface StepTime {
  sentence: string;
  /** What would help, if the GPU waits. */
  remedy: string | null;
  /** Of the time: of a step, or of a pass without gradients. */
  name: string;
  took: string;
  interval: string;
  bound: string;
  phases: { phase: string; took: string }[];
  activity: { label: string; share: number; low: number; high: number }[];
  classes: KernelRow[];
  modules: KernelRow[];
  unknown_share: number;
  timeline: {
    bucket_ms: number;
    phase: string[];
    gract: number[];
    smact: number[];
    dram_active: number[];
    /** Classes of kernels, slowest first. */
    stack: { kind: string; label: string; shares: number[] }[];
  };
  /** When nothing runs on the GPU, and the operator that ends it. */
  waits: { begin_ms: number; took: string; before: string | null; phase: string }[];
}

/** GPU time of a class of kernels, or of a module. */
export interface KernelRow {
  label: string;
  /** Only of a class. */
  kind?: string;
  /** Where most of it is spent. */
  module?: string | null;
  took: string;
  share: number;
  of_peak: number;
  of_bandwidth: number;
}

/** Strings are indices into `strings`; 0 is none. `begin` is delta-encoded; a `lifetime` of 0 means never freed. */
export interface Columns {
  num_events: number;
  peak_event: number;
  fragmentation_bytes: number;
  slack_bytes: number;
  categories: string[];
  strings: (string | null)[];
  labels: Record<"category" | "name" | "module" | "operator" | "phase" | "where", number[]>;
  spans: Record<"begin" | "step" | "phase", number[]>;
  reserved: Record<"event" | "bytes", number[]>;
  blocks: Record<"begin" | "lifetime" | "bytes" | "rounding" | "step" | "label", number[]>;
  segments: Record<
    "address" | "bytes" | "is_small" | "num_parts" | "part_offset" | "part_bytes" | "part_block",
    number[]
  >;
}

export async function decode(base64: string): Promise<Document> {
  if (!base64.trim()) throw new Error("it contains no data");
  if (typeof DecompressionStream === "undefined") throw new Error("it needs a browser from 2023 or later");
  const packed = Uint8Array.from(atob(base64.trim()), (letter) => letter.charCodeAt(0));
  const text = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(text).json()) as Document;
}
