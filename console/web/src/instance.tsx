// SPDX-License-Identifier: Apache-2.0

// S4: one instance.

import { useState } from "preact/hooks";
import { useData, type Chart, type Event, type Instance, type Numbers } from "./api";
import { Charts } from "./charts";
import { Events } from "./events";
import { Samples } from "./samples";
import { SetInstance } from "./service";
import { href, useShell } from "./state";
import { age, bytes, day, Empty, Link, Ms, nanos, OK, Rate, State, Table, Wait, type Column } from "./ui";

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
	bytesIn?: number;
	bytesOut?: number;
}

interface Detail {
	view: Instance;
	service: Numbers;
	record: Record<string, unknown>;
	agent?: string;
	codecs?: string[];
	compressors?: string[];
	overrides?: { service: string; addr: string; state?: string; weight?: number }[];
	process?: Process;
	name?: string;
	left?: number;
	events?: Event[];
	chart?: Chart;
	conns?: { conns: Conn[] | null; left?: number };
	connsErr?: string;
	setErr?: string;
}

export function InstanceScreen({ service, addr }: { service: string; addr: string }) {
	const { t, range, paused, me, mayChange } = useShell();
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
						{d.view.why && <span class="warn">{d.view.why}</span>}
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
					{d.setErr && <p class="warn">▲ {d.setErr}</p>}
					<Compare d={d} />
					{d.chart ? <Charts chart={d.chart} events={d.events ?? []} /> : <Empty title={t("instance.blind")} why={d.view.why || t("blind.why")} />}
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
			<td class="right"><Rate of={n} /></td>
			<td class="right"><OK of={n} /></td>
			<td class="right"><Ms n={n.p50} /></td>
			<td class="right"><Ms n={n.p99} /></td>
			<td class="right">{n.inflight}</td>
		</tr>
	);
	return (
		<div class="scroll">
			<table class="compare">
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
	const { t } = useShell();
	const p = d.process;
	const facts: [string, unknown][] = [
		[t("version"), d.view.version],
		[t("zone"), d.view.zone],
		[t("weight"), d.view.weight + (d.view.setWeight ? ` (${t("set")})` : "")],
		[t("instance.setby"), d.view.set || d.view.setWeight ? `${d.view.set ?? ""} ${d.view.setWeight ?? ""}` : ""],
		[t("instance.protocols"), d.view.protocols?.join(", ")],
		[t("instance.agent"), d.agent],
		[t("instance.codecs"), d.codecs?.join(", ")],
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
						<dd>{String(v)}</dd>
					</>
				))}
		</dl>
	);
}

function Conns({ d }: { d: Detail }) {
	const { t } = useShell();
	const conns = d.conns?.conns ?? [];
	const columns: Column<Conn>[] = [
		{ head: t("peer"), cell: (c) => <b>{c.peer || c.addr}</b>, text: (c) => c.peer },
		{ head: t("address"), cell: (c) => c.addr, text: (c) => c.addr },
		{ head: t("direction"), cell: (c) => (c.side === "server" ? "← " + t("conn.in") : "→ " + t("conn.out")), text: (c) => c.side },
		{ head: t("protocol"), cell: (c) => c.protocol, text: (c) => c.protocol },
		{ head: "TLS", cell: (c) => (c.tls ? "TLS" : "–"), text: (c) => String(!!c.tls) },
		{ head: t("inflight"), right: true, cell: (c) => c.open, text: (c) => c.open },
		{ head: t("conn.bytes"), right: true, cell: (c) => `${bytes(c.bytesIn ?? 0)} / ${bytes(c.bytesOut ?? 0)}`, text: (c) => c.bytesIn },
		{ head: t("since"), right: true, cell: (c) => age(t, c.since), text: (c) => c.since },
	];
	if (!conns.length) return <p class="dim">{d.connsErr || t(d.conns ? "conn.none" : "conn.unknown")}</p>;
	return <Table name="connections" rows={conns} columns={columns} />;
}
