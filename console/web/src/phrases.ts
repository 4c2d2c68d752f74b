// SPDX-License-Identifier: Apache-2.0

// Sentences that processes and the registry say in English, for pages in other languages.

// {0} and {1} stand for names, or for sentences of their own, and {1#} for a number.
const chinese: [string, string][] = [
	["{0} (for {1})", "{0}（已 {1}）"],
	["{0}, by the only client", "{0}，由唯一的客户端剔除"],
	["{0}, by {1} of {2} clients", "{0}，{2} 个客户端中有 {1} 个如此"],
	["{0}; {1#} times in {2}", "{0}；{2} 内 {1} 次"],
	["outlier: {0}", "离群剔除：{0}"],
	["{0}; it is tried again in {1}", "{0}；{1} 后再试"],
	["{0}; it is being tried again", "{0}；正在重试"],
	["it is still bad", "仍未恢复"],
	["it is still bad: {0}", "仍未恢复：{0}"],
	["it is well again", "已恢复"],
	["nearly all of its calls fail", "几乎所有调用都失败"],
	["{0} calls in a row failed", "连续 {0} 个调用失败"],
	["{0} of its calls hang, those of the others take {1}", "{0} 个调用无响应，其他实例用时 {1}"],
	["its calls take {0}, those of the others {1}", "调用用时 {0}，其他实例为 {1}"],
	["{0} of its calls fail, are slow or hang, and {1} of those of the others", "{0} 的调用失败、过慢或无响应，其他实例为 {1}"],
	["gets no calls because of rule {0} ({1})", "因规则 {0}（{1}）不接收调用"],
	["{0}; {1} a second on each of {2} instances: {3} in all", "{0}；{2} 个实例各每秒 {1} 次，共 {3} 次"],
	["{0}; {1} at a time on each of {2} instances: {3} in all", "{0}；{2} 个实例各同时 {1} 个，共 {3} 个"],
	["passes on errors of {0}", "传递 {0} 的错误"],
	["gets no calls while others are ready", "有其他实例就绪时不接收调用"],
	["no longer held back", "恢复接收调用"],
	["removed: the history of {0} says by whom, and why", "已删除：由谁及为何，见 {0} 的历史"],
	["gets no calls while others are ready: {0}", "有其他实例就绪时不接收调用：{0}"],
	["{0}, and in {1} processes", "{0}，共 {1} 个进程如此"],
	["no longer held back: {0}", "恢复接收调用：{0}"],
	["an instance of {0}: {1}", "{0} 的实例：{1}"],
	["an instance: {0}", "实例：{0}"],
	["{0} instances of {1}: {2} and others: {3}", "{1} 的 {0} 个实例（{2} 等）：{3}"],
	["the resolver names it", "注册中心已列出"],
	["the resolver names them", "注册中心已列出"],
	["it has left", "已移除"],
	["they have left", "均已移除"],
	["listening", "开始监听"],
	["an operator has disabled it", "操作员已停用"],
	["an operator has disabled them", "操作员已停用"],
	["it is disabled", "已停用"],
	["they are disabled", "均已停用"],
	["{0} are disabled, the others have left", "{0} 个已停用，其余已移除"],
	["it gets no calls", "不接收调用"],
	["it is shutting down", "正在关闭"],
	["it has not answered in time", "未及时响应"],
	["it was not asked within {0}", "{0} 内未询问"],
	["it has not answered in time, and was not asked again within {0}", "未及时响应，且 {0} 内未再次询问"],
	["it does not describe itself: {0}", "未描述自身：{0}"],
	["it shows no calls: {0}", "不显示其调用：{0}"],
	["ServerOptions.Diagnostics is not set", "未设置 ServerOptions.Diagnostics"],
	["token refused: {0}", "令牌被拒绝：{0}"],
	["in force: {0}", "已生效：{0}"],
	["changed: {0}", "已更改：{0}"],
	["expired: {0}", "已过期：{0}"],
	["switched off: {0}", "已关闭：{0}"],
	["{0} (revision {1})", "{0}（版本 {1}）"],
	["{0} changes of the rules of {1}: {2} and others; the history has all", "{1} 的规则有 {0} 处更改：{2} 等，详见历史"],
	["yodel.Health: {0}", "{0}"],
	["{0} and {1} more: {2}", "{0} 等，另有 {1} 个：{2}"],
	["{0} and {1} more", "{0} 等，另有 {1} 个"],
	["connection refused", "连接被拒绝"],
	["the setting of an operator cannot be read: {0}", "操作员的设置无法读取：{0}"],
	["the state {0} is neither {1} nor {2}", "状态 {0} 既不是 {1} 也不是 {2}"],
	["the weight {0} is negative", "权重 {0} 为负数"],
	["it is not JSON", "不是 JSON"],
	["refused: {0}", "已拒绝：{0}"],
	["refused, and revision {0} stays: {1}", "已拒绝，仍使用版本 {0}：{1}"],
	["rolled back: {0}", "已自动回滚：{0}"],
	["{0}: {1} took {2} of {3} calls that were meant for it", "{0}：{1} 只接收了应得 {3} 个调用中的 {2} 个"],
	["held back by {0} and {1}", "被{0}和{1}拦下"],
	["held back by {0}", "被{0}拦下"],
	["held back", "被拦下"],
	["this process's memory", "本进程内存"],
	["outlier", "离群剔除"],
	["breaker", "熔断"],
	["resolver", "服务发现"],
	["operator", "操作员"],
	["expiry", "到期"],
];

