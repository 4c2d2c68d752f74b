// SPDX-License-Identifier: Apache-2.0

// Charts over time, as SVG.

import { useEffect, useState } from "preact/hooks";
import type { Chart, Event } from "./api";
import { useParam, useShell } from "./state";
import { clock, ms, number } from "./ui";

/** The width of a chart in its own units, which are pixels when it is as wide. */
const wide = 640;
const narrow = matchMedia("(max-width: 700px)");
const height = 120;
const left = 52;
const bottom = 16;

interface Line {
	name: string;
	points: (number | null)[];
	tone: string;
}

/** What the charts of a page share: the step under the pointer, and the one at which the user began to drag. */
interface Pointer {
	at: number | null;
	from: number | null;
}

/**
 * Two charts on one time axis: calls by outcome, and latency. Marks are events. A drag over one of them zooms both into
 * that time, which is in the address as two seconds since 1970. The frame pauses the page meanwhile.
 */
export function Charts({ chart, events }: { chart: Chart; events: Event[] }) {
	const { t } = useShell();
	const [zoom, setZoom] = useParam("zoom");
	const [pointer, point] = useState<Pointer>({ at: null, from: null });
	if (!chart.good.length) return <p class="dim">{t("chart.none")}</p>;
	const into = (zoom: string) => {
		point({ at: null, from: null });
		setZoom(zoom);
	};
	const shown = zoom ? part(chart, zoom) : chart;
	const bar = zoom && (
		<p class="zoom">
			{shown ? clock(time(shown, 0)) + " – " + clock(time(shown, shown.good.length - 1)) : t("chart.gone")}{" "}
			<button class="chip" onClick={() => into("")}>
				{t("chart.whole")}
			</button>
		</p>
	);
	if (!shown) return <>{bar}</>;
	const codes = Object.entries(shown.codes ?? {});
	const calls: Line[] = [{ name: t("good"), points: shown.good, tone: "good" }, ...codes.map(([code, points], i) => ({ name: code, points: points.map((p) => p || null), tone: "code" + (i % 4) }))];
	if (shown.canceled) calls.push({ name: t("canceled"), points: shown.canceled.map((p) => p || null), tone: "canceled" });
	const latency: Line[] = [
		{ name: "p50", points: shown.p50, tone: "p50" },
		{ name: "p90", points: shown.p90, tone: "p90" },
		{ name: "p99", points: shown.p99, tone: "p99" },
	];
	const last = time(shown, shown.good.length - 1);
	const seen = zoom ? events.filter((e) => new Date(e.at).getTime() <= last) : events;
	const both = { chart: shown, events: seen, pointer, point, into };
	return (
		<>
			{bar}
			<div class="charts">
				<Plot title={t("chart.calls")} lines={calls} format={number} {...both} />
				<Plot title={t("chart.latency")} lines={latency} format={ms} {...both} />
			</div>
		</>
	);
}

/** When step i of a chart ends, in milliseconds. */
function time(chart: Chart, i: number): number {
	return new Date(chart.end).getTime() - (chart.good.length - 1 - i) * chart.step * 1000;
}

/** The part of a chart that a zoom names, or null if the chart has fewer than two steps of it. */
function part(chart: Chart, zoom: string): Chart | null {
	const [from = NaN, to = NaN] = zoom.split("-").map((s) => Number(s) * 1000);
	const steps = chart.good.map((_, i) => i).filter((i) => time(chart, i) >= from - 500 && time(chart, i) <= to + 500);
	if (steps.length < 2) return null;
	const first = steps[0]!;
	const last = steps[steps.length - 1]!;
	const cut = <P,>(points: P[]) => points.slice(first, last + 1);
	return {
		...chart,
		end: new Date(time(chart, last)).toISOString(),
		good: cut(chart.good),
		codes: Object.fromEntries(Object.entries(chart.codes ?? {}).map(([code, points]) => [code, cut(points)] as const).filter(([, points]) => points.some(Boolean))),
		canceled: chart.canceled && cut(chart.canceled),
		p50: cut(chart.p50),
		p90: cut(chart.p90),
		p99: cut(chart.p99),
	};
}

interface PlotProps {
	title: string;
	lines: Line[];
	chart: Chart;
	events: Event[];
	format: (n: number) => string;
	pointer: Pointer;
	point: (p: Pointer) => void;
	into: (zoom: string) => void;
}

