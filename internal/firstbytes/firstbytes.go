// SPDX-License-Identifier: Apache-2.0

// Package firstbytes guesses which protocol a peer speaks from the first bytes that it sent, so
// that a log or an error can name it.
package firstbytes

import (
	"fmt"
	"strings"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// Describe returns the name of the protocol that a peer speaks instead of yodel's, as a text for a
// message. Got holds the first bytes that the peer sent.
func Describe(got []byte) string {
	s := string(got)
	for _, known := range []struct{ prefix, what string }{
		{"HTTP/", "it answered " + firstLine(s)},
		{"PRI * HTTP/2", "an HTTP/2 preface: a gRPC client?"},
		{"GET ", "an HTTP request"},
		{"POST ", "an HTTP request"},
		{"PUT ", "an HTTP request"},
		{"HEAD ", "an HTTP request"},
		{"CONNECT ", "an HTTP request"},
		{"OPTIONS ", "an HTTP request"},
		{"\x16\x03", "a TLS handshake; is TLS set up on one side only?"},
		{"\x15\x03", "a TLS alert; is TLS set up on one side only?"},
		{"SSH-", "an SSH server or client"},
		{"\x08", "an rpcx message"},
		{"{", "JSON"},
		{wire.Magic, fmt.Sprintf("another version of the protocol, %d; this is version %d", byteAt(s, len(wire.Magic)), wire.Preface[len(wire.Magic)])},
	} {
		if strings.HasPrefix(s, known.prefix) {
			return known.what
		}
	}
	return fmt.Sprintf("%.24q", s)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return fmt.Sprintf("%.60q", strings.TrimSpace(line))
}

func byteAt(s string, i int) byte {
	if i < len(s) {
		return s[i]
	}
	return 0
}
