// SPDX-License-Identifier: Apache-2.0

// S6: calls as they end.

import { useEffect, useRef, useState } from "preact/hooks";
import { refusal, root, useData, type Overview } from "./api";
import { cli } from "./cli";
import { href, useParam, useShell } from "./state";
import { bytes, clock, Empty, Link, nanos, Outcome, Quote, Table, Wait, type Column } from "./ui";

interface Tapped {
	at: string;
	method?: string;
	peer?: string;
	code?: string;
	message?: string;
	took?: number;
	in?: number;
	out?: number;
	trace?: string;
	left?: number;
	instance: string;
}

const kept = 300;

export function LiveScreen() {
	const { t, me } = useShell();
	const [service, setService] = useParam("service");
	const [, setAddr] = useParam("addr");
	const overview = useData<Overview>("overview", 5000);
	if (me.role === "viewer") return <Empty title={t("live.role")} why={t("live.role.why")} />;
	return (
		<>
			<div class="bar">
				<h1>{t("live")}</h1>
				{overview.data && (
					<select aria-label={t("service")} value={service} onChange={(e) => (setAddr(""), setService(e.currentTarget.value))}>
						<option value="">{t("live.all")}</option>
						{overview.data.services.map((s) => (
							<option value={s.name}>{s.name}</option>
						))}
					</select>
				)}
			</div>
			<Wait of={overview}>{(o) => (o.services.length ? <Tap key={service} service={service} /> : <Empty title={t("overview.none")} why={t("services.none.why")} />)}</Wait>
		</>
	);
}

/** The whole milliseconds that are at least a number as typed, or "". The console filters by no others. */
const whole = (text: string) => (Number(text) > 0 ? String(Math.ceil(Number(text))) : "");

function Tap({ service }: { service: string }) {
	const { t } = useShell();
	const [method, setMethod] = useParam("method");
	const [peer, setPeer] = useParam("peer");
	const [slowerText, setSlower] = useParam("slower");
	const slower = whole(slowerText);
	const [failed, setFailed] = useParam("failed");
	const [addr, setAddr] = useParam("addr");
	const [calls, setCalls] = useState<Tapped[]>([]);
	const [status, setStatus] = useState("");
	const [stopped, setStopped] = useState(false);
	const pending = useRef<Tapped[]>([]);
	const left = useRef(0);
	const query = new URLSearchParams({ service, method, peer, slower, addr, failed: failed ? "true" : "" }).toString();
	useEffect(() => {
		setCalls([]);
		pending.current = [];
		left.current = 0;
	}, [query]);
	useEffect(() => {
		if (stopped) return;
		setStatus(t("live.connecting"));
		let current = true;
		const path = "tap?" + query;
		const source = new EventSource(root + "api/" + path);
		source.addEventListener("open", (e) => setStatus((e as MessageEvent).data ? t("live.on", (e as MessageEvent).data) : ""));
		source.addEventListener("failed", (e) => setStatus((e as MessageEvent).data));
		source.addEventListener("end", () => (source.close(), setStopped(true), setStatus(t("live.ended"))));
		source.onerror = async () => {
			source.close();
			const why = await refusal(path);
			if (!current) return;
			setStopped(true);
			setStatus(why || t("live.lost"));
		};
		source.onmessage = (e) => {
			const one = JSON.parse(e.data) as Tapped;
			left.current += one.left ?? 0;
			if (one.method) pending.current.push(one);
		};
		const timer = setInterval(() => {
			const some = pending.current.splice(0).reverse();
			if (some.length) setCalls((old) => [...some, ...old].slice(0, kept));
		}, 500);
		return () => {
			current = false;
			source.close();
			clearInterval(timer);
		};
	}, [query, stopped]);
	const columns: Column<Tapped>[] = [
		{ head: t("time"), cell: (c) => clock(c.at), text: (c) => c.at },
		{ head: t("caller"), cell: (c) => c.peer || t("unnamed"), text: (c) => c.peer },
		{ head: t("method"), cell: (c) => <b>{c.method}</b>, text: (c) => c.method },
		{ head: t("instance"), cell: (c) => c.instance, text: (c) => c.instance },
		{ head: t("code"), cell: (c) => <Outcome code={c.code} title={c.message} />, text: (c) => c.code },
		{ head: t("took"), right: true, cell: (c) => nanos(c.took ?? 0), text: (c) => c.took },
		{ head: t("size"), right: true, cell: (c) => `${bytes(c.in ?? 0)} / ${bytes(c.out ?? 0)}`, text: (c) => c.in },
		{ head: t("trace"), cell: (c) => <code>{c.trace?.split("-")[1]?.slice(0, 12) ?? "–"}</code>, text: (c) => c.trace },
	];
	return (
		<>
			<div class="bar">
				<input placeholder={t("method")} aria-label={t("method")} value={method} onChange={(e) => setMethod(e.currentTarget.value)} />
				<input placeholder={t("caller")} aria-label={t("caller")} value={peer} onChange={(e) => setPeer(e.currentTarget.value)} />
				<input type="number" min="0" placeholder={t("live.slower")} aria-label={t("live.slower")} value={slower} onChange={(e) => setSlower(whole(e.currentTarget.value))} />
				<label>
					<input type="checkbox" checked={!!failed} onChange={(e) => setFailed(e.currentTarget.checked ? "1" : "")} /> {t("live.failed")}
				</label>
				{addr && (
					<button class="chip" aria-pressed="true" title={t("filter.clear")} onClick={() => setAddr("")}>
						{addr} ✕
					</button>
				)}
				<button onClick={() => setStopped(!stopped)}>{stopped ? "▶ " + t("resume") : "‖ " + t("pause")}</button>
				<Link to={href(["samples"], { service })}>{t("samples")}</Link>
			</div>
			<p class="dim" role="status">
				<Quote text={status} /> {left.current > 0 && t("live.left", left.current)}
			</p>
			{calls.length ? <Table name="calls" rows={calls} columns={columns} command={cli.tap(service)} /> : <Empty title={service ? t("live.none", service) : t("live.none.all")} why={t("live.none.why")} />}
		</>
	);
}
