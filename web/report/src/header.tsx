/** The answer: does it fit, how much it needs, of which card, and how that was found. */
import type { Document } from "./document";
import { bytes, exactBytes, share, shortPath, words } from "./format";
import { switchTheme, theme } from "./theme";

export function Header({ document, limit }: { document: Document; limit: number }) {
  const { estimate } = document;
  const { gpu, peak, oom } = estimate;
  const spare = gpu.total_bytes - peak.device_bytes - estimate.used_by_others_bytes;
  return (
    <header>
      <div class="top">
        <span class={`verdict ${estimate.verdict}`}>{oom ? "OUT OF MEMORY" : "FITS"}</span>
        <h1>
          {gpu.device_name}{" "}
          <span class="soft">
            {oom ? `runs out in step ${oom.step}, ${words(oom.phase)}` : `needs ${bytes(peak.device_bytes)} of ${bytes(gpu.total_bytes)}, ${bytes(spare)} to spare`}
          </span>
        </h1>
        <button type="button" id="theme" class="quiet" onClick={switchTheme} aria-label={`Switch to ${theme.value === "dark" ? "light" : "dark"} colours`}>
          {theme.value === "dark" ? "☀ Light" : "☾ Dark"}
        </button>
      </div>
      {oom && (
        <div class="ran-out">
          <p>
            {oom.where && <>At <code title={oom.where}>{shortPath(oom.where)}</code>: </>}
            it asked for {bytes(oom.requested_bytes)} more.
          </p>
          <pre>{oom.message}</pre>
        </div>
      )}
      <CardBar document={document} />
      <dl class="figures">
        <Figure name="Peak allocated" value={peak.allocated_bytes} note="live tensors" />
        <Figure name="Peak reserved" value={peak.reserved_bytes} note="all PyTorch holds" />
        <Figure
          name="On the device" value={peak.device_bytes}
          note={`${bytes(peak.device_low_bytes)} to ${bytes(peak.device_high_bytes)}: 95 of 100 runs`}
        />
        {oom
          ? <Figure name="PyTorch may hold" value={limit} note="the card without context, libraries, others" />
          : <Figure name="Ask a scheduler for" value={peak.request_bytes} note="99 of 100 runs need less" />}
      </dl>
      {estimate.caveats.length > 0 && (
        <ul class="caveats" aria-label="To keep in mind">{estimate.caveats.map((caveat) => <li>{caveat}</li>)}</ul>
      )}
      <details class="about">
        <summary>
          How this was found: {estimate.engine === "cpu" ? "the CPU engine" : "the virtual GPU"}, torch {estimate.torch}
          {estimate.cuda && `, CUDA ${estimate.cuda}`}, foretell {document.version}
        </summary>
        <dl>
          <dt>Command</dt><dd><code>{estimate.command.join(" ") || "a function"}</code></dd>
          <dt>Card</dt><dd>{gpu.device_name} ({gpu.name}), compute capability {gpu.compute_capability}, {exactBytes(gpu.total_bytes)}</dd>
          <dt>Versions</dt>
          <dd>foretell {document.version}, torch {estimate.torch}, {estimate.cuda ? `CUDA ${estimate.cuda}` : "no CUDA"}; {estimate.engine === "cpu" ? "the CPU engine" : "the virtual GPU"}</dd>
          <dt>Context</dt>
          <dd>{bytes(peak.context_bytes)}, {document.is_context_given ? "as given with --context" : "a guess; --context says what yours takes"}</dd>
          {document.library_names.length > 0 && <><dt>Libraries</dt><dd>{document.library_names.join(", ")}: {bytes(peak.library_bytes)}</dd></>}
          <dt>Steps</dt><dd>{estimate.steps.length} seen{estimate.peak_step !== null && `; reserved was highest first in step ${estimate.peak_step}`}</dd>
          {estimate.ended_early.map((what) => <><dt>Ended early</dt><dd>{what}</dd></>)}
        </dl>
      </details>
    </header>
  );
}

function Figure({ name, value, note }: { name: string; value: number; note: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd title={exactBytes(value)}>{bytes(value)}</dd>
      <dd class="note">{note}</dd>
    </div>
  );
}

/** The card from left to right: each part, and what is free. */
function CardBar({ document }: { document: Document }) {
  const { gpu, peak, used_by_others_bytes } = document.estimate;
  const parts = [
    { name: "allocated", size: peak.allocated_bytes },
    { name: "cache", size: peak.reserved_bytes - peak.allocated_bytes },
    { name: "libraries", size: peak.library_bytes },
    { name: "context", size: peak.context_bytes },
    { name: "others", size: used_by_others_bytes },
  ].filter((part) => part.size > 0);
  const used = parts.reduce((sum, part) => sum + part.size, 0);
  const whole = Math.max(gpu.total_bytes, used);
  const legend = [...parts, ...(whole > used ? [{ name: "free", size: whole - used }] : [])];
  return (
    <figure class="card-bar">
      <div role="img" aria-label={legend.map((part) => `${part.name} ${bytes(part.size)}`).join(", ")}>
        {legend.map((part) => <span class={`part-${part.name}`} style={{ width: `${(100 * part.size) / whole}%` }} title={`${part.name}: ${exactBytes(part.size)}`} />)}
      </div>
      <figcaption>
        {legend.map((part) => <span><i class={`part-${part.name}`} /> {part.name} {bytes(part.size)} <span class="soft">{share(part.size, whole)}</span></span>)}
      </figcaption>
    </figure>
  );
}
