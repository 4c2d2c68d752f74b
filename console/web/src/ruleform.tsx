// SPDX-License-Identifier: Apache-2.0

// The form of a rule in three parts: what it does, what that would change, and how it ends.

import { useEffect, useMemo, useState } from "preact/hooks";
import { post, useData, type Overview } from "./api";
import { parse, plain, write } from "./json";
import type { Rule } from "./rules";
import { go, href, useParam, useShell } from "./state";
import { day, Empty, number, NumberInput, Quote, Tabs, useSubmit, Wait } from "./ui";

type Kind = "text" | "number" | "bool" | "list" | "pairs" | "json";

/** What a kind of rule is asked for, as rules.Forms says. */
interface Asked {
	kind: string;
	fields: { path: string; type: Kind }[];
	start?: object;
	scope: boolean;
	ends?: boolean;
}

const scope: [string, Kind][] = [["method", "text"], ["caller", "text"], ["tenant", "text"], ["network", "text"], ["header", "pairs"], ["identity", "pairs"]];
const lives: Record<string, number> = { "1h": 1, "24h": 24, "7d": 168, never: 0 }; // hours

interface Effect {
	calls: number;
	matched: number;
	moved: number;
	refused: number;
	shares: { addr: string; version?: string; before: number; after: number; selected?: boolean }[] | null;
	problems?: { id: string; text: string; hint?: string; severity?: string; warning?: boolean; force?: boolean }[];
	text: string;
}

type Draft = Record<string, unknown>;

const isObject = (v: unknown): v is Draft => typeof v === "object" && v !== null && !Array.isArray(v);

function at(o: unknown, path: string): unknown {
	return path.split(".").reduce<any>((v, key) => v?.[key], o);
}

/** A copy of o with a value at a path. Empty values and empty objects are left out. */
function put(o: Draft, path: string, value: unknown): Draft {
	const [key, ...rest] = path.split(".") as [string, ...string[]];
	const inner = rest.length ? put(isObject(o[key]) ? o[key] : {}, rest.join("."), value) : value;
	const copy = { ...o };
	const empty = inner === "" || inner === undefined || inner === null || inner === false || (Array.isArray(inner) && !inner.length) || (rest.length > 0 && typeof inner === "object" && !Object.keys(inner as object).length);
	if (empty) delete copy[key];
	else copy[key] = inner;
	return copy;
}

export function RuleForm({ kind, edit, close }: { kind: string; edit: string; close: () => void }) {
	const { t } = useShell();
	const [service] = useParam("service");
	const [caller] = useParam("caller");
	const loaded = useData<{ rules: Rule[] }>(edit ? "rules?service=" + encodeURIComponent(service) : null, 0);
	const forms = useData<Asked[]>("rules/forms", 0);
	const overview = useData<Overview>("overview", 5000);
	const form = (o: Overview, all: Asked[]) => {
		const names = o.services.map((s) => s.name).sort();
		const asked = (k: string) => all.find((f) => f.kind === k);
		const made = asked(kind);
		if (!edit && !made) return <Empty title={t("rules.unknown", kind)} action={<button onClick={close}>{t("cancel")}</button>} />;
		if (!edit) return <Form key={kind} names={names} asked={made!} first={{ service: service || names[0], caller: caller || undefined, [kind]: made!.start ?? {} }} close={close} />;
		return (
			<Wait of={loaded}>
				{({ rules }) => {
					const rule = rules.find((r) => r.id === edit);
					if (!rule) return <p class="bad">✖ {t("rules.gone", edit)}</p>;
					const { kind: k, sentence: _1, state: _2, across: _7, author: _3, created: _4, ended: _5, reason: _6, replyText, ...rest } = rule;
					const first = replyText ? { ...rest, [k]: { ...(rest[k] as Draft), reply: parse(replyText) } } : rest;
					return <Form key={edit} names={names} asked={asked(k) ?? { kind: k, fields: [], scope: true }} first={first} close={close} edits />;
				}}
			</Wait>
		);
	};
	return <Wait of={overview}>{(o) => <Wait of={forms}>{(all) => form(o, all)}</Wait>}</Wait>;
}

