# SPDX-License-Identifier: Apache-2.0

# Shares of processor time by part, from a CPU profile of a server for foreign clients:
#
#	go tool pprof -traces PROFILE | awk -f shares.awk
#
# A sample belongs to the part of the frame nearest to the leaf that a rule below recognizes. So
# memory allocation, locks and copies belong to the part that asks for them.

function part(f) {
	if (f ~ /internal\/runtime\/syscall|^syscall\./) return "system calls"
	if (f ~ /^runtime\.(gcBgMarkWorker|bgsweep|bgscavenge|gcAssistAlloc|gcStart)/) return "garbage collection"
	if (f ~ /^runtime\.(mcall|schedule|findRunnable|mstart|newproc|newstack|morestack|goready|ready|systemstack_switch|gopark)/) return "goroutines: scheduling, start, stack growth"
	if (f ~ /yodel\/internal\/(h2|hpack|socket)/) return "HTTP/2"
	if (f ~ /http2\/hpack|http2encodeHeaders|http2encKV|readMetaFrame/) return "net/http: HPACK"
	if (f ~ /^net\/http\..*(Framer|[wW]riteFrame|bufferedWriter|writeResHeaders|writeData|FrameHeader|readFrames|frameCache|writeWithByteTimeout)/) return "net/http: frames"
	if (f ~ /^net\/http\..*([fF]low|WindowUpdate|noteBodyRead)/) return "net/http: flow control"
	if (f ~ /^net\/http\..*http2/) return "net/http: streams, requests, responses, serving loop"
	if (f ~ /^net\/http\.|^net\/textproto\.|^net\/url\./) return "net/http: the rest"
	if (f ~ /codec\/(protobuf|thrift)|UnmarshalVT|MarshalToSizedBufferVT|SizeVT|protohelpers/) return "codec"
	if (f ~ /yodel\/protocol\/|internal\/thriftwire/) return "yodel: the protocol"
	if (f ~ /yodel\/bench\/message\.Answer|^main\./) return "handler"
	if (f ~ /github\.com\/yodel-rpc\/yodel/) return "yodel: calls, sessions, limits"
	return ""
}

function add() {
	if (value > 0) {
		sum[found == "" ? "other" : found] += value
		total += value
	}
	value = 0
	found = ""
}

/^-----/ { add(); inside = 1; next }
!inside { next }
{
	frame = $0
	if (match($0, /^ *[0-9.]+(ns|us|µs|ms|s|mins) +/)) {
		value = $1 + 0
		if ($1 ~ /ms$/) value *= 1e-3
		else if ($1 ~ /(us|µs)$/) value *= 1e-6
		else if ($1 ~ /ns$/) value *= 1e-9
		else if ($1 ~ /mins$/) value *= 60
		frame = substr($0, RLENGTH + 1)
	}
	sub(/^ +/, "", frame)
	sub(/ \(inline\)$/, "", frame)
	if (found == "") found = part(frame)
}
END {
	add()
	for (p in sum) printf "%5.1f %%  %s\n", 100 * sum[p] / total, p | "sort -rn"
	close("sort -rn")
	printf "%5.2f s of samples\n", total
}
