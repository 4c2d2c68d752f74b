// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// replying serves an address at which each request is answered with the same error, until the test
// ends.
func replying(t testing.TB, code uint16, fields *wire.Fields) string {
	t.Helper()
	l := listen(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go answerAll(nc, code, fields)
		}
	}()
	return l.Addr().String()
}

// answerAll answers the requests on a connection until it ends.
func answerAll(nc net.Conn, code uint16, fields *wire.Fields) {
	defer nc.Close()
	if _, err := nc.Write(wire.AppendSettings([]byte(wire.Preface), &wire.Limits{})); err != nil {
		return
	}
	if _, err := io.ReadFull(nc, make([]byte, len(wire.Preface))); err != nil {
		return
	}
	header := make([]byte, wire.HeaderSize)
	for {
		if _, err := io.ReadFull(nc, header); err != nil {
			return
		}
		h := wire.ParseHeader(header)
		if _, err := io.CopyN(io.Discard, nc, int64(h.Len)); err != nil {
			return
		}
		if h.Type != wire.Request {
			continue
		}
		b := wire.Begin(nil, &wire.Header{Type: wire.Reply, Flags: wire.HasFields, Arg: code, ID: h.ID})
		if _, err := nc.Write(wire.Finish(wire.AppendFields(b, fields), 0)); err != nil {
			return
		}
	}
}

const forged = "X\n2026 level=INFO \u009b2J\u2028forged \x1b[2J"

// wantClean fails the test unless said is one line that controls nothing.
func wantClean(t testing.TB, what, said string) {
	t.Helper()
	if i := strings.IndexFunc(said, func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }); i >= 0 {
		t.Errorf("%s has a control character at %d: %.400q", what, i, said)
	}
}

func TestErrorsOfPeersAreBoundedAndCleanedWhereTheyAreRead(t *testing.T) {
	for name, f := range map[string]*wire.Fields{
		"a long id":       {ErrorID: []byte(strings.Repeat("x", 400)), Message: []byte("no")},
		"a very long id":  {ErrorID: []byte(strings.Repeat("\n", 60000))},
		"a forged id":     {ErrorID: []byte(forged), Message: []byte(forged)},
		"a long message":  {Message: []byte(strings.Repeat("\x9b", 60000))},
		"large details":   {Details: wire.AppendDetail(nil, "t", make([]byte, 60000)), Message: []byte("no")},
		"many details":    {Details: make([]byte, 2000), Message: []byte("no")}, // pairs of nothing
		"broken details":  {Details: []byte{1, 'x', 200}, Message: []byte("no")},
		"nothing at all":  {},
		"a broken string": {ErrorID: []byte("\xff\xfe"), Message: []byte("\xff\xfe")},
	} {
		for _, way := range []string{"Call", "Go", "feed"} {
			t.Run(name+" "+way, func(t *testing.T) {
				c := newClient(t, nil, replying(t, 13, f))
				e := wantCode(t, callIn(t, c, way), yodel.Internal)
				if len(e.Error()) > 300 || len(e.ID) > 64 || len(e.Message) > 5000 || len(e.Details) > 64 {
					t.Errorf("got an error of %d bytes with an id of %d, a message of %d and details of %d", len(e.Error()), len(e.ID), len(e.Message), len(e.Details))
				}
				wantClean(t, "the error", e.Error())
				wantClean(t, "the id", e.ID)
				wantClean(t, "the message", e.Message)
				wantClean(t, "the record", strings.ReplaceAll(fmt.Sprintf("%+v", e), "\n", ""))
			})
		}
	}
}

// callIn makes a call of "M" in one of three ways.
func callIn(t testing.TB, c *yodel.Client, way string) error {
	t.Helper()
	switch way {
	case "Call":
		return c.Call(t.Context(), "M", &Empty{}, nil)
	case "Go":
		ended := make(chan error, 1)
		c.Go(t.Context(), &yodel.Call{Method: "M", Args: &Empty{}}, func(err error) { ended <- err })
		return receive(t, ended, "the call has ended")
	}
	for _, err := range yodel.Feed[Empty, Empty]("M").Call(t.Context(), c, &Empty{}) {
		return err
	}
	return nil
}

// wantCode returns the Error that err is, which has code.
func wantCode(t testing.TB, err error, code yodel.Code) *yodel.Error {
	t.Helper()
	var e *yodel.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("got %v, want %v", err, code)
	}
	return e
}

