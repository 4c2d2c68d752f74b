// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
)

// A Counter has streams of all kinds, to be found by reflection, and methods that look like
// streams.
type Counter struct{}

func (Counter) Count(_ context.Context, in *int, send yodel.Send[int]) error {
	for i := range *in {
		if err := send(&i); err != nil {
			return err
		}
	}
	return nil
}

func (Counter) Sum(_ context.Context, recv yodel.Recv[int]) (*int, error) {
	total := 0
	for n, err := range recv {
		if err != nil {
			return nil, err
		}
		total += *n
	}
	return &total, nil
}

func (Counter) Nothing(context.Context, yodel.Recv[int]) (*int, error) { return nil, nil }

func (Counter) Echo(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
	for n, err := range recv {
		if err != nil {
			return err
		}
		if err := send(n); err != nil {
			return err
		}
	}
	return nil
}

func (Counter) NoContext(*int, yodel.Send[int]) error                              { return nil }
func (Counter) NoError(context.Context, yodel.Recv[int]) *int                      { return nil }
func (Counter) NoRequest(context.Context, yodel.Send[int]) error                   { return nil }
func (Counter) ByValue(context.Context, int, yodel.Send[int]) error                { return nil }
func (Counter) Backwards(context.Context, yodel.Send[int], yodel.Recv[int]) error  { return nil }
func (Counter) TwoSends(context.Context, yodel.Send[int], yodel.Send[int]) error   { return nil }
func (Counter) FeedWithReply(context.Context, *int, yodel.Send[int]) (*int, error) { return nil, nil }
func (Counter) ReplyByValue(context.Context, yodel.Recv[int]) (int, error)         { return 0, nil }
func (Counter) NoReply(context.Context, yodel.Recv[int]) error                     { return nil }
func (Counter) ThreeStreams(context.Context, *int, yodel.Recv[int], yodel.Send[int]) error {
	return nil
}
func (Counter) PointerToStream(context.Context, *yodel.Recv[int]) (*int, error) { return nil, nil }
func (Counter) UploadWithRequest(context.Context, *int, yodel.Recv[int]) (*int, error) {
	return nil, nil
}
func (Counter) TwoRequests(_ context.Context, _, _ *int, _ yodel.Send[int]) error { return nil }
func (Counter) DuplexWithReply(context.Context, yodel.Recv[int], yodel.Send[int]) (*int, error) {
	return nil, nil
}

