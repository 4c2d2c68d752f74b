// SPDX-License-Identifier: Apache-2.0

// S9: calls of methods by hand.

import { useState } from "preact/hooks";
import { post, useData, type Method, type Schema } from "./api";
import { cli } from "./cli";
import { digits, parse, plain, write } from "./json";
import { example } from "./service";
import { useParam, useSetting, useShell } from "./state";
import { Copy, Empty, nanos, NumberInput, Outcome, Quote, Tabs, useSubmit, Wait } from "./ui";

interface Of {
	service: string;
	methods: Method[];
	instances: string[];
}

interface Result {
	code?: string;
	id?: string;
	message?: string;
	reply?: string; // JSON, as are the messages
	messages?: string[];
	cut?: string;
	raw?: string;
	took: number;
	trailer?: Record<string, string>;
	text?: string;
	report?: { attempts?: { addr: string }[] };
}

export function CallScreen() {
	const { t } = useShell();
	const loaded = useData<Of[]>("methods", 10000);
	return (
		<>
			<h1>{t("call.title")}</h1>
			<Wait of={loaded}>{(all) => (all.length ? <Tester all={all} /> : <Empty title={t("overview.none")} why={t("services.none.why")} />)}</Wait>
		</>
	);
}

function Tester({ all }: { all: Of[] }) {
	const { t } = useShell();
	const [service, setService] = useParam("service");
	const [name, setName] = useParam("method");
	const [q, setQ] = useState("");
	const of = all.find((s) => s.service === service);
	const method = of?.methods.find((m) => m.name === name);
	return (
		<div class="three">
			<section>
				<input type="search" placeholder={t("filter")} aria-label={t("filter")} value={q} onInput={(e) => setQ(e.currentTarget.value)} />
				<ul class="tree">
					{all
						.filter((s) => !q || s.service.toLowerCase().includes(q.toLowerCase()) || s.methods.some((m) => m.name.toLowerCase().includes(q.toLowerCase())))
						.slice(0, 100)
						.map((s) => (
							<li>
								<b>{s.service}</b>
								{!s.methods.length && <span class="dim"> {t("methods.none")}</span>}
								<ul>
									{s.methods.map((m) => (
										<li>
											<button class={"row" + (m.name === name ? " chosen" : "")} onClick={() => (setService(s.service), setName(m.name))}>
												{m.name.slice(s.service.length + 1)} {m.kind && <span class="dim">{m.kind}</span>}
											</button>
										</li>
									))}
								</ul>
							</li>
						))}
				</ul>
			</section>
			{method && of ? <Request key={service + " " + name} of={of} method={method} /> : <Empty title={t("call.choose")} why={t("call.choose.why")} />}
		</div>
	);
}

/** The calls that this browser has made, the newest first. */
function pastCalls(text: string): { method: string; text: string }[] {
	try {
		const list: unknown = JSON.parse(text);
		return Array.isArray(list) ? list.filter((c) => typeof c?.method === "string" && typeof c?.text === "string") : [];
	} catch {
		return [];
	}
}

function Request({ of, method }: { of: Of; method: Method }) {
	const { t, me, mayChange } = useShell();
	const [past, setPast] = useSetting("calls", "[]");
	const mine = pastCalls(past).filter((c) => c.method === method.name);
	const sends = method.kind === "upload" || method.kind === "duplex";
	const [text, setText] = useState(() => mine[0]?.text ?? JSON.stringify(sends ? [example(method)] : example(method), null, 2));
	const [picked, setPicked] = useState(0); // how often an earlier call was chosen
	const [bad, setBad] = useState<Record<string, boolean>>({}); // the fields whose text is not JSON
	const [mode, setMode] = useParam("mode", "form");
	const [metadata, setMetadata] = useState("");
	const [timeout, setTimeout_] = useState(5000);
	const [addr, setAddr] = useState("");
	const [repeat, setRepeat] = useState(1);
	const [confirm, setConfirm] = useState("");
	const [results, setResults] = useState<Result[] | null>(null);
	const guarded = me.environment === "PROD" && !method.readOnly;
	const { submit, busy, error } = useSubmit(async () => {
		const call = JSON.stringify({ service: of.service, method: method.name, addr, metadata: pairs, timeout, repeat, confirm });
		setResults(await post<Result[]>("call", call.slice(0, -1) + ',"args":' + text + "}"));
		if (text.length < 10_000) setPast(JSON.stringify([{ method: method.name, text }, ...pastCalls(past).filter((c) => c.method !== method.name || c.text !== text)].slice(0, 50)));
	});
	const pairs = Object.fromEntries(metadata.split("\n").map((l) => l.split("=")).filter((p) => p.length > 1).map(([k, ...v]) => [k!.trim(), v.join("=").trim()]));
	let value: unknown;
	try {
		value = parse(text);
	} catch {
		value = undefined;
	}
	const wrong = value === undefined || Object.values(bad).some(Boolean);
	const choose = (text: string) => {
		setText(text);
		setPicked(picked + 1);
		setBad({});
	};
	const schema: Schema = method.values || sends ? { type: "", kind: "array" } : (method.args?.[0] ?? { type: "", kind: "any" });
	return (
		<>
			<form onSubmit={submit}>
				<h2>
					{method.name} {method.kind && <span class="dim">{method.kind}</span>}
				</h2>
				{method.kind && <p class="dim">{t(sends ? "call.sends" : "call.feeds")}</p>}
				{mine.length > 0 && (
					<label>
						{t("call.past")}
						<select name="past" value="" onChange={(e) => e.currentTarget.value && choose(e.currentTarget.value)}>
							<option value="">{t("choose")}</option>
							{mine.map((c) => (
								<option value={c.text}>{c.text.replace(/\s+/g, " ").slice(0, 60)}</option>
							))}
						</select>
					</label>
				)}
				<Tabs at={mode} set={(m) => (setMode(m), setBad({}))} names={[["form", t("form")], ["json", "JSON"]]} />
				{mode === "json" || typeof value !== "object" || schema.kind !== "object" ? (
					<label>
						{t("call.args")}
						<textarea rows={10} spellcheck={false} value={text} onInput={(e) => setText(e.currentTarget.value)} />
					</label>
				) : (
					<Fields key={picked} schema={schema} value={value as Record<string, unknown>} set={(v) => setText(write(v, 2))} judge={(path, is) => setBad((old) => ({ ...old, [path]: is }))} />
				)}
				{wrong && <p class="bad">✖ {t("call.notjson")}</p>}
				<label>
					{t("call.target")}
					<select value={addr} onChange={(e) => setAddr(e.currentTarget.value)}>
						<option value="">{t("call.any")}</option>
						{of.instances.map((a) => (
							<option value={a}>{a}</option>
						))}
					</select>
				</label>
				<label>
					{t("call.metadata")}
					<textarea rows={2} placeholder="key=value" value={metadata} onInput={(e) => setMetadata(e.currentTarget.value)} />
				</label>
				<label>
					{t("call.timeout")}
					<input type="number" min="1" max="30000" value={timeout} onInput={(e) => setTimeout_(Number(e.currentTarget.value))} />
				</label>
				<label>
					{t("call.repeat")}
					<input type="number" min="1" max="100" value={repeat} onInput={(e) => setRepeat(Number(e.currentTarget.value))} />
				</label>
				{guarded && (
					<label class="warn">
						{t("call.confirm", method.name)}
						<input value={confirm} onInput={(e) => setConfirm(e.currentTarget.value)} />
					</label>
				)}
				<button type="submit" disabled={!mayChange || busy || wrong || (guarded && confirm !== method.name)}>
					{busy ? t("call.busy") : t("call")}
				</button>{" "}
				{!wrong && <Copy text={cli.call(method.name, method.kind, text, pairs)} label={t("cli")} cli />}
				{!mayChange && <p class="dim">{t("readonly.why")}</p>}
			</form>
			<section aria-live="polite">
				<h2>{t("call.response")}</h2>
				{error && <p class="bad">✖ <Quote text={error} /></p>}
				{!results && !error && <p class="dim">{t("call.none")}</p>}
				{results?.map((r) => <Answer r={r} />)}
			</section>
		</>
	);
}

