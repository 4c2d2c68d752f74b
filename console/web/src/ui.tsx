// SPDX-License-Identifier: Apache-2.0

// What several screens are built of: numbers, states, tables, empty states.

import { Component, type ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Loaded, Numbers, Problem } from "./api";
import type { Key } from "./en";
import { en } from "./en";
import { go, useShell, type T } from "./state";

/** A number with some digits, without an exponent. */
const rounded = (n: number, digits = 3) => Number(n.toPrecision(digits));

export function number(n: number): string {
	if (n >= 1e12) return rounded(n / 1e12) + " T";
	if (n >= 1e9) return rounded(n / 1e9) + " G";
	if (n >= 1e6) return rounded(n / 1e6) + " M";
	if (n >= 1e4) return rounded(n / 1e3) + " k";
	if (n >= 100) return Math.round(n).toString();
	return rounded(n, 2).toString();
}

export function percent(share: number): string {
	const p = share * 100;
	if (p === 100 || p === 0) return p + " %";
	if (p > 99.99) return "99.99 %";
	return (p > 99 || p < 1 ? p.toFixed(2) : p.toFixed(1)) + " %";
}

export function ms(n: number): string {
	if (n >= 48 * 3600e3) return rounded(n / 86400e3) + " d";
	if (n >= 3600e3) return rounded(n / 3600e3) + " h";
	if (n >= 60e3) return rounded(n / 60e3) + " min";
	if (n >= 1000) return rounded(n / 1000) + " s";
	if (n >= 1) return rounded(n) + " ms";
	return rounded(n * 1000) + " µs";
}

export const nanos = (n: number) => ms(Math.max(n, 0) / 1e6);

export function bytes(n: number): string {
	if (n >= 2 ** 30) return rounded(n / 2 ** 30) + " GiB";
	if (n >= 2 ** 20) return rounded(n / 2 ** 20) + " MiB";
	if (n >= 1024) return rounded(n / 1024) + " KiB";
	return n + " B";
}

export function clock(at: string | number): string {
	const d = new Date(at);
	return isNaN(d.getTime()) || d.getUTCFullYear() < 1971 ? "–" : d.toLocaleTimeString("en-GB");
}

export function day(at: string): string {
	const d = new Date(at);
	return isNaN(d.getTime()) || d.getUTCFullYear() < 1971 ? "–" : d.toLocaleDateString("sv-SE") + " " + d.toLocaleTimeString("en-GB");
}

export function age(t: T, at: string | number): string {
	const s = (Date.now() - new Date(at).getTime()) / 1000;
	if (isNaN(s) || new Date(at).getUTCFullYear() < 1971) return "–";
	if (s < 60) return t("age.s", Math.max(0, Math.round(s)));
	if (s < 7200) return t("age.m", Math.round(s / 60));
	if (s < 48 * 3600) return t("age.h", Math.round(s / 3600));
	return t("age.d", Math.round(s / 86400));
}

/** The share of good calls, or "idle". */
export function OK({ of }: { of: Numbers }) {
	const { t } = useShell();
	if (of.rate === null) return <span class="dim">{t("nodata")}</span>;
	if (of.ok === null) return <span class="dim">{t("idle")}</span>;
	return <span class={of.ok < 0.95 ? "bad" : of.ok < 0.99 ? "warn" : ""}>{percent(of.ok)}</span>;
}

export const Rate = ({ of }: { of: Numbers }) => <>{of.rate === null ? "–" : of.ok === null ? "–" : number(of.rate)}</>;
export const Ms = ({ n }: { n: number | null }) => <>{n === null ? "–" : ms(n)}</>;

const signs: Record<string, [string, string] | undefined> = {
	healthy: ["●", "good"],
	up: ["●", "good"],
	ok: ["●", "good"],
	active: ["●", "good"],
	idle: ["○", "dim"],
	listed: ["○", "dim"],
	off: ["○", "dim"],
	expired: ["○", "dim"],
	degraded: ["▲", "warn"],
	warn: ["▲", "warn"],
	ejected: ["▲", "warn"],
	draining: ["▲", "warn"],
	inactive: ["‖", "warn"],
	refused: ["?", "warn"],
	unknown: ["?", "warn"],
	broken: ["✖", "bad"],
	bad: ["✖", "bad"],
	down: ["✖", "bad"],
	silent: ["✖", "bad"],
};

/** A state as a sign and a word, so that colour is not needed. */
export function State({ of }: { of: string }) {
	const { t } = useShell();
	const [sign, tone] = (Object.hasOwn(signs, of) && signs[of]) || ["○", "dim"];
	const key = ("state." + of) as Key;
	return (
		<span class={"state " + tone}>
			<span aria-hidden="true">{sign}</span> {key in en ? t(key) : of}
		</span>
	);
}

