// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	std "net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// An order has fields of all kinds.
type order struct {
	ID    string   `json:"id,omitempty"`
	Count int8     `json:"count,omitempty"`
	Price float64  `json:"price,omitempty"`
	Big   uint64   `json:"big,omitempty"`
	Paid  *bool    `json:"paid,omitempty"`
	Tags  []string `json:"tags,omitempty"`
	Sizes []int    `json:"sizes,omitempty"`
	Data  []byte   `json:"data,omitempty"`
	Any   any      `json:"any,omitempty"`
	Named int      `json:",omitempty"`
	Item  *struct {
		SKU string `json:"sku"`
		N   int    `json:"n"`
	} `json:"item,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	At     *time.Time        `json:"at,omitempty"`
	Secret string            `json:"-"`
	Next   *order            `json:"next,omitempty"`
}

func newShop(t testing.TB) *site {
	s := newSite(t, &http.Options{Routes: []http.Route{
		{Pattern: "GET /v1/orders/{id}", Method: "shop.Orders.Get"},
		{Pattern: "POST /v1/orders", Method: "shop.Orders.Put"},
		{Pattern: "PATCH /v1/orders/{id}", Method: "shop.Orders.Put"},
		{Pattern: "DELETE /v1/orders/{id}", Method: "shop.Orders.Put"},
		{Pattern: "GET /v1/changes/{id...}", Method: "shop.Orders.Put"},
		{Pattern: "GET /v1/gone", Method: "shop.Orders.Gone"},
		{Pattern: "POST /v1/dynamic", Method: "shop.Orders.Dynamic"},
		{Pattern: "POST /v1/values", Method: "shop.Orders.Values"},
		{Pattern: "GET /v1/watch/{text}", Method: "Test.Watch"},
	}}, yodel.ServerOptions{})
	for _, method := range []yodel.Method[order, order]{"shop.Orders.Get", "shop.Orders.Put"} {
		method.Handle(s.Server, func(_ context.Context, in *order) (*order, error) { return in, nil })
	}
	must(t, s.HandleCall("shop.Orders.Dynamic", func(_ context.Context, call *yodel.Call) error {
		e := new(yodel.Encoded)
		if err := call.Request(e); err != nil {
			return err
		}
		call.Reply = e
		return nil
	}))
	must(t, s.Handle("shop.Orders.Values", func(a, b int) int { return a + b }))
	s.MarkReadOnly("shop.Orders.Get", "Test.Watch")
	return s
}

func TestRoutes(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		s, c := newShop(t), client(t, h2)
		for _, test := range []struct{ path, want string }{
			{"/v1/orders/a%2Fb", `{"id":"a/b"}`},
			{"/v1/orders/1?id=2", `{"id":"1"}`},
			{"/v1/orders/5?count=-128&price=1e3&big=18446744073709551615&paid=true", `{"id":"5","count":-128,"price":1000,"big":18446744073709551615,"paid":true}`},
			{"/v1/orders/5?tags=a&tags=b%22&sizes=1", `{"id":"5","tags":["a","b\""],"sizes":[1]}`},
			{"/v1/orders/5?data=AAEC&any=x&named=7&COUNT=3", `{"id":"5","count":3,"data":"AAEC","any":"x","Named":7}`},
			{"/v1/orders/5?any=x&any=y", `{"id":"5","any":["x","y"]}`},
			{"/v1/orders/5?item.sku=s&item.n=2&labels.a=b&next.next.id=n", `{"id":"5","item":{"sku":"s","n":2},"labels":{"a":"b"},"next":{"next":{"id":"n"}}}`},
			{"/v1/orders/5?at=2026-01-02T03:04:05Z", `{"id":"5","at":"2026-01-02T03:04:05Z"}`},
		} {
			s.do(c, "GET", test.path, "").is(t, 200, test.want)
		}
		for query, says := range map[string]string{
			"color=red": `"color"`, "count=128": "int8", "count=": "int8", "count=1&count=2": "one value", "big=-1": "uint64", "paid=maybe": "true or false",
			"price=NaN": "not a number", "price=Inf": "not a number", "item=x": "behind a dot", "item.color=x": "no such field", "id.x=1": "no such field",
			"secret=x": "no such field", "Secret=x": "no such field", "at.wall=1": "no such field", "labels=x": "behind a dot", "item.sku=a&item.SKU=b": "twice",
			"next." + strings.Repeat("next.", 20) + "id=x": "too deep", "at=yesterday": "yesterday", "%zz": "escape", "data=!": "base64", "any=1&any.x=2": "twice",
		} {
			s.do(c, "GET", "/v1/orders/5?"+query, "").fails(t, 400, yodel.InvalidArgument, says)
		}
		for _, path := range []string{"/v1/orders/a%ff", "/v1/orders/5?any=%c3", "/v1/orders/5?tags=a&tags=%ff", "/v1/orders/5?%ff=1", "/v1/orders/5?labels.%ff=1"} {
			s.do(c, "GET", path, "").fails(t, 400, yodel.InvalidArgument, "not UTF-8")
		}
	})
}

func TestRoutesWithABody(t *testing.T) {
	s, c := newShop(t), client(t, true)
	s.post(c, "/v1/orders", `{"id":"1","count":2}`).is(t, 200, `{"id":"1","count":2}`)
	s.post(c, "/v1/orders?count=3", ` {"id":"1","count":2} `).is(t, 200, `{"id":"1","count":3}`)
	s.post(c, "/v1/orders?id=4", "").is(t, 200, `{"id":"4"}`)
	s.post(c, "/v1/orders?id=4", " { } ").is(t, 200, `{"id":"4"}`)
	s.post(c, "/v1/orders?item.n=4", `{"item":{"sku":"s","n":1}}`).is(t, 200, `{"item":{"sku":"s","n":4}}`)
	s.do(c, "PATCH", "/v1/orders/7", `{"id":"1","ID":"2","paid":false}`, "Content-Type", "application/json").is(t, 200, `{"id":"7","paid":false}`)
	s.do(c, "DELETE", "/v1/orders/7", "").is(t, 200, `{"id":"7"}`)
	s.post(c, "/v1/dynamic?a=1&b=x&b=y", `{"c":2}`).is(t, 200, `{"c":2,"a":"1","b":["x","y"]}`)
	packed, err := gzip.Compressor.Append(nil, []byte(`{"count":5}`))
	must(t, err)
	s.do(c, "PATCH", "/v1/orders/7", string(packed), "Content-Type", "application/json", "Content-Encoding", "gzip").is(t, 200, `{"id":"7","count":5}`)
	for _, body := range []string{`[1]`, `"x"`, `{"id":"1"`, `}`, `{`, `{"id":"}`, `{"count":1}{"count":2}`, `{"item":{"sku":"x"}`} {
		s.do(c, "PATCH", "/v1/orders/7", body, "Content-Type", "application/json").fails(t, 400, yodel.InvalidArgument, "shop.Orders.Put")
	}
}

// A shouted is a codec with the name of Protocol Buffers: JSON behind an exclamation mark.
type shouted struct{}

func (shouted) Name() string { return "protobuf" }
func (shouted) Append(dst []byte, v any) ([]byte, error) {
	return yodel.JSON.Append(append(dst, '!'), v)
}

func (shouted) Decode(src []byte, v any) error {
	if len(src) == 0 || src[0] != '!' {
		return errors.New("no exclamation mark")
	}
	return yodel.JSON.Decode(src[1:], v)
}

// A body that is the whole request may be in another codec, as OTLP over HTTP sends it.
func TestRoutesInOtherCodecs(t *testing.T) {
	s, c := newSite(t, &http.Options{Routes: []http.Route{
		{Pattern: "POST /v1/traces", Method: "Test.Echo"}, {Pattern: "POST /v1/{text}", Method: "Test.Echo"}, {Pattern: "POST /watch", Method: "Test.Watch"},
	}}, yodel.ServerOptions{Codecs: []yodel.Codec{shouted{}}}), client(t, false)
	const body = `!{"text":"a"}`
	for _, media := range []string{"application/x-protobuf", "application/protobuf", "application/proto"} {
		r := s.do(c, "POST", "/v1/traces", body, "Content-Type", media)
		if r.is(t, 200, body); r.Header.Get("Content-Type") != media {
			t.Errorf("%s: the reply has the content type %s", media, r.Header.Get("Content-Type"))
		}
		s.do(c, "POST", "/v1/traces", "{}", "Content-Type", media).fails(t, 400, yodel.InvalidArgument, "no exclamation mark")
		s.do(c, "POST", "/watch", body, "Content-Type", media, "Accept", "text/event-stream").fails(t, 501, yodel.Unimplemented, "feed")
		for _, path := range []string{"/v1/traces?text=b", "/v1/other"} {
			if r := s.do(c, "POST", path, body, "Content-Type", media); r.StatusCode != std.StatusUnsupportedMediaType {
				t.Errorf("%s to %s: got %d %s", media, path, r.StatusCode, r.body)
			}
		}
	}
	packed, err := gzip.Compressor.Append(nil, []byte(body))
	must(t, err)
	s.do(c, "POST", "/v1/traces", string(packed), "Content-Type", "application/x-protobuf", "Content-Encoding", "gzip").is(t, 200, body)
	s.post(c, "/v1/traces?text=b", "").is(t, 200, `{"text":"b"}`)
	for _, media := range []string{"application/", "application/other", "x-protobuf"} {
		if r := s.do(c, "POST", "/v1/traces", body, "Content-Type", media); r.StatusCode != std.StatusUnsupportedMediaType {
			t.Errorf("%s: got %d %s", media, r.StatusCode, r.body)
		}
	}
}

func TestRefusalsOfRoutes(t *testing.T) {
	s, c := newShop(t), client(t, false)
	for _, test := range []struct {
		method, path, contentType string
		status                    int
	}{
		{"GET", "/v1/changes/1", "", 405},                                     // it is not read-only
		{"POST", "/v1/orders?id=1", "", 415},                                  // a form of another site could send it
		{"POST", "/v1/orders?id=1", "text/plain", 415},                        // as above
		{"POST", "/v1/orders?id=1", "application/x-www-form-urlencoded", 415}, // as above
		{"PATCH", "/v1/orders/1", "text/plain", 415},                          // it has a body
		{"GET", "/v1/gone", "", 404},                                          // there is no such method
		{"PUT", "/v1/orders/1", "application/json", 405},                      // there is no such route
		{"POST", "/v1/values", "application/json", 501},                       // it takes several values
		{"GET", "/v1/watch/a", "", 501},                                       // it is a feed
	} {
		if r := s.do(c, test.method, test.path, "{}", "Content-Type", test.contentType); r.StatusCode != test.status {
			t.Errorf("%s %s with %q: got %d %s, want %d", test.method, test.path, test.contentType, r.StatusCode, r.body, test.status)
		}
	}
	s.post(c, "/shop.Orders/Put", `{"id":"own path"}`).is(t, 200, `{"id":"own path"}`)
	r := s.do(c, "GET", "/v1/watch/a%20b", "", "Accept", "text/event-stream")
	r.is(t, 200, "data: {\"text\":\"a\"}\n\ndata: {\"text\":\"b\"}\n\nevent: end\ndata: {\"metadata\":{\"Last\":[\"trailer\"]}}")
	for _, patterns := range [][]string{{"GET /x{"}, {"GET /{a}/b", "GET /c/{d}"}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q: New does not panic", patterns)
				}
			}()
			o := new(http.Options)
			for _, p := range patterns {
				o.Routes = append(o.Routes, http.Route{Pattern: p, Method: "a"})
			}
			http.New(o)
		}()
	}
}

