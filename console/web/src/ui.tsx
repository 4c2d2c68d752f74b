// SPDX-License-Identifier: Apache-2.0

// What several screens are built of: numbers, states, tables, empty states.

import { Component, type ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { post, Refused, type Loaded, type Numbers, type Problem } from "./api";
import type { Key } from "./en";
import { en } from "./en";
import { go, useShell, type Shell, type T } from "./state";

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

/** How a call ended: ok, or a code. */
export function Outcome({ code, title }: { code?: string; title?: string }) {
	const { t } = useShell();
	return <span class={code ? "bad" : "good"} title={title} lang={title ? "en" : undefined}>{code ? "✖ " + code : "● " + t("good")}</span>;
}

/** The share of good calls, or "idle". */
export function OK({ of }: { of: Numbers }) {
	const { t } = useShell();
	if (of.rate === null) return <span class="dim">{t("nodata")}</span>;
	if (of.ok === null) return <span class="dim">{t("idle")}</span>;
	return <span class={of.ok < 0.95 ? "bad" : of.ok < 0.99 ? "warn" : ""}>{percent(of.ok)}</span>;
}

export const Rate = ({ of }: { of: Numbers }) => <>{of.rate === null || !of.rate ? "–" : number(of.rate)}</>;
export const Ms = ({ n }: { n: number | null }) => <>{n === null ? "–" : ms(n)}</>;

const signs: Record<string, [string, string] | undefined> = {
	healthy: ["●", "good"],
	up: ["●", "good"],
	ok: ["●", "good"],
	info: ["•", "dim"],
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
	"rolled back": ["▲", "warn"],
	refused: ["?", "warn"],
	unknown: ["?", "warn"],
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

export function problemText({ t, said }: Pick<Shell, "t" | "said">, p: Problem): string {
	const key = ("problem." + p.kind) as Key;
	return key in en ? t(key, ...(p.args ?? []).map(said)) : p.kind;
}

/** A text of the fleet. Sentences in English within other languages are marked as such. */
export function Quote({ text }: { text: string }) {
	if (!document.documentElement.lang.startsWith("zh")) return <>{text}</>; // also before the login
	const parts = text.split(/((?:^|(?<=[^\w ]))[ "]*(?:[\w"'./:@%-]+[ ,;:]+){2,}[^\u2e80-\u9fff\uff00-\uffef]*)/u);
	return <>{parts.map((part, i) => (i % 2 && /[a-z]{2} [a-z]+/.test(part) ? <span lang="en">{part}</span> : part))}</>;
}

/** The problems of a service, the worst first, each with its sign. A rule that stops the service can be removed here. */
export function Problems({ of, service, most = 99 }: { of?: Problem[]; service: string; most?: number }) {
	const { t, said, mayChange } = useShell();
	return (
		<>
			{(of ?? []).slice(0, most).map((p) => (
				<div class={p.severity === "info" ? "dim" : p.severity}>
					<span aria-hidden="true">{p.severity === "bad" ? "✖" : p.severity === "warn" ? "▲" : "•"}</span> <Quote text={problemText({ t, said }, p)} /> {p.rule && mayChange && <UndoRule service={service} id={p.rule} />}
				</div>
			))}
		</>
	);
}

/** A button that removes a rule, after a question for the reason. */
function UndoRule({ service, id }: { service: string; id: string }) {
	const { t } = useShell();
	const [open, setOpen] = useState(false);
	const [reason, setReason] = useState("");
	const { submit, busy, error, ask } = useSubmit(async (confirm) => {
		await post("rules/remove", { service, id, reason }, confirm);
		setOpen(false);
	});
	if (!open) return <button class="small" data-undo-rule={id} onClick={() => setOpen(true)}>↶ {t("rules.undo")}</button>;
	return (
		<form onSubmit={submit}>
			<label>
				{t("reason")} <input required ref={focused} name="undoreason" value={reason} onInput={(e) => setReason(e.currentTarget.value)} />
			</label>{" "}
			<button type="submit" disabled={busy}>{t("rules.remove")}</button> {error && <span class="bad">✖ <Quote text={error} /></span>} {ask}
		</form>
	);
}

/** Whether a service needs attention. */
export const wrong = (problems?: Problem[]) => !!problems?.some((p) => p.severity !== "info");

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
				{of.error && <div class="banner"><Quote text={t("stale", clock(of.at), of.error.message)} /></div>}
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
			{why && <p><Quote text={why} /></p>}
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
		<button type="button" class="small" onClick={copy} title={text} data-copy data-cli={cli}>
			{copied === text ? t("copied") : (label ?? t("copy"))}
		</button>
	);
}

/** Focuses an element when it appears, as its ref: browsers heed autofocus only while a page loads. */
export const focused = (e: HTMLElement | null) => e?.focus();

/** Sends a form: once at a time, with the error of the last time. */
export function useSubmit(send: (confirm: string) => Promise<void>) {
	const { t } = useShell();
	const [busy, setBusy] = useState(false);
	const [error, setError] = useState("");
	const [refused, setRefused] = useState<Refused | null>(null);
	const [typed, setTyped] = useState("");
	const sending = useRef(false); // a second click may come before busy is shown
	const submit = async (e: { preventDefault: () => void }) => {
		e.preventDefault();
		if (sending.current) return;
		sending.current = true;
		setBusy(true);
		setError("");
		try {
			await send(typed);
			setRefused(null);
		} catch (e) {
			setError((e as Error).message);
			setRefused(e instanceof Refused ? e : null);
		}
		setTyped("");
		sending.current = false;
		setBusy(false);
	};
	// What the user types to confirm a change that stops calls, and what has changed since the user has read it.
	const ask = refused?.confirm ? (
		<label class="bad">
			{t("confirm.type", refused.confirm)} <input name="confirm" value={typed} onInput={(e) => setTyped(e.currentTarget.value)} />
		</label>
	) : refused?.diff.length ? (
		<pre class="diff">{refused.diff.map((l) => <span class={l.startsWith("+") ? "good" : "bad"}>{l + "\n"}</span>)}</pre>
	) : null;
	return { submit, busy, error, ask };
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
			<table class="list-when-narrow">
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
									<td class={c.right ? "right" : ""} data-head={c.head}>
										{c.cell(row)}
									</td>
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

/** The columns of the numbers of the rows. Canceled and limited calls have columns if there are any. */
export function numberColumns<R extends Numbers>(t: T, rows: R[]): Column<R>[] {
	const rare = (head: string, of: (r: R) => number | undefined): Column<R>[] => (rows.some(of) ? [{ head, right: true, cell: (r) => (of(r) ? number(of(r)!) : "–"), text: (r) => of(r) ?? 0 }] : []);
	return [
		{ head: t("rate"), right: true, cell: (r) => <Rate of={r} />, text: (r) => r.rate },
		{ head: t("success"), right: true, cell: (r) => <OK of={r} />, text: (r) => r.ok },
		...rare(t("canceled"), (r) => r.canceled),
		...rare(t("limited"), (r) => r.limited),
		{ head: "p50", right: true, cell: (r) => <Ms n={r.p50} />, text: (r) => r.p50 },
		{ head: "p99", right: true, cell: (r) => <Ms n={r.p99} />, text: (r) => r.p99 },
	];
}
