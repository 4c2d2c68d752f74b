// SPDX-License-Identifier: Apache-2.0

// S7: the records of single calls, and where the time of one call went.

import { useRef, useState } from "preact/hooks";
import { useData, type Overview } from "./api";
import { cli } from "./cli";
import { href, useParam, useShell } from "./state";
import { Copy, day, Empty, Link, nanos, Outcome, Quote, Tabs, Wait } from "./ui";

export interface Attempt {
	addr: string;
	began: number;
	took: number;
	connecting?: number;
	credit?: number;
	network?: number;
	queue?: number;
	handler?: number;
	code?: string;
	id?: string;
	message?: string;
}

export interface Report {
	method: string;
	kind?: string;
	side: string;
	began: string;
	took: number;
	slow?: boolean;
	code?: string;
	id?: string;
	message?: string;
	timeout?: number;
	peer?: string;
	caller?: string;
	tenant?: string;
	trace?: string;
	queue?: number;
	handler?: number;
	attempts?: Attempt[];
	notes?: { at: number; by: string; what: string }[];
	text: string;
	service: string;
	instance: string;
	group?: [string, string]; // the method and the address of its group
}

interface Found {
	samples: Report[];
	groups: { code: string; id?: string; text: string; method: string; addr: string; via?: string; calls: number; since: string }[];
	asked: number;
	refused: string;
}

export function SamplesScreen() {
	const { t } = useShell();
	const [service, setService] = useParam("service");
	const [, setGroup] = useParam("group");
	const overview = useData<Overview>("overview", 5000);
	return (
		<>
			<div class="bar">
				<h1>{t("samples")}</h1>
				<Wait of={overview}>
					{(o) => (
						<select aria-label={t("service")} value={service} onChange={(e) => (setGroup(""), setService(e.currentTarget.value))}>
							<option value="">{t("services.all")}</option>
							{o.services.map((s) => (
								<option value={s.name}>{s.name}</option>
							))}
						</select>
					)}
				</Wait>
			</div>
			<Samples key={service} service={service} />
		</>
	);
}

export function Samples({ service, addr = "" }: { service: string; addr?: string }) {
	const { t, paused } = useShell();
	const [kind, setKind] = useParam("kind", "failed");
	const [method, setMethod] = useParam("samplemethod");
	const [imported, setImported] = useState<Report | null>(null);
	const [chosen, setChosen] = useState<Report | null>(null);
	const [group, setGroup] = useParam("group");
	const [trace, setTrace] = useParam("trace");
	const [error, setError] = useState("");
	const file = useRef<HTMLInputElement>(null);
	const keyOf = (s: { code?: string; id?: string; text: string; method: string; addr: string }) => [s.code, s.id || s.text, s.method, s.addr].join(" · ");
	const inGroup = (s: Report) => !group || (!!s.group?.[0] && keyOf({ code: s.code, id: s.id, text: s.message ?? "", method: s.group[0], addr: s.group[1] }) === group);
	const query = new URLSearchParams({ service, addr, kind: kind === "recent" ? "" : kind, method, trace }).toString();
	const loaded = useData<Found>("samples?" + query, 3000, paused);
	const choose = (one: Report | null) => {
		setImported(null);
		setError("");
		setChosen(one);
	};
	const read = async (input: HTMLInputElement) => {
		const from = input.files?.[0];
		if (!from) return;
		const text = await from.text();
		input.value = ""; // the same file may be chosen again
		const report = reportOf(text);
		setImported(report);
		setError(report ? "" : t("samples.badfile", from.name));
	};
	return (
		<>
			<div class="bar">
				<Tabs at={kind} set={(k) => (setKind(k), setGroup(""), choose(null))} names={[["failed", t("samples.failed")], ["slow", t("samples.slow")], ["recent", t("samples.recent")]]} />
				<input type="search" placeholder={t("method")} aria-label={t("method")} value={method} onChange={(e) => setMethod(e.currentTarget.value)} />
				{group && (
					<button class="chip" aria-pressed="true" title={t("filter.clear")} onClick={() => (setGroup(""), choose(null))}>
						{group} ✕
					</button>
				)}
				{trace && (
					<button class="chip" aria-pressed="true" title={t("filter.clear")} onClick={() => (setTrace(""), choose(null))}>
						{t("samples.trace")} {trace} ✕
					</button>
				)}
				<button onClick={() => file.current?.click()}>{t("samples.import")}</button>
				<input ref={file} type="file" accept=".json" hidden onChange={(e) => read(e.currentTarget)} />
				<Copy text={cli.samples(service, trace)} label={t("cli")} cli />
			</div>
			{error && <p class="bad" role="alert">✖ {error}</p>}
			<Wait of={loaded}>
				{(f) => {
					const listed = f.samples.filter(inGroup);
					const show = imported ?? (chosen && inGroup(chosen) ? chosen : listed[0]);
					return (
						<>
							{f.refused && <div class="banner"><Quote text={t("samples.refused", f.refused)} /></div>}
							{f.groups.length > 0 && (
								<ul class="groups">
									{f.groups.slice(0, 5).map((g) => (
										<li>
											<b class="bad">✖ {g.code}</b> {g.id && <Link to={href(["checks"], { error: g.id })}>{g.id}</Link>} <span lang="en">{g.text}</span> · <b>{g.method}</b> {g.addr && `@ ${g.addr} `}{g.via && <span class="dim">→ {g.via}</span>} · <b>{g.calls}×</b> {t("since")} {day(g.since)}{" "}
											<button class="small" aria-pressed={keyOf(g) === group} onClick={() => (choose(null), setGroup(keyOf(g) === group ? "" : keyOf(g)))}>
												{keyOf(g) === group ? t("samples.allgroups") : t("samples.group")}
											</button>
										</li>
									))}
								</ul>
							)}
							{!show ? (
								<Empty title={t("samples.none")} why={f.asked ? t("samples.none.why") : t("blind.why")} />
							) : (
								<div class="split">
									<ul class="list">
										{listed.slice(0, 100).map((s) => (
											<li key={[s.began, s.instance, s.side, s.method].join()}>
												<button class={"row" + (same(s, show) ? " chosen" : "")} aria-pressed={same(s, show)} onClick={() => choose(s)}>
													<span class={s.code ? "bad" : s.slow ? "warn" : ""}>{s.code ? "✖ " + s.code : s.slow ? "▲ " + t("slow") : "● " + t("good")}</span> <b>{s.method}</b>
													<br />
													<span class="dim">
														{day(s.began)} · {nanos(s.took)} · {t(s.side === "client" ? "side.client" : "side.server")} {s.instance}
														{s.tenant && ` · ${t("samples.tenant")} ${s.tenant}`}
													</span>
												</button>
											</li>
										))}
									</ul>
									<Waterfall r={show} key={show.began + show.instance + show.method} />
								</div>
							)}
						</>
					);
				}}
			</Wait>
		</>
	);
}

