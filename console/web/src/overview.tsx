// SPDX-License-Identifier: Apache-2.0

// S1: is anything wrong, where, and what has changed.

import { useLayoutEffect } from "preact/hooks";
import { useData, type Overview, type ServiceView } from "./api";
import { href, useShell } from "./state";
import { clock, Copy, Empty, Link, ms, number, OK, percent, problemText, Spark, State, Wait } from "./ui";
import { Events } from "./events";

export function OverviewScreen() {
	const { t, range, paused, me } = useShell();
	const loaded = useData<Overview>("overview?range=" + range, 1000, paused);
	return (
		<Wait of={loaded}>
			{(o) =>
				o.services.length === 0 ? (
					<Empty
						title={t("overview.none")}
						why={o.err || t("overview.none.why", me.registry)}
						action={
							<p>
								<code>yodel dev --demo</code> <Copy text="yodel dev --demo" />
							</p>
						}
					/>
				) : (
					<Filled o={o} />
				)
			}
		</Wait>
	);
}

function Filled({ o }: { o: Overview }) {
	const { t, range } = useShell();
	useLayoutEffect(() => {
		requestAnimationFrame(() => performance.mark("headline"));
	}, []);
	const wrong = o.services.filter((s) => s.problems?.length);
	const names = wrong.slice(0, 2).map((s) => s.name);
	const headline = o.err ? t("overview.blind", o.services.length, clock(o.at)) : wrong.length ? t("overview.wrong", wrong.length, o.services.length, names.join(", ") + (wrong.length > 2 ? " …" : "")) : o.rulesErr ? t("overview.norules", o.services.length) : t("overview.fine", o.services.length, o.rules);
	const bad = o.err || o.rulesErr || wrong.length;
	const { totals } = o;
	return (
		<>
			<h1 class={"headline " + (bad ? "warn" : "good")} data-headline>
				<span aria-hidden="true">{bad ? "▲" : "●"}</span> {headline}
			</h1>
			{o.err && <div class="banner">{t("overview.registry", o.err)}</div>}
			{o.rulesErr && <div class="banner">{t("overview.rules", o.rulesErr)}</div>}
			<p class="dim">{t(`range.${range as "1m"}`)}</p>
			<div class="tiles">
				<Tile name={t("rate")} value={totals.rate === null ? t("nodata") : totals.ok === null ? t("idle") : number(totals.rate)} points={totals.spark} />
				<Tile name={t("success")} value={totals.ok === null ? t("idle") : percent(totals.ok)} bad={totals.ok !== null && totals.ok < 0.99} />
				<Tile name="p50 / p99" value={totals.p50 === null || totals.p99 === null ? t("idle") : `${ms(totals.p50)} / ${ms(totals.p99)}`} />
				<Tile name={t("instances")} value={`${o.up} / ${o.total}`} bad={o.up < o.total} />
			</div>
			<div class="columns">
				<section>
					<h2>{t("overview.attention")}</h2>
					{wrong.length === 0 && <p class="dim">{t("overview.nothing")}</p>}
					<ul class="cards">
						{wrong.slice(0, 7).map((s) => (
							<Attention s={s} />
						))}
					</ul>
					{wrong.length > 7 && <Link to={href(["services"], { show: "unhealthy" })}>{t("overview.more", wrong.length - 7)}</Link>}
				</section>
				<section>
					<h2>{t("overview.changes")}</h2>
					<Events events={o.events.slice(0, 8)} />
				</section>
			</div>
			<section>
				<h2>{t("services")}</h2>
				<ul class="multiples">
					{o.services.slice(0, 48).map((s) => (
						<li>
							<Link to={href(["services", s.name])}>
								<span class="name">{s.name}</span>
								<State of={s.state} />
								<Spark points={s.spark} width={130} height={26} />
								<span class="numbers">
									{s.rate !== null && s.ok !== null && <>{number(s.rate)}/s · </>}
									<OK of={s} />
								</span>
							</Link>
						</li>
					))}
				</ul>
				{o.services.length > 48 && <Link to={href(["services"])}>{t("overview.all", o.services.length)}</Link>}
			</section>
		</>
	);
}

function Tile({ name, value, points, bad }: { name: string; value: string; points?: number[]; bad?: boolean }) {
	return (
		<div class="tile">
			<span class="dim">{name}</span>
			<b class={bad ? "warn" : ""}>{value}</b>
			{points && <Spark points={points} width={120} height={28} />}
		</div>
	);
}

function Attention({ s }: { s: ServiceView }) {
	const { t } = useShell();
	return (
		<li>
			<div>
				<b>{s.name}</b> <State of={s.state} />
				{s.problems!.slice(0, 3).map((p) => (
					<div>{problemText(t, p)}</div>
				))}
			</div>
			<Link class="button" to={href(["services", s.name])}>
				{t("open")}
			</Link>
		</li>
	);
}

