// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A textProtocol is a protocol of lines with every feature. It breaks a rule in the way that fault
// says. A request is a JSON object and a newline, and so is a reply.
type textProtocol struct{ fault string }

type textRequest struct {
	ID       int
	Method   string
	Args     json.RawMessage
	Metadata yodel.Metadata
	Timeout  time.Duration
}

type textReply struct {
	ID    int
	Code  yodel.Code
	Error string
	Reply json.RawMessage
}

func (textProtocol) Name() string { return "text" }

func (p textProtocol) Match(first []byte) (ok, more bool) {
	if p.fault == "Match panics" && len(first) > 1 && first[1] != '"' {
		panic("oh")
	}
	return first[0] == '{', false
}

// read reads a request.
func (p textProtocol) read(reader *bufio.Reader) (line []byte, err error) {
	if p.fault != "accepts half a request" {
		return reader.ReadBytes('\n')
	}
	for !json.Valid(append(line, '}')) { // the end is missing, and it does not wait for it
		b, err := reader.ReadByte()
		if err != nil {
			return nil, err
		}
		line = append(line, b)
	}
	return append(line, '}'), nil
}

func (p textProtocol) Serve(_ context.Context, s *yodel.Session) error {
	reader, w := s.Reader, io.Writer(s)
	switch p.fault {
	case "reads the connection itself":
		rest, _ := s.Reader.Peek(s.Reader.Buffered())
		reader = bufio.NewReader(io.MultiReader(strings.NewReader(string(rest)), s.Conn))
	case "writes to the connection itself":
		w = s.Conn
	}
	for {
		if p.fault != "does not call Next" {
			if err := s.Next(); err != nil && p.fault != "reads the connection itself" {
				if p.fault == "keeps the connection" {
					<-s.Draining()
				}
				return err
			}
		}
		line, err := p.read(reader)
		if err != nil {
			if p.fault == "keeps the connection" {
				<-s.Draining()
			}
			return err
		}
		var r textRequest
		if err = json.Unmarshal(line, &r); err != nil {
			if p.fault == "panics at garbage" {
				panic(err)
			}
			return err
		}
		v := s.Begin(r.Method, yodel.JSON, nil)
		size := len(line)
		if p.fault == "admits a size of zero" {
			size = 0
		}
		if p.fault != "no deadline" && r.Timeout > 0 {
			v.Call().Deadline = time.Now().Add(r.Timeout)
		}
		if p.fault != "no metadata" {
			v.Call().Metadata = r.Metadata
		}
		_ = v.Admit(size, p.fault != "does not wait") // reply has the error
		v.Body = r.Args
		run := func() { p.run(v, w, r.ID) }
		if p.fault == "one call at a time" {
			run()
		} else {
			s.Go(run)
		}
		if p.fault == "one call for each connection" {
			return nil
		}
	}
}

func (p textProtocol) run(v *yodel.Served, w io.Writer, id int) {
	if p.fault != "does not end calls" {
		defer v.End()
	}
	send := func() {
		r := textReply{ID: id}
		reply, _, e := []byte(nil), false, v.Outcome()
		if e == nil {
			reply, _, e = v.AppendReply(nil)
		}
		if r.Reply = reply; e != nil {
			r.Reply, r.Code, r.Error = nil, e.Code, e.Error()
		}
		switch p.fault {
		case "no texts":
			r.Error = strings.Repeat("x", len(r.Error))
		case "no codes":
			r.Code = yodel.Unknown * min(r.Code, 1)
		case "sends no errors":
			if e != nil {
				return
			}
		case "wrong ID":
			r.ID = 0
		}
		line, err := json.Marshal(&r)
		if err != nil {
			panic(err)
		}
		_, _ = w.Write(append(line, '\n')) // the session ends
	}
	if p.fault == "no reply after Goexit" {
		_ = v.Run() // send has the error
		send()
		return
	}
	defer send()
	if v.Outcome() == nil {
		_ = v.Run() // send has the error
	}
	if p.fault == "runs calls twice" {
		_ = v.Run()
	}
}

// A textClient is a client of it.
type textClient struct {
	conn    net.Conn
	mu      sync.Mutex
	last    int
	waiting map[int]chan textReply
	err     error
}

func dialText(conn net.Conn) yodel.Caller {
	c := &textClient{conn: conn, waiting: make(map[int]chan textReply)}
	go c.read()
	return c
}