// What rules do, as they say it themselves. A sentence may begin with a small letter. {0} to {2}
// may be the calls that a rule concerns.
const deeds: [string, string][] = [
	["Give {0} {1} % of their usual share of {2}", "{0} 只接收 {2} 中平常份额的 {1} %"],
	["Send none of {0} to {1}", "不把 {0} 发往 {1}"],
	["Send a second attempt for {0} that take longer than {1}", "{0} 超过 {1} 未完成时再发一次"],
	["Send a second attempt for {0} that are slower than {1} % of them", "{0} 慢于其中 {1} % 时再发一次"],
	["Send {0} % of {1} to {2}, drawn by {3}", "把 {1} 的 {0} % 发往 {2}（按 {3} 保持一致）"],
	["Send {0} % of {1} to {2}", "把 {1} 的 {0} % 发往 {2}"],
	["Send {0} to {1} only", "{0} 只发往 {1}"],
	["Send {0} to {1}", "{0} 发往 {1}"],
	["Refuse {0}, except from {1}", "拒绝 {0}，来自 {1} 的除外"],
	["Refuse {0}", "拒绝 {0}"],
	["Switch {0} on for {1}", "为 {1} 打开开关 {0}"],
	["Switch {0} off for {1}", "为 {1} 关闭开关 {0}"],
	["Limit {0} to {1} a second and {2} at a time in each process", "{0} 在每个进程中限制为每秒 {1} 次、并发 {2} 次"],
	["Limit {0} to {1} a second for each {2} in each process", "{0} 在每个进程中按 {2} 分别限制为每秒 {1} 次"],
	["Limit {0} to {1} a second in each process", "{0} 在每个进程中限制为每秒 {1} 次"],
	["Limit {0} to {1} at a time in each process", "{0} 在每个进程中限制为并发 {1} 次"],
	["End streams among {0} after {1}", "{0} 中的流在 {1} 后结束"],
	["End {0} after {1}", "{0} 在 {1} 后超时"],
	["Make up to {0} attempts for {1}", "{1} 最多尝试 {0} 次"],
	["Stop {0} to an instance after {1} failures in a row or when {2} % of them fail", "{0} 在一个实例上连续失败 {1} 次，或有 {2} % 失败时熔断该实例"],
	["Stop {0} to an instance after {1} failures in a row", "{0} 在一个实例上连续失败 {1} 次后熔断该实例"],
	["Stop {0} to an instance when {1} % of them fail", "{0} 在一个实例上有 {1} % 失败时熔断该实例"],
	["Delay {0} by {1} and {2}", "{0} 延迟 {1}，并且 {2}"],
	["Delay {0} by {1}", "{0} 延迟 {1}"],
	["make {0} fail with {1}", "{0} 以 {1} 失败"],
	["lose the request of {0}", "丢失 {0} 的请求"],
	["lose the reply of {0}", "丢失 {0} 的响应"],
	["Answer {0} with the error {1}, without executing them", "{0} 不执行，直接返回错误 {1}"],
	["Answer {0} with a fixed reply, without executing them", "{0} 不执行，直接返回固定响应"],
	["Answer {0} with a fixed reply if they fail", "{0} 失败时返回固定响应"],
	["{0} % of the calls of {1}", "{1} 的 {0} % 调用"],
	["the calls of {0} from {1}", "{0} 来自 {1} 的调用"],
	["the calls of {0} for tenant {1}", "{0} 中租户 {1} 的调用"],
	["the calls of {0} with {1}", "{0} 中带 {1} 的调用"],
	["the calls of {0}", "{0} 的调用"],
	["{0} for tenant {1}", "{0}（租户 {1}）"],
	["no instance", "任何实例都不符"],
	["version {0}", "版本 {0}"],
	["tag {0}", "标签 {0}"],
	["group {0}", "分组 {0}"],
	["zone {0}", "区域 {0}"],
	["addr {0}", "地址 {0}"],
	["value of the header {0}", "header {0} 的值"],
	["It is switched off", "规则已关闭"],
	["It ended at {0}", "已于 {0} 到期"],
	["It ends at {0}", "将于 {0} 到期"],
	["It is switched off if fewer than {0} % of the calls succeed for {1}", "若 {1} 内成功率低于 {0} % 则关闭"],
	["When it has ended, {0} keeps {1} % of them", "到期后 {0} 保持 {1} %"],
	["When it has ended, {0} gets the share of ordinary instances", "到期后 {0} 与普通实例一样接收调用"],
	["When it has ended, {0} gets none of them", "到期后 {0} 不接收这些调用"],
	["Until it is removed, {0} keeps {1} % of them", "删除规则之前 {0} 保持 {1} %"],
	["Now, {0} gets the share of ordinary instances", "现在 {0} 与普通实例一样接收调用"],
	["Until it is removed, {0} gets none of them", "删除规则之前 {0} 不接收这些调用"],
	["no rules", "没有规则"],
	["its own state and weight", "实例自身的状态和权重"],
	["active", "启用"],
	["inactive", "停用"],
	["weight {0}", "权重 {0}"],
	["{0}, weight {1}", "{0}，权重 {1}"],
];

