// SPDX-License-Identifier: Apache-2.0

package firstbytes_test

import (
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/wire"
)

func TestDescribe(t *testing.T) {
	for got, want := range map[string]string{
		"HTTP/1.1 400 Bad Request\r\n\r\n":         `it answered "HTTP/1.1 400 Bad Request"`,
		"POST /x HTTP/1.1\r\n":                     "an HTTP request",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":         "an HTTP/2 preface: a gRPC client?",
		"\x15\x03\x01\x00\x02\x02\x46":             "a TLS alert; is TLS set up on one side only?",
		"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00": "an HTTP/2 server, for example gRPC: use a Wire",
		"\x08\x00\x00\x00":                         "an rpcx message",
		wire.Magic + "\x63":                        "another version of the protocol, 99; this is version 1",
		wire.Magic:                                 "another version of the protocol, 0; this is version 1",
		"":                                         `""`,
		"\x00\x01\x1b[2J":                          `"\x00\x01\x1b[2J"`, // nothing that a terminal obeys
		strings.Repeat("x", 100):                   `"` + strings.Repeat("x", 24) + `"`,
		"HTTP/" + strings.Repeat("x", 100):         `it answered "HTTP/` + strings.Repeat("x", 55) + `"`,
	} {
		if said := firstbytes.Describe([]byte(got)); said != want {
			t.Errorf("%q: got %s, want %s", got, said, want)
		}
	}
}

func TestForeign(t *testing.T) {
	const alert, http2 = "\x15\x03\x01\x00\x02\x02\x46", "PRI * HTTP/2.0\r\n"
	for _, test := range []struct {
		sent, got string
		want      bool
	}{
		{"{", alert, true},
		{"{", alert[:6], false},
		{"{", "\x15\x03\x01\x00\x03\x02\x46", false}, // not the length of an alert
		{"\x16\x03\x01", alert, false},
		{"{", "HTTP/1.1 400 Bad Request\r\n", true},
		{"{", "HTTP/1.1 4", false},
		{"CONNECT /rpc HTTP/1.0\n", "HTTP/1.0 200 Connected\n", false},
		{"POST /a HTTP/1.1", "HTTP/1.1 400 Bad Request\r\n", false},
		{http2, "HTTP/1.1 400 Bad Request\r\n", true},
		{http2, "\x00\x00\x06\x04\x00\x00\x00\x00\x00", false},
		{http2, "\x00\x00\x06", false},
		{http2, "", false},
		{"{", wire.Preface, true},
		{wire.Preface, wire.Magic + "\x02\x00", false},
		{"{", `{"id":1}`, false},
	} {
		if got := firstbytes.Foreign([]byte(test.sent), []byte(test.got)); got != test.want {
			t.Errorf("%q after %q: got %v", test.got, test.sent, got)
		}
	}
}
