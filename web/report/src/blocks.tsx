/** A table of all blocks that can be sorted, searched and filtered. Only visible rows are in the DOM. */
import { useComputed, useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { CategoryName } from "./category";
import { bytes, exactBytes, number, shortPath, words } from "./format";
import type { Run } from "./run";
import type { Choice, Place } from "./state";

const ROW = 28, VISIBLE = 16, MARGIN = 8;

interface Column {
  key: string;
  title: string;
  /** As in grid-template-columns. */
  width: string;
  isNumber?: boolean;
  /** Truncated at the start, because its end tells most. */
  isPath?: boolean;
  show: (run: Run, block: number) => string;
  explain?: (run: Run, block: number) => string;
  /** The sort key of a block, for ascending order. */
  order: (run: Run) => (block: number) => number;
}

type TextField = "name" | "module" | "operator" | "phase" | "where";

const text = (field: TextField, title: string, width: string, shown = (value: string) => value): Column => ({
  key: field,
  title,
  isPath: field === "name" || field === "module" || field === "where",
  width,
  show: (run, block) => shown(run.labelOf(block, field) ?? "–"),
  explain: (run, block) => run.labelOf(block, field) ?? "",
  order: (run) => {
    const ranks = ranksOf(run);
    return (block) => ranks[run.labels[field][run.label[block]!]!]!;
  },
});

const COLUMNS: Column[] = [
  {
    key: "bytes", title: "Size", width: "6.2rem", isNumber: true,
    show: (run, block) => bytes(run.bytes[block]!),
    explain: (run, block) =>
      `${exactBytes(run.bytes[block]!)}, ${number(run.bytes[block]! - run.rounding[block]!)} requested`,
    order: (run) => (block) => run.bytes[block]!,
  },
  {
    key: "category", title: "Category", width: "8.7rem",
    show: (run, block) => words(run.labelOf(block, "category")!),
    order: (run) => (block) => run.category(block),
  },
  text("name", "Name", "minmax(8.5rem, 1.4fr)"),
  text("module", "Module", "minmax(12rem, 2.4fr)"),
  text("operator", "Operator", "minmax(7rem, 1.2fr)"),
  text("phase", "Phase", "5.8rem"),
  {
    key: "step", title: "Step", width: "3.6rem", isNumber: true,
    show: (run, block) => number(run.step[block]!),
    order: (run) => (block) => run.step[block]!,
  },
  {
    key: "lifetime", title: "Lifetime", width: "8.8rem", isNumber: true,
    show: (run, block) =>
      `${number(run.begin[block]!)} – ${run.end[block] === Infinity ? "end" : number(run.end[block]!)}`,
    explain: (run, block) => {
      const end = run.end[block] === Infinity ? "never freed" : `freed at event ${run.end[block]}`;
      return `allocated at event ${run.begin[block]}, ${end}`;
    },
    order: (run) => (block) => Math.min(run.end[block]!, run.numEvents) - run.begin[block]!,
  },
  text("where", "Source line", "minmax(9rem, 1.4fr)", shortPath),
];
const SEARCHED: TextField[] = ["name", "module", "operator", "where", "phase"];
const GRID = COLUMNS.map((column) => column.width).join(" ");

export function Blocks({ choice }: { choice: Choice }) {
  const { run } = choice;
  const sorting = useSignal<{ key: string; isDescending: boolean }>({ key: "bytes", isDescending: true });
  const scroll = useSignal(0);
  const active = useSignal(0);
  const viewport = useRef<HTMLDivElement>(null);
  const rows = useComputed(() => sorted(run, filtered(choice), sorting.value.key, sorting.value.isDescending));
  const total = rows.value.reduce((sum, block) => sum + run.bytes[block]!, 0);
  useLayoutEffect(() => {
    viewport.current!.scrollTop = 0;
    scroll.value = active.value = 0;
  }, [rows.value]);

  const first = Math.max(0, Math.floor(scroll.value / ROW) - MARGIN);
  const last = Math.min(rows.value.length, Math.ceil(scroll.value / ROW) + VISIBLE + MARGIN);
  const sortBy = (key: string) => {
    const { key: before, isDescending } = sorting.value;
    const isNumber = !!COLUMNS.find((column) => column.key === key)!.isNumber;
    sorting.value = { key, isDescending: key === before ? !isDescending : isNumber };
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const strides: Record<string, number> = {
      ArrowDown: 1, ArrowUp: -1, PageDown: VISIBLE - 1, PageUp: 1 - VISIBLE, Home: -Infinity, End: Infinity,
    };
    const stride = strides[event.key];
    const block = rows.value[active.value];
    if (event.key === "Enter" && block !== undefined) return choice.chooseMoment(run.begin[block]!);
    if (stride === undefined) return;
    event.preventDefault();
    active.value = Math.max(0, Math.min(rows.value.length - 1, active.value + stride));
    const box = viewport.current!, top = active.value * ROW;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + ROW > box.scrollTop + box.clientHeight - ROW) box.scrollTop = top + 2 * ROW - box.clientHeight;
  };

  return (
    <section id="blocks" aria-labelledby="blocks-title">
      <div class="section-head">
        <h2 id="blocks-title">Blocks</h2>
        <span class="soft" id="block-count">
          {number(rows.value.length)} of {number(run.numBlocks)}, {bytes(total)}
        </span>
      </div>
      <div class="filters">
        <input
          type="search" placeholder="Search name, module, operator, file…" aria-label="Search blocks"
          value={choice.search.value}
          onInput={(event) => (choice.search.value = event.currentTarget.value)}
        />
        <label>
          <input
            type="checkbox" id="only-alive" checked={choice.onlyAlive.value}
            onChange={(event) => (choice.onlyAlive.value = event.currentTarget.checked)}
          />{" "}
          only blocks alive at the {choice.isAtPeak ? "peak" : "selected moment"}
        </label>
        {choice.place.value && (
          <button
            type="button" class="chip" aria-label={`Remove filter ${choice.place.value.words}`}
            onClick={() => (choice.place.value = null)}
          >
            {choice.place.value.words} ✕
          </button>
        )}
      </div>
      <div class="chips" role="group" aria-label="Categories">
        {run.stacking.map((i) => (
          <button
            type="button" class="chip" data-filter={run.categories[i]} aria-pressed={choice.categories.value.has(i)}
            onClick={() => toggle(choice, i)}
          >
            <CategoryName name={run.categories[i]!} />
          </button>
        ))}
      </div>
      <div
        ref={viewport} class="blocks" role="grid" tabIndex={0}
        aria-label="Blocks: arrow keys move, Enter selects the moment of allocation"
        aria-rowcount={rows.value.length + 1}
        aria-activedescendant={rows.value.length ? `row-${active.value}` : undefined}
        style={{ height: `${(VISIBLE + 1) * ROW}px` }}
        onScroll={(event) => (scroll.value = event.currentTarget.scrollTop)} onKeyDown={onKeyDown}
      >
        <div class="row head" role="row" aria-rowindex={1} style={{ gridTemplateColumns: GRID }}>
          {COLUMNS.map(({ key, title, isNumber }) => {
            const order = sorting.value.key !== key ? "none" : sorting.value.isDescending ? "descending" : "ascending";
            return (
              <div role="columnheader" aria-sort={order} class={isNumber ? "amount" : ""}>
                <button type="button" data-column={key} onClick={() => sortBy(key)}>
                  {title}{{ none: "", ascending: " ▲", descending: " ▼" }[order]}
                </button>
              </div>
            );
          })}
        </div>
        <div class="rows" role="rowgroup" style={{ height: `${rows.value.length * ROW}px` }}>
          {Array.from(rows.value.subarray(first, last), (block, i) => (
            <div
              class={`row${first + i === active.value ? " active" : ""}`} role="row" key={block}
              id={`row-${first + i}`} aria-rowindex={first + i + 2} data-block={block}
              style={{ gridTemplateColumns: GRID, top: `${(first + i) * ROW}px` }}
              onClick={() => (active.value = first + i)} onDblClick={() => choice.chooseMoment(run.begin[block]!)}
            >
              {COLUMNS.map(({ key, isNumber, isPath, show, explain }) => (
                <div
                  role="gridcell" class={isNumber ? "amount" : isPath ? "path" : ""}
                  title={(explain ?? show)(run, block)}
                >
                  {key === "category" && <i style={{ background: `var(--${run.labelOf(block, "category")})` }} />}
                  {isPath ? <bdi>{show(run, block)}</bdi> : show(run, block)}
                </div>
              ))}
            </div>
          ))}
        </div>
        {!rows.value.length && <p class="nothing">No matching blocks.</p>}
      </div>
    </section>
  );
}

