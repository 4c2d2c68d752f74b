// SPDX-License-Identifier: Apache-2.0

// S4: one instance.

import { useState } from "preact/hooks";
import { useData, type Chart, type Event, type Instance, type Numbers, type Row } from "./api";
import { Charts } from "./charts";
import { cli } from "./cli";
import { Events } from "./events";
import { Samples } from "./samples";
import { SetInstance, settingText } from "./service";
import { href, useShell } from "./state";
import { age, bytes, day, Empty, Link, Ms, nanos, number, numberColumns, OK, Quote, Rate, State, Table, Wait, type Column } from "./ui";

interface Process {
	pid: number;
	host?: string;
	version?: string;
	go: string;
	started: string;
	goroutines: number;
	heap: number;
	cpu: number;
	gcs: number;
}

interface Conn {
	side: string;
	addr: string;
	peer?: string;
	agent?: string;
	protocol: string;
	tls?: boolean;
	since: string;
	open: number;
	unlisted?: boolean;
	bytesIn?: number;
	bytesOut?: number;
}

interface Actor {
	kind: string;
	name: string;
	inbox: number;
	held?: number;
	handled: number;
}

interface Detail {
	view: Instance;
	service: Numbers;
	methods?: Row[];
	record: Record<string, unknown>;
	agent?: string;
	codecs?: string[];
	compressors?: string[];
	limits?: { maxConns: number; maxOpen: number; maxMemory: number; maxMessage: number; connOpen: number; connMemory: number };
	overrides?: { service: string; addr: string; state?: string; weight?: number }[];
	process?: Process;
	name?: string;
	left?: number;
	events?: Event[];
	chart?: Chart;
	conns?: { conns: Conn[] | null; left?: number };
	connsErr?: string;
	actors?: { actors: Actor[] | null; left?: number; waiting: number };
	actorsErr?: string;
	setErr?: string;
}

export function InstanceScreen({ service, addr }: { service: string; addr: string }) {
	const { t, said, range, paused, me, mayChange } = useShell();
	const [setting, setSetting] = useState(false);
	const loaded = useData<Detail>(`instance?service=${encodeURIComponent(service)}&addr=${encodeURIComponent(addr)}&range=${range}`, 1000, paused);
	return (
		<Wait of={loaded}>
			{(d) => (
				<>
					<div class="bar">
						<h1>
							<Link to={href(["services", service])}>{service}</Link> / {addr}
						</h1>
						<State of={d.view.state} />
						{d.view.why && <span class="warn"><Quote text={said(d.view.why)} /></span>}
						{me.overrides && mayChange && (
							<button id="set-instance" onClick={() => setSetting(true)}>
								{t("instance.set")}
							</button>
						)}
						<Link class="button" to={href(["live"], { service, addr })}>
							{t("tap")}
						</Link>
					</div>
					{setting && <SetInstance service={service} instance={d.view} close={() => (setSetting(false), loaded.reload())} />}
					{d.setErr && <p class="warn">▲ <Quote text={d.setErr} /></p>}
					<Compare d={d} />
					{d.chart ? <Charts chart={d.chart} events={d.events ?? []} /> : <Empty title={t("instance.blind")} why={said(d.view.why) || t("blind.why")} />}
					{!!d.methods?.length && <Table name="methods" rows={d.methods} id={(m) => m.name} columns={[{ head: t("method"), cell: (m: Row) => <b>{m.name}</b>, text: (m: Row) => m.name }, ...numberColumns<Row>(t, d.methods)]} />}
					<div class="columns">
						<section>
							<h2>{t("instance.identity")}</h2>
							<Facts d={d} />
						</section>
						<section>
							<h2>{t("overview.changes")}</h2>
							<Events events={(d.events ?? []).slice(0, 10)} />
						</section>
					</div>
					{(d.actors || d.actorsErr) && <Actors d={d} service={service} />}
					<h2>{t("instance.conns")}</h2>
					<Conns d={d} />
					<h2>{t("samples")}</h2>
					<Samples service={service} addr={addr} />
				</>
			)}
		</Wait>
	);
}

/** This instance beside its service. */
function Compare({ d }: { d: Detail }) {
	const { t } = useShell();
	const row = (name: string, n: Numbers) => (
		<tr>
			<th>{name}</th>
			<td class="right" data-head={t("rate")}><Rate of={n} /></td>
			<td class="right" data-head={t("success")}><OK of={n} /></td>
			<td class="right" data-head="p50"><Ms n={n.p50} /></td>
			<td class="right" data-head="p99"><Ms n={n.p99} /></td>
			<td class="right" data-head={t("inflight")}>{n.inflight}</td>
		</tr>
	);
	return (
		<div class="scroll">
			<table class="compare list-when-narrow">
				<thead>
					<tr>
						<th />
						<th class="right">{t("rate")}</th>
						<th class="right">{t("success")}</th>
						<th class="right">p50</th>
						<th class="right">p99</th>
						<th class="right">{t("inflight")}</th>
					</tr>
				</thead>
				<tbody>
					{row(t("instance.this"), d.view)}
					{row(t("instance.whole"), d.service)}
				</tbody>
			</table>
		</div>
	);
}

