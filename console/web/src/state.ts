// SPDX-License-Identifier: Apache-2.0

// The state of the views, which is in the address, and the settings of this browser.

import { createContext } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";
import { root, type Me } from "./api";
import { en, type Key } from "./en";
import { zh } from "./zh";

export interface Route {
	parts: string[];
	query: URLSearchParams;
}

function plain(part: string): string {
	try {
		return decodeURIComponent(part);
	} catch {
		return part;
	}
}

function read(): Route {
	const path = location.pathname.startsWith(root) ? location.pathname.slice(root.length) : "";
	return { parts: path.split("/").filter(Boolean).map(plain), query: new URLSearchParams(location.search) };
}

const changed = new EventTarget();

/** The address of a view. Parts are joined by slashes; empty values are left out. The time range stays, and its zoom on pages with charts. */
export function href(parts: string[], query: Record<string, string> = {}): string {
	const here = new URLSearchParams(location.search);
	const q = new URLSearchParams(Object.entries({ ...query, range: here.get("range") ?? "", zoom: (parts[0] === "services" && parts[1] && here.get("zoom")) || "" }).filter(([, v]) => v));
	const text = q.toString();
	return root + parts.map(encodeURIComponent).join("/") + (text ? "?" + text : "");
}

export function go(to: string, replace = false) {
	if (replace) history.replaceState(null, "", to);
	else history.pushState(null, "", to);
	changed.dispatchEvent(new Event("go"));
}

export function useRoute(): Route {
	const [route, setRoute] = useState(read);
	useEffect(() => {
		const update = () => setRoute(read());
		changed.addEventListener("go", update);
		addEventListener("popstate", update);
		return () => {
			changed.removeEventListener("go", update);
			removeEventListener("popstate", update);
		};
	}, []);
	return route;
}

/** A value in the query of the address. To set it drops another one that depends on it. */
export function useParam(name: string, otherwise = "", drop = ""): [string, (value: string) => void] {
	const { query } = useRoute();
	const set = (value: string) => {
		const q = new URLSearchParams(location.search);
		q.delete(drop);
		if (value && value !== otherwise) q.set(name, value);
		else q.delete(name);
		const text = q.toString();
		go(location.pathname + (text ? "?" + text : ""), true);
	};
	return [query.get(name) ?? otherwise, set];
}

export type T = (key: Key, ...args: (string | number)[]) => string;

export function translate(language: string): T {
	const table = language === "zh" ? zh : en;
	// A key may come from an address or from the fleet: what has no text is shown as it is.
	const text = (key: Key) => (Object.hasOwn(table, key) ? table[key] : key.replace(/^\w+\./, ""));
	const joined = (sentence: string) => (language === "zh" ? sentence.replace(/(?<=[\u4e00-\u9fff）]) (?=[\u4e00-\u9fff（])/g, "") : sentence);
	return (key, ...args) => joined(text(key).replace(/\{(\d)(?:\|([^|}]*)\|([^|}]*))?\}/g, (_, i, one, many) => (one === undefined ? String(args[i] ?? "") : Number(args[i]) === 1 ? one : many)));
}

export interface Shell {
	t: T;
	/** A sentence of the fleet, which speaks English, in the language of the page. */
	said: (text: string | undefined) => string;
	me: Me;
	language: string;
	range: string;
	paused: boolean;
	mayChange: boolean;
}

export const ShellContext = createContext<Shell>(null as unknown as Shell);
export const useShell = () => useContext(ShellContext);

/** A setting that the browser keeps. */
export function useSetting(name: string, otherwise: string): [string, (value: string) => void] {
	const [value, setValue] = useState(() => localStorage.getItem("yodel-" + name) ?? otherwise);
	return [
		value,
		(v: string) => {
			localStorage.setItem("yodel-" + name, v);
			setValue(v);
		},
	];
}
