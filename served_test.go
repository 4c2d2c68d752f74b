// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/introspect"
)

// One-way calls to a peer go through the Caller of Session.Push, below the server's middleware for
// peers. Other calls fail.
func TestSessionPush(t *testing.T) {
	pushed := make(chan *yodel.Call, 10)
	lost := errors.New("the client has left")
	s := serveLines(t, lines{serve: func(ctx context.Context, s *yodel.Session) error {
		s.Push(pushTo(func(_ context.Context, call *yodel.Call) error {
			if call.Method == "Lost" {
				return &yodel.Error{Code: yodel.Unavailable, NotProcessed: true, Cause: lost}
			}
			pushed <- &yodel.Call{Method: call.Method, Args: call.Args, Codec: call.Encoding(), Metadata: call.Metadata, Attempt: call.Attempt}
			return nil
		}))
		return lines{codec: yodel.JSON}.Serve(ctx, s)
	}}, yodel.ServerOptions{PeerMiddleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			call.Metadata = yodel.Metadata{"by": "middleware"}
			return next(ctx, call)
		}
	}}})
	if err := s.Handle("Double", double); err != nil {
		t.Fatal(err)
	}
	c := s.dial(t)
	if got := ask(t, c, "Double", "2"); got != "4" {
		t.Fatalf("got %q", got)
	}
	peers := s.Peers()
	if len(peers) != 1 {
		t.Fatalf("%d peers", len(peers))
	}
	const News yodel.Method[string, Empty] = "News"
	item := "rain"
	if err := News.Notify(t.Context(), peers[0], &item); err != nil {
		t.Error(err)
	}
	done := make(chan error, 1)
	peers[0].Go(t.Context(), &yodel.Call{Method: "News", Args: &item, OneWay: true}, func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Error(err)
	}
	for range 2 {
		call := <-pushed
		if text, ok := call.Args.(*string); !ok || *text != item || call.Method != "News" || call.Codec != yodel.JSON || call.Metadata["by"] != "middleware" || call.Attempt != 1 {
			t.Errorf("got %+v", call)
		}
	}
	if _, err := News.Call(t.Context(), peers[0], &item); !errors.Is(err, yodel.Unimplemented) || !yodel.NotProcessed(err) {
		t.Errorf("a call with a reply: got %v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := News.Notify(canceled, peers[0], &item); !errors.Is(err, context.Canceled) || !yodel.NotProcessed(err) {
		t.Errorf("a canceled call: got %v", err)
	}
	err := peers[0].Do(t.Context(), &yodel.Call{Method: "Lost", Args: &item, OneWay: true})
	if e, ok := errors.AsType[*yodel.Error](err); !ok || e.Code != yodel.Unavailable || !e.NotProcessed || e.ID != "YDL1104" || !errors.Is(err, lost) {
		t.Errorf("a call on a lost connection: got %v", err)
	}
	if len(pushed) != 0 {
		t.Errorf("%d more calls were sent", len(pushed))
	}
}

// A client may disconnect as soon as it has sent a one-way call. The call is executed. Other calls
// are not.
func TestOneWayCallsOutliveTheirClient(t *testing.T) {
	for _, oneWay := range []bool{true, false} {
		began, outcome := make(chan context.Context, 1), make(chan *yodel.Error, 1)
		s := serveLines(t, lines{serve: func(ctx context.Context, s *yodel.Session) error {
			if err := s.Next(); err != nil {
				return err
			}
			v := s.Begin("Begin", yodel.JSON, nil)
			v.Call().OneWay = oneWay
			if e := v.Admit(0, true); e != nil {
				return e
			}
			v.Body = []byte("0")
			s.Go(func() {
				defer v.End()
				<-ctx.Done()
				outcome <- v.Run()
			})
			return io.EOF
		}}, yodel.ServerOptions{})
		yodel.Method[int, int]("Begin").Handle(s.Server, func(ctx context.Context, in *int) (*int, error) {
			began <- ctx
			<-ctx.Done()
			return in, nil
		})
		if _, err := io.WriteString(s.dial(t), "!"); err != nil {
			t.Fatal(err)
		}
		if !oneWay {
			if e := <-outcome; e == nil || e.ID != "YDL1006" || !e.NotProcessed {
				t.Errorf("a call that is not one-way ended with %v", e)
			}
			continue
		}
		ctx := <-began
		if err := ctx.Err(); err != nil {
			t.Errorf("the handler began with a context that had ended: %v", err)
		}
		waited, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Shutdown(waited); err == nil {
			t.Error("Shutdown did not report the call that it cut off")
		}
		<-outcome // the handler returns when its context ends
	}
}

