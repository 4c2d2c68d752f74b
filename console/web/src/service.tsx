// SPDX-License-Identifier: Apache-2.0

// S3: one service.

import { useState } from "preact/hooks";
import { post, useData, type Chart, type Event, type Instance, type Method, type Numbers, type Row, type Schema, type ServiceView } from "./api";
import { Charts } from "./charts";
import { cli } from "./cli";
import { Events } from "./events";
import { RuleList } from "./rules";
import { Samples } from "./samples";
import { href, useParam, useShell, type Shell } from "./state";
import { Copy, Empty, Link, ms, number, numberColumns, OK, percent, Problems, Quote, State, Table, Tabs, useSubmit, Wait, type Column } from "./ui";

interface Service {
	at: string;
	view: ServiceView;
	instances: Instance[];
	callers: Row[];
	callees: Row[];
	versions: Row[];
	methods: (Method & Numbers)[];
	events: Event[];
	chart: Chart;
	unsent?: { rate: number; errors: Record<string, number> | null }; // the calls of clients in the fleet that no instance got
	unread: string[] | null; // the callers of which no process was read
	setErr?: string;
}

export function ServiceScreen({ name }: { name: string }) {
	const { t, range, paused } = useShell();
	const [tab, setTab] = useParam("tab", "traffic");
	const loaded = useData<Service>(`service?service=${encodeURIComponent(name)}&range=${range}`, 1000, paused);
	return (
		<Wait of={loaded}>
			{(s) => (
				<>
					<div class="bar">
						<h1>{name}</h1>
						<State of={s.view.state} />
						<Link class="button" to={href(["call"], { service: name })}>
							{t("call")}
						</Link>
						<Link class="button" to={href(["topology"], { focus: name })}>
							{t("topology")}
						</Link>
						<Link class="button" to={href(["live"], { service: name })}>
							{t("live")}
						</Link>
					</div>
					<Problems of={s.view.problems} service={name} />
					{s.setErr && <p class="warn">▲ <Quote text={s.setErr} /></p>}
					<Strip s={s} />
					<Tabs
						at={tab}
						set={setTab}
						names={[
							["traffic", t("tab.traffic")],
							["methods", `${t("tab.methods")} ${s.methods.length}`],
							["instances", `${t("instances")} ${s.instances.length}`],
							["callers", t("tab.callers")],
							["rules", t("rules")],
							["schema", t("tab.schema")],
							["samples", t("samples")],
						]}
					/>
					{tab === "traffic" && <Traffic s={s} />}
					{tab === "methods" && <Methods s={s} />}
					{tab === "instances" && <Instances s={s} reload={loaded.reload} />}
					{tab === "callers" && <Callers s={s} />}
					{tab === "rules" && <RuleList service={name} />}
					{tab === "schema" && <Schemas s={s} />}
					{tab === "samples" && <Samples service={name} />}
				</>
			)}
		</Wait>
	);
}

function Card({ name, of, to, here }: { name: string; of: Numbers; to?: string; here?: boolean }) {
	const body = (
		<>
			<b>{name}</b>
			<span>
				<OK of={of} />
				{of.ok !== null && of.rate !== null && ` · ${number(of.rate)}/s`}
				{of.p99 !== null && ` · p99 ${ms(of.p99)}`}
			</span>
		</>
	);
	return to ? (
		<Link class="node" to={to}>
			{body}
		</Link>
	) : (
		<div class={"node" + (here ? " here" : "")}>{body}</div>
	);
}

