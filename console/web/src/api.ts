// SPDX-License-Identifier: Apache-2.0

// Requests to the console's server, and the shapes of what it returns.

import { useEffect, useRef, useState } from "preact/hooks";

/** The path under which the console is mounted. It ends with a slash. */
export const root = new URL(document.documentElement.dataset.root ?? "./", location.href).pathname;

export interface Numbers {
	rate: number | null;
	ok: number | null;
	p50: number | null;
	p90: number | null;
	p99: number | null;
	inflight: number;
	canceled?: number;
	limited?: number;
	errors?: Record<string, number>;
	spark?: number[];
}

export interface Problem {
	kind: string;
	severity: "bad" | "warn" | "info";
	addr?: string;
	rule?: string;
	args?: string[];
}

export interface Event {
	at: string;
	kind: string;
	object: string;
	what: string;
	by?: string;
}

export interface ServiceView extends Numbers {
	name: string;
	state: string;
	versions: { version: string; share: number }[] | null;
	up: number;
	total: number;
	callers: number;
	rules?: string[];
	problems?: Problem[];
}

export interface Overview {
	at: string;
	step: number;
	services: ServiceView[];
	totals: Numbers;
	up: number;
	total: number;
	rules: number;
	events: Event[];
	err?: string;
	missing?: string[]; // why services, or states of instances, are missing
	rulesErr?: string;
}

export interface Row extends Numbers {
	name: string;
}

export interface Schema {
	name?: string;
	type: string;
	kind: string;
	fields?: Schema[];
	elem?: Schema;
}

export interface Method {
	name: string;
	args: Schema[] | null;
	results: Schema[] | null;
	values?: boolean;
	kind?: string;
	idempotent?: boolean;
	readOnly?: boolean;
}

export interface Instance extends Numbers {
	addr: string;
	state: string;
	why?: string;
	version?: string;
	zone?: string;
	group?: string;
	tags?: string[];
	weight: number;
	set?: string;
	setWeight?: number;
	setProblem?: string; // why the setting cannot be read
	share: number | null;
	protocols?: string[];
	started?: string;
	took: number;
}

export interface Chart {
	end: string;
	step: number;
	good: number[];
	codes?: Record<string, number[]>;
	canceled?: number[];
	p50: (number | null)[];
	p90: (number | null)[];
	p99: (number | null)[];
}

export interface Me {
	user: string;
	role: string;
	csrf?: string;
	readOnly: boolean;
	environment: string;
	registry: string;
	rules: boolean;
	overrides: boolean;
}

export class Refused extends Error {
	constructor(
		readonly status: number,
		text: string,
		readonly confirm = "", // what the user types to go on all the same
		readonly diff: string[] = [], // what has changed since the user has read it
	) {
		super(text);
	}
}

let me: Me | undefined; // as the console has said last

/** It gets the event "login" when another tab has logged another user in. */
export const logins = new EventTarget();

async function answer<T>(response: Response): Promise<T> {
	const text = await response.text();
	let body: any = null;
	try {
		body = JSON.parse(text);
	} catch {
		throw new Refused(response.status, text.slice(0, 200) || response.statusText);
	}
	if (!response.ok) throw new Refused(response.status, body.error ?? response.statusText, body.confirm, body.diff ?? undefined);
	return body;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
	return answer<T>(await fetch(root + "api/" + path, { signal }));
}

/** Sends a change. A body that is a text is JSON already. Confirm is what the user has typed to confirm it. */
export async function post<T>(path: string, body: unknown, confirm = ""): Promise<T> {
	if (confirm) path += "?confirm=" + encodeURIComponent(confirm);
	const send = () => {
		const headers = { "Content-Type": "application/json", "X-Yodel-Csrf": me?.csrf ?? "" };
		return fetch(root + "api/" + path, { method: "POST", headers, body: typeof body === "string" ? body : JSON.stringify(body) });
	};
	const response = await send();
	const before = me;
	if (response.status !== 403 || !before) return answer<T>(response);
	// A login in another tab has replaced the session. The same user may go on.
	me = await get<Me>("me");
	if (me.csrf === before.csrf) return answer<T>(response);
	if (me.user === before.user && me.role === before.role) return answer<T>(await send());
	logins.dispatchEvent(new Event("login"));
	return answer<T>(response);
}

/** Why the console refuses to send a stream, or "" if it does not. */
export async function refusal(path: string): Promise<string> {
	const abort = new AbortController();
	try {
		const response = await fetch(root + "api/" + path, { signal: abort.signal });
		if (!response.ok) await answer(response);
		return "";
	} catch (e) {
		return e instanceof Refused ? e.message : "";
	} finally {
		abort.abort();
	}
}

/** Logs in with the token of a login link, if the address has one, and returns the user. */
export async function enter(): Promise<Me> {
	const token = /^#login=(\w+)$/.exec(location.hash)?.[1];
	let refused: unknown;
	if (token) {
		history.replaceState(null, "", location.pathname + location.search);
		await post("login", { token, path: root }).catch((e) => (refused = e));
	}
	try {
		return (me = await get<Me>("me"));
	} catch (e) {
		throw refused ?? e; // a link that was used before is no harm to a session
	}
}

export interface Loaded<T> {
	data?: T;
	error?: Refused | Error;
	at: number; // when data came, by this computer's clock
	reload: () => void;
}

/** Reads a path again and again. Data of another path is never returned. */
export function useData<T>(path: string | null, every = 1000, paused = false): Loaded<T> {
	const [state, setState] = useState<{ path: string | null; data?: T; error?: Error; at: number }>({ path: null, at: 0 });
	const [turn, setTurn] = useState(0);
	const first = useRef(true);
	useEffect(() => {
		if (path === null) return;
		let timer = 0;
		const abort = new AbortController();
		const read = async () => {
			try {
				if (!document.hidden || first.current) {
					const data = await get<T>(path, abort.signal);
					first.current = false;
					setState({ path, data, at: Date.now() });
				}
			} catch (e) {
				if (abort.signal.aborted) return;
				setState((old) => ({ path, data: old.path === path ? old.data : undefined, error: e as Error, at: old.path === path ? old.at : 0 }));
			}
			if (every > 0 && !paused && !abort.signal.aborted) timer = setTimeout(read, every);
		};
		read();
		return () => {
			abort.abort();
			clearTimeout(timer);
		};
	}, [path, every, paused, turn]);
	const mine = state.path === path;
	return { data: mine ? state.data : undefined, error: mine ? state.error : undefined, at: mine ? state.at : 0, reload: () => setTurn((n) => n + 1) };
}
