// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A textWire calls servers with a textProtocol, one call at a time for each connection. It breaks a
// rule in the way that fault says.
type textWire struct {
	fault string
	over  chan struct{} // lets a connection end that "does not end"
}

func (textWire) Name() string { return "text" }

func (w textWire) Connect(_ context.Context, nc net.Conn, ep *yodel.Endpoint) (yodel.Link, error) {
	l := &textLink{textWire: w, conn: nc, ep: ep, turn: make(chan struct{}, 1), replies: make(chan textAnswer, 1), closing: make(chan struct{}), done: make(chan struct{})}
	go l.read()
	return l, nil
}

type textLink struct {
	textWire
	conn    net.Conn
	ep      *yodel.Endpoint
	turn    chan struct{}
	replies chan textAnswer
	closing chan struct{}
	done    chan struct{}

	mu       sync.Mutex
	err      error
	whenIdle bool
	open     int
}

// A textAnswer is a reply, and how many of its bytes are counted.
type textAnswer struct {
	line []byte
	held int
	err  error
}

func (l *textLink) Closing() <-chan struct{} { return l.closing }
func (l *textLink) Done() <-chan struct{}    { return l.done }
func (l *textLink) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fault == "no Err" {
		return nil
	}
	return l.err
}

func (l *textLink) Close(whenIdle bool) {
	l.refuse(errors.New("it was closed"))
	l.mu.Lock()
	l.whenIdle = true
	ends := !whenIdle || l.open == 0 || l.fault == "does not wait until it is idle"
	l.mu.Unlock()
	if ends && l.fault != "does not close at once" {
		_ = l.conn.Close() // then read ends
	}
}

func (l *textLink) refuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		close(l.closing)
	}
}

// read reads replies, each of which is a line.
func (l *textLink) read() {
	reader := bufio.NewReaderSize(l.conn, 16<<10)
	var a textAnswer
	var err error
	for err == nil {
		var part []byte
		part, err = reader.ReadSlice('\n')
		whole := err == nil
		if errors.Is(err, bufio.ErrBufferFull) {
			err = nil
		}
		if l.fault != "does not count memory" && a.err == nil {
			if l.ep.Reserve(len(part)) {
				a.held += len(part)
			} else {
				a.err = &yodel.Error{Code: yodel.ResourceExhausted, ID: "YDL3007", NotProcessed: l.fault == "no memory means not executed", Message: "there is no memory"}
				if l.fault != "reads the whole reply" {
					l.replies <- a
				}
			}
		}
		if a.err == nil {
			a.line = append(a.line, part...)
		}
		if whole {
			if a.err == nil || l.fault == "reads the whole reply" {
				l.replies <- a
			}
			a = textAnswer{}
		}
	}
	l.ep.Release(a.held)
	l.refuse(err)
	_ = l.conn.Close() // no more replies can come
	if l.fault == "does not end" {
		<-l.over
	}
	close(l.done)
}

func (l *textLink) Do(ctx context.Context, call *yodel.Call) error {
	if call.Attachment != nil {
		return &yodel.Error{Code: yodel.Unimplemented, NotProcessed: l.fault != "what it lacks may be executed", Message: "no attachments"}
	}
	args, _, err := call.AppendArgs(nil)
	if err != nil {
		return err
	}
	line, err := json.Marshal(textRequest{Method: call.Method, Args: args})
	if err != nil {
		return err
	}
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-l.turn }()
	l.mu.Lock()
	closed := l.err
	l.open++
	l.mu.Unlock()
	defer l.finish()
	if closed != nil {
		e := &yodel.Error{Code: yodel.Unavailable, NotProcessed: true, Message: closed.Error(), Cause: closed}
		switch l.fault {
		case "not sent is not said":
			return closed
		case "not sent has an ID":
			e.ID = "YDL1102"
		}
		return e
	}
	if _, err := l.conn.Write(append(line, '\n')); err != nil {
		return err
	}
	return l.await(ctx, call)
}

// await waits for the reply. A caller that gives up leaves a connection that is not usable.
func (l *textLink) await(ctx context.Context, call *yodel.Call) error {
	given := ctx.Done()
	if l.fault == "waits for the reply" {
		given = nil
	}
	var a textAnswer
	select {
	case a = <-l.replies:
	case <-given:
		l.refuse(errors.New("a caller gave up"))
		_ = l.conn.Close() // the reply would be that of the next call
		if l.fault == "no cause" {
			return ctx.Err()
		}
		return context.Cause(ctx)
	case <-l.done:
		select {
		case a = <-l.replies: // it came before the end
		default:
			if l.fault == "lost is not executed" {
				return &yodel.Error{Code: yodel.Unavailable, NotProcessed: true, Message: "lost", Cause: io.EOF}
			}
			return fmt.Errorf("the connection was lost: %w", io.EOF)
		}
	}
	if l.fault != "does not release" {
		defer l.ep.Release(a.held)
	}
	var r textReply
	switch limit := l.ep.Client().Limits().MaxMessage; {
	case a.err != nil:
		return a.err
	case len(a.line) > limit+100 && l.fault != "no limit":
		return &yodel.Error{Code: yodel.ResourceExhausted, ID: "YDL2202", Message: "the reply is too large"}
	case json.Unmarshal(bytes.TrimSpace(a.line), &r) != nil:
		return errors.New("the reply is damaged")
	case r.Error != "":
		return &yodel.Error{Code: r.Code, Message: r.Error, NotProcessed: l.fault == "answers are not executed"}
	}
	return call.TakeReply(r.Reply, false) //nolint:contextcheck // the call has its context
}

func (l *textLink) finish() {
	l.mu.Lock()
	l.open--
	ends := l.whenIdle && l.open == 0
	l.mu.Unlock()
	if ends {
		_ = l.conn.Close() // then read ends
	}
}

func TestTestWirePasses(t *testing.T) {
	TestWire(t, Wire{Wire: textWire{}, Protocol: textProtocol{}})
}

// Each fault breaks one of the rules.
func TestTestWireFinds(t *testing.T) {
	for fault, want := range map[string]string{
		"answers are not executed":       "answer",
		"not sent is not said":           "not sent",
		"not sent has an ID":             "not sent",
		"lost is not executed":           "lost after it was sent",
		"no cause":                       "caller gives up",
		"waits for the reply":            "caller gives up",
		"what it lacks may be executed":  "what the protocol lacks",
		"no limit":                       "MaxMessage",
		"does not count memory":          "memory",
		"no memory means not executed":   "memory",
		"reads the whole reply":          "memory",
		"does not release":               "memory",
		"does not wait until it is idle": "close when idle",
		"does not close at once":         "close at once",
		"no Err":                         "close at once",
		"does not end":                   "server ends the connection",
	} {
		t.Run(fault, func(t *testing.T) {
			for _, rule := range wireRules {
				if rule.name != want {
					continue
				}
				w := textWire{fault, make(chan struct{})}
				err := rule.try(Wire{Wire: w, Protocol: textProtocol{}, Codec: yodel.JSON}, time.Second)
				if err == nil || strings.Contains(err.Error(), "panic") {
					t.Errorf("the rule %q does not find it: %v", want, err)
				}
				close(w.over)
				t.Log(err)
			}
		})
	}
	for rule, fault := range map[string]string{"half a reply": "lost is not executed"} {
		for _, r := range wireRules {
			if r.name == rule && r.try(Wire{Wire: textWire{fault: fault}, Protocol: textProtocol{}, Codec: yodel.JSON}, time.Second) == nil {
				t.Errorf("the rule %q does not find %q", rule, fault)
			}
		}
	}
}
