// SPDX-License-Identifier: Apache-2.0

// Package firstbytes guesses which protocol a peer speaks from the first bytes that it sent, so
// that a log or an error can name it.
package firstbytes

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/yodel-rpc/yodel/internal/wire"
)

// Describe returns the name of the protocol that a peer speaks instead of yodel's, as a text for a
// message. Got holds the first bytes that the peer sent.
func Describe(got []byte) string {
	s := string(got)
	if isSettings(s) {
		return "an HTTP/2 server, for example gRPC: use a Wire"
	}
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
		{wire.Preface, "yodel's own protocol alone; does ServerOptions.Protocols lack this one?"},
		{wire.Magic, fmt.Sprintf("another version of the protocol, %d; this is version %d", byteAt(s, len(wire.Magic)), wire.Preface[len(wire.Magic)])},
	} {
		if strings.HasPrefix(s, known.prefix) {
			return known.what
		}
	}
	return fmt.Sprintf("%.24q", s)
}

// Foreign reports whether a server that began with got has certainly not understood a client that
// began with sent, because it speaks another protocol. It needs at most 16 bytes of sent and 32
// bytes of got. It is false in case of doubt.
func Foreign(sent, got []byte) bool {
	s, g := string(sent), string(got)
	switch {
	case strings.HasPrefix(g, wire.Magic):
		return !strings.HasPrefix(s, wire.Magic)
	case isAlert(g):
		return !strings.HasPrefix(s, "\x16\x03")
	case strings.HasPrefix(s, "PRI * HTTP/2.0"):
		return len(g) >= 4 && g[3] != settings
	}
	return status.MatchString(g) && !request.MatchString(s)
}

// settings is the type of the first frame of each side in HTTP/2.
const settings = 4

// isSettings reports whether s begins with the frame of HTTP/2 with which a server begins.
func isSettings(s string) bool {
	const size = 9
	return len(s) >= size && s[0] == 0 && s[1] == 0 && s[2]%6 == 0 && s[3] == settings && s[4:size] == "\x00\x00\x00\x00\x00"
}

var (
	status  = regexp.MustCompile(`^HTTP/1\.[01] [1-5][0-9][0-9]\s`)
	request = regexp.MustCompile(`^[A-Z]+ `)
)

// isAlert reports whether s begins with an alert of TLS that is not encrypted.
func isAlert(s string) bool {
	const size = 7
	return len(s) >= size && s[:2] == "\x15\x03" && s[2] <= 4 && s[3:5] == "\x00\x02" && (s[5] == 1 || s[5] == 2)
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
