// SPDX-License-Identifier: Apache-2.0

// JSON whose numbers keep their digits: those of JavaScript round integers beyond 2^53, and 1.0.

const mark = "\uE000"; // a private character, before the digits of a number

/** A number with the digits of a text. */
export const digits = (text: string) => mark + text;

/** The digits of a number, or the text of another value. */
export const plain = (v: unknown) => String(v ?? "").replace(mark, "");

/** The value of a text. Its numbers are as digits returns them. */
export function parse(text: string): unknown {
	JSON.parse(text); // to throw if it is not JSON
	return JSON.parse(text.replace(/"(?:[^"\\]|\\.)*"|-?\d[-+.\deE]*/g, (token) => (token.startsWith('"') ? token : `"${digits(token)}"`)));
}

/** The text of a value that parse has returned. */
export const write = (v: unknown, space?: number) => JSON.stringify(v, null, space).replace(/"\uE000(-?\d[-+.\deE]*)"/g, "$1");