/** Callers, this service, and the services that it calls. */
function Strip({ s }: { s: Service }) {
	const { t } = useShell();
	const called = new Map<string, Row[]>();
	for (const c of s.callees) {
		const service = c.name.replace(/\.[^.]*$/, "");
		if (service !== "yodel") called.set(service, [...(called.get(service) ?? []), c]);
	}
	return (
		<div class="strip">
			<div>
				{s.callers.length === 0 && <span class="dim">{t("service.nocallers")}</span>}
				{s.callers.slice(0, 4).map((c) => (
					<Card name={c.name || t("unnamed")} of={c} />
				))}
				{s.callers.length > 4 && <span class="dim">+ {s.callers.length - 4}</span>}
			</div>
			<span class="arrow">→</span>
			<Card name={s.view.name} of={s.view} here />
			<span class="arrow">→</span>
			<div>
				{called.size === 0 && <span class="dim">{t("service.nocallees")}</span>}
				{[...called].slice(0, 4).map(([name, methods]) => (
					<Card name={name} of={together(methods)} to={href(["services", name])} />
				))}
				{called.size > 4 && <span class="dim">+ {called.size - 4}</span>}
			</div>
		</div>
	);
}

/** The numbers of several methods. The p99 is the highest. */
function together(rows: Row[]): Numbers {
	const sum = (of: (r: Row) => number) => rows.reduce((all, r) => all + of(r), 0);
	const judged = (r: Row) => (r.rate ?? 0) - (r.canceled ?? 0) - (r.limited ?? 0); // the calls that ok is a share of
	const rate = sum((r) => r.rate ?? 0);
	const all = sum(judged);
	const p99 = Math.max(...rows.map((r) => r.p99 ?? 0));
	return rate > 0 ? { ...rows[0]!, rate, ok: all > 0 ? sum((r) => judged(r) * (r.ok ?? 0)) / all : null, p99: p99 || null } : rows[0]!;
}

function Traffic({ s }: { s: Service }) {
	const { t } = useShell();
	const [by, setBy] = useParam("by", "method");
	const rows: Record<string, Row[]> = {
		method: s.methods,
		caller: s.callers.map((c) => ({ ...c, name: c.name || t("unnamed") })),
		instance: s.instances.map((i) => ({ ...i, name: i.addr })),
		version: s.versions.map((v) => ({ ...v, name: v.name || "–" })),
	};
	return (
		<>
			{s.view.ok === null && <Empty title={t("service.idle", s.view.name)} why={s.view.rate === null ? t("blind.why") : t("service.idle.why")} action={<Link class="button" to={href(["call"], { service: s.view.name })}>{t("service.test")}</Link>} />}
			<Charts chart={s.chart} events={s.events} />
			<div class="columns">
				<section>
					<Tabs at={by} set={setBy} names={(["method", "caller", "instance", "version"] as const).map((n) => [n, t(`by.${n}`)])} />
					<Table name={s.view.name + "-" + by} rows={rows[by] ?? []} columns={[{ head: t(`by.${by as "method"}`), cell: (r: Row) => r.name, text: (r: Row) => r.name }, ...numberColumns<Row>(t, rows[by] ?? [])]} />
				</section>
				<section>
					<h2>{t("overview.changes")}</h2>
					<Events events={s.events.slice(0, 8)} />
				</section>
			</div>
		</>
	);
}

function Methods({ s }: { s: Service }) {
	const { t } = useShell();
	const columns: Column<Method & Numbers>[] = [
		{ head: t("method"), cell: (m) => <b>{m.name}</b>, text: (m) => m.name },
		{ head: t("kind"), cell: (m) => m.kind || "unary", text: (m) => m.kind || "unary" },
		{ head: t("signature"), cell: (m) => <code>{signature(m)}</code>, text: signature },
		...numberColumns<Method & Numbers>(t, s.methods),
		{ head: t("inflight"), right: true, cell: (m) => m.inflight, text: (m) => m.inflight },
		{
			head: "",
			cell: (m) => (
				<>
					<Link to={href(["live"], { service: s.view.name, method: m.name })}>{t("tap")}</Link> · <Link to={href(["call"], { service: s.view.name, method: m.name })}>{t("call")}</Link>
				</>
			),
		},
	];
	if (!s.methods.length) return <Empty title={t("methods.none")} why={t("methods.none.why")} />;
	return <Table name={s.view.name + "-methods"} rows={s.methods} id={(m) => m.name} columns={columns} command={cli.methods(s.view.name)} />;
}