/** Scrolls to the table and shows only these blocks. */
export function showInTable(choice: Choice, place: Place | null, onlyAlive = true): void {
  choice.place.value = place;
  choice.search.value = "";
  choice.categories.value = new Set();
  choice.onlyAlive.value = onlyAlive;
  document.getElementById("blocks")?.scrollIntoView();
}

function toggle(choice: Choice, category: number): void {
  const chosen = new Set(choice.categories.value);
  if (!chosen.delete(category)) chosen.add(category);
  choice.categories.value = chosen;
}

/** Ranks of strings in natural order (layers.2 before layers.10), so that sorting blocks compares only numbers. */
const rankCache = new WeakMap<Run, Float64Array>();
function ranksOf(run: Run): Float64Array {
  let ranks = rankCache.get(run);
  if (!ranks) {
    const { compare } = new Intl.Collator("en", { numeric: true });
    const order = run.texts.map((_, i) => i).sort((a, b) => compare(run.text(a) ?? "\uffff", run.text(b) ?? "\uffff"));
    ranks = new Float64Array(order.length);
    order.forEach((string, rank) => (ranks![string] = rank));
    ranks[0] = Infinity; // missing text sorts last
    rankCache.set(run, ranks);
  }
  return ranks;
}

function filtered(choice: Choice): Uint32Array {
  const { run } = choice;
  const moment = choice.onlyAlive.value ? choice.moment.value : null;
  const isWanted = matchingLabels(choice);
  const found = new Uint32Array(run.numBlocks);
  let count = 0;
  for (let block = 0; block < run.numBlocks; block++)
    if (isWanted[run.label[block]!] && (moment === null || run.isAlive(block, moment))) found[count++] = block;
  return found.slice(0, count);
}