func (c *textClient) read() {
	d := json.NewDecoder(c.conn)
	for {
		var r textReply
		err := d.Decode(&r)
		c.mu.Lock()
		if err != nil {
			c.err = err
			for _, w := range c.waiting {
				close(w)
			}
			clear(c.waiting)
			c.mu.Unlock()
			return
		}
		if w := c.waiting[r.ID]; w != nil {
			w <- r
			delete(c.waiting, r.ID)
		}
		c.mu.Unlock()
	}
}

func (c *textClient) Do(ctx context.Context, call *yodel.Call) error {
	r := textRequest{Method: call.Method, Metadata: call.Metadata}
	if at, ok := ctx.Deadline(); ok {
		r.Timeout = time.Until(at)
	}
	var err error
	if r.Args, err = json.Marshal(call.Args); err != nil {
		return err
	}
	w := make(chan textReply, 1)
	c.mu.Lock()
	if err = c.err; err == nil {
		c.last++
		r.ID = c.last
		c.waiting[r.ID] = w
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	line, err := json.Marshal(&r)
	if err != nil {
		return err
	}
	if _, err = c.conn.Write(append(line, '\n')); err != nil {
		return err
	}
	reply, ok := <-w
	switch {
	case !ok:
		return io.ErrUnexpectedEOF
	case reply.Error != "":
		return yodel.Errorf(reply.Code, "%s", reply.Error)
	}
	return json.Unmarshal(reply.Reply, call.Reply)
}

var textFeatures = Protocol{Protocol: textProtocol{}, Codes: true, Deadlines: true, Metadata: true}

func TestTestProtocolPasses(t *testing.T) {
	p := textFeatures
	p.Middleware = []ProtocolMiddleware{passing(0), passing(2)}
	TestProtocol(t, p, dialText)
}

// passing is a middleware that lets n calls pass.
func passing(n int) ProtocolMiddleware {
	return ProtocolMiddleware{Name: "passing", Passes: n, Code: yodel.Aborted, New: func() yodel.Middleware {
		var calls atomic.Int64
		return func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				if calls.Add(1) > int64(n) {
					return yodel.Errorf(yodel.Aborted, "no more")
				}
				return next(ctx, call)
			}
		}
	}}
}

// A middleware that does not refuse as it should fails its rule.
func TestTestProtocolTriesTheMiddlewareOfItsCaller(t *testing.T) {
	idle, late, other := passing(0), passing(1), passing(0)
	idle.New = func() yodel.Middleware { return func(next yodel.Handler) yodel.Handler { return next } }
	late.Passes = 2
	other.Code = yodel.NotFound
	for name, m := range map[string]ProtocolMiddleware{"idle": idle, "too early": late, "another code": other} {
		t.Run(name, func(t *testing.T) {
			if err := m.rule().try(textFeatures, dialText, time.Second); err == nil {
				t.Error("it passed")
			} else {
				t.Log(err)
			}
		})
	}
}

// A protocol that breaks a rule fails it.
func TestTestProtocolFails(t *testing.T) {
	for fault, rules := range map[string][]string{
		"Match panics":                    {"garbage"},
		"panics at garbage":               {"garbage"},
		"accepts half a request":          {"cut requests"},
		"reads the connection itself":     {"drain", "half a request"},
		"writes to the connection itself": {"unread replies"},
		"does not call Next":              {"half a request"},
		"keeps the connection":            {"MaxConns", "garbage"},
		"admits a size of zero":           {"MaxMessage"},
		"no deadline":                     {"deadline"},
		"no metadata":                     {"metadata"},
		"does not wait":                   {"MaxOpen"},
		"one call at a time":              {"many calls", "cancellation"},
		"one call for each connection":    {"unary"},
		"does not end calls":              {"MaxOpen", "statistics"},
		"no texts":                        {"text of an error", "auth by middleware"},
		"no codes":                        {"code of an error"},
		"sends no errors":                 {"unknown method", "panic", "text of an error"},
		"no reply after Goexit":           {"Goexit"},
		"wrong ID":                        {"unary"},
	} {
		p := textFeatures
		p.Protocol = textProtocol{fault}
		for _, name := range rules {
			t.Run(fault+", "+name, func(t *testing.T) {
				i := slices.IndexFunc(protocolRules, func(r protocolRule) bool { return r.name == name })
				if i < 0 {
					t.Fatal("there is no such rule")
				}
				if err := protocolRules[i].try(p, dialText, time.Second/2); err == nil {
					t.Error("it passed")
				} else {
					t.Log(err)
				}
			})
		}
	}
}
