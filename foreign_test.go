// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"io"
	"net"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// What speaks another protocol gets no answer that matters, one line in the log that says what it
// is, and disturbs nobody.
func TestForeignClientsAreNamedInTheLog(t *testing.T) {
	for sent, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n":            "an HTTP request",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":             "an HTTP/2 preface: a gRPC client?",
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03": "a TLS handshake; is TLS set up on one side only?",
		"SSH-2.0-OpenSSH_9.6\r\n":                      "an SSH server or client",
		"{\"method\":\"Arith.Mul\"}":                   "JSON",
		"\xf5yodel\x63\x00":                            "another version of the protocol, 99; this is version 1",
		"8\x7f\x03\x01\x01\x07Request\x01\xff\x80\x00": "8", // gob, as net/rpc speaks it
		strings.Repeat("\x00\xff\x13garbage\n", 100):   "garbage",
	} {
		var book logbook
		s := newServer(t, &yodel.ServerOptions{Logger: book.logger()})
		addr := serve(t, s)
		c := newClient(t, nil, addr)
		must(t, c.Ready(t.Context()))
		nc, err := net.Dial("tcp", addr)
		must(t, err)
		_, err = io.WriteString(nc, sent)
		must(t, err)
		until(t, "the log says something", func() bool { return len(book.with("")) > 0 })
		_, _ = io.Copy(io.Discard, nc) // until the server closes it
		nc.Close()
		if lines := book.with(""); len(lines) != 1 || !strings.Contains(lines[0], want) || !strings.Contains(lines[0], "YDL1101") || !strings.Contains(lines[0], nc.LocalAddr().String()) {
			t.Errorf("%.20q: the log is %q, want one line with %q", sent, lines, want)
		}
		if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
			t.Errorf("%.20q: another connection: %v", sent, err)
		}
	}
}

func TestForeignServersAreNamedInTheError(t *testing.T) {
	for name, test := range map[string]struct {
		greeting bool
		answer   string
		want     string
	}{
		"HTTP":    {false, "HTTP/1.1 400 Bad Request\r\n\r\n", `it answered "HTTP/1.1 400 Bad Request"`},
		"TLS":     {false, "\x15\x03\x01\x00\x02\x02\x46", "a TLS alert; is TLS set up on one side only?"},
		"SSH":     {true, "SSH-2.0-OpenSSH_9.6\r\n", "an SSH server or client"},
		"garbage": {true, "\x00\x01\x02", `"\x00\x01\x02"`},
	} {
		c := newClient(t, nil, speak(t, test.greeting, test.answer))
		_, err := Mul.Call(t.Context(), c, &Args{})
		if e := wantError(t, err, yodel.Unavailable, "YDL1101"); !strings.Contains(e.Message, test.want) || !e.NotProcessed {
			t.Errorf("%s: got %+v, want %s", name, e, test.want)
		}
	}
}

// Nothing of a panic leaves the process.
func TestPanicsStayInTheServer(t *testing.T) {
	var book logbook
	s := newServer(t, &yodel.ServerOptions{Logger: book.logger()})
	handle(t, s, "Panic", func(in *string) (*string, error) { panic("secret " + *in) })
	var r recorded
	c := connect(t, s, &yodel.ClientOptions{Transport: r.transport()})
	for _, mark := range placements(s) {
		mark("Panic")
		e := wantError(t, c.Call(t.Context(), "Panic", "argument", nil), yodel.Internal, "YDL5001")
		for _, leak := range []string{"secret", "argument", "goroutine", ".go:", "panic("} {
			if r.contains(leak) || strings.Contains(e.Error(), leak) {
				t.Errorf("%q left the process: %v", leak, e)
			}
		}
	}
	lines := book.with("handler panicked")
	if len(lines) != 2 || !strings.Contains(lines[0], "secret argument") || !strings.Contains(lines[0], "foreign_test.go:") {
		t.Errorf("the log is %q, want the text and the stack of each panic", lines)
	}
	if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
		t.Error(err)
	}
}

func TestHelloIsQuiet(t *testing.T) {
	var book logbook
	log := book.logger()
	s := newServer(t, &yodel.ServerOptions{Logger: log})
	addr := serve(t, s)
	c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{Logger: log})
	if _, err := Mul.Call(t.Context(), c, &Args{}); err != nil {
		t.Error(err)
	}
	nc, err := net.Dial("tcp", addr) // somebody looks whether the port is open
	must(t, err)
	nc.Close()
	c.Close()
	must(t, s.Shutdown(t.Context()))
	if lines := book.with(""); len(lines) > 0 {
		t.Errorf("a program that does nothing wrong logs %q", lines)
	}
}