export function problemText(t: T, p: Problem): string {
	const key = ("problem." + p.kind) as Key;
	return key in en ? t(key, ...(p.args ?? [])) : p.kind;
}

export function Spark({ points, width = 90, height = 20 }: { points?: number[]; width?: number; height?: number }) {
	if (!points || points.length < 2 || !points.some((p) => p > 0)) return <svg class="spark" width={width} height={height} aria-hidden="true" />;
	const top = Math.max(...points);
	const step = width / (points.length - 1);
	const line = points.map((p, i) => (i * step).toFixed(1) + "," + (height - 1 - (p / top) * (height - 2)).toFixed(1)).join(" ");
	return (
		<svg class="spark" width={width} height={height} aria-hidden="true">
			<polyline points={line} />
		</svg>
	);
}

/** What to show while there is no data: why, and since when. Children get the data. */
export function Wait<D>({ of, children }: { of: Loaded<D>; children: (data: D) => ComponentChildren }) {
	const { t } = useShell();
	const [late, setLate] = useState(false);
	useEffect(() => {
		if (of.data) return;
		const timer = setTimeout(() => setLate(true), 8000);
		return () => clearTimeout(timer);
	}, [of.data === undefined]);
	if (of.data !== undefined) {
		return (
			<>
				{of.error && <div class="banner">{t("stale", clock(of.at), of.error.message)}</div>}
				{children(of.data)}
			</>
		);
	}
	if (of.error) return <Empty title={t("failed")} why={of.error.message} action={<button onClick={of.reload}>{t("retry")}</button>} />;
	return <p class="dim">{late ? t("late") : t("loading")}</p>;
}

export function Empty({ title, why, action }: { title: string; why?: string; action?: ComponentChildren }) {
	return (
		<div class="empty">
			<h2>{title}</h2>
			{why && <p>{why}</p>}
			{action}
		</div>
	);
}

export function Copy({ text, label, cli }: { text: string; label?: string; cli?: boolean }) {
	const { t } = useShell();
	const [copied, setCopied] = useState<string>();
	const copy = async () => {
		try {
			await navigator.clipboard.writeText(text);
			setCopied(text);
		} catch {
			prompt(t("copy"), text); // the browser allows it only on safe origins
		}
	};
	return (
		<button type="button" class="small" onClick={copy} title={text} data-cli={cli}>
			{copied === text ? t("copied") : (label ?? t("copy"))}
		</button>
	);
}

/** Focuses an element when it appears, as its ref: browsers heed autofocus only while a page loads. */
export const focused = (e: HTMLElement | null) => e?.focus();

/** Sends a form: once at a time, with the error of the last time. */
export function useSubmit(send: () => Promise<void>) {
	const [busy, setBusy] = useState(false);
	const [error, setError] = useState("");
	const sending = useRef(false); // a second click may come before busy is shown
	const submit = async (e: { preventDefault: () => void }) => {
		e.preventDefault();
		if (sending.current) return;
		sending.current = true;
		setBusy(true);
		setError("");
		try {
			await send();
		} catch (e) {
			setError((e as Error).message);
		}
		sending.current = false;
		setBusy(false);
	};
	return { submit, busy, error };
}

/** Shows its children, or why they cannot be shown: an answer of the fleet has a shape that no page expects. */
export class Guarded extends Component<{ title: string; retry: string; children: ComponentChildren }, { error?: Error }> {
	override state: { error?: Error } = {};
	static override getDerivedStateFromError = (error: Error) => ({ error });
	override render() {
		const { title, retry, children } = this.props;
		if (!this.state.error) return children;
		return <Empty title={title} why={String(this.state.error.message)} action={<button onClick={() => this.setState({ error: undefined })}>{retry}</button>} />;
	}
}

/** A link inside the console. */
export function Link({ to, children, class: name }: { to: string; children: ComponentChildren; class?: string }) {
	const open = (e: MouseEvent) => {
		if (e.ctrlKey || e.metaKey || e.shiftKey || e.button) return;
		e.preventDefault();
		go(to);
	};
	return (
		<a href={to} class={name} onClick={open}>
			{children}
		</a>
	);
}

export interface Column<R> {
	head: string;
	cell: (row: R) => ComponentChildren;
	text?: (row: R) => string | number | null | undefined; // for CSV
	right?: boolean;
}

const shown = 200;

