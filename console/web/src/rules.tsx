// SPDX-License-Identifier: Apache-2.0

// S8: the rules, their history, and how to take them back.

import { useRef, useState } from "preact/hooks";
import { post, useData } from "./api";
import { cli } from "./cli";
import { RuleForm } from "./ruleform";
import { href, useParam, useShell } from "./state";
import { age, day, Empty, focused, Link, number, Quote, Spark, State, Table, useSubmit, Wait, type Column } from "./ui";

export interface Rule {
	id: string;
	service: string;
	kind: string;
	sentence: string;
	state: string;
	across?: number;
	limit?: { perSecond?: number; concurrent?: number; by?: string };
	replyText?: string;
	off?: boolean;
	expires?: string;
	author: string;
	reason: string;
	created?: string;
	revision?: number;
	[field: string]: unknown;
}

interface Change {
	revision: number;
	at: string;
	what: string;
	rule: string;
	author: string;
	reason: string;
	diff: string[] | null;
	sentence: string;
}

export function RulesScreen() {
	const { t, me, mayChange } = useShell();
	const [make, setMake] = useParam("new");
	const [edit, setEdit] = useParam("edit");
	const [service] = useParam("service");
	if (!me.rules) return <Empty title={t("rules.unsupported")} why={t("rules.unsupported.why", me.registry)} />;
	if ((make || edit) && mayChange) return <RuleForm kind={make} edit={edit} close={() => (setMake(""), setEdit(""))} />;
	return (
		<>
			<h1>{t("rules")}</h1>
			<RuleList service={service} />
		</>
	);
}

export function RuleList({ service }: { service: string }) {
	const { t, said, me, mayChange, paused } = useShell();
	const [shown, setShown] = useParam("rule");
	const loaded = useData<{ rules: Rule[]; invalid: { service: string; id: string; problem: string }[] | null; kinds: string[]; err?: string }>(me.rules ? "rules?service=" + encodeURIComponent(service) : null, 2000, paused);
	if (!me.rules) return <Empty title={t("rules.unsupported")} why={t("rules.unsupported.why", me.registry)} />;
	const columns: Column<Rule>[] = [
		{ head: t("kind"), cell: (r) => <b>{t(`kind.${r.kind as "limit"}`)}</b>, text: (r) => r.kind },
		{ head: t("rules.sentence"), cell: (r) => <div class="wrap wide"><Quote text={said(r.sentence)} /> <Across r={r} /></div>, text: (r) => r.sentence },
		{ head: t("state"), cell: (r) => <State of={r.state} />, text: (r) => r.state },
		{ head: t("author"), cell: (r) => <div class="wrap">{r.author}</div>, text: (r) => r.author },
		{ head: t("reason"), cell: (r) => <div class="wrap">{r.reason}</div>, text: (r) => r.reason },
		{ head: t("since"), cell: (r) => (r.created ? age(t, r.created) : "–"), text: (r) => r.created },
		{ head: t("rules.expires"), cell: (r) => (r.expires ? day(r.expires) : t("rules.never")), text: (r) => r.expires },
	];
	return (
		<Wait of={loaded}>
			{({ rules, invalid, kinds, err }) => {
				const rule = rules.find((r) => r.service + "/" + r.id === shown);
				return (
					<>
						{mayChange && (
							<div class="intents" aria-label={t("rules.new")}>
								<span class="dim">{t("rules.new")}</span>
								{kinds.map((k) => (
									<Link class="button" to={href(["rules"], { new: k, service })}>
										{t(`kind.${k as "limit"}`)}
									</Link>
								))}
							</div>
						)}
						{err && <div class="banner"><Quote text={t("overview.missing", err)} /></div>}
						{invalid?.map((r) => <p class="warn">▲ <Quote text={t("rules.invalid", r.service + "/" + r.id, r.problem)} /></p>)}
						{rules.length ? (
							<Table name="rules" rows={rules} columns={columns} open={(r) => href(["rules"], { service: r.service, rule: r.service + "/" + r.id })} command={cli.rules(service)} />
						) : (
							<Empty title={t("rules.none")} why={t("rules.none.why")} />
						)}
						{rule && <RulePanel key={shown} r={rule} reload={loaded.reload} close={() => setShown("")} />}
						{service && <History key={service} service={service} reload={loaded.reload} />}
						{!service && rules.length > 0 && <p class="dim">{t("rules.history.choose")}</p>}
					</>
				);
			}}
		</Wait>
	);
}

/** What a limit of each instance means for the service. */
export function Across({ r: { across, limit } }: { r: Pick<Rule, "across" | "limit"> }) {
	const { t } = useShell();
	if (!across || !limit) return null;
	const said: string[] = [];
	if (limit.perSecond) said.push(t(limit.by ? "rules.across.by" : "rules.across.rate", across, number(limit.perSecond), number(limit.perSecond * across), limit.by ?? ""));
	if (limit.concurrent) said.push(t("rules.across.concurrent", across, limit.concurrent, limit.concurrent * across));
	return <span class="dim" data-across>{said.join(" ")}</span>;
}

