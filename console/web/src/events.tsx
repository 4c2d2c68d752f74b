// SPDX-License-Identifier: Apache-2.0

// The feed of changes.

import type { Event } from "./api";
import type { Key } from "./en";
import { en } from "./en";
import { useShell } from "./state";
import { age, clock, Quote } from "./ui";

const signs: Record<string, string> = { "instance up": "↑", "instance down": "↓", "not ready": "▲", ejected: "▲", readmitted: "●", ready: "●", rule: "⚖", drain: "‖", start: "▶" };

export function Events({ events }: { events: Event[] }) {
	const { t, said } = useShell();
	if (!events.length) return <p class="dim">{t("events.none")}</p>;
	return (
		<ol class="events">
			{events.map((e) => {
				const key = ("event." + e.kind) as Key;
				return (
					<li title={clock(e.at)}>
						<span class="dim">{age(t, e.at)}</span> <span aria-hidden="true">{Object.hasOwn(signs, e.kind) ? signs[e.kind] : "•"}</span> <b>{key in en ? t(key) : e.kind}</b> {e.object} <span class="dim"><Quote text={said(e.what)} /></span>
						{e.by && <span class="dim"> · {said(e.by)}</span>}
					</li>
				);
			})}
		</ol>
	);
}
