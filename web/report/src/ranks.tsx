/** The ranks of a job side by side: what each needs at its peak; the whole page shows the one that is picked. */
import type { Signal } from "@preact/signals";
import { CategoryName } from "./category";
import type { World } from "./document";
import { bytes, exactBytes, words } from "./format";
import type { Run } from "./run";

export function Ranks({ world: { title, rows }, run, picked }: { world: World; run: Run; picked: Signal<number> }) {
  const highest = Math.max(...rows.map(({ peak }) => peak.device_bytes));
  const stacks = rows.map((row) => partsOf(row, run));
  const names = [...new Set(stacks.flat().map(({ name }) => name))];
  return (
    <section id="ranks" aria-labelledby="ranks-title">
      <h2 id="ranks-title">Ranks</h2>
      <p>
        {title}. {rows.length === 1 ? "All need the same." : "Pick one: the whole page then shows it."}
      </p>
      {rows.length > 1 && (
        <div class="scroll">
          <table class="ranks">
            <thead>
              <tr>
                <th>Ranks</th>
                <th class="bar">Device memory at the peak</th>
                <th class="amount">Allocated</th>
                <th class="amount">Reserved</th>
                <th class="amount">Libraries</th>
                <th class="amount">Device</th>
                <th class="amount">Spare</th>
                <th />
              </tr>
            </thead>
            <tbody>
              {rows.map(({ ranks, remark, peak, spare_bytes, view }, i) => (
                <tr class={view === picked.value ? "is-picked" : undefined}>
                  <td>
                    <label title={view === null ? "Too many ranks differ: this page does not contain it" : undefined}>
                      <input
                        type="radio" name="rank" checked={view === picked.value} disabled={view === null}
                        onChange={() => (picked.value = view!)}
                      />
                      {ranks}
                    </label>
                  </td>
                  <td class="bar">
                    <div style={{ width: `${(100 * peak.device_bytes) / highest}%` }}>
                      {stacks[i]!.map(({ name, size }) => (
                        <span
                          title={`${words(name)}: ${exactBytes(size)}`}
                          style={{ background: `var(--${name})`, width: `${(100 * size) / peak.device_bytes}%` }}
                        />
                      ))}
                    </div>
                  </td>
                  <td class="amount" data-label="Allocated">{bytes(peak.allocated_bytes)}</td>
                  <td class="amount" data-label="Reserved">{bytes(peak.reserved_bytes)}</td>
                  <td class="amount" data-label="Libraries">{bytes(peak.library_bytes)}</td>
                  <td class="amount" data-label="Device">{bytes(peak.device_bytes)}</td>
                  <td class={spare_bytes < 0 ? "amount lost" : "amount"} data-label="Spare">{bytes(spare_bytes)}</td>
                  <td>{remark || (view === 0 && "needs the most")}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {rows.length > 1 && <p class="phases">{names.map((name) => <span><CategoryName name={name} /></span>)}</p>}
    </section>
  );
}

/** From the left: categories as in the timeline, then what is not live tensors. */
function partsOf({ peak, by_category }: World["rows"][number], run: Run): { name: string; size: number }[] {
  const categories = run.stacking.map((i) => run.categories[i]!);
  const live = by_category
    ? categories.map((name) => ({ name, size: by_category[name] ?? 0 }))
    : [{ name: "allocated", size: peak.allocated_bytes }];
  return [
    ...live,
    { name: "cache", size: peak.reserved_bytes - peak.allocated_bytes },
    { name: "libraries", size: peak.library_bytes },
    { name: "context", size: peak.context_bytes },
  ].filter(({ size }) => size > 0);
}
