/** Numbers, names and paths for display. Sizes match `foretell.units.format_bytes`. */
const KIB = 1024, MIB = KIB * 1024, GIB = MIB * 1024;

export function bytes(count: number): string {
  const sign = count < 0 ? "−" : "", size = Math.abs(count);
  if (size >= GIB) return `${sign}${(size / GIB).toFixed(2)} GiB`;
  if (size >= MIB) return `${sign}${(size / MIB).toFixed(size >= 100 * MIB ? 0 : 1)} MiB`;
  if (size >= KIB) return `${sign}${(size / KIB).toFixed(1)} KiB`;
  return `${sign}${size} B`;
}

const grouped = new Intl.NumberFormat("en");
export const number = (count: number): string => grouped.format(count);
export const exactBytes = (count: number): string => `${bytes(count)} (${number(count)} bytes)`;
export const share = (part: number, whole: number): string =>
  whole > 0 ? `${((100 * part) / whole).toFixed(part * 10 < whole ? 1 : 0)}\u00a0%` : "";
export const percent = (part: number): string => `${Math.round(100 * part)}\u00a0%`;
/** A time within a longer one, to a hundredth of that or finer. */
export const milliseconds = (ms: number, whole: number): string => {
  const factor = whole >= 1000 ? 1000 : 1;
  const digits = Math.max(0, 2 - Math.floor(Math.log10(whole / factor)));
  return `${Number((ms / factor).toFixed(digits))} ${factor > 1 ? "s" : "ms"}`;
};
export const counted = (count: number, noun: string): string => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
const DISPLAY_NAMES: Record<string, string> = {
  optimizer_state: "optimizer state", optimizer: "optimizer step", other: "outside the phases",
  others: "other processes",
};
export const words = (name: string): string => DISPLAY_NAMES[name] ?? name;

/** A step and phase in words; an evaluation is not part of the step after it. */
export const when = ({ step, phase }: { step: number; phase: string }): string =>
  phase !== "evaluation" ? `step ${step}, ${words(phase)}`
  : step > 0 ? `evaluation after step ${step - 1}` : "evaluation before training";

/** The path of a library's file from its package on, or the last two components of one of the user's own: short, yet
 * enough to recognise the file. Tooltips show the full path. */
export const shortPath = (path: string): string =>
  /[/\\](?:site|dist)-packages[/\\](.+)/.exec(path)?.[1] ?? path.split("/").slice(-2).join("/");
