/** What holds the memory at the selected moment: a treemap coloured by category, and the same data as a table. */
import { useSignal } from "@preact/signals";
import { hierarchy, treemap, type HierarchyRectangularNode } from "d3-hierarchy";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { showInTable } from "./blocks";
import { CategoryName } from "./category";
import { bytes, counted, exactBytes, share, shortPath, words } from "./format";
import type { Run } from "./run";
import type { Choice } from "./state";
import { follow, holdersAt, startingPath, visibleBelow, type Grouping, type Holder, type Shown } from "./tree";
import { useWidth } from "./width";

const GROUPINGS: Record<Grouping, string> = { module: "Module", category: "Category", source: "Source line" };
const MAX_TILES = 160;
const MAX_ROWS = 12;
const NAMED_WIDTH = 54; // pixels

export function Holders({ choice }: { choice: Choice }) {
  const { run } = choice;
  const grouping = useSignal<Grouping>("module");
  const moment = choice.moment.value;
  const root = useMemo(() => holdersAt(run, moment, grouping.value), [run, moment, grouping.value]);
  const wanted = useSignal<string[] | null>(null);
  const { node, names } = follow(root, wanted.value ?? startingPath(root));
  const children = visibleBelow(node, grouping.value);
  const showsAll = useSignal(false);
  const go = (path: string[]) => {
    wanted.value = path;
    showsAll.value = false;
  };
  const open = (child: Shown) => {
    const path = [...names, ...child.names];
    if (child.holder.children.size) go(path);
    else showBlocks(choice, child.holder, path);
  };
  const up = () => names.length && go(names.slice(0, -1));
  const rows = showsAll.value ? children : children.slice(0, MAX_ROWS);
  return (
    <section id="holders" aria-labelledby="holders-title">
      <div class="section-head">
        <h2 id="holders-title">What holds the memory</h2>
        <div class="tools" role="group" aria-label="Group by">
          {(Object.keys(GROUPINGS) as Grouping[]).map((each) => (
            <button
              type="button" data-grouping={each} aria-pressed={grouping.value === each}
              onClick={() => ((grouping.value = each), (wanted.value = null))}
            >
              {GROUPINGS[each]}
            </button>
          ))}
        </div>
      </div>
      <nav class="crumbs" aria-label="Path">
        {["all", ...names].map((name, depth) => (
          <>
            {depth > 0 && <span aria-hidden="true">›</span>}
            <button
              type="button" class="link" aria-current={depth === names.length} disabled={depth === names.length}
              onClick={() => go(names.slice(0, depth))} title={name}
            >
              {label(name)}
            </button>
          </>
        ))}
        <span class="soft">
          {bytes(node.bytes)} in {counted(node.numBlocks, "block")}, {share(node.bytes, root.bytes)} of the total
        </span>
        <button type="button" class="link" id="show-blocks" onClick={() => showBlocks(choice, node, names)}>
          Show these blocks
        </button>
      </nav>
      <div class="holders">
        <Treemap node={node} shown={children} run={run} open={open} up={up} />
        <div class="scroll">
          <table class="list">
            <caption class="visually-hidden">Memory held by {names.at(-1) ?? "all"}, largest first</caption>
            <colgroup><col class="who" /><col class="size" /><col /></colgroup>
            <tbody>
              {rows.map((child) => (
                <tr key={fullName(child)}>
                  <th scope="row">
                    <button type="button" class="link" title={fullName(child)} onClick={() => open(child)}>
                      {label(child.holder.name)}
                    </button>
                  </th>
                  <td class="amount" title={exactBytes(child.holder.bytes)}>{bytes(child.holder.bytes)}</td>
                  <td class="bar"><Bar holder={child.holder} run={run} most={children[0]!.holder.bytes} /></td>
                </tr>
              ))}
            </tbody>
          </table>
          {children.length > rows.length && (
            <button type="button" class="link" onClick={() => (showsAll.value = true)}>
              Show {children.length - rows.length} more
            </button>
          )}
        </div>
      </div>
    </section>
  );
}

/** The name relative to the node that is shown. */
const fullName = (shown: Shown): string => shown.names.join(".");

function label(name: string): string {
  return name.includes("/") ? shortPath(name) : words(name);
}

function showBlocks(choice: Choice, node: Holder, names: string[]): void {
  showInTable(choice, names.length ? { words: names.map(label).join(" › "), labels: node.labels } : null);
}

function Bar({ holder, run, most }: { holder: Holder; run: Run; most: number }) {
  return (
    <div aria-hidden="true">
      {run.stacking.map((i) => {
        const width = `${(100 * holder.byCategory[i]!) / most}%`;
        return holder.byCategory[i]! > 0 && <span style={{ width, background: `var(--${run.categories[i]})` }} />;
      })}
    </div>
  );
}

interface Tile {
  shown: Shown;
  /** The category that gives the colour; null for the frame around all categories of a holder. */
  category: number | null;
  bytes: number;
  children?: Tile[];
}

type Rectangle = HierarchyRectangularNode<Tile>;

interface TreemapProps {
  node: Holder;
  shown: Shown[];
  run: Run;
  open: (child: Shown) => void;
  up: () => void;
}

