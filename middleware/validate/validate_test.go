// SPDX-License-Identifier: Apache-2.0

package validate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	std "net/http"
	"slices"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/validate"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

type item struct {
	Name  string `json:"name"`
	Price int    `json:"price"`
}

func (i *item) Validate() error {
	if i.Price <= 0 {
		return validate.Violations{{Field: "price", Rule: "positive", Message: "must be positive"}}
	}
	return nil
}

type order struct {
	Customer string `json:"customer"`
	Items    []item `json:"items"`
}

// Validate has a receiver that is no pointer.
func (o order) Validate() error {
	var v validate.Violations
	if o.Customer == "" {
		v.Add("customer", "required", "is required")
	}
	for i := range o.Items {
		v.Within(fmt.Sprintf("items[%d]", i), o.Items[i].Validate())
	}
	return v.Err()
}

// A note has an error that is not of this package.
type note string

func (n *note) Validate() error {
	switch *n {
	case "plain":
		return errors.New("the note is bad")
	case "coded":
		return yodel.Errorf(yodel.FailedPrecondition, "the notes are read-only")
	case "relayed":
		return &yodel.Error{Code: yodel.NotFound, Details: []yodel.Detail{{Type: "google.rpc.BadRequest", Value: []byte("\x0a\x08\x0a\x01a\x12\x01m\x1a\x00")}}}
	case "none":
		return validate.Violations(nil) // not nil, and without violations
	}
	return nil
}

const (
	place  yodel.Method[order, item] = "Shop.Place"
	list   yodel.Feed[order, item]   = "Shop.List"
	upload yodel.Upload[item, item]  = "Shop.Upload"
	trade  yodel.Duplex[item, item]  = "Shop.Trade"
)

// reply is a reply that breaks a rule if it is for a customer "bad".
func replyTo(customer string) *item {
	if customer == "bad" {
		return &item{Name: "free"}
	}
	return &item{Name: "cheap", Price: 1}
}

