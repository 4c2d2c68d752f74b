// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// harms are the ways in which user code does not return.
var harms = map[string]func(){"panics": func() { panic("harm") }, "exits": runtime.Goexit}

// A harmfulError does harm in one method.
type harmfulError struct {
	at   string
	harm func()
}

func (e *harmfulError) do(at string) {
	if e.at == at {
		e.harm()
	}
}

func (e *harmfulError) Error() string { e.do("Error"); return "harm" }
func (e *harmfulError) Unwrap() error { e.do("Unwrap"); return nil }
func (e *harmfulError) Is(error) bool { e.do("Is"); return false }
func (e *harmfulError) As(any) bool   { e.do("As"); return false }

// A userConn is a connection of a user's transport, whose methods can be replaced: Read once.
type userConn struct {
	net.Conn
	read, write func(b []byte) (int, error)
	netConn     func() net.Conn
}

func (c *userConn) Read(b []byte) (int, error) {
	if read := c.read; read != nil {
		c.read = nil
		return read(b)
	}
	return c.Conn.Read(b)
}

func (c *userConn) Write(b []byte) (int, error) {
	if c.write != nil {
		return c.write(b)
	}
	return c.Conn.Write(b)
}

func (c *userConn) NetConn() net.Conn {
	if c.netConn != nil {
		return c.netConn()
	}
	return nil
}

// The process survives errors of a connection whose methods panic or end the goroutine, and numbers
// of bytes that cannot be. The connection ends.
func TestOutcomesOfAConnectionAreUserCode(t *testing.T) {
	outcomes := map[string]func(b []byte) (int, error){
		"too much": func(b []byte) (int, error) { return len(b) + 1, nil },
		"less":     func([]byte) (int, error) { return -1, nil },
	}
	for _, at := range []string{"Error", "Unwrap", "Is", "As"} {
		for name, harm := range harms {
			outcomes[at+" "+name] = func([]byte) (int, error) { return 0, &harmfulError{at, harm} }
		}
	}
	for name, outcome := range outcomes {
		for _, op := range []string{"read", "write"} {
			t.Run(name+" of a "+op, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					own, _ := memoryPair(0)
					nc := &userConn{Conn: own}
					if op == "read" {
						nc.read = outcome
					} else {
						nc.write = outcome
					}
					c := mux.New(nc, nil, true, new(setup).config(t, mux.Config{}, nil))
					<-c.Ended()
					if err := c.Err(); err == nil || !strings.Contains(err.Error(), "own code") {
						t.Errorf("the connection ended with %v", err)
					}
				})
			})
		}
	}
}

// A Write that writes less without an error ends the connection.
func TestAShortWriteEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, _ := memoryPair(0)
		c := mux.New(&userConn{Conn: own, write: func([]byte) (int, error) { return 0, nil }}, nil, true, new(setup).config(t, mux.Config{}, nil))
		<-c.Ended()
		if err := c.Err(); err == nil || !strings.Contains(err.Error(), io.ErrShortWrite.Error()) {
			t.Errorf("the connection ended with %v", err)
		}
	})
}

// The connection looks for the socket below the user's. It does without one if NetConn panics, or
// returns its own connection.
func TestNetConnIsUserCode(t *testing.T) {
	for name, harm := range harms {
		synctest.Test(t, func(t *testing.T) {
			client, server := memoryPair(0)
			asked := false
			nc := &userConn{Conn: client}
			nc.netConn = func() net.Conn {
				if asked {
					return nc
				}
				asked = true
				harm()
				return nil
			}
			free := make(chan struct{})
			s := &setup{limits: quietLimits(time.Second, time.Second), serves: map[string]*handler{"echo": {serve: func(r *mux.Request) {
				<-free
				answerEcho(r)
			}}}}
			c, _ := s.over(t, nc, server)
			ended := make(chan struct{})
			go func() {
				mustEcho(t, c, echo, "after a minute")
				close(ended)
			}()
			time.Sleep(time.Minute)
			close(free)
			<-ended
			if !asked {
				t.Errorf("%s: NetConn was not called", name)
			}
		})
	}
}

// A harmfulContext does harm in the calls of one method after the first ones.
type harmfulContext struct {
	done    chan struct{}
	at      string
	harm    func()
	n, most atomic.Int32
}

func (x *harmfulContext) do(at string) {
	if x.at == at && x.n.Add(1) > x.most.Load() {
		x.harm()
	}
}

func (x *harmfulContext) Done() <-chan struct{}            { x.do("Done"); return x.done }
func (x *harmfulContext) Value(any) any                    { x.do("Value"); return nil }
func (x *harmfulContext) Deadline() (t time.Time, ok bool) { x.do("Deadline"); return t, false }
func (x *harmfulContext) Err() error {
	x.do("Err")
	select {
	case <-x.done:
		return context.Canceled
	default:
		return nil
	}
}

var (
	stuck    = methodNamed(3, "block")
	exchange = &mux.Method{Handle: 4, Name: "duplex", Codec: "raw", Kind: wire.Duplex}
)

