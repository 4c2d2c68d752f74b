// SPDX-License-Identifier: Apache-2.0

// Package httpwire is the part that gRPC, gRPC-Web, Connect and JSON over HTTP have in common:
// metadata and call options in headers, error codes, and messages with a prefix. Servers and
// clients share it.
package httpwire

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/yodel-rpc/yodel"
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

// hopHeaders are headers of HTTP itself, which are not metadata.
var hopHeaders = map[string]bool{
	"connection": true, "host": true, "keep-alive": true, "proxy-connection": true, "te": true, "trailer": true,
	"transfer-encoding": true, "upgrade": true, "user-agent": true, "http2-settings": true, "accept": true, "date": true,
}

// reserved reports whether a header, in lower case, belongs to HTTP or to a protocol over it.
func reserved(key string) bool {
	return hopHeaders[key] || strings.HasPrefix(key, "content-") || strings.HasPrefix(key, "grpc-") ||
		strings.HasPrefix(key, "connect-") || strings.HasPrefix(key, "accept-") || strings.HasPrefix(key, ":") || metakeys.Reserved(key)
}

// IsBinary reports whether the values of a metadata key are base64 in HTTP, and any bytes in
// Metadata.
func IsBinary(key string) bool { return strings.HasSuffix(key, "-bin") }

// Metadata returns the metadata in h: all headers but those of HTTP and of protocols over it. Keys
// are in lower case. Several values of a key are joined with ", ". A key that ends in "-bin" has
// base64 text, as it was sent.
func Metadata(h http.Header) yodel.Metadata { return prefixed(h, "") }

// Prefixed is Metadata for the headers that begin with a prefix, which it removes.
func Prefixed(h http.Header, prefix string) yodel.Metadata { return prefixed(h, prefix) }

func prefixed(h http.Header, prefix string) yodel.Metadata {
	md := make(yodel.Metadata, len(h))
	for name, values := range h {
		key, ok := strings.CutPrefix(strings.ToLower(name), prefix)
		if !ok || reserved(key) {
			continue
		}
		md[key] = strings.Join(values, ", ")
	}
	return md
}

// SetMetadata adds metadata to h, with a prefix before each key. Each value of a "-bin" key gets a
// header of its own. If HTTP cannot carry a key or a value, SetMetadata fails and adds nothing.
func SetMetadata(h http.Header, prefix string, md yodel.Metadata) error {
	for key, value := range md {
		if err := check(key, value); err != nil {
			return err
		}
	}
	for key, value := range md {
		values := []string{value}
		if IsBinary(key) { // clients of gRPC take a comma for a part of the base64
			values = strings.Split(strings.ReplaceAll(value, " ", ""), ",")
		}
		h[http.CanonicalHeaderKey(prefix+key)] = values
	}
	return nil
}

// check returns why HTTP cannot carry a pair of metadata, or nil.
func check(key, value string) error {
	if key == "" {
		return errors.New("metadata with an empty key cannot be a header")
	}
	for _, c := range []byte(key) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return fmt.Errorf("the metadata key %.40q cannot be a header: it has other characters than a-z, 0-9, '-', '_' and '.'", key)
		}
	}
	if reserved(key) {
		return fmt.Errorf("the metadata key %.40q belongs to the protocol", key)
	}
	for _, c := range []byte(value) {
		if c < ' ' || c > '~' {
			return fmt.Errorf("the metadata value of %.40q cannot be a header: it may have printable ASCII characters", key)
		}
	}
	if value != strings.TrimSpace(value) {
		return fmt.Errorf("the metadata value of %.40q cannot be a header: it begins or ends with a space", key)
	}
	if IsBinary(key) {
		for part := range strings.SplitSeq(value, ",") {
			if _, err := Binary(part); err != nil {
				return fmt.Errorf("the metadata key %.40q ends in -bin, and its value is not base64", key)
			}
		}
	}
	return nil
}

// Binary decodes one base64 value of a "-bin" key, with padding or without it.
func Binary(value string) ([]byte, error) {
	return base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(value), "="))
}

// Options sets the fields of a call that h carries. Requests of web pages, which have the header
// Origin, cannot set yodel's own fields, so that a page cannot raise the priority of its calls.
func Options(h http.Header, call *yodel.Call) {
	call.IdempotencyKey = h.Get(headerIntent)
	if call.Trace = h.Get(headerParent); call.Trace != "" {
		// the list may be divided among several headers
		if state := strings.Join(h.Values(headerState), ","); state != "" {
			call.Trace += " " + state
		}
	}
	call.Attempt = number(h.Get(headerAttempts), 0, 1<<20)
	if FromPage(h) {
		return
	}
	call.Budget = number(h.Get(headerBudget), 0, 1<<20)
	call.Criticality = number(h.Get(headerCriticality), -100, 100)
	call.Tenant, call.Key = h.Get(headerTenant), h.Get(headerKey)
	call.Explain = h.Get(headerExplain) == "1"
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
