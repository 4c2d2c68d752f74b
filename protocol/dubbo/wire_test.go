// SPDX-License-Identifier: Apache-2.0

package dubbo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	codec "github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/hessian"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
)

// calling returns a client that calls providers of Dubbo.
func calling(t testing.TB, addr string, o *WireOptions, co yodel.ClientOptions) *yodel.Client {
	t.Helper()
	co.Codec = codec.Codec
	co.Wires = []yodel.Wire{Wire(co.Codec, o)}
	c := yodel.NewClient(discovery.Static("dubbo://"+addr), &co)
	t.Cleanup(c.Close)
	return c
}

func TestWire(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := calling(t, s.addr, nil, yodel.ClientOptions{})
	var sum int32
	if err := c.Call(t.Context(), "com.acme.Arith.add", yodel.Values{int32(3), int32(4)}, yodel.Values{&sum}); err != nil || sum != 7 {
		t.Errorf("add: got %d, %v", sum, err)
	}
	var p Point
	if err := c.Call(t.Context(), "com.acme.Arith.move", &Point{1, 2}, &p); err != nil || p != (Point{2, 1}) {
		t.Errorf("move: got %v, %v", p, err)
	}
	var same bool
	one := &Point{1, 2}
	if err := c.Call(t.Context(), "com.acme.Arith.same", yodel.Values{one, one}, yodel.Values{&same}); err != nil || !same {
		t.Errorf("same: got %v, %v", same, err)
	}
	if err := c.Call(t.Context(), "com.acme.Arith.void", &struct{}{}, &struct{}{}); err != nil {
		t.Errorf("void: got %v", err)
	}
	if err := c.Call(t.Context(), "com.acme.Arith.none", yodel.Values{}, yodel.Values{&p}); err != nil || p != (Point{}) {
		t.Errorf("none: got %v, %v", p, err)
	}
	if err := c.Notify(t.Context(), "com.acme.Arith.wait", new("x")); err != nil || <-s.arith.began != "x" {
		t.Errorf("a one-way call: %v", err)
	}
	close(s.arith.release)
	types := calling(t, s.addr, &WireOptions{Parameters: map[string]string{"com.acme.Arith.move": "Lcom/acme/Point;"}}, yodel.ClientOptions{})
	var e yodel.Encoded
	if err := types.Call(t.Context(), "com.acme.Arith.move", &Point{1, 2}, &e); err != nil {
		t.Errorf("move: %v", err)
	}
	if err := types.Call(t.Context(), "com.acme.Arith.move", &e, &p); err != nil || p != (Point{1, 2}) {
		t.Errorf("move of an encoded message: got %v, %v", p, err)
	}
	if err := c.Call(t.Context(), "com.acme.Arith.add", yodel.Values{int32(1), int32(2)}, &e); err != nil || !e.Several {
		t.Errorf("add: got %x, %v", e.Body, err)
	}
}