// marks has requests without a byte of their own: "!" for each call of the method Wait.
func marks(oneWay bool) lines {
	return lines{serve: func(_ context.Context, s *yodel.Session) error {
		for {
			if err := s.Next(); err != nil {
				return err
			}
			if _, err := s.Reader.ReadByte(); err != nil {
				return err
			}
			v := s.Begin("Wait", yodel.JSON, nil)
			v.Call().OneWay = oneWay
			if v.Admit(0, true) != nil {
				v.End()
				continue
			}
			v.Body = []byte("0")
			s.Go(func() {
				defer v.End()
				_ = v.Run() // nobody waits for it
			})
		}
	}}
}

// The calls of a client that sends one-way calls until the server reads no more, and then leaves,
// end as those of any client that leaves.
func TestAClientThatFloodsAndLeaves(t *testing.T) {
	for _, oneWay := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := serveLines(t, marks(oneWay), yodel.ServerOptions{MaxOpen: 16})
			var running atomic.Int64
			handle(t, s.Server, "Wait", func(ctx context.Context, n *int) (*int, error) {
				running.Add(1)
				defer running.Add(-1)
				<-ctx.Done()
				return n, nil
			})
			c := s.dial(t)
			left := make(chan bool)
			go func() {
				defer close(left)
				_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // it never fails
				_, _ = io.WriteString(c, strings.Repeat("!", 10<<20))
				if oneWay {
					_ = c.Close()
				}
			}()
			<-left
			time.Sleep(29 * time.Second) // of the bubble
			if n := running.Load(); n != 15 {
				t.Errorf("%d calls run, want 15", n)
			}
			time.Sleep(33 * time.Second)
			if n := running.Load(); oneWay != (n == 0) {
				t.Errorf("one-way %v: %d calls run after a minute", oneWay, n)
			}
		})
	}
}

// The system says that a client has left, though there is more to read than a session reads ahead.
func TestAClientThatLeavesBehindUnreadRequests(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux says that a client has left behind what it has sent")
	}
	released := make(chan struct{})
	defer close(released)
	s := yodel.NewServer(&yodel.ServerOptions{Protocols: []yodel.Protocol{marks(false)}, MaxOpen: 2, Logger: slog.New(slog.DiscardHandler)})
	began, ended := make(chan bool, 2), make(chan bool, 2)
	handle(t, s, "Wait", func(ctx context.Context, n *int) (*int, error) {
		began <- true
		select {
		case <-ctx.Done():
			ended <- true
		case <-released:
		}
		return n, nil
	})
	c, err := net.Dial("tcp", serve(t, s))
	must(t, err)
	_, err = io.WriteString(c, strings.Repeat("!", 40<<10))
	must(t, err)
	receive(t, began, "a call")
	must(t, c.Close())
	receive(t, ended, "the end of its context")
}

// A roomCodec is JSON that notes the capacity that it is given for a reply.
type roomCodec struct {
	yodel.Codec
	most *int
}

func (c roomCodec) Append(dst []byte, v any) ([]byte, error) {
	*c.most = max(*c.most, cap(dst))
	return c.Codec.Append(dst, v)
}

// AppendReply encodes in memory that is used again, and its result does not depend on that memory.
func TestRepliesAreEncodedInUsedMemory(t *testing.T) {
	room := 0
	var replies []string
	many := func(_ context.Context, s *yodel.Session) error {
		var kept [][]byte
		for i := range 100 {
			v := s.Begin("Double", roomCodec{yodel.JSON, &room}, nil)
			if err := v.Admit(8, false); err != nil {
				return err
			}
			v.Body = fmt.Append(nil, i)
			if err := v.Run(); err != nil {
				return err
			}
			reply, _, err := v.AppendReply([]byte("= "))
			if err != nil {
				return err
			}
			v.End()
			kept = append(kept, reply)
		}
		for _, reply := range kept {
			replies = append(replies, string(reply))
		}
		_, err := s.Write([]byte("done\n"))
		return err
	}
	s := serveLines(t, lines{serve: many}, yodel.ServerOptions{})
	handle(t, s.Server, "Double", double)
	if got := ask(t, s.dial(t), "Double", "4"); got != "done" {
		t.Fatalf("got %q", got)
	}
	for i, reply := range replies {
		if want := fmt.Sprintf("= %d", 2*i); reply != want {
			t.Errorf("reply %d is %q, want %q", i, reply, want)
		}
	}
	if len(replies) != 100 || room == 0 {
		t.Errorf("there are %d replies, and the largest buffer had %d bytes", len(replies), room)
	}
}