// Whatever parameters come, the server does not panic, and what it accepts arrives in the field.
func FuzzRoute(f *testing.F) {
	f.Add("count", "5", "", "")
	f.Add("item.sku", "\"\\", "item.n", "7")
	f.Add("next.next.id", "\xff", "tags", "x")
	s := newShop(f)
	c := client(f, false)
	f.Fuzz(func(t *testing.T, name, value, other, another string) {
		if len(name)+len(value)+len(other)+len(another) > 2000 {
			return
		}
		query := url.Values{name: {value}, other: {another}}
		own := *s
		own.t = t
		r := own.do(c, "GET", "/v1/orders/x?"+query.Encode(), "")
		switch r.StatusCode {
		case std.StatusOK:
			var got order
			must(t, json.Unmarshal([]byte(r.body), &got))
			if got.ID != "x" {
				t.Errorf("%s: the order is %s", query.Encode(), r.body)
			}
			if name == "count" && other != name && fmt.Sprint(got.Count) != strings.TrimLeft(strings.TrimPrefix(value, "+"), "0") && got.Count > 0 {
				t.Errorf("%s: the order is %s", query.Encode(), r.body)
			}
		case std.StatusBadRequest:
		default:
			t.Errorf("%s: got %d %s", query.Encode(), r.StatusCode, r.body)
		}
	})
}
