// SPDX-License-Identifier: Apache-2.0

// S11: who has changed what.

import { useState } from "preact/hooks";
import { post, useData } from "./api";
import { useParam, useShell } from "./state";
import { Copy, day, Empty, focused, Quote, Table, useSubmit, Wait, type Column } from "./ui";

interface Entry {
	at: string;
	user?: string;
	role: string;
	from: string;
	action: string;
	object?: string;
	before?: string;
	after?: string;
	reason?: string;
	result: string;
	undo?: { path: string; body: Record<string, unknown> };
}

export function AuditScreen() {
	const { t, said, paused, me, mayChange } = useShell();
	const [q, setQ] = useParam("q");
	const [taken, setTaken] = useState<Entry | null>(null);
	const loaded = useData<{ entries: Entry[] | null; file: boolean; failed?: string }>("audit", 2000, paused);
	const columns: Column<Entry>[] = [
		{ head: t("time"), cell: (e) => day(e.at), text: (e) => e.at },
		{ head: t("audit.who"), cell: (e) => <><b>{e.user || "?"}</b> <span class="dim">{t(`role.${e.role as "viewer"}`)} {e.from}</span></>, text: (e) => e.user },
		{ head: t("audit.what"), cell: (e) => t(`action.${e.action as "rule"}`), text: (e) => e.action },
		{ head: t("audit.object"), cell: (e) => e.object || "–", text: (e) => e.object },
		{ head: t("rules.before"), cell: (e) => <div class="wrap"><Quote text={said(e.before) || "–"} /></div>, text: (e) => e.before },
		{ head: t("rules.after"), cell: (e) => <div class="wrap"><Quote text={said(e.after) || "–"} /></div>, text: (e) => e.after },
		{ head: t("reason"), cell: (e) => <div class="wrap">{e.reason || "–"}</div>, text: (e) => e.reason },
		{ head: t("audit.result"), cell: (e) => <span class={e.result === "ok" ? "good" : "bad"}>{e.result === "ok" ? "● " + t("good") : <>✖ <Quote text={e.result} /></>}</span>, text: (e) => e.result },
	];
	if (mayChange) columns.push({ head: "", cell: (e) => e.undo && <button class="small" data-revert onClick={() => setTaken(e)}>↶ {t("audit.revert")}</button> });
	return (
		<>
			<div class="bar">
				<h1>{t("audit")}</h1>
				<input type="search" placeholder={t("filter")} aria-label={t("filter")} value={q} onInput={(e) => setQ(e.currentTarget.value)} />
			</div>
			{me.role === "admin" && !me.readOnly && <Invite />}
			<Wait of={loaded}>
				{(a) => {
					const rows = (a.entries ?? []).filter((e) => JSON.stringify(e).toLowerCase().includes(q.toLowerCase()));
					return (
						<>
							{a.failed && <div class="banner bad">✖ <Quote text={t("audit.failed", a.failed)} /></div>}
							{taken?.undo && <Revert key={taken.at + taken.object} e={taken} close={() => (setTaken(null), loaded.reload())} />}
							<p class="dim">{a.file ? t("audit.file") : t("audit.memory")}</p>
							{rows.length ? <Table name="audit" id={(e) => e.at + e.from + e.action + e.object} rows={rows} columns={columns} /> : <Empty title={t("audit.none")} why={t("audit.none.why")} />}
						</>
					);
				}}
			</Wait>
		</>
	);
}

/** The form that takes a change back. */
function Revert({ e, close }: { e: Entry; close: () => void }) {
	const { t, said } = useShell();
	const [reason, setReason] = useState("");
	const { submit, busy, error, ask } = useSubmit(async (confirm) => {
		await post(e.undo!.path, { ...e.undo!.body, reason }, confirm);
		close();
	});
	return (
		<form class="panel" onSubmit={submit}>
			<h2>{t("audit.reverting", t(`action.${e.action as "rule"}`), e.object ?? "", day(e.at))}</h2>
			{e.undo!.path === "rules/rollback" && <p>{t("rules.undo.why", Number(e.undo!.body.revision))}. {t("audit.later")}</p>}
			{e.undo!.path === "instance" && <p>{t("rules.before")}: <Quote text={said(e.before)} /></p>}
			<label>
				{t("reason")} <input required ref={focused} name="revertreason" value={reason} onInput={(i) => setReason(i.currentTarget.value)} />
			</label>
			{error && <p class="bad" role="alert">✖ <Quote text={error} /></p>}
			{ask}
			<button type="submit" disabled={busy}>{t("audit.revert")}</button>{" "}
			<button type="button" onClick={close}>
				{t("cancel")}
			</button>
		</form>
	);
}

/** The form with which an admin makes a login link. */
function Invite() {
	const { t } = useShell();
	const [name, setName] = useState("");
	const [role, setRole] = useState("viewer");
	const [link, setLink] = useState("");
	const { submit, busy, error } = useSubmit(async () => {
		const made = await post<{ link: string }>("invite", { name, role });
		setLink(new URL("." + made.link, location.origin + location.pathname.replace(/[^/]*$/, "")).href);
	});
	return (
		<form class="bar" onSubmit={submit}>
			<label>
				{t("invite")} <input required maxLength={64} placeholder={t("invite.name")} value={name} onInput={(e) => setName(e.currentTarget.value)} />
			</label>
			<select aria-label={t("invite.role")} value={role} onChange={(e) => setRole(e.currentTarget.value)}>
				{["viewer", "operator", "admin"].map((r) => (
					<option value={r}>{t(`role.${r as "viewer"}`)}</option>
				))}
			</select>
			<button type="submit" disabled={busy}>{t("invite.make")}</button>
			{link && <Copy text={link} label={t("invite.copy")} />}
			{error && <span class="bad">✖ <Quote text={error} /></span>}
		</form>
	);
}