function sorted(run: Run, blocks: Uint32Array, key: string, isDescending: boolean): Uint32Array {
  const orderOf = COLUMNS.find((column) => column.key === key)!.order(run);
  const sign = isDescending ? -1 : 1;
  const keys = new Float64Array(run.numBlocks);
  for (const block of blocks) keys[block] = sign * orderOf(block);
  // Not their difference: for two blocks without a name that is NaN.
  return blocks.sort((a, b) => (keys[a] === keys[b] ? a - b : keys[a]! < keys[b]! ? -1 : 1));
}

/** Filters that depend only on labels are evaluated once per label, not once per block. */
function matchingLabels({ run, categories, place, search }: Choice): Uint8Array {
  const terms = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const includes = (word: string) => (each: string | null) => (each?.toLowerCase().includes(word) ? 1 : 0);
  const found = terms.map((word) => Uint8Array.from(run.texts, includes(word)));
  const { labels } = run;
  return Uint8Array.from(labels.category, (category, label) => {
    if (categories.value.size && !categories.value.has(category)) return 0;
    if (place.value && !place.value.labels.has(label)) return 0;
    const isFound = (matches: Uint8Array) => SEARCHED.some((field) => matches[labels[field][label]!]);
    return found.every(isFound) ? 1 : 0;
  });
}
