/** Light or dark: the system setting until the reader switches. Canvases take their colours from the style sheet. */
import { signal } from "@preact/signals";

type Theme = "light" | "dark";
const system = matchMedia("(prefers-color-scheme: dark)");
export const theme = signal<Theme>("light");

export function startTheme(): void {
  show(storedTheme() ?? (system.matches ? "dark" : "light"));
  system.addEventListener("change", () => storedTheme() ?? show(system.matches ? "dark" : "light"));
  // Paper is white, so canvases are redrawn in light colours before printing.
  let before = theme.value;
  matchMedia("print").addEventListener("change", ({ matches }) => {
    if (matches) before = theme.value;
    show(matches ? "light" : before);
  });
}

export function switchTheme(): void {
  show(theme.value === "dark" ? "light" : "dark");
  try {
    localStorage.setItem("foretell-theme", theme.value);
  } catch {
    // A page opened from a file may not have storage.
  }
}

/** Cached until the theme changes: a chart asks hundreds of times per drawing. */
const cache = new Map<string, string>();
export function colour(name: string): string {
  let value = cache.get(name);
  if (value === undefined) {
    value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    cache.set(name, value);
  }
  return value;
}

function show(chosen: Theme): void {
  document.documentElement.dataset.theme = chosen;
  cache.clear();
  theme.value = chosen;
}

function storedTheme(): Theme | null {
  try {
    const stored = localStorage.getItem("foretell-theme");
    return stored === "dark" || stored === "light" ? stored : null;
  } catch {
    return null;
  }
}