// begin opens a stream, which the caller cancels.
func begin(ctx context.Context, c *mux.Conn) *mux.Stream {
	st := mux.NewStream()
	if err := c.Start(ctx, &mux.Out{Method: exchange, Stream: st}, st); err != nil {
		return nil
	}
	return st
}

// contextUses are the ways in which a connection uses a context of the caller.
var contextUses = map[string]func(ctx context.Context, c *mux.Conn){
	"call":  func(ctx context.Context, c *mux.Conn) { _, _, _ = call(ctx, c, stuck, "") },
	"large": func(ctx context.Context, c *mux.Conn) { _, _, _ = call(ctx, c, stuck, strings.Repeat("a", 1<<20)) },
	"start": func(ctx context.Context, c *mux.Conn) {
		ended := make(chan struct{})
		if c.Start(ctx, &mux.Out{Method: stuck}, completed(func(*mux.Answer, error) { close(ended) })) == nil {
			<-ended
		}
	},
	"notify": func(ctx context.Context, c *mux.Conn) {
		_ = c.Notify(ctx, &mux.Out{Method: other, Body: make([]byte, 1<<20)})
	},
	"ping": func(ctx context.Context, c *mux.Conn) { _, _ = c.Ping(ctx) },
	"stream that sends": func(ctx context.Context, c *mux.Conn) {
		if st := begin(ctx, c); st != nil {
			defer st.Cancel(context.Canceled)
			for st.Accepted(ctx) == nil {
				if st.Send(ctx, 0, make([]byte, 1<<20)) != nil {
					return
				}
			}
		}
	},
	"stream that receives": func(ctx context.Context, c *mux.Conn) {
		if st := begin(ctx, c); st != nil {
			defer st.Cancel(context.Canceled)
			_, _, _ = st.Receive(ctx)
		}
	},
}

// A context whose methods panic or end the goroutine fails its call, or panics on the goroutine of
// the caller. The connection loses no place and keeps no lock, also if the context waits for the
// window or for the output.
func TestContextsAreUserCode(t *testing.T) {
	for use, run := range contextUses {
		for _, at := range []string{"Done", "Err", "Value", "Deadline", "none"} {
			for name, harm := range harms {
				t.Run(use+" "+at+" "+name, func(t *testing.T) {
					for _, full := range []bool{false, true} {
						for most := range int32(6) {
							useContext(t, run, full, &harmfulContext{at: at, harm: harm, done: make(chan struct{})}, most)
						}
					}
				})
			}
		}
	}
}

func useContext(t *testing.T, run func(context.Context, *mux.Conn), full bool, ctx *harmfulContext, most int32) {
	synctest.Test(t, func(t *testing.T) {
		ctx.done = make(chan struct{})
		ctx.most.Store(most)
		wait := &handler{serve: func(r *mux.Request) { <-r.Done() }}
		s := &setup{buffer: 64 << 10, limits: defaultLimits(), serves: map[string]*handler{
			"block": wait, "echo": {serve: answerEcho}, "other": {serve: answerEcho},
			"duplex": {serve: func(r *mux.Request) { r.Stream().Accept(); <-r.Done() }},
		}}
		s.limits.MaxUnsent = 128 << 10
		if full {
			s.limits.MaxOpen = 1
		}
		c, _ := s.inMemory(t)
		mustEcho(t, c, echo, "before")
		var users sync.WaitGroup
		bounded, cancel := context.WithCancel(t.Context())
		if full {
			users.Go(func() { _, _, _ = call(bounded, c, stuck, "") })
			synctest.Wait()
		}
		users.Go(func() {
			defer func() { _ = recover() }() // it may panic here
			run(ctx, c)
		})
		synctest.Wait()
		close(ctx.done)
		synctest.Wait()
		cancel()
		users.Wait()
		mustEcho(t, c, echo, "after")
		wantEmpty(t, "the client", c)
	})
}

// A server writes nothing to a client before the client has said that it speaks the protocol: not
// its greeting, and not the notice of a drain.
func TestAServerSaysNothingToStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, peer := memoryPair(0)
		c := mux.New(own, nil, false, new(setup).config(t, mux.Config{Limits: quietLimits(0, 0)}, nil))
		_, _ = peer.Write([]byte(wire.Preface[:1]))
		c.Drain()
		synctest.Wait()
		_, _ = peer.Write([]byte("stranger"))
		<-c.Ended()
		synctest.Wait()
		if said, err := io.ReadAll(peer); len(said) > 0 {
			t.Errorf("it was told %q, %v", said, err)
		}
	})
}

// A server that drains before the client has said anything greets the client all the same.
func TestAServerThatDrainsGreets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := memoryPair(0)
		srv := mux.New(server, nil, false, new(setup).config(t, mux.Config{}, nil))
		srv.Drain()
		c := mux.New(client, nil, true, new(setup).config(t, mux.Config{}, nil))
		<-c.Ended()
		if err := c.Err(); fmt.Sprint(err) != mux.ErrDrained.Error() {
			t.Errorf("the client ended with %v", err)
		}
		srv.Close()
	})
}
