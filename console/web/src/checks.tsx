// SPDX-License-Identifier: Apache-2.0

// S13: what is wrong with the fleet, and what every error means.

import { useEffect, useState } from "preact/hooks";
import { root, useData } from "./api";
import { cli } from "./cli";
import { en, type Key } from "./en";
import { href, useParam, useShell } from "./state";
import { Empty, Link, Quote, State, Table, Wait, type Column } from "./ui";

interface Finding {
	kind: string;
	severity: string;
	service?: string;
	args?: string[];
}

interface ErrorPage {
	id: string;
	title: string;
	text: string;
}

export function ChecksScreen() {
	const { t, said, paused } = useShell();
	const loaded = useData<{ findings: Finding[] }>("checks", 3000, paused);
	const text = (f: Finding) => {
		const key = (f.kind.startsWith("problem.") ? f.kind : "check." + f.kind) as Key;
		return key in en ? t(key, ...(f.args ?? []).map(said)) : f.kind;
	};
	const columns: Column<Finding>[] = [
		{ head: t("state"), cell: (f) => <State of={f.severity} />, text: (f) => f.severity },
		{ head: t("service"), cell: (f) => <b>{f.service || "–"}</b>, text: (f) => f.service },
		{ head: t("checks.finding"), cell: (f) => <div class="wrap wide"><Quote text={text(f)} /></div>, text },
	];
	return (
		<>
			<h1>{t("checks")}</h1>
			<Wait of={loaded}>
				{({ findings }) =>
					findings.length ? (
						<Table name="checks" rows={findings} columns={columns} open={(f) => (f.service ? href(["services", f.service]) : href(["registry"]))} command={cli.doctor()} />
					) : (
						<Empty title={t("checks.none")} />
					)
				}
			</Wait>
			<Catalogue />
		</>
	);
}

function Catalogue() {
	const { t } = useShell();
	const [find, setFind] = useParam("error");
	const [pages, setPages] = useState<ErrorPage[]>([]);
	const seen = useData<{ groups: { id?: string; calls: number }[] }>("samples?kind=failed", 10000);
	useEffect(() => {
		fetch(root + "assets/errors.json")
			.then((r) => r.json())
			.then(setPages)
			.catch(() => setPages([]));
	}, []);
	const times = (id: string) => (seen.data?.groups ?? []).filter((g) => g.id === id).reduce((n, g) => n + g.calls, 0);
	const words = find.toLowerCase();
	const found = pages.filter((p) => (p.id + p.title + p.text).toLowerCase().includes(words)).sort((a, b) => times(b.id) - times(a.id));
	return (
		<section>
			<div class="bar">
				<h2>{t("checks.errors")}</h2>
				<input type="search" placeholder={t("filter")} aria-label={t("checks.errors")} value={find} onInput={(e) => setFind(e.currentTarget.value)} />
			</div>
			{pages.length > 0 && !found.length && <p class="dim">{t("services.nomatch")}</p>}
			{found.slice(0, 100).map((p) => (
				<details open={found.length === 1}>
					<summary>
						<b>{p.id}</b> <span lang="en">{p.title}</span> {times(p.id) > 0 && <Link to={href(["samples"])}>{t("checks.seen", times(p.id))}</Link>}
					</summary>
					<div class="prose" lang="en">{p.text}</div>
				</details>
			))}
		</section>
	);
}
