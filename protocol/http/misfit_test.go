// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	std "net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// An innerOrder is a message whose type and fields in Go have other names than in JSON.
type innerOrder struct {
	SecretQty  int         `json:"qty"`
	InnerItems []innerItem `json:"items"`
}

type innerItem struct {
	SecretSKU string `json:"sku"`
}

// innards matches what only the program itself knows: names in Go, and addresses.
var innards = regexp.MustCompile(`inner|Inner|Secret|http_test|struct|interface|\[\]|127\.0\.0\.1`)

// What a caller over HTTP gets for a mistake of its own is in terms of JSON and of the method.
func TestTextsForCallersNameNoTypesFieldsOrAddressesOfTheProgram(t *testing.T) {
	log := new(book)
	site := newSite(t, &http.Options{JSONRPC: "/rpc"}, yodel.ServerOptions{Logger: slog.New(slog.NewTextHandler(log, nil))})
	s := site.Server
	yodel.Method[innerOrder, innerOrder]("Shop.Order").Handle(s, func(_ context.Context, in *innerOrder) (*innerOrder, error) { return in, nil })
	yodel.Feed[innerOrder, innerItem]("Shop.Watch").Handle(s, func(context.Context, *innerOrder, yodel.Send[innerItem]) error { return nil })
	yodel.Upload[innerItem, innerOrder]("Shop.Fill").Handle(s, func(_ context.Context, in yodel.Recv[innerItem]) (*innerOrder, error) {
		for _, err := range in {
			if err != nil {
				return nil, err
			}
		}
		return &innerOrder{}, nil
	})
	if err := s.Handle("Shop.Add", func(a innerOrder, b int) (int, error) { return b, nil }); err != nil {
		t.Fatal(err)
	}
	registerBroken(s)
	for _, test := range []struct{ path, body, kind, want string }{
		{"/Shop/Order", `{"qty":"two"}`, "", `Shop.Order: the request does not fit the method: "qty" is string, want an integer of 64 bits`},
		{"/Shop/Order", `{"items":[{"sku":7}]}`, "", `"items.sku" is number, want a string`},
		{"/Shop/Order", `{"qty":`, "", "unexpected end of JSON input"},
		{"/Shop/Order", `[]`, "", "it is array, want an object"},
		{"/Shop/Order", `[1,2]`, "", ""},
		{"/Shop/Order", "\x00\x00\x00\x00\x0a{\"qty\":{}}", "application/grpc+json", `"qty" is object`},
		{"/Shop/Watch", `{"qty":"two"}`, "", "Shop.Watch: the method is of the kind feed"},
		{"/Shop/Watch", "\x00\x00\x00\x00\x0a{\"qty\":{}}", "application/connect+json", `"qty" is object`},
		{"/Shop/Fill", `{"sku":7}`, "", ""},
		{"/Shop/Fill", "\x00\x00\x00\x00\x0a{\"sku\":{}}", "application/connect+json", `"sku" is object`},
		{"/Shop/Fill", "\x00\x00\x00\x00\x0a{\"sku\":{}}", "application/grpc+json", `"sku" is object`},
		{"/Shop/Add", `{"qty":1}`, "", ""},
		{"/Shop/Add", `["x","y"]`, "", ""},
		{"/Shop/Add", `[{"qty":"x"},1]`, "", ""},
		{"/rpc", `{"jsonrpc":"2.0","id":1,"method":"Shop.Order","params":{"qty":"two"}}`, "", `\"qty\" is string`},
		{"/rpc", `{"jsonrpc":"2.0","id":1,"method":"Shop.Order","params":[1,2,3]}`, "", ""},
		{"/Shop/None", `{}`, "", ""},
		{"/None/None", `{}`, "", ""},
		{"/Shop/Broken", `{}`, "", "Shop.Broken: a message could not be encoded; see hidden error 1 in the server's log"},
		{"/Shop/Broken", "\x00\x00\x00\x00\x02{}", "application/grpc+json", "Shop.Broken: a message could not be encoded; see hidden"},
		{"/Shop/Broken", "\x00\x00\x00\x00\x02{}", "application/connect+json", "Shop.Broken: a message could not be encoded; see hidden"},
		{"/rpc", `{"jsonrpc":"2.0","id":1,"method":"Shop.Broken","params":{}}`, "", "Shop.Broken: a message could not be encoded; see hidden"},
		{"/Shop/Marshals", `{}`, "", "Shop.Marshals: a message could not be encoded; see hidden"},
		{"/Shop/NaN", `{}`, "", "Shop.NaN: json: unsupported value: NaN"},
		{"/Shop/Breaks", "\x00\x00\x00\x00\x02{}", "application/connect+json", "Shop.Breaks: a message could not be encoded; see hidden"},
		{"/Shop/Breaks", "\x00\x00\x00\x00\x02{}", "application/grpc+json", "Shop.Breaks: a message could not be encoded; see hidden"},
		{"/Shop/Words", "\x00\x00\x00\x00\x02{}", "application/connect+json", "not sent: invalid_argument: Shop.Words: a message could not be encoded; see hidden"},
		{"/Shop/Nothing", "\x00\x00\x00\x00\x02{}", "application/connect+json", "a message of the stream is a nil pointer"},
	} {
		req, err := std.NewRequestWithContext(t.Context(), std.MethodPost, "http://"+site.addr+test.path, strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if test.kind != "" {
			req.Header.Set("Content-Type", test.kind)
		}
		r, err := client(t, strings.HasPrefix(test.kind, "application/grpc")).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		_ = r.Body.Close() // it was read
		if err != nil {
			t.Fatal(err)
		}
		whole := string(body) + r.Header.Get("Grpc-Message") + r.Trailer.Get("Grpc-Message")
		if found := innards.FindString(whole); found != "" {
			t.Errorf("%s %s %s: the caller sees %q: %s", test.path, test.kind, test.body, found, whole)
		}
		if !strings.Contains(strings.ReplaceAll(whole, `\"`, `"`), strings.ReplaceAll(test.want, `\"`, `"`)) {
			t.Errorf("%s %s %s: got %s, want %s", test.path, test.kind, test.body, whole, test.want)
		}
	}
	if err := site.stop(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"hiddenError=1 method=Shop.Broken", "interface {}: chan http_test.innerItem", "hiddenError=6", "innerMarshaler.Secret has no rate"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
}

// An innerMarshaler cannot be encoded, and says so in terms of the program.
type innerMarshaler struct{}

func (innerMarshaler) MarshalJSON() ([]byte, error) {
	return nil, errors.New("innerMarshaler.Secret has no rate")
}

func (*innerMarshaler) UnmarshalJSON([]byte) error { return nil }

// registerBroken adds methods whose messages cannot be encoded.
func registerBroken(s *yodel.Server) {
	var broken any = make(chan innerItem)
	yodel.Method[innerOrder, any]("Shop.Broken").Handle(s, func(context.Context, *innerOrder) (*any, error) { return &broken, nil })
	yodel.Method[innerOrder, innerMarshaler]("Shop.Marshals").Handle(s, func(context.Context, *innerOrder) (*innerMarshaler, error) { return new(innerMarshaler), nil })
	yodel.Method[innerOrder, float64]("Shop.NaN").Handle(s, func(context.Context, *innerOrder) (*float64, error) { return new(math.NaN()), nil })
	yodel.Feed[innerOrder, any]("Shop.Breaks").Handle(s, func(_ context.Context, _ *innerOrder, send yodel.Send[any]) error {
		return fmt.Errorf("Secret: %w", send(&broken))
	})
	yodel.Feed[innerOrder, any]("Shop.Words").Handle(s, func(_ context.Context, _ *innerOrder, send yodel.Send[any]) error {
		return yodel.Errorf(yodel.Internal, "not sent: %w", send(&broken))
	})
	yodel.Feed[innerOrder, innerItem]("Shop.Nothing").Handle(s, func(_ context.Context, _ *innerOrder, send yodel.Send[innerItem]) error {
		return send(nil)
	})
}
