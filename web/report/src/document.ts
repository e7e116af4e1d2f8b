/** What foretell.report.html writes: its shape, and how it is unpacked. */

export interface Document {
  schema: string;
  version: string;
  view: string;
  estimate: Estimate;
  library_names: string[];
  is_context_given: boolean;
  advice: Advice[];
  leaks: Leak[];
  attribution: Columns;
}

export interface Estimate {
  engine: string;
  verdict: "fits" | "oom";
  gpu: { name: string; total_bytes: number; device_name: string; compute_capability: string };
  torch: string;
  cuda: string | null;
  peak: Record<
    | "allocated_bytes" | "reserved_bytes" | "library_bytes" | "context_bytes"
    | "device_bytes" | "device_low_bytes" | "device_high_bytes" | "request_bytes",
    number
  >;
  used_by_others_bytes: number;
  peak_step: number | null;
  steps: { index: number; peak_allocated_bytes: number; peak_reserved_bytes: number }[];
  oom: { step: number; phase: string; requested_bytes: number; message: string; where: string | null } | null;
  ended_early: string[];
  caveats: string[];
  command: string[];
  seconds: Record<string, number>;
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

/** Numbers of strings: 0 is none. `begin` holds differences, a `lifetime` of 0 lasts to the end. */
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
  segments: Record<"address" | "bytes" | "is_small" | "num_parts" | "part_offset" | "part_bytes" | "part_block", number[]>;
}

export async function decode(base64: string): Promise<Document> {
  if (!base64.trim()) throw new Error("it holds no data");
  if (typeof DecompressionStream === "undefined") throw new Error("it needs a browser from 2023 or later");
  const packed = Uint8Array.from(atob(base64.trim()), (letter) => letter.charCodeAt(0));
  const text = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(text).json()) as Document;
}
