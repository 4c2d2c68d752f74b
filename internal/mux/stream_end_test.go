// SPDX-License-Identifier: Apache-2.0

package mux_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// How streams end, and what is left of them then: nothing.

// The reply ends both directions, also before the opener has sent its end. What comes after it is
// ignored.
func TestTheReplyEndsAStream(t *testing.T) {
	peer, c, st, id := facingStream(t, defaultLimits(), "duplex", nil)
	peer.write(credit(id, wire.OfReply, 100), data(id, wire.OfReply, "before 1"), data(id, wire.OfReply, "before 2"), reply(id, "the reply"),
		data(id, wire.OfReply, "after"), data(id, wire.OfReply|wire.End, ""), credit(id, wire.OfReply, 1<<20), data(id, wire.OfReply, string(make([]byte, 60_000))),
		data(id, wire.OfReply, string(make([]byte, 60_000)))) // more than the window, of a stream that is not open
	a, err := st.Wait()
	if err != nil || string(a.Body) != "the reply" {
		t.Errorf("got %+v, %v", a, err)
	}
	wantMessage(t, st, "before 1")
	wantMessage(t, st, "before 2")
	wantEOF(t, st)
	if err := st.Send(t.Context(), 0, []byte("late")); err != io.EOF {
		t.Errorf("Send: got %v", err)
	}
	if err := st.Accepted(t.Context()); err != io.EOF {
		t.Errorf("Accepted: got %v", err)
	}
	st.End()
	st.Cancel(errors.New("late"))
	peer.quiet(2) // neither a message nor an end nor a cancellation is sent
	wantEmpty(t, "the client", c)
}

// On the side of the receiver too: frames of streams that are not open are ignored, also of those
// that were refused.
func TestFramesOfStreamsThatAreNotOpenAreIgnored(t *testing.T) {
	h := newHolder()
	peer, srv, r := openedPeer(t, h, defaultLimits(), "duplex", nil)
	h.end()
	peer.expectReply(firstID)
	large := string(make([]byte, 60_000))
	peer.write(data(firstID, 0, "late"), data(firstID, wire.End, ""), credit(firstID, 0, 1<<20), data(firstID, 0, large), data(firstID, 0, large),
		data(callID(7, 1), 0, "of none"), data(callID(0, 2), wire.OfReply, "of none"), credit(callID(7, 1), wire.OfReply, 1))
	peer.quiet(1)
	back := r.Stream()
	back.Accept() // of a handler that goes on after its end
	if err := back.Send(context.Background(), 0, []byte("late")); err == nil {
		t.Error("a message was sent after the end")
	}
	back.End()
	if _, _, err := receive(back); !errors.Is(err, context.Canceled) {
		t.Errorf("Receive: got %v", err)
	}
	peer.quiet(2)
	wantEmpty(t, "the server", srv)
}