// Everything that describes a call arrives.
func TestMetadata(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := calling(t, s.addr, nil, yodel.ClientOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got := make(map[string]string)
	call := &yodel.Call{
		Method: "com.acme.Arith.describe", Args: &Point{}, Reply: &got, Metadata: yodel.Metadata{"a": "1", "version": "2.0.0"},
		Tenant: "acme", Key: "k", IdempotencyKey: "once", Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 x=y",
	}
	if err := c.Do(ctx, call); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"tenant": "acme", "key": "k", "idempotency": "once", "trace": call.Trace, "left": "30s", "metadata.a": "1", "metadata.version": "2.0.0",
		"metadata.idempotency-key": "once", "metadata.traceparent": call.Trace[:55], "metadata.tracestate": "x=y",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if !maps.Equal(call.Trailer, yodel.Metadata{"header": "1", "trailer": "2"}) {
		t.Errorf("got the trailer %v", call.Trailer)
	}
}

// A caller may write keys as in HTTP, in any case. Otherwise its call would be executed twice.
func TestKeysInAnyCase(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := calling(t, s.addr, nil, yodel.ClientOptions{})
	got := make(map[string]string)
	call := &yodel.Call{
		Method: "com.acme.Arith.describe", Args: &Point{}, Reply: &got,
		Metadata: yodel.Metadata{"Idempotency-Key": "once", "Traceparent": "00-1-2-01", "TraceState": "a=b"},
	}
	if err := c.Do(t.Context(), call); err != nil || got["idempotency"] != "once" || got["trace"] != "00-1-2-01 a=b" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestErrorsOfWire(t *testing.T) {
	s := serve(t, yodel.ServerOptions{})
	c := calling(t, s.addr, &WireOptions{Parameters: map[string]string{"com.acme.Arith.typed": "II"}}, yodel.ClientOptions{Limits: yodel.Limits{MaxMessage: 100_000}})
	type unnamed struct{ X int }
	for name, test := range map[string]struct {
		call *yodel.Call
		code yodel.Code
		says string
		sent bool // it may have been executed
	}{
		"a code":          {&yodel.Call{Method: "refuse", Args: &Point{}, Reply: new(Point)}, yodel.NotFound, "no such point", true},
		"a text":          {&yodel.Call{Method: "fail", Args: new("oops"), Reply: new(Point)}, yodel.Unknown, "oops", true},
		"no method":       {&yodel.Call{Method: "nope", Args: &Point{}, Reply: new(Point)}, yodel.Unimplemented, "YDL2002", false},
		"another type":    {&yodel.Call{Method: "move", Args: new("x"), Reply: new(Point)}, yodel.InvalidArgument, "does not fit", false},
		"another result":  {&yodel.Call{Method: "move", Args: &Point{}, Reply: new(string)}, yodel.Internal, "does not fit", true},
		"a channel":       {&yodel.Call{Method: "move", Args: make(chan int)}, yodel.InvalidArgument, "cannot be encoded", false},
		"a value":         {&yodel.Call{Method: "add", Args: yodel.Values{int32(1), make(chan int)}, Reply: yodel.Values{new(int32)}}, yodel.InvalidArgument, "value 2", false},
		"no class":        {&yodel.Call{Method: "move", Args: &unnamed{}}, yodel.InvalidArgument, "no method JavaClassName: add it, or name the parameters in dubbo.WireOptions.Parameters", false},
		"a nil":           {&yodel.Call{Method: "add", Args: yodel.Values{nil, nil}}, yodel.InvalidArgument, "a nil has no type", false},
		"a number":        {&yodel.Call{Method: "typed", Args: yodel.Values{int32(1)}}, yodel.InvalidArgument, "it has 1 arguments, and the method has 2", false},
		"several results": {&yodel.Call{Method: "divMod", Args: yodel.Values{int32(1), int32(1)}, Reply: yodel.Values{new(int32), new(int32)}}, yodel.Unimplemented, "several results", false},
		"an attachment":   {&yodel.Call{Method: "move", Args: &Point{}, Attachment: []byte("x")}, yodel.Unimplemented, "attachments", false},
		"a reserved key":  {&yodel.Call{Method: "move", Args: &Point{}, Metadata: yodel.Metadata{"timeout": "1"}}, yodel.InvalidArgument, "reserved in Dubbo", false},
		"much metadata":   {&yodel.Call{Method: "move", Args: &Point{}, Metadata: yodel.Metadata{"x": strings.Repeat("x", 50_000)}}, yodel.ResourceExhausted, "limit", false},
		"another codec":   {&yodel.Call{Method: "move", Args: &yodel.Encoded{}, Codec: yodel.JSON}, yodel.InvalidArgument, "encoded already", false},
		"no types":        {&yodel.Call{Method: "move", Args: &yodel.Encoded{Body: []byte("N")}}, yodel.InvalidArgument, "WireOptions.Parameters", false},
		"too large":       {&yodel.Call{Method: "fail", Args: new(strings.Repeat("x", 200_000))}, yodel.ResourceExhausted, "limit", false},
		"an ordered call": {&yodel.Call{Method: "move", Args: &Point{}, Ordered: true}, yodel.FailedPrecondition, "no order", false},
	} {
		test.call.Method = "com.acme.Arith." + test.call.Method
		err := c.Do(t.Context(), test.call)
		if yodel.CodeOf(err) != test.code || !strings.Contains(err.Error(), test.says) || yodel.NotProcessed(err) == test.sent {
			t.Errorf("%s: got %v (not processed: %t), want %v with %q", name, err, yodel.NotProcessed(err), test.code, test.says)
		}
		var p Point
		if err := c.Call(t.Context(), "com.acme.Arith.move", &Point{1, 2}, &p); err != nil || p != (Point{2, 1}) {
			t.Errorf("%s, the next call: got %v, %v", name, p, err)
		}
	}
	var e *yodel.Error
	if err := c.Call(t.Context(), "com.acme.Arith.refuse", &Point{}, new(Point)); !errors.As(err, &e) || e.RetryAfter != 3*time.Second || e.Message != "no such point" {
		t.Errorf("got %+v", e)
	}
	for _, err := range yodel.Feed[Point, Point]("com.acme.Arith.count").Call(t.Context(), c, &Point{}) {
		if yodel.CodeOf(err) != yodel.Unimplemented || !strings.Contains(err.Error(), "no streams") {
			t.Errorf("a stream: got %v", err)
		}
	}
}

// answering starts a server that sends what answer returns for the first request of each
// connection. It then reads until the client closes the connection.
func answering(t *testing.T, answer func(h head) []byte) (addr string) {
	t.Helper()
	return testserve.Accept(t, "", func(conn net.Conn) {
		frames := frameReader{bufio.NewReaderSize(conn, 32<<10)}
		for {
			h, err := frames.head()
			if err != nil || frames.skip(h.body) != nil {
				return
			}
			_, _ = conn.Write(answer(h)) // the client may have left
		}
	}).Addr
}

// What providers of Java answer, and what breaks the protocol.
func TestAnswers(t *testing.T) {
	reply := func(flags, status byte, body string) func(head) []byte {
		return func(h head) []byte {
			answer := head{flags: flags, status: status, number: h.number}
			return append(answer.append(nil, len(body)), body...)
		}
	}
	text := func(s string) string { return string(hessian.AppendText(nil, s)) }
	thrown := func(class, message string) string {
		return "\x93" + string(hessian.AppendObject(nil, class, [2]string{"detailMessage", message})) + "HZ"
	}
	for name, test := range map[string]struct {
		answer func(head) []byte
		code   yodel.Code
		says   string
	}{
		"an exception":          {reply(2, statusOK, thrown("java.lang.IllegalStateException", "bad")), yodel.Unknown, "java.lang.IllegalStateException: bad"},
		"an exception, no text": {reply(2, statusOK, thrown("a.B", "")), yodel.Unknown, "a.B"},
		"a RuntimeException":    {reply(2, statusOK, thrown(exceptionClass, "not_found: x")), yodel.Unknown, "not_found: x"},
		"a text as exception":   {reply(2, statusOK, "\x90"+text("oops")), yodel.Unknown, "oops"},
		"a generic exception": {reply(2, statusOK, "\x90"+string(hessian.AppendObject(nil, "org.apache.dubbo.rpc.service.GenericException",
			[2]string{"exceptionClass", "a.C"}, [2]string{"exceptionMessage", "why"}))), yodel.Unknown, "a.C: why"},
		"server timeout":        {reply(2, statusServerTimeout, text("late")), yodel.DeadlineExceeded, "late"},
		"bad request":           {reply(2, statusBadRequest, text("bad")), yodel.InvalidArgument, "bad"},
		"exhausted":             {reply(2, statusExhausted, text("full")), yodel.ResourceExhausted, "full"},
		"service error":         {reply(2, 70, text("oops")), yodel.Unavailable, "oops"},
		"no text":               {reply(2, 70, "N"), yodel.Unavailable, "status 70"},
		"no error":              {reply(2, 70, "\x90"), yodel.Internal, "a string was expected"},
		"no kind":               {reply(2, statusOK, "\x96"), yodel.Internal, "the kind 6"},
		"cut":                   {reply(2, statusOK, "\x91"), yodel.Internal, "cut off"},
		"no attachments":        {reply(2, statusOK, "\x95"), yodel.Internal, "cut off"},
		"large attachments":     {reply(2, statusOK, "\x95"+string(hessian.AppendPairs(nil, [2]string{"x", strings.Repeat("x", 40_000)}))), yodel.ResourceExhausted, "YDL2203"},
		"another serialization": {reply(23, statusOK, "\x92"), yodel.Unavailable, "serialization 23"},
		"too large":             {reply(2, statusOK, "\x91"+string(hessian.AppendText(nil, strings.Repeat("x", 60_000)))), yodel.ResourceExhausted, "YDL2202"},
		"a request":             {reply(0x82, 0, "\x92"), yodel.Unavailable, "sent a request"},
		"a large event":         {reply(0xa2, 0, strings.Repeat("x", 5000)), yodel.Unavailable, "event is too large"},
		"garbage":               {func(head) []byte { return []byte("HTTP/1.1 400 Bad Request\r\n\r\n") }, yodel.Unavailable, "the server does not speak dubbo"},
	} {
		t.Run(name, func(t *testing.T) {
			c := calling(t, answering(t, test.answer), nil, yodel.ClientOptions{Limits: yodel.Limits{MaxMessage: 50_000}})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := c.Do(ctx, &yodel.Call{Method: "com.acme.Arith.move", Args: &Point{}, Reply: new(Point)})
			if yodel.CodeOf(err) != test.code || !strings.Contains(fmt.Sprintf("%+v", err), test.says) {
				t.Errorf("got %+v, want %v with %q", err, test.code, test.says)
			}
			e, ok := errors.AsType[*yodel.Error](err)
			if strings.HasPrefix(name, "an exception") && (!ok || len(e.Details) != 1 || e.Details[0].Type != "dubbo.exception" || len(e.Details[0].Value) == 0) {
				t.Errorf("got the details %v", e)
			}
		})
	}
}

// A provider that says that it takes no further requests gets none, and answers those in flight.
func TestReadOnly(t *testing.T) {
	var mu sync.Mutex
	conns := make(map[uint64]int) // how many requests had a number
	addr := answering(t, func(h head) []byte {
		mu.Lock()
		defer mu.Unlock()
		conns[h.number]++
		e, reply := head{flags: request | event | hessian2}, head{flags: hessian2, status: statusOK, number: h.number}
		return append(reply.append(append(e.append(nil, 2), readOnly...), 1), 0x92)
	})
	c := calling(t, addr, nil, yodel.ClientOptions{})
	for range 3 {
		if err := c.Call(t.Context(), "com.acme.Arith.move", &Point{}, new(Point)); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if conns[1] != 3 {
		t.Errorf("got the numbers %v, want that of a new connection for each call", conns)
	}
}

// A client answers the heartbeats of a provider, and sends its own.
func TestHeartbeatsOfWire(t *testing.T) {
	for _, number := range []uint64{0, 77} {
		testHeartbeats(t, number)
	}
}

// testHeartbeats tests the heartbeats with a provider whose own one has this number.
func testHeartbeats(t *testing.T, number uint64) {
	t.Helper()
	beats := make(chan head, 100)
	addr := answering(t, func(h head) []byte {
		if h.is(event) {
			beats <- h
			return nil
		}
		beat := head{flags: request | twoWay | event | hessian2, number: number}
		reply := head{flags: hessian2, status: statusOK, number: h.number}
		return append(reply.append(append(beat.append(nil, 1), 'N'), 1), 0x92)
	})
	c := calling(t, addr, nil, yodel.ClientOptions{Limits: yodel.Limits{KeepAlive: 50 * time.Millisecond}})
	if err := c.Call(t.Context(), "com.acme.Arith.move", &Point{}, new(Point)); err != nil {
		t.Fatal(err)
	}
	if h := <-beats; h.is(request) || h.number != number || h.status != statusOK {
		t.Errorf("got %+v, want the answer to the heartbeat", h)
	}
	if h := <-beats; !h.is(request) || !h.is(twoWay) {
		t.Errorf("got %+v, want a heartbeat", h)
	}
	for c.Stats().Endpoints[0].Conns != nil { // the server answers none
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the connection does not end")
		}
	}
}

func TestWireRefusesParameters(t *testing.T) {
	defer func() {
		if r := recover(); r == nil {
			t.Error("Wire takes types that are none")
		}
	}()
	Wire(codec.Codec, &WireOptions{Parameters: map[string]string{"a.b": "java.lang.String"}})
}

func TestTypes(t *testing.T) {
	for want, v := range map[string]any{
		"I": int32(0), "J": 0, "S": int16(0), "B": int8(0), "Z": false, "F": float32(0), "D": 0.0, "Ljava/lang/Long;": new(int64), "Ljava/lang/Boolean;": new(bool),
		"Ljava/lang/String;": "", "[B": []byte{}, "Ljava/util/List;": []string{}, "Ljava/util/Map;": map[string]int{}, "Ljava/util/Date;": time.Time{},
		"Lcom/acme/Point;": &Point{},
	} {
		if got, err := typeOf(reflect.TypeOf(v)); err != nil || got != want {
			t.Errorf("%T: got %q, %v, want %q", v, got, err, want)
		}
	}
	if all := []string{"a", "b.c", "b.c/d"}; slices.ContainsFunc(all, func(name string) bool {
		service, method := split(name)
		return strings.Trim(service+"."+method, ".") != strings.ReplaceAll(name, "/", ".")
	}) {
		t.Errorf("split does not split %v", all)
	}
}

// A Wire without its codec is a mistake of the program, not a lost connection.
func TestWireWithoutCodecIsRefused(t *testing.T) {
	for _, codec := range []yodel.Codec{nil, yodel.JSON} {
		func() {
			defer func() {
				if got, want := fmt.Sprint(recover()), `dubbo: Wire needs the codec "hessian2"`; got != want {
					t.Errorf("it panics with %s", got)
				}
			}()
			Wire(codec, nil)
		}()
	}
}
