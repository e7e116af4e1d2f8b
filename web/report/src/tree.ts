/** What holds the memory at one moment, as a tree: by module, by category, or by source line. */
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

const NO_MODULE = "outside any module";
const NO_SOURCE = "unknown line";

export function holdersAt(run: Run, event: number, grouping: Grouping): Holder {
  const numLabels = run.labels.category.length;
  const sizes = new Float64Array(numLabels), counts = new Uint32Array(numLabels);
  for (let i = 0; i < run.numBlocks; i++) {
    if (run.begin[i]! > event) break; // blocks are in order of allocation
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

/** Walks down from the root as far as the names exist: a node that is empty at another moment shows its parent. */
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

/** Where the first view starts: below any node that holds nearly everything. */
export function startingPath(root: Holder): string[] {
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
  /** Path relative to the node that is shown. */
  names: string[];
}

const childrenOf = ({ holder, names }: Shown): Shown[] =>
  [...holder.children.values()].map((child) => ({ holder: child, names: [...names, child.name] }));

/**
 * The visible entries below a node, largest first: its children. A module with more than a third of the bytes is
 * replaced by its own children; otherwise an optimizer step would show two tiles, the model and the rest.
 */
export function visibleBelow(node: Holder, grouping: Grouping): Shown[] {
  const shown = childrenOf({ holder: node, names: [] });
  if (grouping === "module")
    for (;;) {
      const large = shown.findIndex(({ holder }) => holder.bytes > node.bytes / 3 && hasModules(holder));
      if (large < 0) break;
      shown.splice(large, 1, ...childrenOf(shown[large]!));
    }
  return shown.sort((a, b) => b.holder.bytes - a.holder.bytes);
}

/** A module that holds only tensors stays whole: on their own, its tensors would lose its name. */
function hasModules(holder: Holder): boolean {
  for (const child of holder.children.values()) if (child.children.size) return true;
  return false;
}

function path(run: Run, label: number, grouping: Grouping): string[] {
  const textOf = (field: "name" | "module" | "operator" | "where") => run.text(run.labels[field][label]!);
  const category = run.categories[run.labels.category[label]!]!;
  const module = textOf("module"), modules = module ? moduleNames(module) : [NO_MODULE];
  const name = textOf("name")?.split(".").at(-1) ?? textOf("operator") ?? "unnamed";
  const tensor = `${name} (${category.replace("_", " ")})`;
  if (grouping === "module") return [...modules, tensor];
  if (grouping === "category") return [category, ...modules, tensor];
  const [file, line] = splitLine(textOf("where"));
  return line ? [file, `line ${line}`, tensor] : [file, tensor];
}

/** `model.layers.7.mlp` becomes model, layers.7 and mlp: a list of layers is not a level of its own. */
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
  const byCategory = new Float64Array(run.categories.length);
  return { name, bytes: 0, numBlocks: 0, byCategory, children: new Map(), labels: new Set() };
}

function add(node: Holder, label: number, size: number, count: number, run: Run): void {
  node.bytes += size;
  node.numBlocks += count;
  node.byCategory[run.labels.category[label]!]! += size;
  node.labels.add(label);
}
