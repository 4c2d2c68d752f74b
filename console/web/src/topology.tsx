// SPDX-License-Identifier: Apache-2.0

// S5: who calls whom. The layout is computed in one pass, so the same graph always looks the same.

import { useEffect, useLayoutEffect, useMemo } from "preact/hooks";
import { useData, type Numbers } from "./api";
import { go, href, useParam, useShell } from "./state";
import { Empty, Link, ms, number, OK, percent, Ms, Rate, Wait } from "./ui";

interface Node extends Numbers {
	id: string;
	kind: string;
	state?: string;
	up: number;
	total: number;
}

interface Edge extends Numbers {
	from: string;
	to: string;
	callers: string[] | null; // the names that the clients have sent
}

interface Graph {
	nodes: Node[];
	edges: Edge[];
	left: number;
	worst: string;
}

/** A map with more nodes is not shown as a whole unless the user asks for it. */
const small = 30;

export function TopologyScreen() {
	const { t, range, paused } = useShell();
	const [focus, setFocus] = useParam("focus");
	const [whole, setWhole] = useParam("whole");
	const [hops, setHops] = useParam("hops", "1");
	const [find, setFind] = useParam("find");
	const [edge, setEdge] = useParam("edge");
	const around = useData<Graph>(whole ? null : `graph?range=${range}&focus=${encodeURIComponent(focus)}&hops=${hops}`, 2000, paused);
	const all = useData<Graph>(whole ? `graph?range=${range}` : null, 2000, paused);
	const loaded = whole ? all : around;
	// Without a focus the answer has the whole map. A large one is not shown, but what is around the worst service.
	const unasked = whole || focus ? undefined : around.data;
	const large = (unasked?.nodes.length ?? 0) > small;
	const worst = large ? unasked!.worst : "";
	const shown = !!whole || (!!unasked && !large);
	const toggle = () => {
		setWhole(shown ? "" : "1");
		if (shown && !focus) setFocus(loaded.data?.worst ?? "");
	};
	useEffect(() => {
		if (worst) setFocus(worst);
	}, [worst]);
	return (
		<>
			<div class="bar">
				<h1>{t("topology")}</h1>
				<input type="search" class="find" placeholder={t("topology.find")} aria-label={t("topology.find")} value={find} onInput={(e) => setFind(e.currentTarget.value)} />
				{["1", "2", "3"].map((n) => (
					<button class="chip" disabled={!!whole || !focus} aria-pressed={hops === n} onClick={() => setHops(n)}>
						{t("topology.hops", n)}
					</button>
				))}
				<button class="chip" aria-pressed={shown} onClick={toggle}>
					{t("topology.whole")}
				</button>
			</div>
			<Wait of={loaded}>
				{(g) => {
					if (worst) return null;
					if (!g.nodes.length && (whole || !focus)) return <Empty title={t("overview.none")} why={t("services.none.why")} />;
					if (!g.nodes.length) return <Empty title={t("topology.gone", focus)} action={<Link to={href(["services"])}>{t("services")}</Link>} />;
					const chosen = g.edges.find((e) => e.from + " > " + e.to === edge);
					return (
						<>
							{!g.edges.length && <Empty title={shown ? t("topology.silent") : t("topology.idle", focus)} why={t("topology.idle.why")} action={focus && !whole ? <Link class="button" to={href(["call"], { service: focus })}>{t("service.test")}</Link> : undefined} />}
							{g.left > 0 && <p class="dim">{t("topology.left", g.left)}</p>}
							<div class="graph">
								<Picture g={g} focus={shown ? "" : focus} find={find} edge={edge} setEdge={setEdge} />
								{chosen && <EdgePanel e={chosen} close={() => setEdge("")} />}
							</div>
						</>
					);
				}}
			</Wait>
		</>
	);
}

const box = { w: 168, h: 44, dx: 250, dy: 58 };

