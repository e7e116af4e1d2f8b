/** The whole page, from the verdict at the top to single blocks at the bottom. */
import { useSignal } from "@preact/signals";
import { Fragment } from "preact";
import { useMemo } from "preact/hooks";
import { Blocks } from "./blocks";
import type { Document } from "./document";
import { Findings } from "./findings";
import { bytes, number, when } from "./format";
import { Header } from "./header";
import { Holders } from "./holders";
import { Performance } from "./performance";
import { Ranks } from "./ranks";
import { Run } from "./run";
import { Segments } from "./segments";
import { Choice } from "./state";
import { Timeline } from "./timeline";

export function Report({ document }: { document: Document }) {
  const picked = useSignal(0);
  const shown = picked.value ? document.others[picked.value - 1]! : document;
  const choice = useMemo(() => new Choice(new Run(shown.attribution)), [shown]);
  return (
    <>
      <a class="skip" href="#timeline">Skip to the timeline</a>
      <Header shown={shown} version={document.version} />
      <main>
        {document.world && <Ranks world={document.world} run={choice.run} picked={picked} />}
        <Fragment key={picked.value}>
          <Findings shown={shown} choice={choice} />
          {shown.time && <Performance time={shown.time} />}
          <Timeline choice={choice} limit={shown.capacity.reservable_bytes} />
          <Moment choice={choice} />
          <Holders choice={choice} />
          <Segments choice={choice} columns={shown.attribution} />
          <Blocks choice={choice} />
        </Fragment>
      </main>
      <footer>
        foretell {document.version}. Event numbers count the allocations and frees on one device. Sizes are binary:
        1 GiB = 1,073,741,824 bytes.
      </footer>
    </>
  );
}

/** The selected moment; stays visible while the sections that depend on it are scrolled. */
function Moment({ choice }: { choice: Choice }) {
  const { run } = choice;
  const event = choice.moment.value, span = run.spanAt(event);
  return (
    <div class="moment" role="status" aria-live="polite">
      <span>
        <strong>{choice.isAtPeak ? "At the peak" : "At the selected moment"}</strong>: event {number(event)}
        {span && `, ${when(span)}`}:{" "}
        <strong data-testid="moment-allocated">{bytes(choice.allocated.value)}</strong> allocated,{" "}
        {bytes(run.reservedAt(event))} reserved
      </span>
      <button type="button" id="to-peak" disabled={choice.isAtPeak} onClick={() => choice.chooseMoment(run.peakEvent)}>
        Back to the peak
      </button>
    </div>
  );
}