/** Whether two records are of the same call, as the same side saw it. */
const same = (a: Report, b: Report) => a.began === b.began && a.instance === b.instance && a.side === b.side && a.method === b.method;

/** The record that a file has, or null. */
function reportOf(text: string): Report | null {
	try {
		const r = JSON.parse(text) as Report;
		const attempts = r.attempts ?? [];
		const parts = [r, ...attempts].flatMap((a: { connecting?: number; credit?: number; network?: number; queue?: number; handler?: number }) => [a.connecting, a.credit, a.network, a.queue, a.handler]);
		const times = [r.took, ...attempts.flatMap((a) => [a.began, a.took]), ...parts.map((d) => d ?? 0)];
		return typeof r.method === "string" && times.every(Number.isFinite) ? r : null;
	} catch {
		return null;
	}
}

/** Where the time of a call went. */
export function Waterfall({ r }: { r: Report }) {
	const { t } = useShell();
	const total = Math.max(r.took, ...(r.attempts ?? []).map((a) => a.began + a.took), 1);
	const save = () => {
		const link = document.createElement("a");
		link.href = URL.createObjectURL(new Blob([JSON.stringify(r, null, 2)], { type: "application/json" }));
		link.download = "sample.json";
		link.click();
		URL.revokeObjectURL(link.href);
	};
	const parts = (a: { connecting?: number; credit?: number; network?: number; queue?: number; handler?: number }, from: number, took: number) => {
		const list: [string, number][] = [
			["connecting", a.connecting ?? 0],
			["credit", a.credit ?? 0],
			["network", a.network ?? 0],
			["queue", a.queue ?? 0],
			["handler", a.handler ?? 0],
		];
		const known = list.reduce((sum, [, d]) => sum + d, 0);
		if (known < took) list.push(["rest", took - known]);
		let x = from;
		return list.filter(([, d]) => d > 0).map(([name, d]) => ({ name, from: x, took: d, next: (x += d) }));
	};
	const named = (p: { name: string; took: number }) => `${t(`part.${p.name as "queue"}`)} ${nanos(p.took)}`;
	const bars = r.side === "server" || !r.attempts?.length ? [{ name: r.instance ?? "", began: 0, took: r.took, code: r.code, parts: parts(r, 0, r.took) }] : r.attempts.map((a) => ({ name: a.addr, began: a.began, took: a.took, code: a.code, parts: parts(a, a.began, a.took) }));
	return (
		<div class="waterfall">
			<h2>
				{r.method} <Outcome code={r.code} /> {nanos(r.took)}
			</h2>
			{r.message && <p class="bad"><span lang="en">{r.message}</span> {r.id && <Link to={href(["checks"], { error: r.id })}>{r.id}</Link>}</p>}
			{(r.tenant || r.caller || r.trace) && (
				<p class="dim">
					{r.caller && <span>{t("caller")} <b>{r.caller}</b> · </span>}
					{r.tenant && <span>{t("samples.tenant")} <b>{r.tenant}</b> · </span>}
					{r.trace && (
						<span>
							{t("samples.trace")} <Link to={href(["samples"], { trace: r.trace, kind: "recent" })}>{r.trace}</Link> <Copy text={r.trace} />
						</span>
					)}
				</p>
			)}
			{bars.map((b) => (
				<div class="bars">
					<span>{b.name} {b.code && <span class="bad">✖ {b.code}</span>}</span>
					<svg viewBox="0 0 1000 14" preserveAspectRatio="none" role="img" aria-label={b.parts.map(named).join(", ")}>
						{b.parts.map((p) => (
							<rect class={"part " + p.name} x={(p.from / total) * 1000} width={Math.max((p.took / total) * 1000, 2)} height="14">
								<title>{named(p)}</title>
							</rect>
						))}
					</svg>
					<span class="dim small">{b.parts.map(named).join(" · ")}</span>
				</div>
			))}
			{r.timeout ? <p class="dim">{t("samples.deadline", nanos(r.timeout), Math.max(0, Math.round((r.took / r.timeout) * 100)))}</p> : null}
			<pre lang="en">{r.text}</pre>
			<button class="small" onClick={save}>{t("samples.export")}</button> <Copy text={r.text} /> {r.service && <Link to={href(["call"], { service: r.service, method: r.method })}>▶ {t("samples.again")}</Link>} {r.service && <span class="dim">{t("samples.again.why")}</span>}
		</div>
	);
}
