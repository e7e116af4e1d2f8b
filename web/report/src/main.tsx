/** Decodes the document that Python embedded in the page and shows it with the view it names. */
import { render, type ComponentChild } from "preact";
import "./style.css";
import { decode, type Document } from "./document";
import { Report } from "./report";
import { startTheme } from "./theme";

const VIEWS: Record<string, (document: Document) => ComponentChild> = {
  report: (document) => <Report document={document} />,
};

async function start(): Promise<void> {
  startTheme();
  const place = window.document.getElementById("app")!;
  place.replaceChildren();
  try {
    const packed = window.document.getElementById("data")!;
    const document = await decode(packed.textContent ?? "");
    packed.remove(); // frees megabytes of text
    const view = VIEWS[document.view];
    if (!view) throw new Error(`unknown view: ${document.view}`);
    render(view(document), place);
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    render(<p class="failure" role="alert">Cannot show this report: {message}</p>, place);
    throw error;
  }
  // Everything is drawn in layout effects and microtasks, so it is complete before the next frame begins.
  requestAnimationFrame(() => {
    performance.mark("ready");
    window.document.documentElement.dataset.ready = "yes";
  });
}

void start();