function Answer({ r }: { r: Result }) {
	const { t } = useShell();
	return (
		<div class="panel" data-result={r.code || "ok"}>
			<p>
				<b><Outcome code={r.code} /></b> {nanos(r.took)} {r.report?.attempts?.map((a) => a.addr).join(" → ")}
			</p>
			{r.message && <p class="bad" lang="en">{r.message}</p>}
			{r.reply !== undefined && <pre>{write(parse(r.reply), 2)}</pre>}
			{r.messages?.map((m, i) => <pre data-message={i}>{m}</pre>)}
			{r.messages && <p class="dim">{t("call.messages", r.messages.length)}{r.cut && " " + t(`call.cut.${r.cut as "time"}`)}</p>}
			{r.raw && <pre>{r.raw}</pre>}
			{r.trailer && Object.entries(r.trailer).map(([k, v]) => <p class="dim">{k}: {v}</p>)}
			{r.text && (
				<details>
					<summary>…</summary>
					<pre>{r.text}</pre>
				</details>
			)}
		</div>
	);
}

/** The fields of an object. Lists and maps are edited as JSON. */
function Fields({ schema, value, set, judge, under = "" }: { schema: Schema; value: Record<string, unknown>; set: (v: Record<string, unknown>) => void; judge: (path: string, bad: boolean) => void; under?: string }) {
	return (
		<>
			{(schema.fields ?? []).map((f) => {
				const name = f.name ?? "";
				const now = value?.[name];
				const put = (v: unknown) => set({ ...value, [name]: v });
				if (f.kind === "object" && f.fields)
					return (
						<fieldset>
							<legend>{name}</legend>
							<Fields schema={f} value={typeof now === "object" && now ? (now as Record<string, unknown>) : {}} set={put} judge={judge} under={under + name + "."} />
						</fieldset>
					);
				return (
					<label>
						{name} <span class="dim">{f.type}</span>
						{f.kind === "boolean" ? (
							<input type="checkbox" checked={!!now} onChange={(e) => put(e.currentTarget.checked)} />
						) : f.kind === "integer" || f.kind === "number" ? (
							<NumberInput name={under + name} step={f.kind === "integer" ? "1" : "any"} value={plain(now ?? 0)} set={(s) => put(digits(s || "0"))} />
						) : f.kind === "string" || f.kind === "bytes" ? (
							<input name={under + name} value={plain(now)} onInput={(e) => put(e.currentTarget.value)} />
						) : (
							<Json name={under + name} value={now} set={put} judge={(bad) => judge(under + name, bad)} />
						)}
					</label>
				);
			})}
		</>
	);
}

function Json({ name, value, set, judge }: { name: string; value: unknown; set: (v: unknown) => void; judge: (bad: boolean) => void }) {
	const [text, setText] = useState(value === undefined ? "" : write(value));
	const change = (s: string) => {
		setText(s);
		try {
			set(parse(s));
			judge(false);
		} catch {
			judge(true);
		}
	};
	return <input name={name} value={text} onInput={(e) => change(e.currentTarget.value)} />;
}
