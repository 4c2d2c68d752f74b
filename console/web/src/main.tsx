// SPDX-License-Identifier: Apache-2.0

// The frame around every screen: navigation, search, time range, theme, language, keyboard.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { enter, logins, post, Refused, root, useData, type Me, type Method } from "./api";
import { AuditScreen } from "./audit";
import { CallScreen } from "./calltester";
import { ChecksScreen } from "./checks";
import type { Key } from "./en";
import { InstanceScreen } from "./instance";
import { LiveScreen } from "./live";
import { OverviewScreen } from "./overview";
import { said } from "./phrases";
import { RegistryScreen } from "./registry";
import { RulesScreen } from "./rules";
import { SamplesScreen } from "./samples";
import { ServiceScreen } from "./service";
import { ServicesScreen } from "./services";
import { go, href, ShellContext, translate, useParam, useRoute, useSetting } from "./state";
import { TopologyScreen } from "./topology";
import { clock, Empty, focused, Guarded, Link } from "./ui";

// The screens, with the letter that opens each after g.
const screens: [string, Key, string][] = [
	["", "overview", "o"],
	["services", "services", "s"],
	["topology", "topology", "t"],
	["live", "live", "l"],
	["samples", "samples", "m"],
	["rules", "rules", "r"],
	["call", "call", "c"],
	["registry", "registry", "y"],
	["audit", "audit", "a"],
	["checks", "checks", "k"],
];

function Screen({ parts }: { parts: string[] }) {
	const [first = "", second, third] = parts;
	if (first === "services" && second && third) return <InstanceScreen key={second + third} service={second} addr={third} />;
	if (first === "services" && second) return <ServiceScreen key={second} name={second} />;
	switch (first) {
		case "":
			return <OverviewScreen />;
		case "services":
			return <ServicesScreen />;
		case "topology":
			return <TopologyScreen />;
		case "live":
			return <LiveScreen />;
		case "samples":
			return <SamplesScreen />;
		case "rules":
			return <RulesScreen />;
		case "call":
			return <CallScreen />;
		case "registry":
			return <RegistryScreen />;
		case "audit":
			return <AuditScreen />;
		default:
			return <ChecksScreen />;
	}
}

