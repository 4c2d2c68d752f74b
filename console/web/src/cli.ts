// SPDX-License-Identifier: Apache-2.0

// The commands that the pages offer to copy. Names come from the fleet, so each word is quoted for
// a shell: nothing in a name can become a command.

import { parse, write } from "./json";

function word(text: string): string {
	const plain = text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, "");
	return /^[\w./:@%+=,-]+$/.test(plain) ? plain : "'" + plain.replaceAll("'", "'\\''") + "'";
}

/** A name or an address of the fleet. One that begins with a dash would be taken for a flag. */
const name = (text: string) => word(text.replace(/^-+/, ""));

export const cli = {
	services: () => "yodel ls --all",
	instances: (service: string) => "yodel ls " + name(service),
	methods: (service: string) => "yodel describe " + name(service),
	tap: (service: string) => (service ? "yodel tap " + name(service) : "yodel tap"),
	samples: (service: string, trace = "") => "yodel samples" + (service ? " " + name(service) : "") + (trace ? " --trace " + name(trace) : ""),
	rules: (service: string) => (service ? "yodel rule ls " + name(service) : "yodel rule ls"),
	doctor: () => "yodel doctor",
	/** A call. An array of messages becomes messages one after the other for methods that send a stream. */
	call: (method: string, kind: string | undefined, args: string, metadata: Record<string, string>) => {
		const dot = method.lastIndexOf(".");
		const value = parse(args);
		const text = (kind === "upload" || kind === "duplex") && Array.isArray(value) ? value.map((m) => write(m)).join(" ") : write(value);
		const extra = Object.entries(metadata).map(([k, v]) => " -m " + word(k + "=" + v));
		return "yodel call " + name(method.slice(0, dot) + "/" + method.slice(dot + 1)) + " '" + text.replaceAll("'", "'\\''") + "'" + extra.join("");
	},
};