/** The form of a new rule, or of one that it edits: the latter keeps its service, its ID, and its expiry unless the user chooses another. */
function Form({ names, asked, first, close, edits }: { names: string[]; asked: Asked; first: Draft; close: () => void; edits?: boolean }) {
	const { t, said } = useShell();
	const kind = asked.kind;
	const [draft, setDraft] = useState<Draft>(first);
	const [mode, setMode] = useState("form");
	const [text, setText] = useState("");
	const [broken, setBroken] = useState(""); // why the text is not a rule
	const [life, setLife] = useState(edits ? "keep" : asked.ends ? "24h" : "never");
	const [reason, setReason] = useState("");
	const whole = useMemo(() => {
		const hours = lives[life];
		return hours ? { ...draft, expires: new Date(Math.ceil(Date.now() / 6e4) * 6e4 + hours * 36e5).toISOString() } : draft;
	}, [draft, life]);
	const { effect, sentence, refused } = usePreview(whole);
	const show = (m: string) => {
		setText(write(draft, 2));
		setBroken("");
		setMode(m);
	};
	const edit = (s: string) => {
		setText(s);
		let rule: unknown;
		try {
			rule = parse(s);
		} catch {
			return setBroken(t("call.notjson"));
		}
		if (!isObject(rule)) return setBroken(t("rules.notobject"));
		if (edits && (rule.service !== first.service || rule.id !== first.id)) return setBroken(t("rules.same"));
		setBroken("");
		if (rule.expires !== draft.expires) setLife("keep");
		setDraft(rule);
	};
	const live = (l: string) => {
		const { expires: _, ...rest } = draft;
		const next = l === "keep" && first.expires ? { ...rest, expires: first.expires } : rest;
		setLife(l);
		setDraft(next);
		if (!broken) setText(write(next, 2));
	};
	const { submit, busy, error, ask } = useSubmit(async (confirm) => {
		const stored = await post<Rule>("rules/put", write({ ...whole, reason }), confirm);
		go(href(["rules"], { service: stored.service, rule: stored.service + "/" + stored.id }));
	});
	// A rule without the object of its kind has no kind, also if all fields of it are empty.
	const set = (path: string, v: unknown) => setDraft({ ...(kind in draft && { [kind]: {} }), ...put(draft, path, v) });
	const input = ([path, of]: [string, Kind], under = "") => <Field name={path} kind={of} value={at(draft, under + path)} set={(v) => set(under + path, v)} />;
	const kept = life === "keep" ? draft.expires : first.expires;
	return (
		<form class="rule" onSubmit={submit}>
			<h1>
				{t(`kind.${kind as "limit"}`)} <button type="button" class="small" onClick={close}>{t("cancel")}</button>
			</h1>
			<div class="three">
				<section>
					<h2>1 · {t("rules.what")}</h2>
					<Tabs at={mode} set={show} names={[["form", t("form")], ["json", "JSON"]]} />
					{mode === "json" ? (
						<textarea rows={18} spellcheck={false} aria-label="JSON" value={text} onInput={(e) => edit(e.currentTarget.value)} />
					) : (
						<>
							<label>
								{t("service")}
								<select name="service" disabled={edits} value={String(draft.service ?? "")} onChange={(e) => setDraft({ ...draft, service: e.currentTarget.value })}>
									{names.map((n) => (
										<option value={n}>{n}</option>
									))}
								</select>
							</label>
							{asked.fields.map((f) => input([f.path, f.type], kind + "."))}
							{edits && input(["off", "bool"])}
							{asked.scope && (
								<fieldset>
									<legend>{t("rules.scope")}</legend>
									{scope.map((f) => input(f))}
								</fieldset>
							)}
						</>
					)}
				</section>
				<section aria-live="polite">
					<h2>2 · {t("rules.effect")}</h2>
					{!sentence && !refused && <p class="dim">{t("loading")}</p>}
					{sentence && <p><b><Quote text={said(sentence)} /></b></p>}
					{refused && <p class="bad">✖ <Quote text={refused} /></p>}
					{effect && <Preview e={effect} />}
				</section>
				<section>
					<h2>3 · {t("rules.safety")}</h2>
					<label>
						{t("rules.expires")}
						<select name="life" value={life} onChange={(e) => live(e.currentTarget.value)}>
							{(edits || life === "keep") && <option value="keep">{t("rules.keep", typeof kept === "string" ? day(kept) : t("rules.never"))}</option>}
							{Object.keys(lives).map((l) => (
								<option value={l}>{l === "never" ? t("rules.never") : l}</option>
							))}
						</select>
					</label>
					<Field name="rollback.below" kind="number" value={at(draft, "rollback.below")} set={(v) => set("rollback", v === "" ? "" : { ...(isObject(draft.rollback) ? draft.rollback : { for: "30s" }), below: v })} label={t("rules.rollback.below")} />
					<Field name="rollback.for" kind="text" value={at(draft, "rollback.for")} set={(v) => set("rollback.for", v)} label={t("rules.rollback.for")} />
					<label>
						{t("reason")}
						<input name="reason" required value={reason} onInput={(e) => setReason(e.currentTarget.value)} />
					</label>
					{(broken || error) && <p class="bad" role="alert">✖ <Quote text={broken || error} /></p>}
					{ask}
					<button type="submit" disabled={busy || !!broken || !!refused || !!effect?.problems?.some((p) => !p.warning)}>{t("apply")}</button>
				</section>
			</div>
		</form>
	);
}