function Treemap({ node, shown, run, open, up }: TreemapProps) {
  const place = useRef<HTMLDivElement>(null);
  const width = useWidth(place);
  const focused = useSignal(0);
  const isByKeyboard = useRef(false);
  const hovered = useSignal<Rectangle | null>(null);
  useLayoutEffect(() => {
    if (isByKeyboard.current) focus(0); // the tile that had the focus is gone
    isByKeyboard.current = false;
    focused.value = 0;
  }, [node]);
  const height = width.value < 500 ? 300 : 380;
  const tiles = useMemo(
    () => (width.value ? layout(shown.slice(0, MAX_TILES), run, width.value, height) : []),
    [node, width.value, height],
  );

  const onKeyDown = (event: KeyboardEvent) => {
    const target = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    isByKeyboard.current = true;
    if (event.key === "Escape" || event.key === "Backspace") up();
    else if (target) focus(Math.max(0, Math.min(tiles.length - 1, focused.value + target)));
    else return;
    event.preventDefault();
  };
  const focus = (i: number) => {
    focused.value = i;
    (place.current!.querySelectorAll("button")[i] as HTMLElement | undefined)?.focus();
  };
  return (
    <div
      ref={place} class="treemap" role="group" aria-label="Treemap: arrow keys move, Enter opens, Escape goes up"
      style={{ height: `${height}px` }} onKeyDown={onKeyDown} onMouseDown={() => (isByKeyboard.current = false)}
    >
      {tiles.map((tile, i) => {
        const { holder } = tile.data.shown;
        return (
          <button
            type="button" key={fullName(tile.data.shown)} class="tile" tabIndex={i === focused.value ? 0 : -1}
            aria-label={`${fullName(tile.data.shown)}: ${bytes(holder.bytes)}, ${share(holder.bytes, node.bytes)}`}
            style={box(tile, 0, 0)} onClick={() => open(tile.data.shown)} onFocus={() => (focused.value = i)}
            onMouseEnter={() => (hovered.value = tile)} onMouseLeave={() => (hovered.value = null)}
          >
            {(tile.children ?? []).map((part) => (
              <span
                class="fill" key={part.data.category}
                style={{ ...box(part, tile.x0, tile.y0), background: `var(--${run.categories[part.data.category!]})` }}
              >
                {part.x1 - part.x0 > 62 && part.y1 - part.y0 > 20 && bytes(part.data.bytes)}
              </span>
            ))}
            {tile.x1 - tile.x0 > NAMED_WIDTH && tile.y1 - tile.y0 > 34 && (
              <span class={`name${/\d$/.test(holder.name) ? " numbered" : ""}`}><bdi>{label(holder.name)}</bdi></span>
            )}
          </button>
        );
      })}
      {hovered.value && tiles.includes(hovered.value) && (
        <TileTooltip tile={hovered.value} all={node.bytes} run={run} width={width.value} height={height} />
      )}
    </div>
  );
}

interface TileTooltipProps {
  tile: Rectangle;
  /** Bytes of the whole treemap. */
  all: number;
  run: Run;
  width: number;
  height: number;
}

/** Next to the tile, on the side towards the middle of the treemap. */
function TileTooltip({ tile, all, run, width, height }: TileTooltipProps) {
  const { shown } = tile.data, { holder } = shown;
  const side = tile.x0 + tile.x1 > width ? { right: `${width - tile.x0 + 4}px` } : { left: `${tile.x1 + 4}px` };
  const end = tile.y0 + tile.y1 > height ? { bottom: `${height - tile.y1}px` } : { top: `${tile.y0}px` };
  const isWide = tile.x1 - tile.x0 > width / 2; // no space on either side
  return (
    <div class="tooltip" role="tooltip" style={{ ...(isWide ? { left: `${tile.x0 + 12}px` } : side), ...end }}>
      <strong>{fullName(shown)}</strong>
      <div>{exactBytes(holder.bytes)}, {share(holder.bytes, all)}, {counted(holder.numBlocks, "block")}</div>
      <table>
        <tbody>
          {[...run.stacking].reverse().map((c) => holder.byCategory[c]! > 0 && (
            <tr><th><CategoryName name={run.categories[c]!} /></th><td>{bytes(holder.byCategory[c]!)}</td></tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function layout(all: Shown[], run: Run, width: number, height: number): Rectangle[] {
  const tile = (shown: Shown): Tile => ({
    shown, category: null, bytes: shown.holder.bytes,
    children: run.stacking
      .filter((c) => shown.holder.byCategory[c]! > 0)
      .map((category) => ({ shown, category, bytes: shown.holder.byCategory[category]! })),
  });
  const everything: Tile = { shown: all[0]!, category: null, bytes: 0, children: all.map(tile) };
  if (!all.length) return [];
  const root = hierarchy(everything)
    .sum((each) => (each.children ? 0 : each.bytes))
    .sort((a, b) => (b.value ?? 0) - (a.value ?? 0));
  const placed = treemap<Tile>()
    .size([width, height])
    .paddingInner((each) => (each.depth === 0 ? 3 : 1))
    .paddingTop((each) => (each.depth === 1 && each.y1 - each.y0 > 34 && each.x1 - each.x0 > NAMED_WIDTH ? 17 : 0))
    .round(true)(root);
  return placed.children ?? [];
}

function box(tile: Rectangle, left: number, top: number) {
  return {
    left: `${tile.x0 - left}px`, top: `${tile.y0 - top}px`,
    width: `${tile.x1 - tile.x0}px`, height: `${tile.y1 - tile.y0}px`,
  };
}
