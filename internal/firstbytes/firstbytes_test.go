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
		"HTTP/1.1 400 Bad Request\r\n\r\n": `it answered "HTTP/1.1 400 Bad Request"`,
		"POST /x HTTP/1.1\r\n":             "an HTTP request",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": "an HTTP/2 preface: a gRPC client?",
		"\x15\x03\x01\x00\x02\x02\x46":     "a TLS alert; is TLS set up on one side only?",
		"\x08\x00\x00\x00":                 "an rpcx message",
		wire.Magic + "\x63":                "another version of the protocol, 99; this is version 1",
		wire.Magic:                         "another version of the protocol, 0; this is version 1",
		"":                                 `""`,
		"\x00\x01\x1b[2J":                  `"\x00\x01\x1b[2J"`, // nothing that a terminal obeys
		strings.Repeat("x", 100):           `"` + strings.Repeat("x", 24) + `"`,
		"HTTP/" + strings.Repeat("x", 100): `it answered "HTTP/` + strings.Repeat("x", 55) + `"`,
	} {
		if said := firstbytes.Describe([]byte(got)); said != want {
			t.Errorf("%q: got %s, want %s", got, said, want)
		}
	}
}
