// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// A client that has got the certificate in a greeting connects to the server, by TLS 1.3.
func TestClientsTrustTheCertificateOfTheGreeting(t *testing.T) {
	t.Parallel()
	p := peerOf(&fake{call: func() error { return nil }})
	p.ServeTLS = func(addr string, config *tls.Config) (string, func(), error) {
		l, err := tls.Listen("tcp", addr, config)
		if err != nil {
			return "", nil, err
		}
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				_, _ = c.Write([]byte("hello"))
				_ = c.Close()
			}
		}()
		return l.Addr().String(), func() { _ = l.Close() }, nil
	}
	in, commands := io.Pipe()
	answers, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- serveTLS(p, in, out) }()
	var said greeting
	if err := json.NewDecoder(answers).Decode(&said); err != nil {
		t.Fatal(err)
	}
	var got string
	p.Dial = func(_ context.Context, o Options) (Client, error) {
		c, err := tls.Dial("tcp", o.Addrs[0], o.TLS)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		text, err := io.ReadAll(c)
		got = string(text) + tls.VersionName(c.ConnectionState().Version)
		return &fake{call: func() error { return nil }}, err
	}
	order, err := json.Marshal(map[string]any{
		"work": "echo", "addrs": []string{said.Addr}, "mode": "closed", "callers": 1, "measure_ms": 10, "certificate": said.Certificate,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := play(t, p, string(order)); err != nil || got != "helloTLS 1.3" {
		t.Errorf("got %q, %v", got, err)
	}
	_ = commands.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// What a framework does not do is declined, and not left out silently.
func TestDeadlinesAndTLSAreDeclined(t *testing.T) {
	t.Parallel()
	for order, want := range map[string]string{`"deadline_ms":5000`: "no deadlines", `"certificate":"x"`: "no TLS"} {
		p := peerOf(&fake{})
		_, err := play(t, p, `{"work":"echo","addrs":["a"],"mode":"closed","callers":1,"measure_ms":10,`+order+`}`)
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", order, err)
		}
	}
	if err := serveTLS(peerOf(&fake{}), strings.NewReader(""), io.Discard); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a server without TLS: got %v", err)
	}
}

// A call has a deadline if the order says so.
func TestCallsHaveTheDeadlineOfTheOrder(t *testing.T) {
	t.Parallel()
	p := peerOf(nil)
	p.Deadlines = true
	left := make(chan time.Duration, 1)
	p.Dial = func(_ context.Context, o Options) (Client, error) {
		ctx, cancel := o.Context()
		defer cancel()
		at, _ := ctx.Deadline()
		left <- time.Until(at)
		return &fake{call: func() error { return nil }}, nil
	}
	if _, err := play(t, p, `{"work":"echo","addrs":["a"],"mode":"closed","callers":1,"measure_ms":10,"deadline_ms":60000}`); err != nil {
		t.Error(err)
	}
	if got := <-left; got <= 0 || got > time.Minute {
		t.Errorf("%v are left of a minute", got)
	}
	ctx, cancel := Options{}.Context()
	defer cancel()
	if _, has := ctx.Deadline(); has {
		t.Error("a call without a deadline has one")
	}
}
