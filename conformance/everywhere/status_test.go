// SPDX-License-Identifier: Apache-2.0

package everywhere_test

import (
	"cmp"
	"context"
	"io"
	"strings"
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
			if err := send(&Ask{1}); err != nil {
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
	for i := range wires {
		w := &wires[i]
		if !w.streams {
			continue
		}
		tr := &trial{}
		tr.start()
		early.Handle(tr.server, func(_ context.Context, _ yodel.Recv[Ask], send yodel.Send[Told]) error {
			return cmp.Or(send(&Told{1}), send(&Told{2}), error(there))
		})
		reject.Handle(tr.server, func(context.Context, yodel.Recv[Ask]) (*Told, error) { return nil, there })
		c := w.caller(t, tr, 1)
		for name, call := range calls {
			t.Run(w.name+"/"+name, func(t *testing.T) {
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

// A stream whose caller returns io.EOF, for whatever reason, ends.
func TestAnEndOfTheCallersOwnEndsTheStream(t *testing.T) {
	for i := range wires {
		w := &wires[i]
		if !w.streams {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			tr := &trial{}
			tr.start()
			c := w.caller(t, tr, 1)
			send := func(send yodel.Send[Ask]) error { return cmp.Or(send(&Ask{1}), io.EOF) }
			_, errUpload := upload.Call(ctx, c, send)
			errDuplex := duplex.Call(ctx, c, func(_ yodel.Recv[Told], s yodel.Send[Ask]) error { return send(s) })
			if ctx.Err() != nil {
				t.Errorf("the calls hung until their deadline: %v, %v", errUpload, errDuplex)
			}
		})
	}
}