/** Puts each node into a column behind its callers, and orders the columns by their callers. */
export function layout(nodes: { id: string }[], edges: { from: string; to: string }[]): Map<string, { x: number; y: number }> {
	const out = new Map<string, string[]>(nodes.map((n) => [n.id, []]));
	const into = new Map<string, string[]>(nodes.map((n) => [n.id, []]));
	for (const e of edges) {
		if (e.from === e.to) continue;
		out.get(e.from)?.push(e.to);
		into.get(e.to)?.push(e.from);
	}
	const column = new Map<string, number>();
	const open = new Set<string>();
	const depth = (id: string): number => {
		const known = column.get(id);
		if (known !== undefined) return known;
		if (open.has(id)) return -1; // a cycle
		open.add(id);
		const d = Math.max(-1, ...(into.get(id) ?? []).map(depth)) + 1;
		open.delete(id);
		column.set(id, d);
		return d;
	};
	nodes.forEach((n) => depth(n.id));
	const columns: string[][] = [];
	for (const n of nodes) (columns[column.get(n.id)!] ??= []).push(n.id);
	const place = new Map<string, { x: number; y: number }>();
	const rows = 40; // a longer column goes on beside itself
	let x = 0;
	for (const ids of columns) {
		if (!ids) continue;
		const mean = (id: string) => {
			const ys = (into.get(id) ?? []).map((from) => place.get(from)?.y ?? 0);
			return ys.length ? ys.reduce((a, b) => a + b, 0) / ys.length : 0;
		};
		const sorted = ids.map((id, i) => ({ id, i, y: mean(id) })).sort((a, b) => a.y - b.y || a.i - b.i);
		sorted.forEach(({ id }, i) => place.set(id, { x: x + Math.floor(i / rows) * box.dx, y: (i % rows) * box.dy }));
		x += box.dx * Math.ceil(ids.length / rows);
	}
	const tallest = Math.max(...[...place.values()].map((p) => p.y));
	for (const ids of columns) {
		const last = Math.max(...(ids ?? []).map((id) => place.get(id)!.y));
		for (const id of ids ?? []) place.get(id)!.y += (tallest - last) / 2;
	}
	return place;
}

/**
 * A name, or its end if the box has no room for all of it: what tells services of one package apart is at the end.
 * Letters of Chinese are twice as wide as others.
 */
function short(name: string, room: number): string {
	const letters = [...name];
	for (let i = letters.length - 1; i >= 0; i--) {
		room -= letters[i]! > "\u2e7f" ? 2 : /[mwMWA-Z@]/.test(letters[i]!) ? 1.3 : 1;
		if (room < 0) return "…" + letters.slice(i + 1).join("");
	}
	return name;
}

/** Whether a filter such as "web", "p99>200" or "success<99" selects a node. */
function selects(find: string, n: Node): boolean {
	const m = /^(p99|p50|success|rate)\s*([<>])\s*([\d.]+)/.exec(find);
	if (!m) return n.id.toLowerCase().includes(find.toLowerCase());
	const value = m[1] === "success" ? (n.ok === null ? null : n.ok * 100) : n[m[1] as "p99" | "p50" | "rate"];
	return value !== null && (m[2] === "<" ? value < Number(m[3]) : value > Number(m[3]));
}