function Facts({ d }: { d: Detail }) {
	const { t, said } = useShell();
	const p = d.process;
	const l = d.limits;
	const facts: [string, unknown][] = [
		[t("version"), d.view.version],
		[t("zone"), d.view.zone],
		[t("weight"), d.view.weight + (d.view.setWeight ? ` (${t("set")})` : "")],
		[t("instance.setby"), settingText({ t, said }, d.view)],
		[t("instance.protocols"), d.view.protocols?.join(", ")],
		[t("instance.agent"), d.agent],
		[t("instance.codecs"), d.codecs?.join(", ")],
		[t("instance.limits"), l && t("instance.limits.are", l.maxConns, l.maxOpen, l.connOpen, bytes(l.maxMemory), bytes(l.connMemory), bytes(l.maxMessage))],
		[t("instance.process"), p && `${d.name ?? ""} · pid ${p.pid} · ${p.host ?? ""}`],
		[t("instance.build"), p && `${p.version ?? ""} ${p.go}`],
		[t("instance.started"), p && `${day(p.started)} (${age(t, p.started)})`],
		[t("instance.goroutines"), p?.goroutines],
		[t("instance.heap"), p && bytes(p.heap)],
		[t("instance.cpu"), p && nanos(p.cpu)],
		[t("instance.gcs"), p?.gcs],
		[t("instance.took"), d.view.took ? nanos(d.view.took) : ""],
	];
	return (
		<dl>
			{facts
				.filter(([, v]) => v !== undefined && v !== "")
				.map(([k, v]) => (
					<>
						<dt>{k}</dt>
						<dd><Quote text={String(v)} /></dd>
					</>
				))}
		</dl>
	);
}

/** The actors of the process, those with the longest inboxes first. */
function Actors({ d, service }: { d: Detail; service: string }) {
	const { t } = useShell();
	const actors = d.actors?.actors ?? [];
	const left = d.actors?.left ?? 0;
	const columns: Column<Actor>[] = [
		{ head: t("actor"), cell: (a) => <b class="wrap">{a.name}</b>, text: (a) => a.name },
		{ head: t("kind"), cell: (a) => a.kind, text: (a) => a.kind },
		{ head: t("actor.inbox"), right: true, cell: (a) => number(a.inbox), text: (a) => a.inbox },
		{ head: t("actor.held"), right: true, cell: (a) => number(a.held ?? 0), text: (a) => a.held ?? 0 },
		{ head: t("actor.handled"), right: true, cell: (a) => number(a.handled), text: (a) => a.handled },
	];
	return (
		<section id="actors">
			<h2>{t("actors")}</h2>
			{d.actors ? <p class="dim">{t("actors.sum", actors.length + left, number(d.actors.waiting))}</p> : <p class="warn">▲ <Quote text={d.actorsErr ?? ""} /></p>}
			{left > 0 && <p class="dim">{t("actors.left", actors.length)}</p>}
			{actors.length > 0 && <Table name="actors" rows={actors} id={(a) => a.name} columns={columns} command={cli.instances(service)} />}
		</section>
	);
}

function Conns({ d }: { d: Detail }) {
	const { t } = useShell();
	const conns = d.conns?.conns ?? [];
	const columns: Column<Conn>[] = [
		{ head: t("peer"), cell: (c) => <b>{c.peer || c.addr}</b>, text: (c) => c.peer },
		{ head: t("address"), cell: (c) => <>{c.addr} {c.unlisted && <span class="warn" data-unlisted>▲ {t("conn.unlisted")}</span>}</>, text: (c) => c.addr },
		{ head: t("direction"), cell: (c) => (c.side === "server" ? "← " + t("conn.in") : "→ " + t("conn.out")), text: (c) => c.side },
		{ head: t("protocol"), cell: (c) => c.protocol, text: (c) => c.protocol },
		{ head: "TLS", cell: (c) => (c.tls ? "TLS" : "–"), text: (c) => String(!!c.tls) },
		{ head: t("inflight"), right: true, cell: (c) => c.open, text: (c) => c.open },
		{ head: t("conn.bytes"), right: true, cell: (c) => `${bytes(c.bytesIn ?? 0)} / ${bytes(c.bytesOut ?? 0)}`, text: (c) => c.bytesIn },
		{ head: t("since"), right: true, cell: (c) => age(t, c.since), text: (c) => c.since },
	];
	if (!conns.length) return <p class="dim">{d.connsErr ? <Quote text={d.connsErr} /> : t(d.conns ? "conn.none" : "conn.unknown")}</p>;
	return <Table name="connections" rows={conns} columns={columns} />;
}