// A readCounter counts its reads.
type readCounter struct {
	net.Conn
	reads *atomic.Int64
}

func (c readCounter) Read(b []byte) (int, error) {
	c.reads.Add(1)
	return c.Conn.Read(b)
}

// Small reads of AsConn, as net/http makes them for each frame, do not each read the connection.
func TestAsConnBuffersReads(t *testing.T) {
	var reads atomic.Int64
	got := make(chan string, 1)
	s := serveLines(t, lines{serve: func(_ context.Context, s *yodel.Session) error {
		s.Conn = readCounter{s.Conn, &reads}
		c := s.AsConn()
		var all []byte
		for one := make([]byte, 1); ; all = append(all, one...) {
			if _, err := c.Read(one); err != nil || one[0] == '\n' {
				got <- string(all)
				return err
			}
		}
	}}, yodel.ServerOptions{})
	c, sent := s.dial(t), "!"+strings.Repeat("x", 3000)
	if _, err := io.WriteString(c, sent+"\n"); err != nil {
		t.Fatal(err)
	}
	if received := <-got; received != sent {
		t.Errorf("%d bytes came, %d were sent", len(received), len(sent))
	}
	if n := reads.Load(); n > 4 {
		t.Errorf("%d reads of the connection", n)
	}
}

// A session remembers how each kind of call of a method is bound: with one of several codecs or
// callers, and with one or several values, which Begin does not know yet. Otherwise each call that
// differs from the one before it would be bound anew.
func TestSessionsBindEachKindOfCallOnce(t *testing.T) {
	type kind struct {
		codec   yodel.Codec
		caller  string
		several bool
	}
	other := struct{ yodel.Codec }{yodel.JSON}
	kinds := []kind{{codec: yodel.JSON}, {codec: yodel.JSON, several: true}, {codec: other}, {codec: yodel.JSON, caller: "a"}, {codec: yodel.JSON, caller: "b"}}
	failed := make(chan error, 1)
	s := serveLines(t, lines{serve: func(_ context.Context, ses *yodel.Session) error {
		bound := make(map[any]int)
		for range 3 {
			for i, k := range kinds {
				v := ses.Begin("Double", k.codec, nil)
				v.Caller, v.Several = k.caller, k.several
				_ = v.Admit(0, true)
				_ = v.Run() // fails for several values
				of := yodel.BindingOf(v)
				if before, known := bound[of]; known && before != i {
					failed <- fmt.Errorf("calls of the kinds %v and %v have one binding", kinds[before], k)
				}
				bound[of] = i
				v.End()
			}
		}
		if len(bound) > len(kinds) {
			failed <- fmt.Errorf("got %d bindings for %d kinds of calls", len(bound), len(kinds))
		}
		close(failed)
		return nil
	}}, yodel.ServerOptions{})
	handle(t, s.Server, "Double", double)
	if _, err := io.WriteString(s.dial(t), "!"); err != nil {
		t.Fatal(err)
	}
	for err := range failed {
		t.Error(err)
	}
}

// The bindings that a session remembers are bounded, however many callers a client names.
func TestSessionsForgetBindings(t *testing.T) {
	done := make(chan bool, 1)
	s := serveLines(t, lines{serve: func(_ context.Context, ses *yodel.Session) error {
		binding := func(caller int) any {
			v := ses.Begin("Double", yodel.JSON, nil)
			defer v.End()
			v.Caller = fmt.Sprint(caller)
			_ = v.Admit(0, true)
			_ = v.Run() // an empty request is not JSON
			return yodel.BindingOf(v)
		}
		first := binding(0)
		for i := range 100 {
			binding(i)
		}
		done <- first != binding(0)
		return nil
	}}, yodel.ServerOptions{})
	handle(t, s.Server, "Double", double)
	if _, err := io.WriteString(s.dial(t), "!"); err != nil {
		t.Fatal(err)
	}
	if !<-done {
		t.Error("the session remembers the binding of a caller that called before 99 others")
	}
}

