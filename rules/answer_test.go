// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
)

// The reply of a mock is JSON. It reaches the caller in the codec of the call, as one value or as
// several, whether the rule acts on the client or on the server.
func TestTheReplyOfAMockIsInTheCodecOfTheCall(t *testing.T) {
	for _, codec := range []yodel.Codec{yodel.JSON, gob.Codec} {
		for _, side := range []string{"client", "server"} {
			t.Run(codec.Name()+"/"+side, func(t *testing.T) {
				f := newForge(t, codec)
				f.mock(side, `{"by":"mock"}`)
				within(t, "one value", func() bool {
					var out order
					err := f.client.Do(t.Context(), &yodel.Call{Method: "Shop.Buy", Args: &order{}, Reply: &out})
					return err == nil && out.By == "mock"
				})
				var quotient, rest int
				divide := func() error {
					return f.client.Do(t.Context(), &yodel.Call{Method: "Shop.Divide", Args: yodel.Values{7, 2}, Reply: yodel.Values{&quotient, &rest}})
				}
				f.mock(side, `[30, 1]`)
				within(t, "two values", func() bool { return divide() == nil && quotient == 30 && rest == 1 })
				f.mock(side, `[30]`)
				within(t, "one value in place of two", func() bool {
					err := divide()
					return err != nil && strings.Contains(err.Error(), "array of the 2 values")
				})
				f.mock(side, `[30, "x"]`)
				within(t, "a text in place of a number", func() bool {
					err := divide()
					return err != nil && strings.Contains(err.Error(), "does not fit int")
				})
			})
		}
	}
}

// A forge is a server with a client, and the rules that they follow.
type forge struct {
	t      *testing.T
	book   *rules.Book
	client *yodel.Client
}

func newForge(t *testing.T, codec yodel.Codec) *forge {
	t.Helper()
	registry := memory.New(nil)
	follow := rules.With(registry, nil)
	quiet := slog.New(slog.DiscardHandler)
	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{follow}, Codecs: []yodel.Codec{codec}, Logger: quiet})
	buy.Handle(s, func(context.Context, *order) (*order, error) { return &order{By: "method"}, nil })
	if err := s.Handle("Shop.Divide", func(_ context.Context, a, b int) (quotient, rest int, _ error) { return a / b, a % b, nil }); err != nil {
		t.Fatal(err)
	}
	serve(t, s)
	c := yodel.NewClient(follow.Service("Shop"), &yodel.ClientOptions{Codec: codec, Logger: quiet})
	t.Cleanup(c.Close)
	within(t, "the server is announced", func() bool { return c.Ready(t.Context()) == nil })
	return &forge{t: t, book: open(t, registry), client: c}
}

// mock puts a mock in place of the one before it.
func (f *forge) mock(side, reply string) {
	f.t.Helper()
	rule := rules.Rule{
		ID: "mock", Service: "Shop", Side: side, Author: "ann", Reason: "a test",
		Mock: &rules.Answer{Reply: json.RawMessage(reply)},
	}
	if _, err := f.book.Put(f.t.Context(), rule); err != nil {
		f.t.Fatal(err)
	}
}
