/** Light or dark: the system's, until the reader says otherwise. Canvases read their colours from the style sheet. */
import { signal } from "@preact/signals";

type Theme = "light" | "dark";
const system = matchMedia("(prefers-color-scheme: dark)");
export const theme = signal<Theme>("light");

export function startTheme(): void {
  show(remembered() ?? (system.matches ? "dark" : "light"));
  system.addEventListener("change", () => remembered() ?? show(system.matches ? "dark" : "light"));
  // Paper is white; canvases must know before they are printed.
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
    // A page opened from a file may have no storage.
  }
}

/** Kept until the theme changes: a chart asks hundreds of times for each drawing. */
const known = new Map<string, string>();
export function colour(name: string): string {
  let value = known.get(name);
  if (value === undefined) {
    value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    known.set(name, value);
  }
  return value;
}

function show(chosen: Theme): void {
  document.documentElement.dataset.theme = chosen;
  known.clear();
  theme.value = chosen;
}

function remembered(): Theme | null {
  try {
    const said = localStorage.getItem("foretell-theme");
    return said === "dark" || said === "light" ? said : null;
  } catch {
    return null;
  }
}
