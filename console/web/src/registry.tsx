// SPDX-License-Identifier: Apache-2.0

// S10: what the registry says, and how well it can be read.

import { useData } from "./api";
import { cli } from "./cli";
import { settingText } from "./service";
import { href, useShell } from "./state";
import { clock, day, Empty, nanos, Quote, State, Table, Wait, type Column } from "./ui";

interface Record_ {
	service: string;
	addr: string;
	state: string;
	why?: string;
	started?: string;
	set?: string;
	setWeight?: number;
	setProblem?: string;
}

interface Registry {
	name: string;
	overrides: boolean;
	rules: boolean;
	err?: string;
	at?: string;
	took?: number;
	services?: number;
	records?: Record_[];
	broken?: { service: string; err: string }[];
}

export function RegistryScreen() {
	const { t, said, paused } = useShell();
	const loaded = useData<Registry>("registry", 2000, paused);
	const settingOf = (r: Record_) => settingText({ t, said }, r);
	const columns: Column<Record_>[] = [
		{ head: t("service"), cell: (r) => <b>{r.service}</b>, text: (r) => r.service },
		{ head: t("address"), cell: (r) => r.addr, text: (r) => r.addr },
		{ head: t("state"), cell: (r) => <State of={r.state} />, text: (r) => r.state },
		{ head: t("why"), cell: (r) => <div class="wrap"><Quote text={said(r.why) || "–"} /></div>, text: (r) => said(r.why) },
		{ head: t("instance.setby"), cell: (r) => <div class="wrap"><Quote text={settingOf(r) || "–"} /></div>, text: settingOf },
		{ head: t("instance.started"), cell: (r) => (r.started ? day(r.started) : "–"), text: (r) => r.started },
	];
	return (
		<>
			<h1>{t("registry")}</h1>
			<Wait of={loaded}>
				{(r) => (
					<>
						{r.err && <div class="banner bad">✖ <Quote text={t("overview.registry", r.err)} /></div>}
						<dl>
							<dt>{t("registry")}</dt>
							<dd>{said(r.name)}</dd>
							<dt>{t("registry.read")}</dt>
							<dd>{r.at ? `${clock(r.at)} (${nanos(r.took ?? 0)})` : "–"}</dd>
							<dt>{t("registry.overrides")}</dt>
							<dd>{r.overrides ? t("yes") : t("no")}</dd>
							<dt>{t("registry.rules")}</dt>
							<dd>{r.rules ? t("yes") : t("no")}</dd>
							<dt>{t("services")}</dt>
							<dd>{r.services ?? 0}</dd>
						</dl>
						{r.broken?.map((b) => <p class="bad">✖ {b.service}: <Quote text={b.err} /></p>)}
						{r.records?.length ? (
							<Table name="registry" rows={r.records} columns={columns} open={(x) => href(["services", x.service, x.addr])} command={cli.services()} />
						) : (
							!r.err && <Empty title={t("registry.none")} why={t("registry.none.why", r.name)} />
						)}
					</>
				)}
			</Wait>
		</>
	);
}