// newServer returns a server with all kinds of methods. Seen gets the errors that methods receive
// in place of messages.
func newServer(t *testing.T, o *validate.Options, seen chan<- error) *yodeltest.Server {
	t.Helper()
	s := yodeltest.NewServer(t, &yodel.ServerOptions{
		Middleware: []yodel.Middleware{validate.With(o)},
	})
	place.Handle(s.Server, func(_ context.Context, in *order) (*item, error) { return replyTo(in.Customer), nil })
	list.Handle(s.Server, func(_ context.Context, in *order, send yodel.Send[item]) error {
		return errors.Join(send(replyTo("")), send(replyTo(in.Customer)))
	})
	upload.Handle(s.Server, func(_ context.Context, recv yodel.Recv[item]) (*item, error) {
		last := new(item)
		for in, err := range recv {
			if err != nil {
				seen <- err
				return nil, err
			}
			last = in
		}
		return replyTo(last.Name), nil
	})
	trade.Handle(s.Server, func(_ context.Context, recv yodel.Recv[item], send yodel.Send[item]) error {
		for {
			in, err := recv.Next()
			if err == io.EOF {
				return nil
			}
			if err != nil { // the method may skip it
				seen <- err
				continue
			}
			if err := send(in); err != nil {
				return err
			}
		}
	})
	for name, f := range map[string]any{
		"Shop.Note": func(n note) string { return string(n) },
		"Shop.Two": func(_ context.Context, o order, i *item) (item, int, error) {
			return *replyTo(o.Customer), i.Price, nil
		},
	} {
		if err := s.Handle(name, f); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// wants holds an error to a code, an ID and violations.
func wants(t *testing.T, err error, code yodel.Code, id string, want ...string) {
	t.Helper()
	var got []string
	for _, v := range validate.Of(err) {
		got = append(got, v.String())
	}
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok || e.Code != code || e.ID != id || !slices.Equal(got, want) || !strings.Contains(e.Message, strings.Join(want, "; ")) {
		t.Errorf("got %v with %q, want %v %s with %q", err, got, code, id, want)
	}
}

const bad = "price: must be positive (positive)"

func TestRequestsAreValidatedBeforeTheMethod(t *testing.T) {
	c := yodeltest.NewClient(t, nil, newServer(t, nil, nil))
	ctx := t.Context()
	broken := &order{Items: []item{{Price: 1}, {}}}
	all := []string{"customer: is required (required)", "items[1]." + bad}
	_, err := place.Call(ctx, c, broken)
	wants(t, err, yodel.InvalidArgument, "YDL3701", all...)
	if !yodel.NotProcessed(err) {
		t.Errorf("the error does not say that the method was not executed: %v", err)
	}
	_, err = list.Call(ctx, c, broken).Next()
	wants(t, err, yodel.InvalidArgument, "YDL3701", all...)
	if out, err := place.Call(ctx, c, &order{Customer: "a"}); err != nil || out.Price != 1 {
		t.Errorf("a good request: %v, %v", out, err)
	}
}

func TestEachOfSeveralArgumentsIsValidated(t *testing.T) {
	c := yodeltest.NewClient(t, nil, newServer(t, nil, nil))
	var out item
	var price int
	err := c.Call(t.Context(), "Shop.Two", yodel.Values{order{}, item{}}, yodel.Values{&out, &price})
	wants(t, err, yodel.InvalidArgument, "YDL3701", "[0].customer: is required (required)", "[1]."+bad)
	if err := c.Call(t.Context(), "Shop.Two", yodel.Values{order{Customer: "a"}, item{Price: 3}}, yodel.Values{&out, &price}); err != nil || price != 3 {
		t.Errorf("good arguments: %d, %v", price, err)
	}
}

func TestOtherErrorsAreOneViolation(t *testing.T) {
	c := yodeltest.NewClient(t, nil, newServer(t, nil, nil))
	try := func(text string) error {
		return c.Call(t.Context(), "Shop.Note", yodel.Values{text}, yodel.Values{new(string)})
	}
	wants(t, try("plain"), yodel.InvalidArgument, "YDL3701", violationOf("[0]", "the note is bad"))
	wants(t, try("relayed"), yodel.InvalidArgument, "YDL3701", violationOf("[0].a", "m"))
	err := try("coded")
	wants(t, err, yodel.FailedPrecondition, "")
	if !yodel.NotProcessed(err) || !strings.Contains(err.Error(), "the notes are read-only") {
		t.Errorf("a rule that has chosen its code: %v", err)
	}
	for _, text := range []string{"good", "none"} {
		if err := try(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func violationOf(field, message string) string {
	return validate.Violation{Field: field, Message: message}.String()
}

// The third message of an upload breaks a rule. The method gets the error in its place.
func TestEachMessageOfAStreamIsValidated(t *testing.T) {
	seen := make(chan error, 10)
	c := yodeltest.NewClient(t, nil, newServer(t, nil, seen))
	_, err := upload.Call(t.Context(), c, func(send yodel.Send[item]) error {
		return errors.Join(send(&item{Price: 1}), send(&item{Price: 2}), send(&item{}))
	})
	wants(t, err, yodel.InvalidArgument, "YDL3701", bad)
	wants(t, <-seen, yodel.InvalidArgument, "YDL3701", bad)
	if yodel.NotProcessed(err) {
		t.Errorf("the method had begun, and the error says that it was not executed: %v", err)
	}
	err = trade.Call(t.Context(), c, func(recv yodel.Recv[item], send yodel.Send[item]) error {
		if err := errors.Join(send(&item{Price: 1}), send(&item{}), send(&item{Price: 3}), send.End()); err != nil {
			return err
		}
		got := 0
		for out, err := range recv {
			if err != nil {
				return err
			}
			got = 10*got + out.Price
		}
		if got != 13 {
			t.Errorf("the method passed on %d, want the first and the third message", got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	wants(t, <-seen, yodel.InvalidArgument, "YDL3701", bad)
}

func TestAClientValidatesBeforeItSends(t *testing.T) {
	sent := 0
	c := yodeltest.NewClient(t, &yodel.ClientOptions{Middleware: []yodel.Middleware{validate.Messages(), func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			sent++
			return next(ctx, call)
		}
	}}}, newServer(t, nil, make(chan error, 1)))
	for _, args := range []any{order{}, &order{}} {
		wants(t, c.Call(t.Context(), string(place), args, new(item)), yodel.InvalidArgument, "YDL3701", "customer: is required (required)")
	}
	wants(t, place.Notify(t.Context(), c, &order{}), yodel.InvalidArgument, "YDL3701", "customer: is required (required)")
	_, err := place.Go(t.Context(), c, &order{}).Get()
	wants(t, err, yodel.InvalidArgument, "YDL3701", "customer: is required (required)")
	if sent != 0 {
		t.Errorf("%d calls passed the middleware", sent)
	}
	_, err = upload.Call(t.Context(), c, func(send yodel.Send[item]) error {
		if err := send(&item{Price: 1}); err != nil {
			t.Error(err)
		}
		return send(&item{})
	})
	wants(t, err, yodel.InvalidArgument, "YDL3701", bad)
}

func TestRepliesAreValidatedIfTheOptionsSaySo(t *testing.T) {
	check := func(t *testing.T, c *yodel.Client, want bool) {
		t.Helper()
		_, unary := place.Call(t.Context(), c, &order{Customer: "bad"})
		_, ofUpload := upload.Call(t.Context(), c, func(send yodel.Send[item]) error { return send(&item{Name: "bad", Price: 1}) })
		var several error
		if want {
			several = c.Call(t.Context(), "Shop.Two", yodel.Values{order{Customer: "bad"}, item{Price: 3}}, yodel.Values{new(item), new(int)})
			wants(t, several, yodel.Internal, "YDL3702", "[0]."+bad)
		}
		n := 0
		var feed error
		for _, err := range list.Call(t.Context(), c, &order{Customer: "bad"}) {
			if feed = err; err == nil {
				n++
			}
		}
		for _, err := range []error{unary, ofUpload, feed} {
			if want {
				wants(t, err, yodel.Internal, "YDL3702", bad)
			} else if err != nil {
				t.Error(err)
			}
		}
		if want && n != 1 || !want && n != 2 {
			t.Errorf("%d messages of the feed arrived", n)
		}
	}
	replies := &validate.Options{Replies: true}
	t.Run("no", func(t *testing.T) { check(t, yodeltest.NewClient(t, nil, newServer(t, nil, nil)), false) })
	t.Run("server", func(t *testing.T) { check(t, yodeltest.NewClient(t, nil, newServer(t, replies, nil)), true) })
	t.Run("client", func(t *testing.T) {
		o := &yodel.ClientOptions{Middleware: []yodel.Middleware{validate.With(replies)}}
		check(t, yodeltest.NewClient(t, o, newServer(t, nil, nil)), true)
	})
}

// Rules are called beside Validate, and may return an error of yodel with violations.
func TestRulesAddViolations(t *testing.T) {
	rule := func(message any) error {
		if o, ok := message.(*order); ok && len(o.Items) == 0 {
			return validate.Violations{{Field: "items", Rule: "required", Message: "is empty"}}
		}
		return nil
	}
	c := yodeltest.NewClient(t, nil, newServer(t, &validate.Options{Rules: []func(any) error{rule}}, nil))
	_, err := place.Call(t.Context(), c, &order{})
	wants(t, err, yodel.InvalidArgument, "YDL3701", "customer: is required (required)", "items: is empty (required)")
}

// More violations than the details of an error have room for do not lose those that fit.
func TestManyViolationsAreCut(t *testing.T) {
	for name, item := range map[string]validate.Violation{
		"many": {Field: "f", Rule: "r", Message: "m"},
		"long": {Field: "f", Rule: "r", Message: strings.Repeat("ü", 10_000)},
	} {
		rule := func(any) error { return validate.Violations(slices.Repeat([]validate.Violation{item}, 1000)) }
		c := yodeltest.NewClient(t, nil, newServer(t, &validate.Options{Rules: []func(any) error{rule}}, nil))
		_, err := place.Call(t.Context(), c, &order{Customer: "a"})
		if n := len(validate.Of(err)); n < 5 || n > 100 || yodel.CodeOf(err) != yodel.InvalidArgument {
			t.Errorf("%s: %d violations arrive with %v", name, n, yodel.CodeOf(err))
		}
	}
}

// A method of HandleCall decodes its request itself.
func TestRequestsOfBridgesAreValidated(t *testing.T) {
	s := newServer(t, nil, nil)
	if err := s.HandleCall("Shop.Bridge", func(_ context.Context, call *yodel.Call) error { return call.DecodeInto(new(order)) }); err != nil {
		t.Fatal(err)
	}
	err := yodeltest.NewClient(t, nil, s).Call(t.Context(), "Shop.Bridge", order{}, nil)
	wants(t, err, yodel.InvalidArgument, "YDL3701", "customer: is required (required)")
}

// Programs that know only HTTP and JSON find the field and the rule in the answer.
func TestJSONHasTheViolations(t *testing.T) {
	s := newServer(t, nil, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := &std.Server{Handler: http.New(&http.Options{JSONRPC: "/rpc"}).Handler(s.Server)}
	ended := make(chan error, 1)
	go func() { ended <- web.Serve(l) }()
	t.Cleanup(func() { _ = web.Close(); <-ended })
	client := &std.Client{Transport: &std.Transport{DisableKeepAlives: true}}
	type body struct {
		Code       string
		Violations []validate.Violation
	}
	want := []validate.Violation{{"customer", "required", "is required"}, {"items[0].price", "positive", "must be positive"}}
	for _, test := range []struct {
		path, request string
		body          func(answer []byte) (got body)
	}{
		{"/Shop.Place", `{"items":[{"name":"pear"}]}`, func(answer []byte) (got body) {
			_ = json.Unmarshal(answer, &got) // it is compared below
			return got
		}},
		{"/rpc", `{"jsonrpc":"2.0","id":1,"method":"Shop.Place","params":[{"items":[{"name":"pear"}]}]}`, func(answer []byte) (got body) {
			var reply struct{ Error struct{ Data body } }
			_ = json.Unmarshal(answer, &reply) // it is compared below
			return reply.Error.Data
		}},
	} {
		r, err := std.NewRequestWithContext(t.Context(), std.MethodPost, "http://"+l.Addr().String()+test.path, strings.NewReader(test.request))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		reply, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(reply.Body)
		_ = reply.Body.Close() // it was read
		if got := test.body(answer); err != nil || got.Code != "invalid_argument" || !slices.Equal(got.Violations, want) {
			t.Errorf("%s: got %s, %v, want the violations %v", test.path, answer, err, want)
		}
	}
}