function Picture({ g, focus, find, edge, setEdge }: { g: Graph; focus: string; find: string; edge: string; setEdge: (e: string) => void }) {
	const { t } = useShell();
	const shape = g.nodes.map((n) => n.id).join() + g.edges.map((e) => e.from + ">" + e.to).join();
	const began = useMemo(() => performance.now(), [shape]);
	useLayoutEffect(() => {
		requestAnimationFrame(() => performance.measure("map", { start: began }));
	}, [shape]);
	const place = useMemo(() => layout(g.nodes, g.edges), [shape]);
	const spots = [...place.values()];
	const w = Math.max(...spots.map((p) => p.x)) + box.w + 8;
	const h = Math.max(...spots.map((p) => p.y)) + box.h + 8;
	return (
		<div class="scroll">
			<svg class={"map" + (focus ? "" : " fit")} width={w} height={h} viewBox={`-4 -4 ${w} ${h}`} data-nodes={g.nodes.length}>
				{g.edges.map((e) => {
					const a = place.get(e.from);
					const b = place.get(e.to);
					if (!a || !b) return null;
					const id = e.from + " > " + e.to;
					const [x1, y1, x2, y2] = [a.x + box.w, a.y + box.h / 2, b.x, b.y + box.h / 2];
					const bend = Math.max(40, Math.abs(x2 - x1) / 2);
					const tone = e.ok === null ? "dim" : e.ok < 0.95 ? "bad" : e.ok < 0.99 ? "warn" : "good";
					const text = `${e.from} → ${e.to}: ${e.ok === null ? t("idle") : `${number(e.rate ?? 0)}/s, ${percent(e.ok)}, p99 ${e.p99 === null ? "–" : ms(e.p99)}`}`;
					return (
						<path
							class={`edge ${tone}${id === edge ? " chosen" : ""}`}
							d={`M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`}
							stroke-width={1 + Math.min(5, Math.log10(1 + (e.rate ?? 0)) * 1.6)}
							onClick={() => setEdge(id)}
							onKeyDown={(k) => (k.key === "Enter" || k.key === " ") && (k.preventDefault(), setEdge(id))}
							tabindex={0}
							role="button"
							aria-label={text}
							key={id}
						>
							<title>{text}</title>
						</path>
					);
				})}
				{g.nodes.map((n) => {
					const at = place.get(n.id)!;
					const tone = n.kind === "caller" ? "dim" : n.state === "down" ? "bad" : n.state === "degraded" ? "warn" : n.ok === null ? "dim" : "good";
					const text = n.state === "down" ? t("state.down") : n.rate === null ? t("nodata") : n.ok === null ? t("idle") : `${percent(n.ok)} · ${number(n.rate)}/s`;
					const hidden = find !== "" && !selects(find, n);
					// A node leads to the map around it, and the node in the middle to the page of its service.
					const to = n.kind !== "service" ? undefined : n.id === focus ? href(["services", n.id]) : href(["topology"], { focus: n.id, hops: new URLSearchParams(location.search).get("hops") ?? "", find });
					return (
						<g class={`box ${tone}${n.id === focus ? " here" : ""}${hidden ? " hidden" : ""}`} transform={`translate(${at.x},${at.y})`} key={n.id} tabindex={to ? 0 : -1} data-to={to} onClick={() => to && go(to)} role="link" aria-label={n.id}>
							<rect width={box.w} height={box.h} rx="6" />
							<text x="10" y="18">
								{tone === "bad" ? "✖ " : tone === "warn" ? "▲ " : ""}
								{short(n.id, tone === "bad" || tone === "warn" ? 16 : 18)}
							</text>
							<text class="sub" x="10" y="35">
								{text}
							</text>
							<title>{n.id}</title>
						</g>
					);
				})}
			</svg>
		</div>
	);
}

function EdgePanel({ e, close }: { e: Edge; close: () => void }) {
	const { t, me, mayChange } = useShell();
	const caller = e.callers?.length === 1 ? e.callers[0]! : ""; // the map may have put several names together
	return (
		<aside class="panel">
			<h2>
				{e.from} → {e.to}
			</h2>
			<dl>
				<dt>{t("rate")}</dt>
				<dd><Rate of={e} /></dd>
				<dt>{t("success")}</dt>
				<dd><OK of={e} /></dd>
				<dt>p50 / p99</dt>
				<dd><Ms n={e.p50} /> / <Ms n={e.p99} /></dd>
			</dl>
			{e.errors && Object.entries(e.errors).map(([code, rate]) => <p class="bad">{code}: {number(rate)}/s</p>)}
			<p>
				<Link to={href(["live"], { service: e.to, peer: caller })}>{t("tap")}</Link> <Link to={href(["samples"], { service: e.to })}>{t("samples")}</Link>{" "}
				{me.rules && mayChange && caller && <Link to={href(["rules"], { new: "limit", service: e.to, caller })}>{t("topology.limit")}</Link>}
			</p>
			<button class="small" onClick={close}>
				{t("close")}
			</button>
		</aside>
	);
}

