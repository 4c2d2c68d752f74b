// SPDX-License-Identifier: Apache-2.0

// Builds the front end into dist, or into the folder that the first argument names.

import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
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
// The program that embeds the script has a bound for its size.
const script = join(out, "app.js");
writeFileSync(script + ".gz", gzipSync(readFileSync(script), { level: 9 }));
rmSync(script);
copyFileSync("src/index.html", join(out, "index.html"));