// serveInProcess calls serve with a session of a server without a connection.
func serveInProcess(tb testing.TB, s *yodel.Server, serve func(*yodel.Session)) {
	tb.Helper()
	if err := s.ServeSession(&yodel.Peer{Addr: &net.UnixAddr{Name: "client", Net: "unix"}}, serve); err != nil {
		tb.Fatal(err)
	}
}

// A servedForm is a form of the calls that a Protocol serves.
type servedForm struct {
	name   string
	set    func(*yodel.Served)
	free   bool // the Protocol calls Free
	allocs float64
}

var servedForms = []servedForm{
	{name: "plain", allocs: 1},
	{name: "with a deadline", set: func(v *yodel.Served) { v.Call().Deadline = time.Now().Add(time.Hour) }, allocs: 1},
	{name: "of a caller", set: func(v *yodel.Served) { v.Caller = "somebody" }, allocs: 1},
	{name: "in used memory", free: true}, // except the context, which is allocated in groups
}

// serve serves a call of "Served.Echo" as a Protocol does, and returns the reply, in memory of buf.
func (f *servedForm) serve(ses *yodel.Session, body, buf []byte) ([]byte, *yodel.Error) {
	v := ses.Begin("Served.Echo", raw.Codec, nil)
	if f.free {
		defer v.Free()
	} else {
		defer v.End()
	}
	if f.set != nil {
		f.set(v)
	}
	if e := v.Admit(len(body), true); e != nil {
		return nil, e
	}
	v.Body = body
	e := v.Run()
	if e == nil {
		buf, _, e = v.AppendReply(buf[:0])
	}
	return buf, e
}

// serveEcho returns a server with a method that returns what it gets.
func serveEcho() *yodel.Server {
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	yodel.Method[raw.View, raw.View]("Served.Echo").Handle(s, func(_ context.Context, in *raw.View) (*raw.View, error) { return in, nil })
	return s
}

func TestAllocationsOfServedCalls(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, and makes pools forget")
	}
	body, buf := make([]byte, 100), []byte(nil)
	for _, form := range servedForms {
		serveInProcess(t, serveEcho(), func(ses *yodel.Session) {
			if got := testing.AllocsPerRun(1000, func() {
				var e *yodel.Error
				if buf, e = form.serve(ses, body, buf); e != nil || len(buf) != len(body) {
					t.Errorf("got %q, %v", buf, e)
				}
			}); got != form.allocs {
				t.Errorf("a call %s makes %v allocations, want %v", form.name, got, form.allocs)
			}
		})
	}
}

// What a handler has kept of a call, its context and what CallFrom has returned, does not become
// part of a later call, although the Protocol frees the memory of each call.
func TestHandlersKeepWhatTheyHaveOfFreedCalls(t *testing.T) {
	type kept struct {
		ctx    context.Context
		call   *yodel.Call
		number string
	}
	var all []kept
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	yodel.Method[raw.View, raw.View]("Served.Echo").Handle(s, func(ctx context.Context, in *raw.View) (*raw.View, error) {
		k := kept{ctx: ctx, number: string(*in)}
		if len(all)%3 == 0 {
			k.call = yodel.CallFrom(ctx)
		}
		if len(all)%5 == 0 {
			_ = ctx.Done()
		}
		all = append(all, k)
		return in, nil
	})
	serveInProcess(t, s, func(ses *yodel.Session) {
		var last interface{ Cancel() }
		form := servedForm{free: true, set: func(v *yodel.Served) {
			if last != nil {
				last.Cancel() // of a call that has ended
			}
			last = v.Canceler()
			v.Call().Tenant = fmt.Sprint(len(all))
		}}
		for i := range 100 {
			want := fmt.Sprint(i)
			if got, e := form.serve(ses, []byte(want), nil); e != nil || string(got) != want {
				t.Errorf("call %s: got %q, %v", want, got, e)
			}
		}
		running := ses.Begin("Served.Echo", raw.Codec, nil)
		running.Call().Tenant = "of another call"
		defer running.End()
		for _, k := range all {
			if k.ctx.Err() != context.Canceled { // the same error
				t.Errorf("the context of call %s has ended with %v", k.number, k.ctx.Err())
			}
			if k.call != nil && k.call.Tenant != k.number {
				t.Errorf("the call %s has become one of %q", k.number, k.call.Tenant)
			}
			if now := yodel.CallFrom(k.ctx); now.Tenant != "" && now.Tenant != k.number || now.Method != "Served.Echo" {
				t.Errorf("the context of call %s has a call of %q", k.number, now.Tenant)
			}
		}
	})
}