function App() {
	const { parts } = useRoute();
	const [language, setLanguage] = useSetting("language", navigator.language.startsWith("zh") ? "zh" : "en");
	const [theme, setTheme] = useSetting("theme", "system");
	const [range, setRange] = useParam("range", "1m", "zoom");
	const [paused, setPaused] = useState(0);
	const [zoom] = useParam("zoom");
	const [help, setHelp] = useState(false);
	const [me, setMe] = useState<Me | null>(null);
	const [refused, setRefused] = useState<Error | null>(null);
	const t = translate(language);
	document.documentElement.lang = language === "zh" ? "zh-CN" : "en"; // Quote reads it
	useEffect(() => {
		const log = () => enter().then((user) => (setMe(user), setRefused(null)), setRefused);
		log();
		addEventListener("hashchange", log); // a login link that is opened in the same tab
		logins.addEventListener("login", log); // in another tab
		return () => {
			removeEventListener("hashchange", log);
			logins.removeEventListener("login", log);
		};
	}, []);
	useEffect(() => {
		document.documentElement.dataset.theme = theme;
	}, [theme]);
	useEffect(() => setPaused(zoom ? Date.now() : 0), [zoom]); // newer data would leave the chosen time behind
	useKeyboard(() => setHelp((h) => !h), () => setHelp(false));
	const current = screens.find(([path]) => path === (parts[0] ?? "")) ?? screens[0]!;
	useEffect(() => {
		document.querySelector("nav .here")?.scrollIntoView({ block: "nearest", inline: "nearest" }); // a narrow window does not show all
	}, [current[0], !me]);
	useEffect(() => {
		document.title = (parts[1] ?? t(current[1])) + " · yodel";
	}, [parts.join("/"), language]);
	if (refused) {
		const login = refused instanceof Refused && refused.status === 401;
		return <Empty title={login ? t("login") : t("failed")} why={login ? t("login.why") + " " + refused.message : refused.message} action={<button onClick={() => location.reload()}>{t("retry")}</button>} />;
	}
	if (!me) return <p class="dim">{t("loading")}</p>;
	const mayChange = !me.readOnly && me.role !== "viewer";
	return (
		<ShellContext.Provider value={{ t, said: (text) => said(language, text ?? ""), me, language, range, paused: paused > 0, mayChange }}>
			<header>
				<Link class="logo" to={href([])}>
					yodel
				</Link>
				<span class={"environment " + me.environment.toLowerCase()} title={t("environment")}>
					{me.environment}
				</span>
				<Search t={t} />
				<span class="ranges" role="group" aria-label={t("range")}>
					{["1m", "1h", "24h"].map((r) => (
						<button class="chip" aria-pressed={range === r} title={t(`range.${r as "1m"}`)} onClick={() => setRange(r)}>
							{r}
						</button>
					))}
				</span>
				<button class={"chip" + (paused ? " warn" : "")} onClick={() => setPaused(paused ? 0 : Date.now())}>
					{paused ? "▶ " + t("paused", clock(paused)) : "‖ " + t("pause")}
				</button>
				<DataAge />
				<button class="chip" title={t("theme")} aria-label={t("theme")} onClick={() => setTheme(theme === "dark" ? "light" : theme === "light" ? "system" : "dark")}>
					{theme === "dark" ? "☾" : theme === "light" ? "☀" : "◐"}
				</button>
				<button class="chip" title="EN / 中文" onClick={() => setLanguage(language === "zh" ? "en" : "zh")}>
					{language === "zh" ? "EN" : "中文"}
				</button>
				<span class="user" title={said(language, me.registry)}>
					{me.user} · {t(`role.${me.role as "viewer"}`)}
					{me.readOnly && " · " + t("readonly")}
				</span>
				{me.csrf && (
					<button class="chip" id="logout" onClick={() => post("logout", { path: root }).then(() => location.reload(), setRefused)}>
						{t("logout")}
					</button>
				)}
			</header>
			<nav aria-label={t("nav")}>
				{screens.map(([path, key, letter]) => (
					<Link class={path === current[0] ? "here" : ""} to={href(path ? [path] : [])}>
						{t(key)} <kbd>g {letter}</kbd>
					</Link>
				))}
				<button class="chip" onClick={() => setHelp(true)}>
					? {t("keys")}
				</button>
			</nav>
			<main id="main" key={language}>
				<Guarded key={parts.join("/")} title={t("broken")} retry={t("retry")}>
					<Screen parts={parts} />
				</Guarded>
			</main>
			{help && (
				<div class="help panel" role="dialog" aria-label={t("keys")}>
					<h2>{t("keys")}</h2>
					<dl>
						<dt>/</dt>
						<dd>{t("keys.search")}</dd>
						<dt>j k</dt>
						<dd>{t("keys.rows")}</dd>
						<dt>Enter</dt>
						<dd>{t("keys.open")}</dd>
						<dt>g …</dt>
						<dd>{t("keys.go")}</dd>
						<dt>n</dt>
						<dd>{t("keys.new")}</dd>
					</dl>
					<button ref={focused} onClick={() => setHelp(false)}>
						{t("close")}
					</button>
				</div>
			)}
		</ShellContext.Provider>
	);
}

