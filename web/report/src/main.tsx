/** Reads the document that Python put into the page and shows it with the view it names. */
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
    packed.remove(); // megabytes of text that nobody needs again
    const view = VIEWS[document.view];
    if (!view) throw new Error(`this page has no view named ${document.view}`);
    render(view(document), place);
  } catch (error) {
    const says = error instanceof Error ? error.message : String(error);
    render(<p class="failure" role="alert">This report could not be shown: {says}</p>, place);
    throw error;
  }
  requestAnimationFrame(() => {
    performance.mark("ready");
    window.document.documentElement.dataset.ready = "yes";
  });
}

void start();