// A Protocol frees calls of all kinds, and a later call is not like one before it.
func TestFreedCallsAreNotLikeEarlierOnes(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	handle(t, s, "Double", double)
	handle(t, s, "Fail", func(context.Context, *int) (*int, error) { return nil, yodel.Errorf(yodel.NotFound, "no") })
	handle(t, s, "Panic", func(context.Context, *int) (*int, error) { panic("on purpose") })
	handle(t, s, "Later", func(ctx context.Context, n *int) (*int, error) {
		later := yodel.CallFrom(ctx).Later()
		go later(n, nil)
		return nil, nil
	})
	handle(t, s, "Trailer", func(ctx context.Context, n *int) (*int, error) {
		yodel.CallFrom(ctx).Trailer = yodel.Metadata{"key": "value"}
		return n, nil
	})
	serveInProcess(t, s, func(ses *yodel.Session) {
		for i := range 200 {
			method := []string{"Double", "Fail", "Panic", "Later", "Trailer", "Nothing", "Double"}[i%7]
			v := ses.Begin(method, yodel.JSON, nil)
			if c := v.Call(); v.Body != nil || v.Outcome() != nil || c.Trailer != nil || c.Metadata != nil || !c.Deadline.IsZero() || c.OneWay || c.Method != method {
				t.Errorf("call %d begins with %+v", i, c)
			}
			if i%3 == 0 {
				v.Call().Metadata, v.Call().Deadline = yodel.Metadata{"key": "value"}, time.Now().Add(time.Hour)
			}
			v.Call().OneWay = i%11 == 10
			v.Body = []byte("4")
			if e := v.Admit(1, true); e != nil {
				t.Error(e)
			}
			want := map[string]yodel.Code{"Fail": yodel.NotFound, "Panic": yodel.Internal, "Nothing": yodel.Unimplemented}[method]
			if e := v.Run(); yodel.CodeOf(asError(e)) != want {
				t.Errorf("call %d: got %v, want %v", i, e, want)
			}
			if reply, _, e := v.AppendReply(nil); e == nil && string(reply) != map[string]string{"Double": "8"}[method] && string(reply) != "4" {
				t.Errorf("call %d: got %s", i, reply)
			}
			v.Free()
			v.Free() // does nothing
		}
	})
}

// Goroutines that handlers have left behind look for their calls while the server uses the memory
// of those that were freed. Each finds its own call, or only the name of the method.
func TestFreedCallsOfManyGoroutines(t *testing.T) {
	var left sync.WaitGroup
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	yodel.Method[raw.View, raw.View]("Served.Echo").Handle(s, func(ctx context.Context, in *raw.View) (*raw.View, error) {
		want := string(*in)
		if (*in)[len(*in)-1] == '0' {
			left.Go(func() {
				for range 20 {
					if call := yodel.CallFrom(ctx); call.Tenant != "" && call.Tenant != want {
						t.Errorf("call %s has become call %s", want, call.Tenant)
					}
					runtime.Gosched()
				}
				<-ctx.Done()
			})
		}
		return in, nil
	})
	serveInProcess(t, s, func(ses *yodel.Session) {
		var protocol sync.WaitGroup
		defer protocol.Wait()
		for i := range 8 {
			protocol.Go(func() {
				var buf []byte
				for j := range 1000 {
					want := fmt.Sprintf("%d.%d", i, j)
					form := servedForm{free: true, set: func(v *yodel.Served) { v.Call().Tenant = want }}
					var e *yodel.Error
					if buf, e = form.serve(ses, []byte(want), buf); e != nil || string(buf) != want {
						t.Errorf("call %s: got %q, %v", want, buf, e)
					}
				}
			})
		}
	})
	left.Wait()
}

// asError returns e as an error, which is nil if e is.
func asError(e *yodel.Error) error {
	if e == nil {
		return nil
	}
	return e
}

