/** A tree of who holds the memory at one moment: by module, by category, or by source line. */
import type { Run } from "./run";

export type Grouping = "module" | "category" | "source";

export interface Holder {
  name: string;
  bytes: number;
  numBlocks: number;
  byCategory: Float64Array;
  children: Map<string, Holder>;
  labels: Set<number>;
}

const NO_MODULE = "outside of any module";
const NO_SOURCE = "unknown line";

export function holdersAt(run: Run, event: number, grouping: Grouping): Holder {
  const numLabels = run.labels.category.length;
  const sizes = new Float64Array(numLabels), counts = new Uint32Array(numLabels);
  for (let i = 0; i < run.numBlocks; i++) {
    if (run.begin[i]! > event) break; // they are in the order of their allocation
    if (run.end[i]! <= event) continue;
    sizes[run.label[i]!]! += run.bytes[i]!;
    counts[run.label[i]!]!++;
  }
  const root = holder("all", run);
  for (let label = 0; label < numLabels; label++) {
    if (!counts[label]) continue;
    let node = root;
    add(node, label, sizes[label]!, counts[label]!, run);
    for (const name of path(run, label, grouping)) {
      let child = node.children.get(name);
      if (!child) node.children.set(name, (child = holder(name, run)));
      add(child, label, sizes[label]!, counts[label]!, run);
      node = child;
    }
  }
  return root;
}

/** Down from the root; stops where a name is missing, so a place that is empty at another moment shows its parent. */
export function follow(root: Holder, names: readonly string[]): { node: Holder; names: string[] } {
  let node = root;
  const found: string[] = [];
  for (const name of names) {
    const child = node.children.get(name);
    if (!child) break;
    found.push(name);
    node = child;
  }
  return { node, names: found };
}

/** A first view that says something: below whatever holds nearly everything. */
export function interestingPlace(root: Holder): string[] {
  const names: string[] = [];
  let node = root;
  for (;;) {
    const largest = [...node.children.values()].find((child) => child.bytes > 0.9 * node.bytes);
    if (!largest || largest.children.size < 2) return names;
    names.push(largest.name);
    node = largest;
  }
}

export interface Shown {
  holder: Holder;
  /** Below the place that is shown. */
  names: string[];
}

const childrenOf = ({ holder, names }: Shown): Shown[] => [...holder.children.values()].map((child) => ({ holder: child, names: [...names, child.name] }));

/**
 * What is shown of a place, the largest first: its children. A module that has much of it is shown as its own parts, else
 * the view of an optimizer step is two tiles, the model and the rest.
 */
export function shownBelow(node: Holder, grouping: Grouping): Shown[] {
  const shown = childrenOf({ holder: node, names: [] });
  if (grouping === "module")
    for (;;) {
      const large = shown.findIndex(({ holder }) => holder.bytes > node.bytes / 3 && hasModules(holder));
      if (large < 0) break;
      shown.splice(large, 1, ...childrenOf(shown[large]!));
    }
  return shown.sort((a, b) => b.holder.bytes - a.holder.bytes);
}

/** Tensors have nothing below them; a module that holds tensors alone is not taken apart, as they would be without its name. */
function hasModules(holder: Holder): boolean {
  for (const child of holder.children.values()) if (child.children.size) return true;
  return false;
}

function path(run: Run, label: number, grouping: Grouping): string[] {
  const said = (field: "name" | "module" | "operator" | "where") => run.text(run.labels[field][label]!);
  const category = run.categories[run.labels.category[label]!]!;
  const module = said("module"), modules = module ? moduleNames(module) : [NO_MODULE];
  const tensor = `${said("name")?.split(".").at(-1) ?? said("operator") ?? "unnamed"} (${category.replace("_", " ")})`;
  if (grouping === "module") return [...modules, tensor];
  if (grouping === "category") return [category, ...modules, tensor];
  const [file, line] = splitLine(said("where"));
  return line ? [file, `line ${line}`, tensor] : [file, tensor];
}

/** `model.layers.7.mlp` has the parts model, layers.7 and mlp: a list of layers is no level of its own. */
export function moduleNames(module: string): string[] {
  const names: string[] = [];
  for (const part of module.split(".")) {
    if (/^\d+$/.test(part) && names.length) names[names.length - 1] += `.${part}`;
    else names.push(part);
  }
  return names;
}

function splitLine(where: string | null): [string, string | null] {
  if (!where) return [NO_SOURCE, null];
  const colon = where.lastIndexOf(":");
  return colon < 0 ? [where, null] : [where.slice(0, colon), where.slice(colon + 1)];
}

function holder(name: string, run: Run): Holder {
  return { name, bytes: 0, numBlocks: 0, byCategory: new Float64Array(run.categories.length), children: new Map(), labels: new Set() };
}

function add(node: Holder, label: number, size: number, count: number, run: Run): void {
  node.bytes += size;
  node.numBlocks += count;
  node.byCategory[run.labels.category[label]!]! += size;
  node.labels.add(label);
}