/** What a rule would do, half a second after the last change of the form. */
function usePreview(rule: Draft) {
	const [state, setState] = useState<{ effect?: Effect; sentence?: string; refused?: string }>({});
	const text = write(rule);
	useEffect(() => {
		let current = true;
		const ask = async () => {
			try {
				const p = await post<{ effect: Effect; sentence: string }>("rules/preview", text);
				if (current) setState(p);
			} catch (e) {
				if (current) setState({ refused: (e as Error).message });
			}
		};
		const timer = setTimeout(ask, 300);
		const again = setInterval(ask, 5000);
		return () => {
			current = false;
			clearTimeout(timer);
			clearInterval(again);
		};
	}, [text]);
	return state;
}

function Preview({ e }: { e: Effect }) {
	const { t, said } = useShell();
	const most = Math.max(...(e.shares ?? []).flatMap((s) => [s.before, s.after]), 1e-9);
	return (
		<div data-preview>
			<p><Quote text={said(e.text)} /></p>
			<p class="dim">{t("rules.estimate")}</p>
			{e.problems?.map((p) => (
				<p class={p.force ? "bad" : "warn"}>
					{p.force ? "✖" : "▲"} {p.id} <span lang="en">{p.text} {p.hint && <i>{p.hint}</i>}</span>
				</p>
			))}
			<table>
				<thead>
					<tr>
						<th>{t("instance")}</th>
						<th class="right">{t("rules.before")}</th>
						<th class="right">{t("rules.after")}</th>
						<th />
					</tr>
				</thead>
				<tbody>
					{(e.shares ?? []).slice(0, 20).map((s) => (
						<tr>
							<td>
								{s.selected ? "◆ " : ""}
								{s.addr} <span class="dim">{s.version}</span>
							</td>
							<td class="right">{number(s.before)}/s</td>
							<td class="right">{number(s.after)}/s</td>
							<td>
								<svg width="80" height="14" aria-hidden="true">
									<rect class="was" width={(s.before / most) * 80} height="6" />
									<rect class="bar" y="7" width={(s.after / most) * 80} height="6" />
								</svg>
							</td>
						</tr>
					))}
				</tbody>
			</table>
		</div>
	);
}

function Field({ name, kind, value, set, label }: { name: string; kind: Kind; value: unknown; set: (v: unknown) => void; label?: string }) {
	const { t } = useShell();
	const [json, setJson] = useState(value === undefined ? "" : kind === "pairs" && isObject(value) ? Object.entries(value).map(([k, v]) => `${k}=${v}`).join(", ") : write(value));
	const pairs = (s: string) => {
		setJson(s);
		const entries = s.split(",").map((p) => p.split("=")).filter(([k, ...v]) => k!.trim() && v.length);
		set(entries.length ? Object.fromEntries(entries.map(([k, ...v]) => [k!.trim(), v.join("=").trim()])) : "");
	};
	const change = (s: string) => {
		setJson(s);
		try {
			set(s ? parse(s) : "");
		} catch {
			// the text is not complete yet
		}
	};
	return (
		<label>
			{label ?? t(`field.${name.split(".").pop() as "addr"}`)}
			{kind === "bool" ? (
				<input name={name} type="checkbox" checked={!!value} onChange={(e) => set(e.currentTarget.checked)} />
			) : kind === "number" ? (
				<NumberInput name={name} value={plain(value)} set={(s) => set(s === "" ? "" : Number(s))} />
			) : kind === "pairs" ? (
				<input name={name} placeholder="key=value, …" value={json} onInput={(e) => pairs(e.currentTarget.value)} />
			) : kind === "list" ? (
				<input name={name} value={Array.isArray(value) ? value.join(", ") : ""} onChange={(e) => set(e.currentTarget.value.split(",").map((s) => s.trim()).filter(Boolean))} />
			) : kind === "json" ? (
				<textarea name={name} rows={3} value={json} onInput={(e) => change(e.currentTarget.value)} />
			) : (
				<input name={name} value={plain(value)} onInput={(e) => set(e.currentTarget.value)} />
			)}
		</label>
	);
}
