// SPDX-License-Identifier: Apache-2.0

// Package httpwire is the part that gRPC, gRPC-Web, Connect and JSON over HTTP have in common:
// metadata and call options in headers, error codes, and messages with a prefix. Servers and
// clients share it.
package httpwire

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/nearest"
	"github.com/yodel-rpc/yodel/protocol/internal/metakeys"
)

// Headers that carry fields of a Call.
const (
	headerAttempts    = "Grpc-Previous-Rpc-Attempts"
	headerBudget      = "Yodel-Budget"
	headerCriticality = "Yodel-Criticality"
	headerTenant      = "Yodel-Tenant"
	headerKey         = "Yodel-Key"
	headerExplain     = "Yodel-Explain"
	headerIntent      = "Idempotency-Key"
	headerParent      = "Traceparent"
	headerState       = "Tracestate"
)

// Headers about a failed call.
const (
	headerErrorID      = "Yodel-Error-Id"
	headerNotProcessed = "Yodel-Not-Processed" // "1" if the method was certainly not executed
	headerPushback     = "Grpc-Retry-Pushback-Ms"
)

// prefix is that of yodel's own headers, in lower case.
const prefix = "yodel-"

// maxCaller is the largest name of a caller, in bytes.
const maxCaller = 64

// Caller returns the name of the caller: the first product of a User-Agent, without its version.
func Caller(userAgent string) string {
	userAgent = userAgent[:min(len(userAgent), maxCaller)]
	if i := strings.IndexAny(userAgent, " /;("); i >= 0 {
		return userAgent[:i]
	}
	return userAgent
}

// UserAgent returns the User-Agent of a client with a name. Caller returns the name.
func UserAgent(name string) string { return strings.TrimSpace(name + " yodel") }

// A Family is a set of protocols over HTTP whose headers carry the same metadata.
type Family struct {
	// own reports whether a name, in lower case, has a meaning in the protocols. Such headers are
	// not metadata.
	own func(name string) bool
	hop map[string]bool // names of the family beside those in hop
}

var (
	// GRPC is gRPC. As in grpc-go, all names are metadata but those that the protocol defines.
	GRPC = &Family{own: isOfGRPC}
	// Web is gRPC-Web: that, but for the names by which clients and proxies of HTTP decode a body.
	Web = &Family{own: isOfGRPC, hop: ofMessages}
	// Connect is Connect and JSON over HTTP, also JSON-RPC.
	Connect = &Family{own: isOfConnect, hop: ofMessages}
)

// ofMessages has the names that are about a message of HTTP and about no message of gRPC.
var ofMessages = map[string]bool{"accept-encoding": true, "content-encoding": true, "date": true}

// hop has the headers about one connection or one message of HTTP. Each side sets its own. So they
// are not metadata, and a program may pass on what it has received: they are dropped.
var hop = map[string]bool{
	"connection": true, "content-length": true, "content-type": true, "host": true, "http2-settings": true, "keep-alive": true,
	"proxy-connection": true, "te": true, "trailer": true, "transfer-encoding": true, "upgrade": true,
}

// grpcNames are the headers of gRPC. Those for attempts and for pushback are not among them, as in
// grpc-go: handlers read and set them.
var grpcNames = map[string]bool{
	"grpc-accept-encoding": true, "grpc-encoding": true, "grpc-message": true, "grpc-message-type": true, "grpc-status": true,
	"grpc-status-details-bin": true, "grpc-timeout": true,
}

func isOfGRPC(name string) bool { return grpcNames[name] || metakeys.Reserved(name) }

func isOfConnect(name string) bool {
	return strings.HasPrefix(name, "connect-") || strings.HasPrefix(name, "grpc-") || metakeys.Reserved(name)
}

// isHop reports whether a header, in lower case, is about one hop.
func (f *Family) isHop(name string) bool {
	return hop[name] || f.hop[name] || strings.HasPrefix(name, ":")
}

// Carries reports whether a header of a request, in lower case, is metadata.
func (f *Family) Carries(name string) bool { return !f.isHop(name) && !f.own(name) }

// isBinary reports whether the values of a metadata key are base64 in HTTP, and any bytes in
// Metadata.
func isBinary(key string) bool { return strings.HasSuffix(key, "-bin") }

// Metadata returns the metadata in h. Keys are in lower case. Several values of a key are joined
// with ", ". A key that ends in "-bin" has base64 text, as it was sent.
func (f *Family) Metadata(h http.Header) yodel.Metadata { return f.Prefixed(h, "") }

// Prefixed is Metadata for the headers that begin with a prefix, which it removes.
func (f *Family) Prefixed(h http.Header, prefix string) yodel.Metadata {
	md := make(yodel.Metadata, len(h))
	for name, values := range h {
		key, ok := strings.CutPrefix(strings.ToLower(name), prefix)
		if !ok || !f.Carries(key) {
			continue
		}
		md[key] = strings.Join(values, ", ")
	}
	return md
}

// Set adds metadata to h, with a prefix before each key. It drops the headers of a hop. It calls
// leave for any other pair that the protocols cannot carry, with the reason. Keys become lower
// case. Each value of a "-bin" key gets a header of its own, and becomes base64 if it is not.
func (f *Family) Set(h http.Header, prefix string, md yodel.Metadata, leave func(key, why string)) {
	for key, value := range lowered(md) {
		if f.isHop(key) || key == "user-agent" {
			continue
		}
		why := f.obstacle(key)
		values := []string{strings.Trim(value, " \t")}
		if isBinary(key) { // clients of gRPC take a comma for a part of the base64
			values = encodings(value)
		} else if why == "" && !printable(values[0]) {
			why = "the value has other characters than printable ASCII: a key that ends in -bin takes any bytes in base64"
		}
		if why != "" {
			leave(key, why)
			continue
		}
		name := http.CanonicalHeaderKey(prefix + key)
		if name == "Vary" { // the server's own values remain, for caches
			values = append(h[name], values...)
		}
		h[name] = values
	}
}

