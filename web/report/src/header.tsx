/** The answer: whether the job fits, how much it needs on which card, and how that was estimated. */
import type { Shown } from "./document";
import { bytes, exactBytes, share, shortPath, words } from "./format";
import { switchTheme, theme } from "./theme";

export function Header({ shown, version }: { shown: Shown; version: string }) {
  const { estimate, capacity, time } = shown;
  const { gpu, peak, oom, need, ended_by, together } = estimate;
  const needs = ended_by ? "needs at least" : together ? "needs at most" : "needs";
  const ranOut = oom?.is_together
    ? "the processes of the job do not fit together"
    : oom && `runs out of memory in step ${oom.step}, ${words(oom.phase)}`;
  const engine = estimate.engine === "cpu" ? "the CPU engine" : "the virtual GPU";
  return (
    <header>
      <div class="top">
        <span class={`verdict ${estimate.verdict}`}>{estimate.label}</span>
        <h1>
          {gpu.device_name}{" "}
          <span class="soft">
            {oom
              ? ranOut
              : `${needs} ${bytes(estimate.device_bytes)} of ${bytes(capacity.available_bytes)}, ` +
                `${bytes(capacity.spare_bytes)} to spare`}
            {estimate.of_rank && `, ${estimate.of_rank}`}
          </span>
        </h1>
        <button
          type="button" id="theme" class="quiet" onClick={switchTheme}
          aria-label={`Switch to the ${theme.value === "dark" ? "light" : "dark"} theme`}
        >
          {theme.value === "dark" ? "☀ Light" : "☾ Dark"}
        </button>
      </div>
      {oom && (
        <div class="ran-out">
          {!oom.is_together && (
            <p>
              Tried to allocate {bytes(oom.requested_bytes)}
              {oom.where && <> at <code title={oom.where}>{shortPath(oom.where)}</code></>}.
            </p>
          )}
          {need && (
            <p>
              The job needs <strong>{bytes(need.device_bytes)}</strong>.{" "}
              {need.smallest_gpus.length > 0
                ? `Smallest cards that fit: ${need.smallest_gpus.join(", ")}.`
                : "It fits on no known card."}
            </p>
          )}
          {estimate.need_unknown && <p>How much the job needs is not known: {estimate.need_unknown}.</p>}
          <pre>{oom.message}</pre>
        </div>
      )}
      {ended_by && <p class="incomplete" role="note"><strong>Incomplete</strong>: {ended_by.message}.</p>}
      <CardBar estimate={estimate} />
      <dl class="figures">
        <Figure name="Peak allocated" value={peak.allocated_bytes} note="live tensors" />
        <Figure name="Peak reserved" value={peak.reserved_bytes} note="held by PyTorch's allocator" />
        <Figure
          name="Device memory" value={peak.device_bytes}
          note={`${bytes(peak.device_low_bytes)} to ${bytes(peak.device_high_bytes)} in 95\u00a0% of runs`}
        />
        {together && (
          <Figure
            name={`All ${together.num_processes} processes`} value={estimate.device_bytes}
            note="at most: the sum of their peaks"
          />
        )}
        {oom ? (
          <Figure
            name="Limit for PyTorch" value={capacity.reservable_bytes}
            note="card minus context, libraries and other processes"
          />
        ) : (
          <Figure
            name="Scheduler request" value={peak.request_bytes + estimate.device_bytes - peak.device_bytes}
            note={"enough for 99\u00a0% of runs"}
          />
        )}
        {time && (
          <div>
            <dt>{time.name}</dt>
            <dd>{time.took}</dd>
            <dd class="note">{time.interval}; <a href="#time">{time.bound}</a></dd>
          </div>
        )}
      </dl>
      {estimate.caveats.length > 0 && (
        <ul class="caveats" aria-label="Caveats">{estimate.caveats.map((caveat) => <li>{caveat}</li>)}</ul>
      )}
      <details class="about">
        <summary>
          About this estimate: {engine}, torch {estimate.torch}
          {estimate.cuda && `, CUDA ${estimate.cuda}`}, foretell {version}
        </summary>
        <dl>
          <dt>Command</dt>
          <dd><code>{estimate.command.join(" ") || "a Python function"}</code></dd>
          <dt>GPU</dt>
          <dd>
            {gpu.device_name} ({gpu.name}), compute capability {gpu.compute_capability}, {exactBytes(gpu.total_bytes)}
          </dd>
          <dt>Versions</dt>
          <dd>
            foretell {version}, torch {estimate.torch},{" "}
            {estimate.cuda ? `CUDA ${estimate.cuda}` : "no CUDA"}; {engine}
          </dd>
          <dt>Context</dt>
          <dd>
            {bytes(peak.context_bytes)},{" "}
            {estimate.is_context_given ? "set with --context" : "estimated; set the real value with --context"}
          </dd>
          {estimate.library_names.length > 0 && (
            <>
              <dt>Libraries</dt>
              <dd>{estimate.library_names.join(", ")}: {bytes(peak.library_bytes)}</dd>
            </>
          )}
          <dt>Steps</dt>
          <dd>{estimate.steps}</dd>
          {estimate.batches.map(([title, text]) => <><dt>{title}</dt><dd>{text}</dd></>)}
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

/** The memory of the card from left to right: each part, then what is free. */
function CardBar({ estimate }: { estimate: Shown["estimate"] }) {
  const { gpu, peak, used_by_others_bytes, device_bytes } = estimate;
  const parts = [
    { name: "allocated", size: peak.allocated_bytes },
    { name: "cache", size: peak.reserved_bytes - peak.allocated_bytes },
    { name: "libraries", size: peak.library_bytes },
    { name: "context", size: peak.context_bytes },
    { name: "others", size: used_by_others_bytes + device_bytes - peak.device_bytes },
  ].filter((part) => part.size > 0);
  const used = parts.reduce((sum, part) => sum + part.size, 0);
  const whole = Math.max(gpu.total_bytes, used);
  const legend = [...parts, ...(whole > used ? [{ name: "free", size: whole - used }] : [])];
  return (
    <figure class="card-bar">
      <div role="img" aria-label={legend.map((part) => `${words(part.name)} ${bytes(part.size)}`).join(", ")}>
        {legend.map((part) => (
          <span
            class={`part-${part.name}`} style={{ width: `${(100 * part.size) / whole}%` }}
            title={`${words(part.name)}: ${exactBytes(part.size)}`}
          />
        ))}
      </div>
      <figcaption>
        {legend.map((part) => (
          <span>
            <i class={`part-${part.name}`} /> {words(part.name)} {bytes(part.size)}{" "}
            <span class="soft">{share(part.size, whole)}</span>
          </span>
        ))}
      </figcaption>
    </figure>
  );
}
