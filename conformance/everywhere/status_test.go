// SPDX-License-Identifier: Apache-2.0

package everywhere

import (
	"cmp"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A server ends a stream with an error while its caller still sends. The caller learns of it from
// Send, receives nothing more, and gets the error.
func TestStreamsThatEndEarlyHaveTheirStatus(t *testing.T) {
	const (
		early  yodel.Duplex[Ask, Told] = "All.Early"
		reject yodel.Upload[Ask, Told] = "All.Reject"
	)
	there := yodel.Errorf(yodel.AlreadyExists, "it is there")
	sendAll := func(send yodel.Send[Ask]) error {
		tick := time.NewTicker(50 * time.Microsecond) // without it, the server has tens of thousands of messages to refuse
		defer tick.Stop()
		for ; ; <-tick.C {
			if err := send(&Ask{N: 1}); err != nil {
				return err
			}
		}
	}
	calls := map[string]func(ctx context.Context, c yodel.Caller) error{
		"duplex": func(ctx context.Context, c yodel.Caller) error {
			return early.Call(ctx, c, func(_ yodel.Recv[Told], send yodel.Send[Ask]) error { return sendAll(send) })
		},
		"duplex that says it has ended": func(ctx context.Context, c yodel.Caller) error {
			return early.Call(ctx, c, func(yodel.Recv[Told], yodel.Send[Ask]) error { return nil })
		},
		"upload": func(ctx context.Context, c yodel.Caller) error {
			_, err := reject.Call(ctx, c, sendAll)
			return err
		},
	}
	for i := range Wires {
		w := &Wires[i]
		if !w.streams {
			continue
		}
		tr := &Trial{}
		tr.start()
		early.Handle(tr.server, func(_ context.Context, _ yodel.Recv[Ask], send yodel.Send[Told]) error {
			return cmp.Or(send(&Told{1}), send(&Told{2}), error(there))
		})
		reject.Handle(tr.server, func(context.Context, yodel.Recv[Ask]) (*Told, error) { return nil, there })
		c := w.caller(t, tr, 1)
		for name, call := range calls {
			t.Run(w.Name+"/"+name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				for range 50 { // the end and the messages pass each other
					if err := call(ctx, c); yodel.CodeOf(err) != yodel.AlreadyExists || !strings.Contains(err.Error(), "it is there") {
						t.Fatalf("the outcome is %v, want that of the server", err)
					}
				}
			})
		}
	}
}

// A forgetful service has an upload without a reply.
type forgetful struct{}

func (forgetful) Reflected(context.Context, yodel.Recv[Ask]) (*Told, error) { return nil, nil }

// An upload whose handler returns neither a reply nor an error fails with Internal over each wire,
// however the handler was registered.
func TestForgottenRepliesOverEveryWire(t *testing.T) {
	for i := range Wires {
		w := &Wires[i]
		if !w.streams {
			continue
		}
		tr := &Trial{}
		tr.start()
		yodel.Upload[Ask, Told]("forgetful.Typed").Handle(tr.server, forgetful{}.Reflected)
		err := errors.Join(tr.server.Register(forgetful{}),
			tr.server.HandleStream("forgetful.Stream", "upload", func(context.Context, *yodel.Call, func(any) error, func(any) error) error { return nil }),
			tr.server.HandleStream("forgetful.Failing", "upload", func(context.Context, *yodel.Call, func(any) error, func(any) error) error { return absent }))
		if err != nil {
			t.Fatal(err)
		}
		c := w.caller(t, tr, 1)
		for method, want := range map[string]yodel.Code{
			"forgetful.Typed": yodel.Internal, "forgetful.Reflected": yodel.Internal, "forgetful.Stream": yodel.Internal, "forgetful.Failing": absent.Code,
		} {
			t.Run(w.Name+"/"+method, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				told, err := yodel.Upload[Ask, Told](method).Call(ctx, c, func(send yodel.Send[Ask]) error { return send(&Ask{N: 1}) })
				if e, ok := errors.AsType[*yodel.Error](err); !ok || e.Code != want || e.NotProcessed || want == yodel.Internal && e.ID != "YDL5003" {
					t.Errorf("got %v, %v, want %v", told, err, want)
				}
			})
		}
	}
}

// A stream whose caller returns io.EOF, for whatever reason, ends.
func TestAnEndOfTheCallersOwnEndsTheStream(t *testing.T) {
	for i := range Wires {
		w := &Wires[i]
		if !w.streams {
			continue
		}
		t.Run(w.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			tr := &Trial{}
			tr.start()
			c := w.caller(t, tr, 1)
			send := func(send yodel.Send[Ask]) error { return cmp.Or(send(&Ask{N: 1}), io.EOF) }
			_, errUpload := upload.Call(ctx, c, send)
			errDuplex := duplex.Call(ctx, c, func(_ yodel.Recv[Told], s yodel.Send[Ask]) error { return send(s) })
			if ctx.Err() != nil {
				t.Errorf("the calls hung until their deadline: %v, %v", errUpload, errDuplex)
			}
		})
	}
}

// Uploads whose methods do not read block no other call of the same client.
func TestUnreadStreamsBlockNoOtherCall(t *testing.T) {
	t.Parallel()
	const stuck yodel.Upload[Ask, Told] = "All.Stuck"
	for i := range Wires {
		w := &Wires[i]
		if !w.streams {
			continue
		}
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			gate, begun := make(chan struct{}), make(chan struct{})
			tr := &Trial{more: func(s *yodel.Server) {
				stuck.Handle(s, func(ctx context.Context, _ yodel.Recv[Ask]) (*Told, error) {
					begun <- struct{}{}
					select {
					case <-gate:
					case <-ctx.Done():
					}
					return &Told{}, nil
				})
			}}
			tr.start()
			c := &Cell{Trial: tr, Wire: w, Shape: Unary, Caller: w.caller(t, tr, 1)}
			const uploads = 20
			var all sync.WaitGroup
			var sent atomic.Int64
			sending, stop := context.WithCancel(ctx)
			for range uploads {
				all.Go(func() {
					_, _ = stuck.Call(sending, c.Caller, func(send yodel.Send[Ask]) error { // it ends with its context
						for {
							if err := send(&Ask{N: 1, Pad: strings.Repeat("x", 16<<10)}); err != nil {
								return err
							}
							sent.Add(1)
						}
					})
				})
				<-begun
			}
			defer func() { stop(); close(gate); all.Wait() }()
			// Each upload has sent what its window takes when nothing more is sent for a while.
			last, quiet := int64(-1), 0
			err := until(ctx, func() bool {
				if now := sent.Load(); now == last {
					quiet++
				} else {
					last, quiet = now, 0
				}
				return quiet == 200
			})
			for _, size := range []int{0, 1000, 100_000} {
				c.pad = strings.Repeat("y", size)
				if _, e := c.Call(ctx, yodel.Call{}); err != nil || e != nil {
					t.Errorf("a call with %d bytes: %v, %v", size, err, e)
				}
			}
		})
	}
}
