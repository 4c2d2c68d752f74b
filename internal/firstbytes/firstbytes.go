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
	for _, known := range begins {
		if strings.HasPrefix(s, known.prefix) {
			return known.what
		}
	}
	switch {
	case strings.HasPrefix(s, "HTTP/"):
		return "it answered " + firstLine(s)
	case strings.HasPrefix(s, wire.Magic):
		return fmt.Sprintf("another version of the protocol, %d; this is version %d", byteAt(s, len(wire.Magic)), wire.Preface[len(wire.Magic)])
	case request.MatchString(s):
		return "an HTTP request"
	case len(s) > 3 && s[:3] == "220" && strings.IndexByte(" -", s[3]) >= 0:
		return "a mail or FTP server: it answered " + firstLine(s)
	case redis.MatchString(s):
		return "Redis"
	case len(s) > 6 && s[3:5] == "\x00\x0a" && isDigit(s[5]):
		return "a MySQL server"
	case len(s) >= 8 && s[:2] == "\x00\x00" && (s[4:7] == "\x00\x03\x00" || s[2:8] == "\x00\x08\x04\xd2\x16\x2f"): // a start, or the question for TLS
		return "a PostgreSQL client"
	case len(s) > 5 && s[0] < 8 && (isThrift(s[4:]) || s[4:6] == "\x0f\xff"): // in a frame
		return thrift
	case len(s) > 1 && s[0] == 'x' && strings.IndexByte("\x01\x5e\x9c\xda", s[1]) >= 0:
		return "zlib data: a Thrift client with TZlibTransport?"
	case isThrift(s):
		return thrift
	}
	return fmt.Sprintf("%.24q", s)
}

// begins has protocols whose connections begin with a constant.
var begins = [...]struct{ prefix, what string }{
	{"PRI * HTTP/2", "an HTTP/2 preface: a gRPC client?"},
	{"CONNECT /_goRPC_", "a client of net/rpc over HTTP"},
	{"\x16\x03", "a TLS handshake; is TLS set up on one side only?"},
	{"\x15\x03", "a TLS alert; is TLS set up on one side only?"},
	{"PROXY ", proxied},
	{"\r\n\r\n\x00\r\nQUIT\n", proxied},
	{"SSH-", "an SSH server or client"},
	{"AMQP", "AMQP"},
	{"\x08", "an rpcx message"},
	{"\xda\xbb", "a Dubbo message"},
	{`[1,"`, "a Thrift message in JSON"},
	{"{", "JSON"},
	{"[", "JSON"},
	{"\x1f\x8b", "gzip data"},
	{wire.Preface, "yodel's own protocol alone; does ServerOptions.Protocols lack this one?"},
}

const (
	thrift  = "a Thrift message"
	proxied = "a header of the PROXY protocol, which a load balancer sends; turn it off there"
)

// redis matches the first bytes of a client or a server of Redis.
var redis = regexp.MustCompile(`^(\*[0-9]+\r\n\$|PING\r\n|-ERR |-NOAUTH |\+PONG)`)

// isThrift reports whether s begins with a message of Thrift's binary or compact protocol.
func isThrift(s string) bool {
	return len(s) > 1 && (s[:2] == "\x80\x01" || s[0] == 0x82 && s[1]&0x1f == 1)
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

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
	// without a byte of the client, it may have written its request to the socket itself
	return s != "" && status.MatchString(g) && !request.MatchString(s)
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
