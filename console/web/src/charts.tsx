// SPDX-License-Identifier: Apache-2.0

// Charts over time, as SVG.

import { useState } from "preact/hooks";
import type { Chart, Event } from "./api";
import { useShell } from "./state";
import { clock, ms, number } from "./ui";

const width = 640;
const height = 120;
const left = 52;
const bottom = 16;

interface Line {
	name: string;
	points: (number | null)[];
	tone: string;
}

/** Three charts on one time axis: calls by outcome, and latency. Marks are events. */
export function Charts({ chart, events }: { chart: Chart; events: Event[] }) {
	const { t } = useShell();
	if (!chart.good.length) return <p class="dim">{t("chart.none")}</p>;
	const codes = Object.entries(chart.codes ?? {});
	const calls: Line[] = [{ name: t("chart.good"), points: chart.good, tone: "good" }, ...codes.map(([code, points], i) => ({ name: code, points: points.map((p) => p || null), tone: "code" + (i % 4) }))];
	const latency: Line[] = [
		{ name: "p50", points: chart.p50, tone: "p50" },
		{ name: "p90", points: chart.p90, tone: "p90" },
		{ name: "p99", points: chart.p99, tone: "p99" },
	];
	return (
		<div class="charts">
			<Plot title={t("chart.calls")} lines={calls} chart={chart} events={events} format={number} />
			<Plot title={t("chart.latency")} lines={latency} chart={chart} events={events} format={ms} />
		</div>
	);
}

function Plot(props: { title: string; lines: Line[]; chart: Chart; events: Event[]; format: (n: number) => string }) {
	const { title, lines, chart, events, format } = props;
	const { t } = useShell();
	const [at, setAt] = useState<number | null>(null);
	const n = chart.good.length;
	const top = nice(Math.max(...lines.flatMap((l) => l.points.map((p) => p ?? 0))));
	const x = (i: number) => left + ((width - left - 4) * i) / Math.max(n - 1, 1);
	const y = (v: number) => 6 + (height - bottom - 6) * (1 - v / top);
	const end = new Date(chart.end).getTime();
	const time = (i: number) => end - (n - 1 - i) * chart.step * 1000;
	// Events of the step that has not ended are at the end.
	const marks = events.filter((e) => new Date(e.at).getTime() >= time(0)).map((e) => ({ ...e, x: x(Math.min((new Date(e.at).getTime() - time(0)) / 1000 / chart.step, n - 1)) }));
	const move = (e: MouseEvent) => {
		const box = (e.currentTarget as Element).getBoundingClientRect();
		const i = Math.round((((e.clientX - box.left) / box.width) * width - left) / ((width - left - 4) / Math.max(n - 1, 1)));
		setAt(i >= 0 && i < n ? i : null);
	};
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
				{at !== null && <span class="dim">{clock(time(at))}</span>}
			</figcaption>
			<svg viewBox={`0 0 ${width} ${height}`} role="img" aria-label={title} onMouseMove={move} onMouseLeave={() => setAt(null)}>
				{[0, 0.5, 1].map((share) => (
					<>
						<line class="grid" x1={left} x2={width - 4} y1={y(top * share)} y2={y(top * share)} />
						<text class="tick" x={left - 6} y={y(top * share) + 4} text-anchor="end">
							{format(top * share)}
						</text>
					</>
				))}
				<text class="tick" x={left} y={height - 3}>
					{clock(time(0))}
				</text>
				<text class="tick" x={width - 4} y={height - 3} text-anchor="end">
					{clock(end)}
				</text>
				{marks.map((e) => (
					<g class="mark">
						<line x1={e.x} x2={e.x} y1={2} y2={height - bottom} />
						<title>{`${clock(e.at)} ${t(`event.${e.kind as "rule"}`)} ${e.object}: ${e.what}`}</title>
					</g>
				))}
				{lines.map((l) =>
					segments(l.points).map(([from, points]) => (
						<polyline class={"line " + l.tone} points={points.map((p, i) => x(from + i).toFixed(1) + "," + y(p).toFixed(1)).join(" ") + (points.length === 1 ? ` ${(x(from) + 2).toFixed(1)},${y(points[0]!).toFixed(1)}` : "")} />
					)),
				)}
				{at !== null && <line class="cursor" x1={x(at)} x2={x(at)} y1={2} y2={height - bottom} />}
			</svg>
			<p class="dim small">{t("chart.step", chart.step >= 3600 ? "1 h" : chart.step >= 60 ? "1 min" : "1 s", ms((n - 1) * chart.step * 1000))}</p>
			{marks.length > 0 && <p class="dim small">{t("chart.marks", marks.length)}</p>}
		</figure>
	);
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
	return [1, 2, 5, 10].map((k) => k * unit).find((k) => k >= n) ?? n;
}