// A handler's own goroutines end with its stream, keep nothing of it, and do not write into a reply
// that comes in pieces.
func TestWhatAHandlerLeavesBehindEndsWithItsStream(t *testing.T) {
	large := patterned(500_000, 1)
	var left sync.WaitGroup
	s := &setup{limits: limitsWith(8192, 1<<20), serves: map[string]*handler{"duplex": {serve: func(r *mux.Request) {
		st := r.Stream()
		st.Accept()
		began := make(chan struct{}, 2)
		left.Go(func() {
			began <- struct{}{}
			for st.Send(context.Background(), 0, []byte("left behind")) == nil {
				continue
			}
		})
		left.Go(func() {
			began <- struct{}{}
			for {
				if _, _, err := st.Receive(context.Background()); err != nil {
					return
				}
			}
		})
		<-began
		<-began
		r.Reply.Body = large
	}}}}
	c, srv := s.overTCP(t)
	for range 20 {
		st := open(t, c, streamMethod("duplex", wire.Duplex), nil)
		all := counting(t.Context(), st)
		sent := sending(t.Context(), st, make([]byte, 300_000))
		a, err := st.Wait()
		if err != nil || !bytes.Equal(a.Body, large) {
			t.Fatalf("got a reply of %d bytes, %v", len(a.Body), err)
		}
		<-sent
		if n := within(t, "the messages end", all); n.err != io.EOF || n.bytes != n.messages*len("left behind") {
			t.Errorf("got %+v", n)
		}
	}
	left.Wait()
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// Between the pieces of a reply there is no message, although its sender has got credit meanwhile.
func TestNoMessageGetsIntoALargeReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := string(patterned(2<<20, 1))
		left := make(chan error, 1)
		s := &setup{serves: map[string]*handler{"duplex": {serve: func(r *mux.Request) {
			st := r.Stream()
			go func() {
				for {
					if err := st.Send(context.Background(), 0, []byte("left behind")); err != nil {
						left <- err
						return
					}
				}
			}()
			time.Sleep(time.Second) // until it waits for credit
			r.Reply.Body = []byte(large)
		}}}}
		client, server := memoryPair(100 << 10)
		srv := mux.New(server, nil, false, s.config(t, mux.Config{}, s.serves))
		defer srv.Close()
		peer := newRawPeer(t, client)
		peer.write(hello(&wire.Limits{StreamWindow: 4096}), methodOf(0, "duplex"), request(0, firstID, ""))
		time.Sleep(2 * time.Second)
		peer.write(credit(firstID, 0, 1<<20)) // the reply is on its way, and waits for this side to read
		synctest.Wait()
		peer.expectHello()
		peer.expect(wire.MethodInfo)
		h, frame, err := peer.frame()
		for ; err == nil && h.Type == wire.Data; h, frame, err = peer.frame() {
			if got := string(frame[wire.HeaderSize:]); got != "left behind" {
				t.Fatalf("got a message of %d bytes", len(got))
			}
		}
		_, begins, err2 := wire.SplitFields(h.Flags, frame[wire.HeaderSize:])
		if err != nil || err2 != nil || h.Type != wire.Reply || h.Flags&wire.More == 0 {
			t.Fatalf("got %+v, %v, %v, want the reply to begin", h, err, err2)
		}
		rest, _ := peer.expectRest(firstID, h.Flags)
		if string(begins)+rest != large {
			t.Errorf("got another reply, of %d bytes", len(begins)+len(rest))
		}
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the sender ended with %v", err)
		}
		synctest.Wait()
		wantEmpty(t, "the server", srv)
	})
}

