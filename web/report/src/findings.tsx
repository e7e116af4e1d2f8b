/** The summary: what the peak consists of, which changes would lower it, and what leaks. */
import type { Estimate, Shown, StepPeak } from "./document";
import { bytes, number, share, shortPath, when, words } from "./format";
import type { Choice } from "./state";

const BASIS = { measured: "Measured by running the job with the change", estimated: "Computed from this run" };

export function Findings({ shown: { estimate }, choice }: { shown: Shown; choice: Choice }) {
  const { advice, leaks } = estimate;
  return (
    <section aria-labelledby="findings-title">
      <h2 id="findings-title">Summary</h2>
      <p class="lead">{summary(choice)}</p>
      <Peaks peaks={estimate.peaks} />
      {advice.length > 0 && (
        <div class="scroll">
          <table class="advice">
            <caption>Suggested changes</caption>
            <thead>
              <tr>
                <th>Change</th>
                <th class="amount">Saves</th>
                <th class="amount">Reserved after</th>
                <th>Basis</th>
                <th>Cost</th>
              </tr>
            </thead>
            <tbody>
              {advice.map((each) => (
                <tr>
                  <td><strong>{each.title}</strong><code>{each.how}</code></td>
                  <td class="amount" data-label="Saves">
                    <span class={each.saved_bytes > 0 ? "saved" : "lost"}>{bytes(each.saved_bytes)}</span>
                  </td>
                  <td class="amount" data-label="Reserved after">
                    {bytes(each.peak_reserved_bytes)}
                    {estimate.verdict === "oom" && (each.verdict === "fits" ? ", fits" : ", does not fit")}
                  </td>
                  <td data-label="Basis">
                    <span class={`basis ${each.basis}`} title={BASIS[each.basis]}>{each.basis}</span>
                  </td>
                  <td data-label="Cost">{each.price}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {leaks.length > 0 && (
        <div class="scroll">
          <table class="leaks">
            <caption>Memory that grows every step</caption>
            <thead>
              <tr>
                <th>Allocated at</th>
                <th>Module</th>
                <th class="amount">Growth per step</th>
                <th class="amount">Held at the end</th>
                <th class="amount">Blocks</th>
                <th>Held by</th>
              </tr>
            </thead>
            <tbody>
              {leaks.map((leak) => (
                <tr>
                  <td data-label="Allocated at">
                    {leak.where ? <code title={leak.where}>{shortPath(leak.where)}</code> : "unknown"}
                  </td>
                  <td data-label="Module">{leak.module ?? "outside any module"}</td>
                  <td class="amount lost" data-label="Growth per step">{bytes(leak.bytes_per_step)}</td>
                  <td class="amount" data-label="Held at the end">{bytes(leak.held_bytes)}</td>
                  <td class="amount" data-label="Blocks">{number(leak.num_blocks)}</td>
                  <td data-label="Held by">{leak.held_by.join(", ") || "unknown"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <Causes estimate={estimate} />
    </section>
  );
}

/** Only where something differs: otherwise the peak says it all. */
function Peaks({ peaks }: { peaks: StepPeak[] }) {
  if (new Set(peaks.map((each) => each.sizes.join())).size < 2) return null;
  return (
    <div class="scroll">
      <table class="peaks">
        <caption>Peak by step</caption>
        <thead>
          <tr><th>Step</th><th class="amount">Allocated</th><th class="amount">Reserved</th><th /></tr>
        </thead>
        <tbody>
          {peaks.map(({ place, sizes, is_peak }) => (
            <tr class={is_peak ? "is-peak" : undefined}>
              <td>{place}</td>
              {sizes.map((size) => <td class="amount">{size}</td>)}
              <td>{is_peak && "peak reserved"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Why the interval is as wide as it is, largest cause first. */
function Causes({ estimate: { causes, peak } }: { estimate: Estimate }) {
  if (!causes.length) return null;
  const totals = [
    peak.device_bytes - peak.device_low_bytes, peak.device_high_bytes - peak.device_bytes,
    peak.request_bytes - peak.device_bytes,
  ];
  return (
    <div class="scroll">
      <table class="causes">
        <caption>
          What the interval around {bytes(peak.device_bytes)} and the request of {bytes(peak.request_bytes)} are made of
        </caption>
        <thead>
          <tr>
            <th>Cause</th>
            <th class="amount">Below</th>
            <th class="amount">Above</th>
            <th class="amount">In request</th>
            <th>Why</th>
          </tr>
        </thead>
        <tbody>
          {causes.map(({ title, below_bytes, above_bytes, request_bytes, why }) => (
            <tr>
              <td>{title}</td>
              <td class="amount" data-label="Below">{minus(below_bytes)}</td>
              <td class="amount" data-label="Above">{plus(above_bytes)}</td>
              <td class="amount" data-label="In request">{plus(request_bytes)}</td>
              <td class="why">{why}</td>
            </tr>
          ))}
          <tr class="is-peak">
            <td>Total</td>
            {totals.map((size, i) => (
              <td class="amount" data-label={["Below", "Above", "In request"][i]}>{(i ? plus : minus)(size)}</td>
            ))}
            <td />
          </tr>
        </tbody>
      </table>
    </div>
  );
}

const minus = (size: number): string => (size ? bytes(-size) : "0");
const plus = (size: number): string => (size ? `+${bytes(size)}` : "0");

function summary({ run }: Choice): string {
  const levels = run.levels.at(run.peakEvent), span = run.spanAt(run.peakEvent);
  const total = levels.reduce((sum, each) => sum + each, 0);
  const largest = [...levels.keys()].filter((i) => levels[i]! > 0).sort((a, b) => levels[b]! - levels[a]!).slice(0, 3);
  const parts = largest.map((i) => `${words(run.categories[i]!)} ${bytes(levels[i]!)} (${share(levels[i]!, total)})`);
  const moment = span ? ` in ${when(span)}` : "";
  return `Allocated memory peaks at ${bytes(total)}${moment}. Largest categories: ${parts.join(", ")}.`;
}
