// SPDX-License-Identifier: Apache-2.0

// S2: one row for each service, the worst first.

import { useData, type Overview, type ServiceView } from "./api";
import { cli } from "./cli";
import { Incomplete } from "./overview";
import { href, useParam, useShell } from "./state";
import { Empty, numberColumns, Problems, problemText, Spark, State, Table, Wait, wrong, type Column } from "./ui";

const filters: Record<string, (s: ServiceView) => boolean> = {
	all: () => true,
	unhealthy: (s) => wrong(s.problems),
	rules: (s) => !!s.rules?.length,
	idle: (s) => s.ok === null,
};

export function ServicesScreen() {
	const { t, said, range, paused } = useShell();
	const [show, setShow] = useParam("show", "all");
	const [q, setQ] = useParam("q");
	const loaded = useData<Overview>("overview?range=" + range, 1000, paused);
	const columns = (rows: ServiceView[]): Column<ServiceView>[] => [
		{ head: t("service"), cell: (s) => <b class="wrap name">{s.name}</b>, text: (s) => s.name },
		{ head: t("state"), cell: (s) => <State of={s.state} />, text: (s) => s.state },
		{ head: t("problem"), cell: (s) => <div class="wrap mid"><Problems of={s.problems} service={s.name} most={2} /></div>, text: (s) => s.problems?.map((p) => problemText({ t, said }, p)).join("; ") },
		{ head: t("instances"), right: true, cell: (s) => `${s.up}/${s.total}`, text: (s) => `${s.up}/${s.total}` },
		...numberColumns<ServiceView>(t, rows),
		{ head: "", cell: (s) => <Spark points={s.spark} /> },
		{ head: t("versions"), cell: (s) => s.versions?.some((v) => v.version) && <div class="wrap name"><Versions of={s} /></div>, text: (s) => s.versions?.map((v) => v.version).join(" ") },
		{ head: t("callers"), right: true, cell: (s) => s.callers, text: (s) => s.callers },
		{ head: t("rules"), cell: (s) => s.rules?.map((kind) => <span class="version">{t(`kind.${kind as "limit"}`)}</span>), text: (s) => s.rules?.join(" ") },
	];
	return (
		<Wait of={loaded}>
			{(o) => {
				const rows = o.services.filter(filters[show] ?? filters.all!).filter((s) => s.name.toLowerCase().includes(q.toLowerCase()));
				return (
					<>
						<div class="bar">
							<h1>{t("services")}</h1>
							<input type="search" placeholder={t("filter")} aria-label={t("filter")} value={q} onInput={(e) => setQ(e.currentTarget.value)} />
							{(["all", "unhealthy", "rules", "idle"] as const).map((name) => (
								<button class="chip" aria-pressed={show === name} onClick={() => setShow(name)}>
									{t(`services.${name}`)} {o.services.filter(filters[name]!).length}
								</button>
							))}
						</div>
						<Incomplete o={o} />
						{o.services.length === 0 ? (
							<Empty title={t("overview.none")} why={o.err || o.missing?.[0] || t("services.none.why")} />
						) : rows.length === 0 ? (
							<Empty title={t("services.nomatch")} action={<button onClick={() => (setShow("all"), setQ(""))}>{t("services.all")}</button>} />
						) : (
							<Table name="services" rows={rows} columns={columns(rows)} open={(s) => href(["services", s.name])} command={cli.services()} tone={(s) => (s.ok === null && !s.problems?.length ? "dim" : "")} />
						)}
					</>
				);
			}}
		</Wait>
	);
}

function Versions({ of }: { of: ServiceView }) {
	const named = of.versions?.filter((v) => v.version) ?? [];
	return <>{named.map((v) => <span class="version">{v.version} {named.length > 1 && <span class="dim">{Math.round(v.share * 100)} %</span>}</span>)}</>;
}