/** The rows with a key each. While one of them has the focus, they keep their order and new ones come last. */
function useSteady<R>(rows: R[], id: (row: R) => string, within: Element | null): { row: R; key: string }[] {
	const order = useRef(new Map<string, number>());
	const times = new Map<string, number>();
	const keyed = rows.map((row) => {
		const name = id(row);
		times.set(name, (times.get(name) ?? 0) + 1);
		return { row, key: name + " " + times.get(name) };
	});
	const place = (key: string) => order.current.get(key) ?? Number.MAX_SAFE_INTEGER;
	if (within?.contains(document.activeElement)) keyed.sort((a, b) => place(a.key) - place(b.key));
	order.current = new Map(keyed.map(({ key }, i) => [key, i]));
	return keyed;
}

/** A table. j and k go through its rows, Enter opens one. Rows whose cells have buttons need an id, or an address to open. */
export function Table<R>(props: { rows: R[]; columns: Column<R>[]; name: string; id?: (row: R) => string; open?: (row: R) => string; command?: string; tone?: (row: R) => string }) {
	const { rows, columns, name, open, command, tone } = props;
	const { t } = useShell();
	const [all, setAll] = useState(false);
	const body = useRef<HTMLTableSectionElement>(null);
	const steady = useSteady(rows, props.id ?? open ?? (() => ""), body.current);
	const some = all ? steady : steady.slice(0, shown);
	const csv = () => {
		// A text that a spreadsheet would compute gets a leading apostrophe.
		const text = (v: unknown) => (typeof v === "string" && /^[=+\-@\t\r]/.test(v) ? "'" + v : String(v ?? ""));
		const quote = (v: unknown) => '"' + text(v).replaceAll('"', '""') + '"';
		const cells = columns.filter((c) => c.text);
		const lines = [cells.map((c) => quote(c.head)), ...rows.map((r) => cells.map((c) => quote(c.text!(r))))];
		const link = document.createElement("a");
		link.href = URL.createObjectURL(new Blob([lines.map((l) => l.join(",")).join("\r\n")], { type: "text/csv" }));
		link.download = name + ".csv";
		link.click();
		URL.revokeObjectURL(link.href);
	};
	return (
		<div class="scroll">
			<table>
				<thead>
					<tr>
						{columns.map((c) => (
							<th class={c.right ? "right" : ""}>{c.head}</th>
						))}
					</tr>
				</thead>
				<tbody ref={body}>
					{some.map(({ row, key }) => {
						const to = open?.(row);
						const activate = to ? { tabIndex: 0, "data-to": to, onClick: (e: MouseEvent) => !(e.target as Element).closest("a,button,input,select") && go(to) } : {};
						return (
							<tr key={key} class={tone?.(row)} {...activate}>
								{columns.map((c) => (
									<td class={c.right ? "right" : ""}>{c.cell(row)}</td>
								))}
							</tr>
						);
					})}
				</tbody>
			</table>
			<div class="under">
				{rows.length > some.length && (
					<button class="small" onClick={() => setAll(true)}>
						{t("more", rows.length - some.length)}
					</button>
				)}
				<button class="small" onClick={csv}>
					CSV
				</button>
				{command && <Copy text={command} label={t("cli")} cli />}
			</div>
		</div>
	);
}

/** An input for a number. It keeps the text as typed: "1.0" is on the way to "1.05". */
export function NumberInput({ value, set, name, step = "any" }: { value: string; set: (text: string) => void; name?: string; step?: string }) {
	const [text, setText] = useState(value);
	const change = (s: string) => {
		setText(s);
		set(s);
	};
	return <input name={name} type="number" step={step} value={Number(text) === Number(value) ? text : value} onInput={(e) => change(e.currentTarget.value)} />;
}

export function Tabs({ names, at, set }: { names: [string, string][]; at: string; set: (name: string) => void }) {
	return (
		<div class="tabs" role="tablist">
			{names.map(([name, text]) => (
				<button type="button" role="tab" aria-selected={name === at} onClick={() => set(name)}>
					{text}
				</button>
			))}
		</div>
	);
}

/** The columns of the numbers of something. */
export function numberColumns<R extends Numbers>(t: T): Column<R>[] {
	return [
		{ head: t("rate"), right: true, cell: (r) => <Rate of={r} />, text: (r) => r.rate },
		{ head: t("success"), right: true, cell: (r) => <OK of={r} />, text: (r) => r.ok },
		{ head: "p50", right: true, cell: (r) => <Ms n={r.p50} />, text: (r) => r.p50 },
		{ head: "p99", right: true, cell: (r) => <Ms n={r.p99} />, text: (r) => r.p99 },
	];
}