// BenchmarkServed measures what the server does for a call in another protocol, without that
// protocol.
func BenchmarkServed(b *testing.B) {
	s, body := serveEcho(), make([]byte, 100)
	for _, form := range servedForms {
		b.Run(form.name, func(b *testing.B) {
			b.ReportAllocs()
			serveInProcess(b, s, func(ses *yodel.Session) {
				var buf []byte
				for b.Loop() {
					var e *yodel.Error
					if buf, e = form.serve(ses, body, buf); e != nil {
						b.Error(e)
						return
					}
				}
			})
		})
	}
}

// A method that counts as short runs where requests are read. When it blocks, another goroutine
// reads on, so that a later request of the same client can end it.
func TestAShortMethodOfAProtocolBlocks(t *testing.T) {
	s := serveLines(t, lines{}, yodel.ServerOptions{})
	release := make(chan struct{})
	handle(t, s.Server, "Wait", func(context.Context, *int) (*int, error) {
		<-release
		return new(1), nil
	})
	handle(t, s.Server, "Release", func(context.Context, *int) (*int, error) {
		close(release)
		return new(2), nil
	})
	handle(t, s.Server, "Exit", func(context.Context, *int) (*int, error) {
		runtime.Goexit()
		return nil, nil
	})
	s.MarkInline("Wait", "Release", "Exit")
	c := s.dial(t)
	replies := bufio.NewReader(c)
	line := func() string {
		line, err := replies.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return line
	}
	for _, method := range []string{"Wait", "Release"} {
		if _, err := io.WriteString(c, request(method, "0")); err != nil {
			t.Fatal(err)
		}
	}
	if first, second := line(), line(); first+second != "1\n2\n" && first+second != "2\n1\n" {
		t.Errorf("got %q and %q", first, second)
	}
	for range 2 {
		if _, err := io.WriteString(c, request("Exit", "0")); err != nil {
			t.Fatal(err)
		}
		if got := line(); !strings.Contains(got, "YDL5002") {
			t.Errorf("a handler that ends its goroutine: got %q", got)
		}
	}
}

// serveTalks is the Serve of a protocol with streams. Every message in it is a line: "!Method", the
// request of a unary method or a feed, "+" and a message of a stream, "." at the end of one. The
// outcome of a call is "=" and the reply, or "error" and the error.
func serveTalks(_ context.Context, s *yodel.Session) error {
	lines := &talk{s: s}
	for {
		first, err := lines.next()
		if err != nil {
			return err
		}
		v := s.Begin(strings.TrimPrefix(first, "!"), yodel.JSON, nil)
		if err = lines.serve(v); err != nil { //nolint:contextcheck,nolintlint // the context is that of the call
			return err
		}
	}
}

// A talk is the messages of the stream that a session has at the time.
type talk struct {
	s    *yodel.Session
	over bool // the client has ended its direction
}

// serve carries out one call.
func (l *talk) serve(v *yodel.Served) error {
	defer v.End()
	v.Call().Explain = v.Call().Method == "Negate"
	if e := v.Admit(l.s.Limits().MaxMessage, true); e != nil {
		return e
	}
	var err error
	kind := v.Kind()
	if l.over = kind != "upload" && kind != "duplex"; l.over {
		var body string
		if body, err = l.next(); err != nil {
			return err
		}
		v.Body = []byte(body)
	}
	if kind != "unary" {
		v.Stream = l
	}
	e := v.Run()
	for !l.over && err == nil { // the handler has not received all
		_, _, err = l.Receive(context.Background())
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var reply []byte
	if e == nil && (kind == "unary" || kind == "upload") {
		reply, _, e = v.AppendReply(nil)
	}
	if e != nil {
		_, err = fmt.Fprintf(l.s, "error %v\n", e)
		return err
	}
	_, err = fmt.Fprintf(l.s, "=%s\n", reply)
	return err
}

// next reads a line. The client may pause before it.
func (l *talk) next() (string, error) {
	if err := l.s.Next(); err != nil {
		return "", err
	}
	line, err := l.s.Reader.ReadSlice('\n')
	return strings.TrimSpace(string(line)), err
}

func (l *talk) Send(_ context.Context, body []byte, _ bool) error {
	_, err := fmt.Fprintf(l.s, "+%s\n", body)
	return err
}

func (l *talk) Receive(context.Context) ([]byte, bool, error) {
	if l.over {
		return nil, false, io.EOF
	}
	line, err := l.next()
	if errors.Is(err, io.EOF) { // the client has left, and did not end its stream
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, false, err
	}
	if l.over = line == "."; l.over {
		return nil, false, io.EOF
	}
	return []byte(strings.TrimPrefix(line, "+")), false, nil
}

func (l *talk) End() { _, _ = io.WriteString(l.s, ".\n") } // the outcome of the call fails too

var (
	talkCount  yodel.Feed[int, int]   = "Count"
	talkSum    yodel.Upload[int, int] = "Sum"
	talkNegate yodel.Duplex[int, int] = "Negate"
)

func handleStreams(s *yodel.Server) {
	talkCount.Handle(s, func(_ context.Context, n *int, send yodel.Send[int]) error {
		for i := range *n {
			if err := send(new(i + 1)); err != nil {
				return err
			}
		}
		return nil
	})
	talkSum.Handle(s, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		sum := 0
		for n, err := range recv {
			if err != nil {
				return nil, err
			}
			if sum += *n; *n == 0 {
				return nil, yodel.Errorf(yodel.InvalidArgument, "a zero")
			}
		}
		return &sum, nil
	})
	talkNegate.Handle(s, func(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
		for n, err := range recv {
			if err != nil {
				return err
			}
			if err = send(new(-*n)); err != nil {
				return err
			}
		}
		if err := send.End(); err != nil {
			return err
		}
		return send(new(1)) // after the end
	})
}

