// SPDX-License-Identifier: Apache-2.0

package firstbytes_test

import (
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/firstbytes"
	"github.com/yodel-rpc/yodel/internal/wire"
)

const proxied = "a header of the PROXY protocol, which a load balancer sends; turn it off there"

func TestDescribe(t *testing.T) {
	for got, want := range map[string]string{
		"HTTP/1.1 400 Bad Request\r\n\r\n":         `it answered "HTTP/1.1 400 Bad Request"`,
		"POST /x HTTP/1.1\r\n":                     "an HTTP request",
		"PATCH /x HTTP/1.1\r\n":                    "an HTTP request",
		"CONNECT /_goRPC_ HTTP/1.0\n\n":            "a client of net/rpc over HTTP",
		"CONNECT a:443 HTTP/1.1\r\n":               "an HTTP request",
		"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n":     proxied,
		"\r\n\r\n\x00\r\nQUIT\n\x21\x11":           proxied,
		"220 mx.example ESMTP\r\n":                 `a mail or FTP server: it answered "220 mx.example ESMTP"`,
		"*1\r\n$4\r\nPING\r\n":                     "Redis",
		"PING\r\n":                                 "Redis",
		"-ERR unknown command\r\n":                 "Redis",
		"\x4a\x00\x00\x00\x0a8.0.36\x00":           "a MySQL server",
		"\x00\x00\x00\x08\x04\xd2\x16\x2f":         "a PostgreSQL client",
		"\x00\x00\x00\x20\x00\x03\x00\x00user\x00": "a PostgreSQL client",
		"AMQP\x00\x00\x09\x01":                     "AMQP",
		"x\x9c\x4b":                                "zlib data: a Thrift client with TZlibTransport?",
		"x\x01\x4b":                                "zlib data: a Thrift client with TZlibTransport?",
		"xyz":                                      `"xyz"`,
		"\x1f\x8b\x08":                             "gzip data",
		`[1,"add",1,0,{}]`:                         "a Thrift message in JSON",
		`[{"jsonrpc":"2.0"}]`:                      "JSON",
		"\x80\x01\x00\x01":                         "a Thrift message",
		"\x82\x21\x01":                             "a Thrift message",
		"\x82\x81\x01":                             "a Thrift message",
		"\x00\x00\x00\x20\x80\x01":                 "a Thrift message",
		"\x00\x00\x00\x20\x82\x21":                 "a Thrift message",
		"\x00\x00\x00\x20\x0f\xff":                 "a Thrift message",
		"\xda\xbb\xc2\x00":                         "a Dubbo message",
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
		{"", "HTTP/1.1 200 OK\r\n", false},
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