function Plot({ title, lines, chart, events, format, pointer, point, into }: PlotProps) {
	const { t, said } = useShell();
	const width = useNarrow() ? 350 : wide;
	const n = chart.good.length;
	const at = pointer.at !== null && pointer.at < n ? pointer.at : null;
	const top = nice(Math.max(...lines.flatMap((l) => l.points.map((p) => p ?? 0))));
	const x = (i: number) => left + ((width - left - 4) * i) / Math.max(n - 1, 1);
	const y = (v: number) => 6 + (height - bottom - 6) * (1 - v / top);
	const start = time(chart, 0);
	// Events of the step that has not ended are at the end.
	const marks = events.filter((e) => new Date(e.at).getTime() >= start).map((e) => ({ ...e, x: x(Math.min((new Date(e.at).getTime() - start) / 1000 / chart.step, n - 1)) }));
	const step = (e: PointerEvent) => {
		const box = (e.currentTarget as Element).getBoundingClientRect();
		return Math.round((((e.clientX - box.left) / box.width) * width - left) / ((width - left - 4) / Math.max(n - 1, 1)));
	};
	const inside = (i: number) => Math.min(Math.max(i, 0), n - 1);
	const down = (e: PointerEvent) => {
		if (e.button !== 0) return;
		(e.currentTarget as Element).setPointerCapture(e.pointerId);
		point({ at: inside(step(e)), from: inside(step(e)) });
	};
	const move = (e: PointerEvent) => {
		const i = step(e);
		point({ at: pointer.from !== null ? inside(i) : i >= 0 && i < n ? i : null, from: pointer.from });
	};
	const up = (e: PointerEvent) => {
		if (pointer.from === null) return;
		const ends = [pointer.from, inside(step(e))].sort((a, b) => a - b);
		if (ends[0] === ends[1]) point({ at: ends[0]!, from: null });
		else into(ends.map((i) => Math.round(time(chart, i) / 1000)).join("-"));
	};
	const brush = pointer.from !== null && at !== null && pointer.from < n ? [x(Math.min(pointer.from, at)), x(Math.max(pointer.from, at))] : null;
	return (
		<figure>
			<figcaption>
				{title}
				{lines.map((l) => {
					const value = l.points[at ?? n - 1] ?? null;
					return (
						<span class={"key " + l.tone}>
							{l.name} <b>{value === null ? "–" : format(value)}</b>
						</span>
					);
				})}
				{at !== null && <span class="dim">{clock(time(chart, at))}</span>}
			</figcaption>
			<svg
				viewBox={`0 0 ${width} ${height}`}
				role="img"
				aria-label={title}
				onPointerDown={down}
				onPointerMove={move}
				onPointerUp={up}
				onPointerCancel={() => point({ at: null, from: null })}
				onPointerLeave={() => pointer.from === null && point({ at: null, from: null })}
			>
				{brush && <rect class="brush" x={brush[0]} y={2} width={brush[1]! - brush[0]!} height={height - bottom - 2} />}
				{[0, 0.5, 1].map((share) => (
					<>
						<line class="grid" x1={left} x2={width - 4} y1={y(top * share)} y2={y(top * share)} />
						<text class="tick" x={left - 6} y={y(top * share) + 4} text-anchor="end">
							{format(top * share)}
						</text>
					</>
				))}
				<text class="tick" x={left} y={height - 3}>
					{clock(start)}
				</text>
				<text class="tick" x={width - 4} y={height - 3} text-anchor="end">
					{clock(time(chart, n - 1))}
				</text>
				{marks.map((e) => (
					<g class="mark">
						<line x1={e.x} x2={e.x} y1={2} y2={height - bottom} />
						<title>{`${clock(e.at)} ${t(`event.${e.kind as "rule"}`)} ${e.object}: ${said(e.what)}`}</title>
					</g>
				))}
				{lines.map((l) =>
					segments(l.points).map(([from, points]) =>
						points.length === 1 ? (
							<circle class={"dot " + l.tone} cx={x(from).toFixed(1)} cy={y(points[0]!).toFixed(1)} r="2.5" />
						) : (
							<polyline class={"line " + l.tone} points={points.map((p, i) => x(from + i).toFixed(1) + "," + y(p).toFixed(1)).join(" ")} />
						),
					),
				)}
				{at !== null && <line class="cursor" x1={x(at)} x2={x(at)} y1={2} y2={height - bottom} />}
			</svg>
			<p class="dim small">
				{t("chart.step", chart.step >= 3600 ? "1 h" : chart.step >= 60 ? "1 min" : "1 s", ms((n - 1) * chart.step * 1000))} · {t("chart.zoom")}
			</p>
			{marks.length > 0 && <p class="dim small">{t("chart.marks", marks.length)}</p>}
		</figure>
	);
}

/** Whether the window is narrow, also when it has been resized. */
function useNarrow(): boolean {
	const [is, set] = useState(narrow.matches);
	useEffect(() => {
		const update = () => set(narrow.matches);
		narrow.addEventListener("change", update);
		return () => narrow.removeEventListener("change", update);
	}, []);
	return is;
}

/** The parts of a line without gaps, each with the index of its first point. */
function segments(points: (number | null)[]): [number, number[]][] {
	const out: [number, number[]][] = [];
	points.forEach((p, i) => {
		if (p === null) return;
		const last = out[out.length - 1];
		if (last && last[0] + last[1].length === i) last[1].push(p);
		else out.push([i, [p]]);
	});
	return out;
}

function nice(n: number): number {
	if (!(n > 0)) return 1;
	const unit = 10 ** Math.floor(Math.log10(n));
	return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((k) => k * unit).find((k) => k >= n) ?? n;
}