// obstacle returns why a key in lower case cannot be a header of the protocols, or "".
func (f *Family) obstacle(key string) string {
	switch {
	case key == "":
		return "the key is empty"
	case f.own(key):
		return "the protocol has a header of this name"
	}
	for _, c := range []byte(key) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return "the key has other characters than letters of ASCII, digits, '-', '_' and '.'"
		}
	}
	return ""
}

func printable(value string) bool {
	for _, c := range []byte(value) {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

// encodings returns the values of a "-bin" key: those in a list of base64, or else one that is the
// encoding of value.
func encodings(value string) []string {
	values := strings.Split(strings.ReplaceAll(value, " ", ""), ",")
	for _, one := range values {
		if _, err := Binary(one); err != nil {
			return []string{base64.RawStdEncoding.EncodeToString([]byte(value))}
		}
	}
	return values
}

// lowered returns md with keys in lower case. The values of keys that become equal are joined, in
// the order of the keys.
func lowered(md yodel.Metadata) yodel.Metadata {
	lower := true
	for key := range md {
		lower = lower && key == asciiLower(key)
	}
	if lower {
		return md
	}
	out := make(yodel.Metadata, len(md))
	for _, key := range slices.Sorted(maps.Keys(md)) {
		name := asciiLower(key)
		if before, is := out[name]; is {
			out[name] = before + ", " + md[key]
		} else {
			out[name] = md[key]
		}
	}
	return out
}

// asciiLower returns key with the letters of ASCII in lower case. Others remain, because no header
// has them.
func asciiLower(key string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, key)
}

// Binary decodes one base64 value of a "-bin" key, with padding or without it.
func Binary(value string) ([]byte, error) {
	return base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(value), "="))
}

// Options sets the fields of a call that h carries. Requests of web pages, which have the header
// Origin, cannot set yodel's own fields, so that a page cannot raise the priority of its calls.
// Options returns an error if a header has a name that is nearly one of yodel's own.
func Options(h http.Header, call *yodel.Call) *yodel.Error {
	call.IdempotencyKey = h.Get(headerIntent)
	if call.Trace = h.Get(headerParent); call.Trace != "" {
		// the list may be divided among several headers
		if state := strings.Join(h.Values(headerState), ","); state != "" {
			call.Trace += " " + state
		}
	}
	call.Attempt = number(h.Get(headerAttempts), 0, 1<<20)
	if FromPage(h) {
		return nil
	}
	call.Budget = number(h.Get(headerBudget), 0, 1<<20)
	call.Criticality = number(h.Get(headerCriticality), -100, 100)
	call.Tenant, call.Key = h.Get(headerTenant), h.Get(headerKey)
	call.Explain = h.Get(headerExplain) == "1"
	return misspelt(h)
}

// own are yodel's own headers that Options reads, in lower case.
var own = []string{"yodel-budget", "yodel-criticality", "yodel-tenant", "yodel-key", "yodel-explain"}

// misspelt returns the error of a request whose headers have a name that is nearly one of yodel's
// own, or nil. The call would be executed without what its caller wanted. Other names that begin
// with "yodel-" may be those of newer clients, so that a server ignores them.
func misspelt(h http.Header) *yodel.Error {
	for name := range h {
		lower := strings.ToLower(name)
		rest, ok := strings.CutPrefix(strings.ReplaceAll(lower, "_", "-"), prefix)
		if !ok || slices.Contains(own, lower) {
			continue
		}
		for _, known := range own {
			meant := known[len(prefix):]
			if len(rest) < 2*len(meant) && nearest.Distance(rest, meant, len(meant)/3+1) <= len(meant)/3 {
				return &yodel.Error{
					Code: yodel.InvalidArgument, NotProcessed: true,
					Message: fmt.Sprintf("the server has no header %.40q; did you mean %q?", lower, known),
				}
			}
		}
	}
	return nil
}

// FromPage reports whether a request with the headers h comes from a web page.
func FromPage(h http.Header) bool { return h.Get("Origin") != "" }

// Disown resets the fields of a call that a web page cannot set.
func Disown(call *yodel.Call) {
	call.Budget, call.Criticality, call.Tenant, call.Key, call.Explain = 0, 0, "", "", false
}

// number parses a number between least and most. It returns 0 for anything else.
func number(s string, least, most int) int {
	if s == "" { // the header is missing, for which strconv.Atoi would allocate an error
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		return 0
	}
	return n
}

// SetOptions adds the fields of a call that Options reads to h. Attempt is how often the request
// was sent before.
func SetOptions(h http.Header, call *yodel.Call, attempt int) {
	set := func(key, value string) {
		if value != "" && value != "0" {
			h[key] = []string{value}
		}
	}
	delete(h, headerAttempts) // in the metadata, it is that of a call that the caller has received
	parent, state, _ := strings.Cut(call.Trace, " ")
	set(headerParent, parent)
	set(headerState, state)
	set(headerIntent, call.IdempotencyKey)
	set(headerAttempts, strconv.Itoa(attempt))
	set(headerBudget, strconv.Itoa(call.Budget))
	set(headerCriticality, strconv.Itoa(call.Criticality))
	set(headerTenant, call.Tenant)
	set(headerKey, call.Key)
	if call.Explain {
		set(headerExplain, "1")
	}
}