// A cancellation ends both directions on both sides; the connection goes on.
func TestCancelingAStreamEndsIt(t *testing.T) {
	h := newHolder()
	s := &setup{serves: h.handlers()}
	c, srv := s.overTCP(t)
	st, r := h.openTo(t, c, "duplex")
	r.Stream().Accept()
	errGone := errors.New("gone")
	all := counting(t.Context(), st)
	st.Cancel(errGone)
	st.Cancel(errors.New("twice is once"))
	if n := within(t, "the messages end", all); n.err != errGone {
		t.Errorf("Receive: got %v", n.err)
	}
	if _, err := st.Wait(); err != errGone {
		t.Errorf("Wait: got %v", err)
	}
	within(t, "the handler's context ends", r.Done())
	if r.Cause() != mux.ErrCallerGone {
		t.Errorf("the handler was told %v", r.Cause())
	}
	if _, _, err := r.Stream().Receive(r); err == nil {
		t.Error("a message came to a handler that was canceled")
	}
	mustEcho(t, c, echo, "the connection goes on")
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// Who stops waiting for a message loses none.
func TestReceivingAfterACancellation(t *testing.T) {
	h := newHolder()
	defer h.end()
	s := &setup{serves: h.handlers()}
	c, _ := s.overTCP(t)
	st, r := h.openTo(t, c, "upload")
	back := r.Stream()
	back.Accept()
	errGone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(context.Background())
	all := counting(ctx, back)
	cancel(errGone)
	if n := within(t, "it stops waiting", all); n.err != errGone {
		t.Errorf("got %v", n.err)
	}
	for i := range 100 {
		if err := st.Send(t.Context(), 0, []byte(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		if _, _, err := back.Receive(ctx); err != errGone {
			t.Errorf("with a context that has ended: got %v", err)
		}
		wantMessage(t, back, fmt.Sprint(i))
	}
	// Cancellations that meet messages.
	for i := range 2000 {
		ctx, cancel := context.WithCancel(context.Background())
		sent := sending(t.Context(), st, []byte(fmt.Sprint(i)))
		go cancel()
		msg, _, err := back.Receive(ctx)
		if err != nil {
			msg, _, err = receive(back)
		}
		if err != nil || string(msg) != fmt.Sprint(i) {
			t.Fatalf("got %q, %v, want %d", msg, err, i)
		}
		<-sent
	}
}

// A lateContext ends while it is asked for its channel.
type lateContext struct {
	context.Context
	asked  func()
	cancel context.CancelFunc
}

func (c *lateContext) Done() <-chan struct{} {
	if c.Err() == nil {
		c.asked()
		c.cancel()
	}
	return c.Context.Done()
}

// A message that comes in the very moment in which its consumer stops waiting is not lost, and
// holds up nobody.
func TestAMessageMeetsACancellation(t *testing.T) {
	h := newHolder()
	defer h.end()
	s := &setup{serves: h.handlers()}
	c, srv := s.overTCP(t)
	st, r := h.openTo(t, c, "upload")
	back := r.Stream()
	back.Accept()
	canceled := 0
	for i := range 50 {
		ends, cancel := context.WithCancel(t.Context())
		ctx := &lateContext{Context: ends, cancel: cancel, asked: func() {
			in := srv.Counters().FramesIn
			if err := st.Send(t.Context(), 0, []byte(fmt.Sprint(i))); err != nil {
				t.Error(err)
			}
			eventually(t, "it has come", func() bool { return srv.Counters().FramesIn > in })
			_, _ = srv.Ping(t.Context()) // and the reader has done with it
		}}
		msg, _, err := back.Receive(ctx)
		if err != nil {
			canceled++
			msg, _, err = receive(back)
		}
		if err != nil || string(msg) != fmt.Sprint(i) {
			t.Fatalf("got %q, %v, want %d", msg, err, i)
		}
	}
	if canceled == 0 || canceled == 50 {
		t.Errorf("of 50 both happened %d times", canceled)
	}
}

// Who drains tells its handlers, and open streams go on; new ones are refused.
func TestADrainLetsOpenStreamsGoOn(t *testing.T) {
	h := newHolder()
	s := &setup{serves: h.handlers()}
	peer, srv := s.facingServer(t)
	peer.write(hello(nil), methodOf(0, "duplex"), request(0, callID(0, 1), ""))
	peer.expectHello()
	peer.expect(wire.MethodInfo)
	r := within(t, "the stream is opened", h.opened)
	st := r.Stream()
	st.Accept()
	peer.expectCredit(callID(0, 1), wire.OfReply)
	before := r.Draining()
	select {
	case <-before:
		t.Error("it drains already")
	default:
	}
	srv.Drain()
	within(t, "the handler is told", before)
	within(t, "the handler is told afterwards", r.Draining())
	peer.expect(wire.GoAway)
	peer.write(data(callID(0, 1), 0, "goes on"), request(0, callID(1, 1), ""), data(callID(1, 1), wire.End, ""))
	hd, _, _ := peer.expectReply(callID(1, 1))
	if hd.Arg != codeUnavailable || hd.Flags&wire.NotProcessed == 0 {
		t.Errorf("a new stream: got %+v", hd)
	}
	wantMessage(t, st, "goes on")
	if err := st.Send(t.Context(), 0, []byte("so does this")); err != nil {
		t.Error(err)
	}
	if _, _, got := peer.expectData(callID(0, 1)); got != "so does this" {
		t.Errorf("got %q", got)
	}
	if r.Err() != nil {
		t.Errorf("the handler's context has ended: %v", r.Err())
	}
	h.end()
	peer.expectReply(callID(0, 1))
	wantEmpty(t, "the server", srv)
}

// A client that is told of a drain goes on with its streams too, and closes behind the last one.
func TestADrainedClientFinishesItsStreams(t *testing.T) {
	s := &setup{serves: map[string]*handler{"duplex": {serve: echoStream}}}
	c, srv := s.overTCP(t)
	st := open(t, c, streamMethod("duplex", wire.Duplex), nil)
	if err := st.Accepted(t.Context()); err != nil {
		t.Fatal(err)
	}
	srv.Drain()
	eventually(t, "the client is told", func() bool { return !c.Usable() })
	for i := range 1000 {
		if err := st.Send(t.Context(), 0, patterned(i, i)); err != nil {
			t.Fatal(err)
		}
		wantMessage(t, st, string(patterned(i, i)))
	}
	st.End()
	if a, err := st.Wait(); err != nil || string(a.Body) != "end" {
		t.Errorf("got %+v, %v", a, err)
	}
	if err := wantEnd(t, c); !errors.Is(err, mux.ErrDrained) {
		t.Errorf("the client ended with %v", err)
	}
	wantEnd(t, srv)
}

// Either side may open streams, each in its own table.
func TestBothSidesOpenStreams(t *testing.T) {
	serves := map[string]*handler{"duplex": {serve: echoStream}}
	s := &setup{limits: limitsWith(4096, 1<<20), serves: serves, clientServes: serves}
	c, srv := s.overTCP(t)
	var wg sync.WaitGroup
	for i, from := range []*mux.Conn{c, srv, c, srv} {
		st := open(t, from, streamMethod("duplex", wire.Duplex), nil)
		wg.Go(func() {
			for j := range 50 {
				sent := sending(context.Background(), st, patterned(j*300, i*100+j))
				wantMessageOf(t, st, j*300, i*100+j)
				if err := <-sent; err != nil {
					t.Error(err)
				}
			}
			st.End()
			if a, err := st.Wait(); err != nil || string(a.Body) != "end" {
				t.Errorf("got %+v, %v", a, err)
			}
		})
	}
	wg.Wait()
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

// What a client says on streams, with something of everything.
func streamConversation() [][]byte {
	id := func(slot uint32) uint32 { return callID(slot, 1) }
	return [][]byte{
		hello(nil), methodOf(0, "duplex"), methodOf(1, "upload"), methodOf(2, "feed"),
		request(0, id(0), ""), request(1, id(1), ""),
		frameOf(wire.Header{Type: wire.Request, Flags: wire.More, Arg: 2, ID: id(2)}, &wire.Fields{Size: 6}, []byte("thr")), data(id(2), 0, "ice"),
		data(id(0), 0, "one"), data(id(1), 0, "first"), sized(id(0), wire.More, 9, "012"), data(id(0), wire.More, "345"),
		data(id(1), wire.HasChecksum, "second"), credit(id(0), 0, 100_000), data(id(0), 0, "678"), data(id(0), 0, ""), data(id(1), wire.End, ""),
		data(id(0), wire.End, ""), data(id(9), 0, "of none"), ping(1),
	}
}

// However the bytes of streams are cut up on their way, the same comes of them.
func TestStreamsDoNotDependOnHowTheyAreCut(t *testing.T) {
	serves := map[string]*handler{
		"duplex": {serve: echoStream},
		"upload": {serve: func(r *mux.Request) {
			r.Stream().Accept()
			var all []string
			for {
				msg, _, err := r.Stream().Receive(r)
				if err != nil {
					r.Reply.Body = []byte(strings.Join(append(all, err.Error()), ","))
					return
				}
				all = append(all, string(msg))
			}
		}},
		"feed": {serve: func(r *mux.Request) {
			for i := range 3 {
				_ = r.Stream().Send(r, 0, append(slices.Clone(r.Body), byte('0'+i)))
			}
		}},
	}
	accepted := func(w io.Writer, frames [][]byte, write func(part []byte)) {
		// The requests come first: without credit nothing may follow them.
		_, _ = w.Write(slices.Concat(frames[:6]...))
		synctest.Wait()
		write(slices.Concat(frames[6:]...))
	}
	synctest.Test(t, func(t *testing.T) {
		run := func(feed func(w io.Writer)) []string {
			s := &setup{serves: serves}
			client, server := memoryPair(0)
			srv := mux.New(server, nil, false, s.config(t, mux.Config{}, serves))
			feed(client)
			synctest.Wait()
			client.out.end(io.EOF)
			<-srv.Ended()
			synctest.Wait()
			said, _ := io.ReadAll(client)
			said = bytes.TrimPrefix(said, []byte(wire.Preface))
			of := map[uint32]string{} // each stream by itself: between them there is no order
			for len(said) > 0 {
				h := wire.ParseHeader(said)
				n := wire.HeaderSize + int(h.Len)
				of[h.ID] += string(said[:n])
				said = said[n:]
			}
			var all []string
			for id, frames := range of {
				all = append(all, fmt.Sprintf("%#x %q", id, frames))
			}
			slices.Sort(all)
			wantEmpty(t, "the server", srv)
			return all
		}
		frames := streamConversation()
		whole := func(w io.Writer) { accepted(w, frames, func(part []byte) { _, _ = w.Write(part) }) }
		want := run(whole)
		for _, part := range []string{"first,second,EOF", "012345678", "thrice2", "end"} {
			if !strings.Contains(strings.Join(want, " "), part) {
				t.Fatalf("got %q, want %q in it", want, part)
			}
		}
		compare := func(how string, feed func(w io.Writer)) {
			if got := run(feed); !slices.Equal(got, want) {
				t.Fatalf("%s:\n got %q\nwant %q", how, got, want)
			}
		}
		rest := len(slices.Concat(frames[6:]...))
		for i := 1; i < rest; i++ {
			compare(fmt.Sprintf("cut at %d", i), func(w io.Writer) {
				accepted(w, frames, func(part []byte) {
					_, _ = w.Write(part[:i])
					synctest.Wait()
					_, _ = w.Write(part[i:])
				})
			})
		}
		compare("byte by byte", func(w io.Writer) {
			accepted(w, frames, func(part []byte) {
				for i := range part {
					_, _ = w.Write(part[i : i+1])
					synctest.Wait()
				}
			})
		})
	})
}

// The same for what a client is told.
func TestAClientReadsStreamsHoweverTheyAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := slices.Concat(credit(firstID, wire.OfReply, 5000), data(firstID, wire.OfReply, "one"), sized(firstID, wire.OfReply|wire.More, 6, "012"),
			ping(1), data(firstID, wire.OfReply|wire.More|wire.HasChecksum, "34"), data(firstID, wire.OfReply, "5"), data(firstID, wire.OfReply, ""),
			data(firstID, wire.OfReply|wire.End, ""), reply(firstID, "the reply"))
		run := func(write func(w io.Writer)) string {
			s := &setup{}
			client, server := memoryPair(0)
			c := mux.New(client, nil, true, s.config(t, mux.Config{}, nil))
			defer c.Close()
			_, _ = server.Write(hello(nil))
			synctest.Wait()
			st := mux.NewStream()
			if err := c.Start(t.Context(), &mux.Out{Method: streamMethod("duplex", wire.Duplex), Stream: st}, st); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			var got strings.Builder
			all := make(chan struct{})
			go func() {
				defer close(all)
				for {
					msg, _, err := st.Receive(context.Background())
					fmt.Fprintf(&got, "%q %v,", msg, err)
					if err != nil {
						return
					}
				}
			}()
			write(server)
			synctest.Wait()
			<-all
			a, err := st.Wait()
			fmt.Fprintf(&got, "%q %v", a.Body, err)
			wantEmpty(t, "the client", c)
			return got.String()
		}
		want := run(func(w io.Writer) { _, _ = w.Write(said) })
		if want != `"one" <nil>,"012345" <nil>,"" <nil>,"" EOF,"the reply" <nil>` {
			t.Fatalf("got %s", want)
		}
		for i := 1; i < len(said); i++ {
			if got := run(func(w io.Writer) {
				_, _ = w.Write(said[:i])
				synctest.Wait()
				_, _ = w.Write(said[i:])
			}); got != want {
				t.Fatalf("cut at %d: got %s", i, got)
			}
		}
		if got := run(func(w io.Writer) {
			for i := range said {
				_, _ = w.Write(said[i : i+1])
				synctest.Wait()
			}
		}); got != want {
			t.Fatalf("byte by byte: got %s", got)
		}
	})
}

// Streams of all kinds that end at any point, by whatever ends them, leave nothing behind on either
// side.
func TestStreamsThatEndAnywhereLeaveNothing(t *testing.T) {
	const each, atOnce = 250, 50 // on one connection, and of them at once
	streams := 10_000
	if raceEnabled {
		streams = 3_000
	}
	var outcomes [6]atomic.Int64
	var moved atomic.Int64
	for n := range streams / each {
		endStreamsAtRandom(t, n, each, atOnce, &outcomes, &moved)
	}
	t.Logf("%d replies, %d canceled, %d late, %d lost, %d not sent, %d messages", outcomes[0].Load(), outcomes[1].Load(), outcomes[2].Load(),
		outcomes[3].Load(), outcomes[4].Load(), moved.Load())
	total := int64(0)
	for i := range outcomes {
		total += outcomes[i].Load()
		if i < 4 && outcomes[i].Load() < int64(streams)/100 {
			t.Errorf("only %d streams had outcome %d: the test does not mix them", outcomes[i].Load(), i)
		}
	}
	if total != int64(streams) || moved.Load() < int64(streams) {
		t.Errorf("%d streams had an outcome, and %d messages came", total, moved.Load())
	}
}

// endStreamsAtRandom runs streams on one connection, which it may close before they have ended.
func endStreamsAtRandom(t *testing.T, seed, streams, atOnce int, outcomes *[6]atomic.Int64, moved *atomic.Int64) {
	t.Helper()
	var early atomic.Uint64
	serve := func(r *mux.Request) {
		random := rand.New(rand.NewPCG(uint64(seed), early.Add(1)))
		st := r.Stream()
		if random.IntN(20) == 0 {
			return // a reply before anything
		}
		st.Accept()
		limit := random.IntN(40) // a reply after some
		for range limit {
			if err := st.Send(r, 0, make([]byte, sizeAtRandom(random))); err != nil {
				break
			}
			if random.IntN(3) > 0 {
				ctx, cancel := context.WithTimeout(r, time.Duration(random.IntN(2000))*time.Microsecond)
				_, _, err := st.Receive(ctx)
				cancel()
				if err != nil && ctx.Err() == nil {
					break
				}
			}
		}
		if random.IntN(2) == 0 {
			st.End()
		}
		if random.IntN(4) == 0 {
			<-r.Done() // until the caller ends it
		}
	}
	upload := func(r *mux.Request) {
		r.Stream().Accept()
		for {
			if _, _, err := r.Stream().Receive(r); err != nil {
				return
			}
			moved.Add(1)
		}
	}
	limits := limitsWith(4096, 256<<10)
	limits.MaxOpen = 1000
	s := &setup{limits: limits, serves: map[string]*handler{"feed": {serve: serve}, "duplex": {serve: serve}, "upload": {serve: upload}}}
	c, srv := s.overTCP(t)
	var started atomic.Int64
	closeAt := int64(-1)
	if seed%3 == 0 {
		closeAt = int64(streams / 2)
	}
	var wg sync.WaitGroup
	for i := range atOnce {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(seed), uint64(1000+i)))
			for range streams / atOnce {
				if started.Add(1) == closeAt {
					[]*mux.Conn{c, srv}[random.IntN(2)].Close()
				}
				outcomes[oneStreamAtRandom(t, random, c, moved)].Add(1)
			}
		})
	}
	wg.Wait()
	wantEmpty(t, "the client", c)
	wantEmpty(t, "the server", srv)
}