function signature(m: Method): string {
	const list = (schemas: Schema[] | null) => (schemas ?? []).map((x) => x.type).join(", ");
	return `(${list(m.args)}) → ${list(m.results)}`;
}

function Instances({ s, reload }: { s: Service; reload: () => void }) {
	const { t, said, me, mayChange } = useShell();
	const [setting, setSetting] = useState<Instance | null>(null);
	const weights = s.instances.reduce((sum, i) => sum + (i.state === "up" ? i.weight : 0), 0);
	const whyOf = (i: Instance) => [said(i.why), i.setProblem && settingText({ t, said }, i)].filter(Boolean).join("; ");
	const columns: Column<Instance>[] = [
		{ head: t("address"), cell: (i) => <b>{i.addr}</b>, text: (i) => i.addr },
		{ head: t("state"), cell: (i) => <span title={said(i.why)}><State of={i.state} /></span>, text: (i) => i.state },
		{ head: t("version"), cell: (i) => i.version || "–", text: (i) => i.version },
		{ head: t("zone"), cell: (i) => i.zone || "–", text: (i) => i.zone },
		{ head: t("tags"), cell: (i) => i.tags?.join(", ") || "–", text: (i) => i.tags?.join(" ") },
		{ head: t("weight"), right: true, cell: (i) => <>{i.weight}{i.setWeight ? <span class="dim"> ({t("set")})</span> : ""}</>, text: (i) => i.weight },
		...numberColumns<Instance>(t, s.instances),
		{ head: t("share"), right: true, cell: (i) => (i.share === null ? "–" : <Share share={i.share} expected={i.state === "up" ? i.weight / weights : 0} />), text: (i) => i.share },
		{ head: t("inflight"), right: true, cell: (i) => i.inflight, text: (i) => i.inflight },
		{ head: t("why"), cell: (i) => whyOf(i) && <div class="wrap"><Quote text={whyOf(i)} /></div>, text: whyOf },
	];
	if (me.overrides && mayChange) columns.push({ head: "", cell: (i) => <button class="small" onClick={() => setSetting(i)}>{t("instance.set")}</button> });
	if (!s.instances.length) return <Empty title={t("problem.none")} why={t("instances.none.why")} />;
	return (
		<>
			{setting && <SetInstance key={setting.addr} service={s.view.name} instance={setting} close={() => (setSetting(null), reload())} />}
			<Table name={s.view.name + "-instances"} rows={s.instances} columns={columns} open={(i) => href(["services", s.view.name, i.addr])} command={cli.instances(s.view.name)} />
		</>
	);
}

/** What an operator has set for an instance, or "". */
export function settingText({ t, said }: Pick<Shell, "t" | "said">, i: { set?: string; setWeight?: number; setProblem?: string }): string {
	if (i.setProblem) return t("instance.unreadable", said(i.setProblem));
	return [i.set && t(i.set === "inactive" ? "state.inactive" : "state.active"), i.setWeight && t("weight") + " " + i.setWeight].filter(Boolean).join(", ");
}

/** The share of the calls that an instance gets, and the one that its weight asks for. */
function Share({ share, expected }: { share: number; expected: number }) {
	return (
		<span class="share" title={percent(expected)}>
			<svg width="50" height="8" aria-hidden="true">
				<rect class="bar" width={Math.min(share, 1) * 50} height="8" />
				<line class="expected" x1={50 * expected} x2={50 * expected} y1="0" y2="8" />
			</svg>{" "}
			{percent(share)}
		</span>
	);
}

