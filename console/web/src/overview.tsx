// SPDX-License-Identifier: Apache-2.0

// S1: is anything wrong, where, and what has changed.

import { useLayoutEffect } from "preact/hooks";
import { useData, type Overview, type ServiceView } from "./api";
import { href, useShell } from "./state";
import { clock, Copy, Empty, Link, ms, number, OK, percent, Problems, Quote, Spark, State, Wait, wrong } from "./ui";
import { Events } from "./events";

export function OverviewScreen() {
	const { t, said, range, paused, me } = useShell();
	const loaded = useData<Overview>("overview?range=" + range, 1000, paused);
	return (
		<Wait of={loaded}>
			{(o) =>
				o.services.length === 0 ? (
					<Empty
						title={t("overview.none")}
						why={o.err || o.missing?.[0] || t("overview.none.why", said(me.registry))}
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
	const noted = o.services.filter((s) => s.problems?.length);
	const ill = noted.filter((s) => wrong(s.problems));
	const names = ill.slice(0, 2).map((s) => s.name);
	const headline = o.err ? t("overview.blind", o.services.length, clock(o.at)) : ill.length ? t("overview.wrong", ill.length, o.services.length, names.join(", ") + (ill.length > 2 ? " …" : "")) : o.rulesErr ? t("overview.norules", o.services.length) : t("overview.fine", o.services.length, o.rules);
	const bad = o.err || o.missing || o.rulesErr || ill.length;
	const down = ill.some((s) => s.state === "down");
	const { totals } = o;
	return (
		<>
			<h1 class={"headline " + (down ? "bad" : bad ? "warn" : "good")} data-headline>
				<span aria-hidden="true">{down ? "✖" : bad ? "▲" : "●"}</span> {headline}
			</h1>
			<Incomplete o={o} />
			<p class="dim">{t(`range.${range as "1m"}`)}</p>
			<div class="tiles">
				<Tile name={t("rate")} value={totals.rate === null ? t("nodata") : !totals.rate ? t("idle") : number(totals.rate)} points={totals.spark} />
				<Tile name={t("success")} value={totals.ok === null ? t("idle") : percent(totals.ok)} bad={totals.ok !== null && totals.ok < 0.99} />
				<Tile name="p50 / p99" value={totals.p50 === null || totals.p99 === null ? t("idle") : `${ms(totals.p50)} / ${ms(totals.p99)}`} />
				<Tile name={t("overview.instances")} value={`${o.up} / ${o.total}`} bad={o.up < o.total} />
			</div>
			<div class="columns">
				<section>
					<h2>{t("overview.attention")}</h2>
					{noted.length === 0 && <p class="dim">{t("overview.nothing")}</p>}
					<ul class="cards">
						{noted.slice(0, 7).map((s) => (
							<Attention s={s} />
						))}
					</ul>
					{noted.length > 7 && <Link to={href(["services"], { show: "unhealthy" })}>{t("overview.more", noted.length - 7)}</Link>}
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

/** Why the lists of services and rules are not what they should be now. */
export function Incomplete({ o }: { o: Overview }) {
	const { t } = useShell();
	return (
		<>
			{o.err && <div class="banner"><Quote text={t("overview.registry", o.err)} /></div>}
			{o.missing?.map((why) => <div class="banner"><Quote text={t("overview.missing", why)} /></div>)}
			{o.rulesErr && <div class="banner"><Quote text={t("overview.rules", o.rulesErr)} /></div>}
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
		<li class={s.state === "down" ? "down" : wrong(s.problems) ? "" : "fine"}>
			<div>
				<b>{s.name}</b> <State of={s.state} />
				<Problems of={s.problems} service={s.name} most={3} />
			</div>
			<Link class="button" to={href(["services", s.name])}>
				{t("open")}
			</Link>
		</li>
	);
}

