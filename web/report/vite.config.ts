/** Builds the page into one file, src/foretell/report/page.html, with scripts, styles and licences. */
import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync, renameSync } from "node:fs";
import { join, relative, resolve } from "node:path";
import { defineConfig, type Plugin } from "vite";
import { viteSingleFile } from "vite-plugin-singlefile";

const here = import.meta.dirname;
const target = resolve(here, "../../src/foretell/report");

/** The hash of all files here, sorted by name. tests/test_page.py recomputes it without node. */
function hashOfSources(): string {
  const files = readdirSync(here, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(here, join(entry.parentPath, entry.name)))
    .filter((path) => !path.startsWith("node_modules"))
    .sort();
  const hash = createHash("sha256");
  for (const path of files) hash.update(path + "\0").update(readFileSync(join(here, path))).update("\0");
  return hash.digest("hex");
}

/** Records the hash of the sources and the licences of the bundled packages. */
function provenance(): Plugin {
  const packages = new Set<string>();
  return {
    name: "provenance",
    enforce: "post",
    generateBundle: {
      order: "post", // after the scripts have been inlined
      handler(_, bundle) {
        for (const id of this.getModuleIds()) {
          const found = /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(id);
          if (found) packages.add(found[1]!);
        }
        for (const file of Object.values(bundle)) {
          if (file.type !== "asset" || !file.fileName.endsWith(".html")) continue;
          const notices = [...packages].sort().map(notice).join("\n\n").replaceAll("--", "- -");
          file.source = String(file.source)
            .replace("<head>", `<head>\n<!--\nThis page contains:\n\n${notices}\n-->`)
            .replace('name="sources" content=""', `name="sources" content="${hashOfSources()}"`);
        }
      },
    },
    closeBundle: () => renameSync(join(target, "index.html"), join(target, "page.html")),
  };
}

function notice(name: string): string {
  const folder = join(here, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = ["LICENSE", "LICENSE.md", "LICENSE.txt"].map((each) => join(folder, each)).find(existsSync);
  if (!file) throw new Error(`${name} has no licence file; the page must not be distributed without one`);
  return `${name} ${version} (${license})\n${readFileSync(file, "utf8").trim()}`;
}

export default defineConfig({
  root: here,
  build: { outDir: target, emptyOutDir: false, target: "es2022", modulePreload: { polyfill: false } },
  plugins: [viteSingleFile({ removeViteModuleLoader: true }), provenance()],
});