/** The parts of the text that a pattern stands for, or null if it does not match. */
function match(pattern: RegExp, text: string): string[] | null {
	const found = pattern.exec(text);
	return found && Object.entries(found.groups ?? {}).reduce<string[]>((parts, [name, part]) => ((parts[Number(name.slice(1))] = part), parts), []);
}

/** A pattern matches with a small first letter too. */
function compiled(list: [string, string][]): [RegExp, string][] {
	return list.map(([english, translated]) => {
		const first = /^[A-Z]/.test(english) ? `[${english[0]}${english[0]!.toLowerCase()}]` + english.slice(1).replace(/[.*+?^$()[\]\\|]/g, "\\$&") : english.replace(/[.*+?^$()[\]\\|]/g, "\\$&");
		return [new RegExp("^" + first.replace(/\{(\d)\}/g, "(?<p$1>.+?)").replace(/\{(\d)#\}/g, "(?<p$1>\\d+)") + "$"), translated];
	});
}

const patterns = compiled(chinese);
const rules = compiled(deeds);
const units: Record<string, string> = { ms: " 毫秒", s: " 秒", m: " 分钟", h: " 小时", d: " 天" };

/** A sentence of the fleet in a language. What has no translation stays as it is. */
export function said(language: string, text: string, depth = 0): string {
	if (language !== "zh" || !text || depth > 6) return text;
	const next = (part: string) => said(language, part, depth + 1);
	if (/^(\d+(\.\d+)?(d|h|ms|m|s))+$/.test(text)) return text.replace(/([\d.]+)(ms|d|h|m|s)/g, (_, n, unit) => " " + n + units[unit]).trim().replace(/(\p{L}) /gu, "$1");
	const at = /^(\[?[\w.:-]+\]?:\d+): (.+)$/.exec(text); // the address of an instance, and what is about it
	if (at) return at[1] + "：" + next(at[2]!);
	const sentences = text.split(/(?<=\.) (?=[A-Z])/);
	if (text.endsWith(".") && depth === 0) {
		const all = sentences.map((s) => [s.slice(0, -1), next(s.slice(0, -1))]);
		return all.some(([english, translated]) => english === translated) ? text : all.map(([, translated]) => translated).join("。") + "。";
	}
	const find = (list: [RegExp, string][], text: string) => {
		for (const [pattern, translated] of list) {
			const parts = match(pattern, text);
			if (parts) return translated.replace(/\{(\d)\}/g, (_, i) => next(parts[Number(i)] ?? "")).replace(/(?<=[\u4e00-\u9fff）]) (?=[\u4e00-\u9fff（])/g, "");
		}
		return null;
	};
	const plain = find(patterns, text);
	if (plain !== null) return plain;
	const because = /^([a-z].*?): (.+)$/.exec(text); // what a rule does, and the reason of its author
	const deed = because && find(rules, because[1]!);
	return deed ? deed + "（" + because![2] + "）" : (find(rules, text) ?? text);
}
