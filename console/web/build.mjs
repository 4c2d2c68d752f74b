// SPDX-License-Identifier: Apache-2.0

// Builds the front end into dist, or into the folder that the first argument names.

import { readFileSync, mkdirSync, writeFileSync, copyFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

const out = process.argv[2] ?? "dist";
mkdirSync(out, { recursive: true });
await build({
	entryPoints: { app: "src/main.tsx", style: "src/app.css" },
	outdir: out,
	bundle: true,
	minify: true,
	format: "iife",
	target: "es2022",
	charset: "utf8",
	legalComments: "none",
	jsx: "automatic",
	jsxImportSource: "preact",
});
copyFileSync("src/index.html", join(out, "index.html"));

// The catalogue of errors is the page docs/errors.md, by section.
const sections = readFileSync("../../docs/errors.md", "utf8").split(/^## /m).slice(1);
const errors = sections
	.map((s) => /^(YDL\d+): (.*)\n([^]*)$/.exec(s))
	.filter((m) => m)
	.map(([, id, title, text]) => ({ id, title, text: text.trim() }));
writeFileSync(join(out, "errors.json"), "[\n" + errors.map((e) => JSON.stringify(e)).join(",\n") + "\n]\n");