interface Applied {
	instance: string;
	name?: string;
	state: string;
	hits: number;
	revision: number;
	problem?: string;
	held?: string; // why the instances of a canary took less than half of its calls
}

function RulePanel({ r, reload, close }: { r: Rule; reload: () => void; close: () => void }) {
	const { t, said, mayChange } = useShell();
	const [reason, setReason] = useState("");
	const { submit, busy, error, ask } = useSubmit(async (confirm) => {
		await post("rules/remove", { service: r.service, id: r.id, revision: r.revision, reason }, confirm);
		close();
		reload();
	});
	const applied = useData<Applied[]>(`rules/applied?service=${encodeURIComponent(r.service)}&id=${encodeURIComponent(r.id)}`, 2000);
	return (
		<section class="panel">
			<h2>
				{r.service} / {r.id}
			</h2>
			<p><Quote text={said(r.sentence)} /> <Across r={r} /></p>
			<Wait of={applied}>
				{(list) => (
					<p data-hits>
						{t("rules.applied", list.filter((a) => a.revision === r.revision).length, list.length)} · {t("rules.hits", list.reduce((n, a) => n + a.hits, 0))}
						<HitChart key={r.revision} hits={list.reduce((n, a) => n + a.hits, 0)} at={applied.at} />
						{list.filter((a) => a.held).map((a) => <span class="warn" data-held> ▲ {a.name || a.instance}: <Quote text={t("rules.held", said(a.held))} /></span>)}
						{list.filter((a) => a.problem).map((a) => <span class="bad"> ✖ {a.instance}: <Quote text={said(a.problem)} /></span>)}
					</p>
				)}
			</Wait>
			{mayChange && (
				<form class="bar" onSubmit={submit}>
					<Link class="button" to={href(["rules"], { edit: r.id, service: r.service })}>
						{t("rules.edit")}
					</Link>
					<label>
						{t("reason")} <input required value={reason} onInput={(e) => setReason(e.currentTarget.value)} />
					</label>
					{ask}
					<button type="submit" disabled={busy}>{t("rules.remove")}</button>
				</form>
			)}
			{error && <p class="bad">✖ <Quote text={error} /></p>}
			<button class="small" onClick={close}>{t("close")}</button>
		</section>
	);
}

/** How often the rule acted since the page was opened, in each interval between two answers. */
function HitChart({ hits, at }: { hits: number; at: number }) {
	const { t } = useShell();
	const past = useRef<{ at: number; hits: number }[]>([]);
	const last = past.current.at(-1);
	if (!last || last.at !== at) past.current = [...past.current, { at, hits }].slice(-61);
	const rates = past.current.slice(1).map((p, i) => Math.max(0, p.hits - past.current[i]!.hits) / Math.max((p.at - past.current[i]!.at) / 1000, 0.001));
	if (!rates.length) return null;
	return (
		<span data-rate={rates.at(-1)}>
			{" "}
			· {t("rules.rate", number(rates.at(-1)!))} <Spark points={rates} width={120} />
		</span>
	);
}

function History({ service, reload }: { service: string; reload: () => void }) {
	const { t, mayChange } = useShell();
	const [undo, setUndo] = useState<Change | null>(null);
	const seen = useRef(0); // the newest revision when the user chose one
	const [reason, setReason] = useState("");
	const loaded = useData<Change[]>("rules/history?service=" + encodeURIComponent(service), 2000);
	const { submit, busy, error, ask } = useSubmit(async (confirm) => {
		await post("rules/rollback", { service, revision: undo!.revision - 1, from: seen.current, reason }, confirm);
		setUndo(null);
		loaded.reload();
		reload();
	});
	return (
		<section>
			<h2>{t("rules.history")}</h2>
			<Wait of={loaded}>
				{(changes) =>
					changes.length ? (
						<ol class="history">
							{changes.map((c) => (
								<li>
									<p>
										<span class="dim">#{c.revision} {day(c.at)}</span> <b>{c.author}</b> {t(`change.${c.what as "put"}`)} <b>{c.rule}</b>: {c.reason}{" "}
										{mayChange && (
											<button class="small" data-undo={c.revision} onClick={() => ((seen.current = changes[0]!.revision), setUndo(c), setReason(""))}>
												↶ {t("rules.undo")}
											</button>
										)}
									</p>
									{undo?.revision === c.revision && (
										<form onSubmit={submit}>
											{c !== changes[0] && <p class="warn">{t("audit.later")}</p>}
											<label>
												{t("rules.undo.why", c.revision - 1)} <input required ref={focused} name="undoreason" value={reason} onInput={(e) => setReason(e.currentTarget.value)} />
											</label>
											<button type="submit" disabled={busy}>{t("rules.undo")}</button> {error && <span class="bad">✖ <Quote text={error} /></span>} {ask}
										</form>
									)}
									<pre class="diff">{(c.diff ?? []).map((l) => <span class={l.startsWith("+") ? "good" : "bad"}>{l + "\n"}</span>)}</pre>
								</li>
							))}
						</ol>
					) : (
						<p class="dim">{t("rules.history.none")}</p>
					)
				}
			</Wait>
		</section>
	);
}