func TestAServerThatRefusesAConnectionCannotBreakTheError(t *testing.T) {
	b := wire.AppendSettings([]byte(wire.Preface), &wire.Limits{})
	b = wire.AppendGoAway(b, 14, &wire.Drain{Message: []byte(strings.Repeat(forged, 1000)), ErrorID: []byte(strings.Repeat("\n", 400))})
	c := newClient(t, nil, speak(t, true, string(b)))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	e := wantCode(t, c.Call(ctx, "M", &Empty{}, nil), yodel.Unavailable)
	wantClean(t, "the error", e.Error())
	wantClean(t, "the id", e.ID)
	if len(e.Error()) > 300 || len(e.Message) > 2000 {
		t.Errorf("the error has %d bytes, its message %d", len(e.Error()), len(e.Message))
	}
}

// A client that is called by its server answers as it likes.
func TestAServerThatCallsAClientCleansItsErrors(t *testing.T) {
	s := newServer(t, nil)
	nc, err := net.Dial("tcp", serve(t, s))
	must(t, err)
	go answerAll(nc, 13, &wire.Fields{ErrorID: []byte(strings.Repeat("x", 400)), Message: []byte(forged)})
	t.Cleanup(func() { nc.Close() })
	var peers []*yodel.Peer
	until(t, "the server knows the client", func() bool { peers = s.Peers(); return len(peers) == 1 })
	e := wantCode(t, peers[0].Do(t.Context(), &yodel.Call{Method: "M", Args: &Empty{}}), yodel.Internal)
	wantClean(t, "the error", e.Error())
	if len(e.Error()) > 300 || len(e.ID) > 64 {
		t.Errorf("the error has %d bytes, its id %d", len(e.Error()), len(e.ID))
	}
}

func TestNamesOfStrangersDoNotForgeLinesOfRecords(t *testing.T) {
	r := &introspect.CallReport{
		Method: "T." + forged, Side: "server", Peer: forged, Kind: forged, Code: "x" + forged, ID: forged, Message: forged,
		Attempts: []introspect.Attempt{{Addr: forged, Code: forged, ID: forged}}, Notes: []introspect.Note{{By: forged, What: forged}},
	}
	lines := strings.Split(r.String(), "\n")
	if len(lines) != 4 {
		t.Errorf("the record has %d lines, want 4: %q", len(lines), lines)
	}
	r.Side = "client"
	r.Resolver, r.Picker = &introspect.Resolver{Err: forged}, forged
	r.Candidates = []introspect.Candidate{{Addr: forged, Zone: forged, Verdict: forged, NotReady: []string{forged}}}
	for _, line := range append(lines, strings.Split(r.String(), "\n")...) {
		wantClean(t, "the record", line)
		if strings.HasPrefix(line, "2026") || strings.HasPrefix(line, "forged") {
			t.Errorf("a forged line: %q", line)
		}
	}
}

func TestBytesBehindTheLastValueAreRefused(t *testing.T) {
	s := newServer(t, nil)
	c := connect(t, s, nil)
	two := []byte{2, 2, '7', 2, '2'}
	var quotient, remainder int
	reply := yodel.Values{&quotient, &remainder}
	must(t, c.Call(t.Context(), "Arith.DivMod", &yodel.Encoded{Body: two, Several: true}, reply))
	err := c.Call(t.Context(), "Arith.DivMod", &yodel.Encoded{Body: append(two, "left over"...), Several: true}, reply)
	if e := wantError(t, err, yodel.InvalidArgument, "YDL2101"); !strings.Contains(e.Message, "9 bytes follow the last value") {
		t.Errorf("got %v", e)
	}
}

func FuzzErrorTexts(f *testing.F) {
	f.Add(uint8(13), forged, strings.Repeat("x", 400), "S.M", []byte{1})
	f.Add(uint8(255), strings.Repeat("ä", 300), "YDL1003", "", []byte(nil))
	f.Fuzz(func(t *testing.T, code uint8, message, id, method string, details []byte) {
		e := &yodel.Error{Code: yodel.Code(code), Message: message, ID: id, Details: []yodel.Detail{{Type: id, Value: details}}}
		e.Report = &introspect.CallReport{Method: method, Code: e.Code.String(), ID: id, Message: message, Attempts: []introspect.Attempt{{Addr: method, Message: message}}}
		line := e.Error()
		wantClean(t, "the error", line)
		if len(line) > 300 {
			t.Errorf("it has %d bytes: %q", len(line), line)
		}
		for _, format := range []string{"%v", "%+v", "%q", "%s", "%x"} {
			if strings.Contains(fmt.Sprintf(format, e), "PANIC") && !strings.Contains(message+id+method, "PANIC") {
				t.Errorf("%s panics", format)
			}
		}
		for said := range strings.SplitSeq(e.Report.String(), "\n") {
			wantClean(t, "the record", said)
		}
		_ = e.LogValue()
	})
}