func sizeAtRandom(random *rand.Rand) int {
	return []int{0, 10, 500, 3000, 20_000, 100_000}[random.IntN(6)] * random.IntN(2)
}

// oneStreamAtRandom opens a stream, uses it, ends it in one of the ways there are, and returns how
// it ended.
func oneStreamAtRandom(t *testing.T, random *rand.Rand, c *mux.Conn, moved *atomic.Int64) int {
	kind := []string{"feed", "upload", "duplex"}[random.IntN(3)]
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	st := mux.NewStream()
	out := &mux.Out{Method: &mux.Method{Handle: int(kindOf[kind]), Name: kind, Codec: "raw", Kind: kindOf[kind]}, Stream: st, Checksum: random.IntN(4) == 0}
	soon := time.Duration(random.IntN(3000)) * time.Microsecond
	switch random.IntN(4) {
	case 0:
		out.Deadline = time.Now().Add(soon)
	default: // at last
		out.Deadline = time.Now().Add(100 * time.Millisecond)
	}
	if random.IntN(4) == 0 {
		defer time.AfterFunc(soon, cancel).Stop()
	}
	if err := c.Start(ctx, out, st); err != nil {
		return 4
	}
	if random.IntN(8) == 0 {
		defer time.AfterFunc(soon, st.End).Stop()
	}
	var wg sync.WaitGroup
	for range random.IntN(3) {
		sizes := rand.New(rand.NewPCG(random.Uint64(), 1))
		wg.Go(func() {
			for range sizes.IntN(30) {
				if kind == "feed" || st.Send(ctx, 0, make([]byte, sizeAtRandom(sizes))) != nil {
					break
				}
			}
			if sizes.IntN(2) == 0 {
				st.End()
			}
		})
	}
	for n := random.IntN(50); n > 0; n-- {
		if _, _, err := st.Receive(ctx); err != nil {
			break
		}
		moved.Add(1)
	}
	if random.IntN(3) == 0 {
		st.Cancel(context.Canceled)
	}
	a, err := st.Wait()
	wg.Wait()
	switch {
	case err == nil && (a.Code == 0 || a.Code == codeDeadline || a.Code == codeCanceled):
		return 0
	case errors.Is(err, context.Canceled):
		return 1
	case errors.Is(err, mux.ErrDeadline):
		return 2
	case c.Err() != nil:
		return 3
	}
	t.Errorf("got %+v, %v", a, err)
	return 5
}