func TestStreamsAreFoundByReflection(t *testing.T) {
	wrong := []string{
		"NoContext", "NoError", "NoRequest", "ByValue", "Backwards", "TwoSends", "FeedWithReply", "ReplyByValue", "NoReply",
		"ThreeStreams", "PointerToStream", "UploadWithRequest", "TwoRequests", "DuplexWithReply",
	}
	leftOut := make([]string, 0, len(wrong))
	for _, name := range wrong {
		leftOut = append(leftOut, "-"+name)
	}
	s := yodel.NewServer(nil)
	must(t, s.Register(Counter{}, leftOut...))
	c := connect(t, s, nil)
	three, want := 3, 0
	for i, err := range yodel.Feed[int, int]("Counter.Count").Call(t.Context(), c, &three) {
		if err != nil || *i != want {
			t.Fatalf("got %v, %v, want %d", i, err, want)
		}
		want++
	}
	if want != 3 {
		t.Errorf("the feed had %d messages, want 3", want)
	}
	numbers := func(send yodel.Send[int]) error {
		for i := range 5 {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	}
	if total, err := yodel.Upload[int, int]("Counter.Sum").Call(t.Context(), c, numbers); err != nil || *total != 10 {
		t.Errorf("the upload: got %v, %v, want 10", total, err)
	}
	_, err := yodel.Upload[int, int]("Counter.Nothing").Call(t.Context(), c, numbers)
	wantError(t, err, yodel.Internal, "YDL5003")
	err = yodel.Duplex[int, int]("Counter.Echo").Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		for i := range 3 {
			if err := send(&i); err != nil {
				return err
			}
			if n, err := recv.Next(); err != nil || *n != i {
				t.Errorf("got %v, %v, want %d", n, err, i)
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("the duplex: %v", err)
	}
	info, err := inspect.Info.Call(t.Context(), c, &Empty{})
	must(t, err)
	kinds := map[string]string{}
	for _, m := range info.Methods {
		kinds[m.Name] = m.Kind
	}
	for name, kind := range map[string]string{
		"Counter.Count": "feed", "Counter.Sum": "upload", "Counter.Nothing": "upload", "Counter.Echo": "duplex", "yodel.Info": "",
	} {
		if got, ok := kinds[name]; !ok || got != kind {
			t.Errorf("%s is described as %q, want %q", name, got, kind)
		}
	}
	for _, name := range wrong {
		e := wantError(t, yodel.NewServer(nil).Register(Counter{}, name), yodel.InvalidArgument, "YDL4001")
		if !strings.Contains(e.Message, name) || !strings.Contains(e.Message, "it takes a stream, but is none of") {
			t.Errorf("%s was refused with %q, want the shapes of streams", name, e.Message)
		}
		if _, found := kinds["Counter."+name]; found {
			t.Errorf("%s was registered", name)
		}
	}
	s = yodel.NewServer(nil)
	wantError(t, s.Register(Counter{}, "Backwards"), yodel.InvalidArgument, "YDL4001")
	wantError(t, s.Handle("Backwards", Counter{}.Backwards), yodel.InvalidArgument, "YDL4001")
}

// A method is called as the kind that it is, and the error says which kind that is. The caller's
// function never runs.
func TestMethodsOfAnotherKindAreRefused(t *testing.T) {
	s := newServer(t, nil)
	must(t, s.Register(Counter{}, "Count", "Sum", "Echo"))
	c := connect(t, s, nil)
	never := func(what string) func(yodel.Send[int]) error {
		return func(yodel.Send[int]) error { t.Error("the function of", what, "ran"); return nil }
	}
	calls := map[string]func(method string) error{
		"unary": func(method string) error { return c.Call(t.Context(), method, new(int), nil) },
		"feed": func(method string) error {
			_, err := yodel.Feed[int, int](method).Call(t.Context(), c, new(int)).Next()
			return err
		},
		"upload": func(method string) error {
			_, err := yodel.Upload[int, int](method).Call(t.Context(), c, never("an upload"))
			return err
		},
		"duplex": func(method string) error {
			return yodel.Duplex[int, int](method).Call(t.Context(), c, func(_ yodel.Recv[int], send yodel.Send[int]) error {
				return never("a duplex")(send)
			})
		},
	}
	methods := map[string]string{"unary": "Arith.Mul", "feed": "Counter.Count", "upload": "Counter.Sum", "duplex": "Counter.Echo"}
	for is, method := range methods {
		for as, call := range calls {
			if is == as {
				continue
			}
			e := wantError(t, call(method), yodel.InvalidArgument, "YDL2006")
			if want := regexp.MustCompile("the method is an? " + is + " .*; the call is for an? " + as); !e.NotProcessed || !want.MatchString(e.Message) {
				t.Errorf("%s called as %s: %v, not processed %t", is, as, e, e.NotProcessed)
			}
		}
	}
	// A one-way call of a feed has nobody to send to: it is not executed, and nobody is told.
	must(t, c.Notify(t.Context(), "Counter.Count", new(int)))
	// A method that does not exist does not run the function either.
	_, err := yodel.Upload[int, int]("Counter.Sums").Call(t.Context(), c, never("an unknown upload"))
	wantError(t, err, yodel.Unimplemented, "YDL2002")
}

// A Do of a stream carries what a Do of any call does.
func TestStreamsCarryMetadataAndTrailers(t *testing.T) {
	s := yodel.NewServer(nil)
	meet := func(ctx context.Context) error {
		call := yodel.CallFrom(ctx)
		call.Trailer = yodel.Metadata{"got": call.Metadata["k"] + string(call.Attachment)}
		call.ReplyAttachment = []byte("more")
		if call.Metadata["fail"] != "" {
			return yodel.Errorf(yodel.Aborted, "with a trailer")
		}
		return nil
	}
	count.Handle(s, func(ctx context.Context, in *int, send yodel.Send[int]) error {
		return errors.Join(send(in), meet(ctx))
	})
	sum.Handle(s, func(ctx context.Context, _ yodel.Recv[int]) (*int, error) { return nil, meet(ctx) })
	echo2.Handle(s, func(ctx context.Context, _ yodel.Recv[int], _ yodel.Send[int]) error { return meet(ctx) })
	c := connect(t, s, nil)
	for _, fail := range []string{"", "yes"} {
		for name, do := range map[string]func(call *yodel.Call) error{
			"feed": func(call *yodel.Call) error {
				for _, err := range count.Do(t.Context(), c, call, new(int)) {
					if err != nil {
						return err
					}
				}
				return nil
			},
			"upload": func(call *yodel.Call) error {
				_, err := sum.Do(t.Context(), c, call, func(yodel.Send[int]) error { return nil })
				return err
			},
			"duplex": func(call *yodel.Call) error {
				return echo2.Do(t.Context(), c, call, func(yodel.Recv[int], yodel.Send[int]) error { return nil })
			},
		} {
			call := &yodel.Call{Metadata: yodel.Metadata{"k": "v", "fail": fail}, Attachment: []byte("a")}
			for range 2 { // a Call may be used again
				if err := do(call); (yodel.CodeOf(err) == yodel.Aborted) != (fail != "") {
					t.Errorf("%s: %v", name, err)
				}
				if call.Trailer["got"] != "va" || string(call.ReplyAttachment) != "more" {
					t.Errorf("%s: got trailer %v, attachment %q", name, call.Trailer, call.ReplyAttachment)
				}
			}
			if err := c.Do(t.Context(), &yodel.Call{Method: "yodel.Ping"}); err != nil {
				t.Error(err)
			}
		}
	}
}

// Leaving a loop over what a Recv brings does not end the stream on the server's side, nor in a
// Duplex: the next one goes on behind it.
func TestAReceiverGoesOnWhereALoopWasLeft(t *testing.T) {
	s := yodel.NewServer(nil)
	pairs := func(recv yodel.Recv[int]) (loops, total int, err error) {
		for {
			n := 0
			for v, err := range recv {
				if err != nil {
					return loops, total, err
				}
				total += *v
				if n++; n == 2 {
					break
				}
			}
			if n == 0 {
				_, err := recv.Next()
				if errors.Is(err, io.EOF) {
					err = nil
				}
				return loops, total, err
			}
			loops++
		}
	}
	sum.Handle(s, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		loops, total, err := pairs(recv)
		if loops != 5 {
			t.Errorf("the server took %d loops, want 5", loops)
		}
		return &total, err
	})
	echo2.Handle(s, Counter{}.Echo)
	c := connect(t, s, nil)
	total, err := sum.Call(t.Context(), c, func(send yodel.Send[int]) error {
		for i := range 10 {
			if err := send(&i); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || *total != 45 {
		t.Errorf("got %v, %v, want 45", total, err)
	}
	err = echo2.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		for i := range 10 {
			if err := send(&i); err != nil {
				return err
			}
		}
		must(t, send.End())
		must(t, send.End()) // ending twice does no harm
		wantError(t, send(new(int)), yodel.FailedPrecondition, "YDL2007")
		if loops, total, err := pairs(recv); err != nil || loops != 5 || total != 45 {
			t.Errorf("the client got %d in %d loops, %v", total, loops, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Either side may end its sending and go on receiving.
func TestStreamsAreHalfClosed(t *testing.T) {
	s := yodel.NewServer(nil)
	echo2.Handle(s, func(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
		first, err := recv.Next()
		if err != nil {
			return err
		}
		if err := errors.Join(send(first), send.End()); err != nil { // nothing more will be said
			return err
		}
		total := 0
		for n, err := range recv {
			if err != nil {
				return err
			}
			total += *n
		}
		if total != 10 {
			return yodel.Errorf(yodel.Internal, "got %d", total)
		}
		return nil
	})
	c := connect(t, s, nil)
	err := echo2.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		seven := 7
		must(t, send(&seven))
		if n, err := recv.Next(); err != nil || *n != 7 {
			t.Errorf("got %v, %v", n, err)
		}
		if _, err := recv.Next(); err != io.EOF {
			t.Errorf("got %v, want io.EOF: the server has ended its sending", err)
		}
		for i := range 5 {
			if err := send(&i); err != nil {
				t.Errorf("after the server has ended its sending: %v", err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
