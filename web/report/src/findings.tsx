/** What to take home: what the peak is made of, what to change, what grows. */
import type { Document } from "./document";
import { bytes, counted, share, shortPath, words } from "./format";
import type { Choice } from "./state";

export function Findings({ document, choice }: { document: Document; choice: Choice }) {
  const { advice, leaks } = document;
  return (
    <section aria-labelledby="findings-title">
      <h2 id="findings-title">In short</h2>
      <p class="lead">{summary(choice)}</p>
      {advice.length > 0 && (
        <div class="scroll">
          <table class="advice">
            <caption>What to change</caption>
            <thead><tr><th>Change</th><th class="amount">Saves</th><th class="amount">Reserved then</th><th>How sure</th><th>Price</th></tr></thead>
            <tbody>
              {advice.map((each) => (
                <tr>
                  <td><strong>{each.title}</strong><code>{each.how}</code></td>
                  <td class="amount" data-label="Saves"><span class={each.saved_bytes > 0 ? "saved" : "lost"}>{bytes(each.saved_bytes)}</span></td>
                  <td class="amount" data-label="Reserved then">{bytes(each.peak_reserved_bytes)}{document.estimate.verdict === "oom" && (each.verdict === "fits" ? ", fits" : ", does not fit")}</td>
                  <td data-label="How sure"><span class={`basis ${each.basis}`} title={each.basis === "measured" ? "The job was run with the change" : "Computed from this run"}>{each.basis}</span></td>
                  <td data-label="Price">{each.price}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {leaks.length > 0 && (
        <div class="scroll">
          <table class="leaks">
            <caption>Memory that grows with each step</caption>
            <thead><tr><th>Made at</th><th>Module</th><th class="amount">More per step</th><th class="amount">Held at the end</th><th class="amount">In</th><th>Held by</th></tr></thead>
            <tbody>
              {leaks.map((leak) => (
                <tr>
                  <td data-label="Made at">{leak.where ? <code title={leak.where}>{shortPath(leak.where)}</code> : "unknown"}</td>
                  <td data-label="Module">{leak.module ?? "outside of any module"}</td>
                  <td class="amount lost" data-label="More per step">{bytes(leak.bytes_per_step)}</td>
                  <td class="amount" data-label="Held at the end">{bytes(leak.held_bytes)}</td>
                  <td class="amount" data-label="In">{counted(leak.num_blocks, "block")}</td>
                  <td data-label="Held by">{leak.held_by.join(", ") || "not known"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function summary({ run }: Choice): string {
  const levels = run.levels.at(run.peakEvent), span = run.spanAt(run.peakEvent);
  const total = levels.reduce((sum, each) => sum + each, 0);
  const largest = [...levels.keys()].filter((i) => levels[i]! > 0).sort((a, b) => levels[b]! - levels[a]!).slice(0, 3);
  const parts = largest.map((i) => `${words(run.categories[i]!)} ${bytes(levels[i]!)} (${share(levels[i]!, total)})`);
  const when = span ? ` in step ${span.step}, ${words(span.phase)}` : "";
  return `Most memory is held${when}: ${bytes(total)}. The largest parts are ${parts.join(", ")}.`;
}