/** How old the shown data is. */
function DataAge() {
	const loaded = useData<{ age: number; err?: string }>("pulse", 1000);
	const [, tick] = useState(0);
	useEffect(() => {
		const timer = setInterval(() => tick((n) => n + 1), 1000);
		return () => clearInterval(timer);
	}, []);
	const seconds = loaded.data ? loaded.data.age + Math.max(0, Math.round((Date.now() - loaded.at) / 1000)) : null;
	const bad = loaded.error || loaded.data?.err || (seconds !== null && seconds > 10);
	return (
		<span class={"pulse " + (bad ? "warn" : "good")} title={loaded.error?.message ?? loaded.data?.err ?? ""}>
			{bad ? "▲" : "●"} {seconds === null ? "…" : seconds + " s"}
		</span>
	);
}

/** Finds services, methods, instances and errors. */
function Search({ t }: { t: ReturnType<typeof translate> }) {
	const [q, setQ] = useState("");
	const all = useData<{ service: string; methods: Method[]; instances: string[] }[]>(q ? "methods" : null, 30000);
	const input = useRef<HTMLInputElement>(null);
	const words = q.toLowerCase();
	const hits: [string, string][] = [];
	if (/^ydl/i.test(q)) hits.push([q.toUpperCase(), href(["checks"], { error: q.toUpperCase() })]);
	for (const s of q ? (all.data ?? []) : []) {
		if (hits.length > 12) break;
		if (s.service.toLowerCase().includes(words)) hits.push([s.service, href(["services", s.service])]);
		for (const m of s.methods) if (m.name.toLowerCase().includes(words) && m.name !== s.service) hits.push([m.name, href(["call"], { service: s.service, method: m.name })]);
		for (const a of s.instances) if (a.includes(words)) hits.push([s.service + " " + a, href(["services", s.service, a])]);
	}
	const open = (to: string) => {
		setQ("");
		input.current?.blur();
		go(to);
	};
	return (
		<form
			class="search"
			role="search"
			onSubmit={(e) => {
				e.preventDefault();
				if (hits[0]) open(hits[0][1]);
			}}
		>
			<input id="search" ref={input} type="search" autocomplete="off" placeholder={t("search")} aria-label={t("search")} value={q} onInput={(e) => setQ(e.currentTarget.value)} />
			{q && (
				<ul>
					{hits.slice(0, 12).map(([text, to]) => (
						<li>
							<a
								href={to}
								onClick={(e) => {
									e.preventDefault();
									open(to);
								}}
							>
								{text}
							</a>
						</li>
					))}
					{!hits.length && <li class="dim">{all.data ? t("services.nomatch") : (all.error?.message ?? t("loading"))}</li>}
				</ul>
			)}
		</form>
	);
}

/** The keys that work on every screen. */
function useKeyboard(toggleHelp: () => void, closeHelp: () => void) {
	useEffect(() => {
		let last = "";
		const press = (e: KeyboardEvent) => {
			const on = e.target as HTMLElement;
			const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(on.tagName);
			if (e.key === "Escape") typing ? on.blur() : closeHelp();
			if (typing || e.ctrlKey || e.metaKey || e.altKey) return;
			const before = last;
			last = e.key;
			const screen = before === "g" && screens.find(([, , letter]) => letter === e.key);
			if (screen) {
				go(href(screen[0] ? [screen[0]] : []));
				last = "";
			} else if (e.key === "/") {
				e.preventDefault();
				document.getElementById("search")?.focus();
			} else if (e.key === "?") {
				toggleHelp();
			} else if (e.key === "n") {
				document.querySelector<HTMLElement>(".intents a")?.focus();
			} else if (e.key === "j" || e.key === "k") {
				const rows = [...document.querySelectorAll<HTMLElement>("main [data-to]")];
				const at = rows.indexOf(document.activeElement as HTMLElement);
				rows[e.key === "j" ? Math.min(at + 1, rows.length - 1) : Math.max(at - 1, 0)]?.focus();
			} else if (e.key === "Enter" && on.dataset.to) {
				go(on.dataset.to);
			}
		};
		addEventListener("keydown", press);
		return () => removeEventListener("keydown", press);
	}, []);
}

render(<App />, document.getElementById("app")!);
