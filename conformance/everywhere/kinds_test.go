// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"context"
	"fmt"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
)

// To middleware of a server, a call is a stream if its method is one and the call carries it,
// whichever wire it comes over. All other calls are unary, among them those that fail because the
// method does not exist or is of another kind.
func TestStreamsSaysWhatTheCallIs(t *testing.T) {
	for i := range Wires {
		w := &Wires[i]
		t.Run(w.Name, func(t *testing.T) {
			said := make(chan string, 1)
			tr := &Trial{}
			tr.Options.Middleware = []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
				return func(ctx context.Context, call *yodel.Call) error {
					said <- fmt.Sprintf("Kind %q, Streams %t", call.Kind(), call.Streams())
					return next(ctx, call)
				}
			}}
			tr.start()
			c := w.caller(t, tr, 1)
			for _, test := range kinds {
				if test.needs != nil && !test.needs(w) {
					continue
				}
				want := fmt.Sprintf("Kind %q, Streams %t", test.kind, test.streams || test.asMethod && w.unaryIsOne)
				t.Run(test.name, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					err := test.call(ctx, c)
					if err != nil && !test.fails {
						t.Error(err)
					}
					select {
					case got := <-said:
						if got != want {
							t.Errorf("middleware sees %s, want %s", got, want)
						}
					case <-ctx.Done():
						t.Errorf("no call came: %v", err)
					}
				})
			}
		})
	}
}

var kinds = []struct {
	name     string
	needs    func(w *Wire) bool
	call     func(ctx context.Context, c yodel.Caller) error
	kind     string // of the method
	streams  bool
	asMethod bool // over some wires the call is what its method is
	fails    bool // perhaps
}{
	{name: "unary", call: callUnary("All.Unary"), kind: "unary"},
	{name: "one-way", needs: func(w *Wire) bool { return w.oneWay }, call: func(ctx context.Context, c yodel.Caller) error {
		return c.Do(ctx, &yodel.Call{Method: string(unary), Args: &Ask{N: 1}, OneWay: true})
	}, kind: "unary"},
	{name: "feed", needs: carriesStreams, call: callFeed("All.Feed"), kind: "feed", streams: true},
	{name: "upload", needs: carriesStreams, call: callUpload("All.Upload"), kind: "upload", streams: true},
	{name: "duplex", needs: carriesStreams, call: callDuplex("All.Duplex"), kind: "duplex", streams: true},
	{name: "unary call of no method", call: callUnary("All.Absent"), fails: true},
	{name: "feed of no method", needs: carriesStreams, call: callFeed("All.Absent"), fails: true},
	{name: "upload of no method", needs: carriesStreams, call: callUpload("All.Absent"), fails: true},
	{name: "unary call of a feed", call: callUnary("All.Feed"), kind: "feed", asMethod: true, fails: true},
	{name: "unary call of an upload", call: callUnary("All.Upload"), kind: "upload", asMethod: true, fails: true},
	{name: "unary call of a duplex", call: callUnary("All.Duplex"), kind: "duplex", asMethod: true, fails: true},
	{name: "feed of a unary method", needs: carriesOwnStreams, call: callFeed("All.Unary"), kind: "unary", fails: true},
	{name: "duplex of a unary method", needs: carriesOwnStreams, call: callDuplex("All.Unary"), kind: "unary", fails: true},
}

// Middleware can answer a call of a method that the server does not have.
func TestMiddlewareAnswersACallOfNoMethod(t *testing.T) {
	const absent yodel.Method[Ask, Told] = "All.Absent"
	for i := range Wires {
		w := &Wires[i]
		if w.codec == gob.Codec {
			continue // the server would have to know the type of an encoded reply
		}
		t.Run(w.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			tr := &Trial{}
			tr.Options.Middleware = []yodel.Middleware{answer(string(absent), &Told{99})}
			tr.start()
			var told Told
			err := w.caller(t, tr, 1).Do(ctx, &yodel.Call{Method: string(absent), Args: &Ask{N: 1}, Reply: &told})
			if err != nil || told.N != 99 {
				t.Errorf("the reply is %d: %v, want 99", told.N, err)
			}
		})
	}
}

func carriesStreams(w *Wire) bool    { return w.streams }
func carriesOwnStreams(w *Wire) bool { return w.streams && !w.unaryIsOne }

func callUnary(m yodel.Method[Ask, Told]) func(context.Context, yodel.Caller) error {
	return func(ctx context.Context, c yodel.Caller) error {
		return c.Do(ctx, &yodel.Call{Method: string(m), Args: &Ask{N: 1}, Reply: new(Told)})
	}
}

func callFeed(m yodel.Feed[Ask, Told]) func(context.Context, yodel.Caller) error {
	return func(ctx context.Context, c yodel.Caller) error {
		for _, err := range m.Call(ctx, c, &Ask{N: 1}) {
			if err != nil {
				return err
			}
		}
		return nil
	}
}

func callUpload(m yodel.Upload[Ask, Told]) func(context.Context, yodel.Caller) error {
	return func(ctx context.Context, c yodel.Caller) error {
		_, err := m.Call(ctx, c, func(send yodel.Send[Ask]) error { return send(&Ask{N: 1}) })
		return err
	}
}

func callDuplex(m yodel.Duplex[Ask, Told]) func(context.Context, yodel.Caller) error {
	return func(ctx context.Context, c yodel.Caller) error {
		return m.Call(ctx, c, func(recv yodel.Recv[Told], send yodel.Send[Ask]) error {
			if err := send(&Ask{N: 1}); err != nil {
				return err
			}
			if err := send.End(); err != nil {
				return err
			}
			for _, err := range recv {
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
}