// A protocol with streams carries the methods that have them, and unary ones.
func TestSessionsCarryStreams(t *testing.T) {
	s := serveLines(t, lines{serve: serveTalks}, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 1000}})
	handle(t, s.Server, "Double", double)
	handleStreams(s.Server)
	c := s.dial(t)
	reader := bufio.NewReader(c)
	for _, test := range []struct{ send, want string }{
		{"!Double\n4\n", "=8"},
		{"!Count\n3\n", "+1 +2 +3 ="},
		{"!Count\nx\n", "error invalid_argument: Count: the request does not fit int"},
		{"!Sum\n+1\n+2\n+39\n.\n", "=42"},
		{"!Sum\n.\n", "=0"},
		{"!Sum\n+0\n+2\n.\n", "error invalid_argument: a zero"},
		{"!Sum\n+x\n.\n", "[YDL2101]"},
		{"!Sum\n+" + strings.Repeat("1", 2000) + "\n.\n", "[YDL2202]"},
		{"!Negate\n+1\n+2\n.\n", "+-1 +-2 . error"},
		{"!Nothing\n1\n", "[YDL2002]"},
		{"!Double\n5\n", "=10"},
	} {
		if _, err := io.WriteString(c, test.send); err != nil {
			t.Fatal(err)
		}
		if got := outcome(t, reader); !strings.Contains(got, test.want) {
			t.Errorf("%.40q: got %s, want %s", test.send, got, test.want)
		}
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	records := s.Samples(&introspect.SamplesQuery{Explained: true}).Calls
	if len(records) != 1 {
		t.Fatalf("got the records %+v, want that of the duplex call", records)
	}
	if r := records[0]; r.Method != "Negate" || r.Kind != "duplex" || r.Sent != 2 || r.Received != 2 || r.BytesOut != 4 || r.BytesIn != 2 {
		t.Errorf("the record of the duplex call is %+v", r)
	}
}

// outcome reads to the end of a call.
func outcome(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	var got []string
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.TrimSpace(line))
		if line[0] == '=' || strings.HasPrefix(line, "error") {
			return strings.Join(got, " ")
		}
	}
}

// A stream ends with its client.
func TestAStreamOfASessionEndsWithItsClient(t *testing.T) {
	s := serveLines(t, lines{serve: serveTalks}, yodel.ServerOptions{})
	ended := make(chan error, 1)
	talkSum.Handle(s.Server, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		for _, err := range recv {
			if err != nil {
				ended <- err
				return nil, err
			}
		}
		return nil, errors.New("the stream ended")
	})
	c := s.dial(t)
	if _, err := io.WriteString(c, "!Sum\n+1\n"); err != nil {
		t.Fatal(err)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; yodel.CodeOf(err) != yodel.Unavailable {
		t.Errorf("got %v", err)
	}
}

// A method with a stream cannot be called by a protocol that has none.
func TestSessionsWithoutStreams(t *testing.T) {
	s := serveLines(t, lines{}, yodel.ServerOptions{})
	handleStreams(s.Server)
	if got := ask(t, s.dial(t), "Count", "3"); !strings.Contains(got, "[YDL2006]") {
		t.Errorf("got %s", got)
	}
}