/** The form with which an operator drains an instance or sets its weight. */
export function SetInstance({ service, instance, close }: { service: string; instance: Instance; close: () => void }) {
	const { t, said } = useShell();
	const [state, setState] = useState(instance.set ?? "");
	const [weight, setWeight] = useState(instance.setWeight ?? 0);
	const [reason, setReason] = useState("");
	const [was] = useState({ state: instance.set ?? "", weight: instance.setWeight ?? 0 });
	const { submit, busy, error, ask } = useSubmit(async (confirm) => {
		await post("instance", { service, addr: instance.addr, state, weight, reason, was }, confirm);
		close();
	});
	return (
		<form class="panel" onSubmit={submit}>
			<h2>{t("instance.setting", instance.addr)}</h2>
			{instance.setProblem && <p class="warn">▲ <Quote text={t("instance.replaces", said(instance.setProblem))} /></p>}
			<label>
				{t("state")}
				<select value={state} onChange={(e) => setState(e.currentTarget.value)}>
					<option value="">{t("instance.own")}</option>
					<option value="active">{t("state.active")}</option>
					<option value="inactive">{t("state.inactive")}</option>
				</select>
			</label>
			<label>
				{t("instance.weight")}
				<input name="weight" type="number" min="0" max="10000" value={weight} onInput={(e) => setWeight(Number(e.currentTarget.value))} />
			</label>
			<label>
				{t("reason")}
				<input required value={reason} onInput={(e) => setReason(e.currentTarget.value)} />
			</label>
			{error && <p class="bad">✖ <Quote text={error} /></p>}
			{ask}
			<button type="submit" disabled={busy}>{t("apply")}</button>{" "}
			<button type="button" onClick={close}>
				{t("cancel")}
			</button>
		</form>
	);
}

function Callers({ s }: { s: Service }) {
	const { t } = useShell();
	const columns = (head: string, rows: Row[]): Column<Row>[] => [{ head, cell: (r) => <b>{r.name || t("unnamed")}</b>, text: (r) => r.name }, ...numberColumns<Row>(t, rows)];
	return (
		<div class="columns">
			<section>
				<h2>{t("callers")}</h2>
				{s.callers.length ? <Table name="callers" rows={s.callers} columns={columns(t("caller"), s.callers)} /> : <p class="dim">{t("service.nocallers")}</p>}
				{s.unsent && <p class="warn" data-unsent>▲ {t("service.unsent", number(s.unsent.rate), Object.entries(s.unsent.errors ?? {}).map(([code, n]) => `${code} ${number(n)}`).join(", "))}</p>}
				{s.unread && <p class="dim">{t("service.unread", s.unread.slice(0, 5).join(", ") + (s.unread.length > 5 ? " …" : ""))}</p>}
			</section>
			<section>
				<h2>{t("callees")}</h2>
				{s.callees.length ? <Table name="callees" rows={s.callees} columns={columns(t("method"), s.callees)} /> : <p class="dim">{t("service.nocallees")}</p>}
			</section>
		</div>
	);
}

function Schemas({ s }: { s: Service }) {
	const { t } = useShell();
	if (!s.methods.length) return <Empty title={t("methods.none")} why={t("methods.none.why")} />;
	return (
		<>
			{s.methods.map((m) => (
				<details class="schema">
					<summary>
						<b>{m.name}</b> <code>{signature(m)}</code>
					</summary>
					<Copy text={JSON.stringify(example(m), null, 2)} label={t("copy.json")} />
					<pre>{(m.args ?? []).map((a) => describe(a, "")).join("\n") + "\n→\n" + (m.results ?? []).map((a) => describe(a, "")).join("\n")}</pre>
				</details>
			))}
		</>
	);
}

function describe(s: Schema, indent: string): string {
	const head = indent + (s.name ? s.name + ": " : "") + s.type;
	const inner = s.kind === "array" || s.kind === "map" ? s.elem?.fields : s.fields;
	return inner?.length ? [head, ...inner.map((f) => describe(f, indent + "  "))].join("\n") : head;
}

/** An example of the arguments of a method. */
export function example(m: Method): unknown {
	const of = (s: Schema): unknown => {
		switch (s.kind) {
			case "object":
				return Object.fromEntries((s.fields ?? []).map((f) => [f.name, of(f)]));
			case "array":
				return s.elem ? [of(s.elem)] : [];
			case "map":
				return {};
			case "string":
			case "bytes":
				return "";
			case "integer":
			case "number":
				return 0;
			case "boolean":
				return false;
			default:
				return null;
		}
	};
	const args = (m.args ?? []).map(of);
	return m.values ? args : (args[0] ?? {});
}
