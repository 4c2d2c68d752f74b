// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
	"github.com/yodel-rpc/yodel/middleware/once"
)

type Point struct {
	X, Y float64
	Name string
	Tags []string
}

// Shapes has methods with several arguments or results, which travel as Values.
type Shapes struct{}

func (Shapes) None() {}

func (Shapes) Fail() error { return yodel.Errorf(yodel.Aborted, "failed") }

func (Shapes) Only(ctx context.Context) (bool, error) { return yodel.CallFrom(ctx) != nil, nil }

func (Shapes) Greet(name string) string { return "hello " + name }

func (Shapes) Swap(_ context.Context, a, b string) (string, string) { return b, a }

func (Shapes) Sum(numbers []int64, scale float64) (float64, int, error) {
	var sum int64
	for _, n := range numbers {
		sum += n
	}
	return float64(sum) * scale, len(numbers), nil
}

func (Shapes) Mix(b bool, i8 int8, u64 uint64, f float32, r rune, raw []byte, m map[string]int) (bool, int8, uint64, float32, rune, []byte, map[string]int) {
	return !b, -i8, u64, -f, r + 1, append(raw, 0), m
}

func (Shapes) Move(p Point, by *Point, all []Point) (Point, []Point, error) {
	p.X, p.Y = p.X+by.X, p.Y+by.Y
	return p, append(all, p), nil
}

func TestSeveralValuesGoInAndOut(t *testing.T) {
	s := newServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{gob.Codec}})
	must(t, s.Register(Shapes{}))
	must(t, s.Register(Shapes{}, "None")) // only by name, because it has neither a context, a result nor an error
	addr := serve(t, s)
	p := Point{1, 2, "p", []string{"a", "b"}}
	q := Point{X: 10, Y: 20}
	for _, codec := range []yodel.Codec{yodel.JSON, gob.Codec} {
		c := newClient(t, &yodel.ClientOptions{Codec: codec}, addr)
		for _, test := range []struct {
			method    string
			in, wants yodel.Values
		}{
			{"None", nil, nil},
			{"None", yodel.Values{}, yodel.Values{}},
			{"Only", yodel.Values{}, yodel.Values{true}},
			{"Greet", yodel.Values{"you"}, yodel.Values{"hello you"}},
			{"Swap", yodel.Values{"a", "b"}, yodel.Values{"b", "a"}},
			{"Sum", yodel.Values{[]int64{1 << 40, 2}, 0.5}, yodel.Values{float64(1<<39 + 1), 2}},
			{"Sum", yodel.Values{[]int64{}, 0.5}, yodel.Values{0.0, 0}},
			{"Mix", yodel.Values{true, int8(-128 + 1), uint64(math.MaxUint64), float32(1.5), 'ö', []byte{1, 2}, map[string]int{"a": 1}},
				yodel.Values{false, int8(127), uint64(math.MaxUint64), float32(-1.5), 'ö' + 1, []byte{1, 2, 0}, map[string]int{"a": 1}}},
			{"Move", yodel.Values{p, &q, []Point{q}}, yodel.Values{Point{11, 22, "p", p.Tags}, []Point{q, {11, 22, "p", p.Tags}}}},
		} {
			if err := checkValues(t, c, "Shapes."+test.method, test.in, test.wants); err != nil {
				t.Errorf("%s %s: %v", codec.Name(), test.method, err)
			}
		}
		var quotient, remainder int
		e := wantError(t, c.Call(t.Context(), "Arith.DivMod", yodel.Values{17, 0}, yodel.Values{&quotient, &remainder}), yodel.InvalidArgument, "")
		if e.Message != "division by zero" {
			t.Errorf("got %v", e)
		}
		wantError(t, c.Call(t.Context(), "Shapes.Fail", yodel.Values{}, nil), yodel.Aborted, "")
		must(t, c.Call(t.Context(), "Shapes.Swap", yodel.Values{"a", "b"}, nil)) // nobody wants the results
	}
}

func checkValues(t *testing.T, c *yodel.Client, method string, in, wants yodel.Values) error {
	t.Helper()
	out := make(yodel.Values, len(wants))
	for i, want := range wants {
		out[i] = reflect.New(reflect.TypeOf(want)).Interface()
	}
	if err := c.Call(t.Context(), method, in, out); err != nil {
		return err
	}
	for i, want := range wants {
		if got := reflect.ValueOf(out[i]).Elem().Interface(); !reflect.DeepEqual(got, want) {
			return fmt.Errorf("result %d: got %#v, want %#v", i+1, got, want)
		}
	}
	return nil
}

func TestValuesThatDoNotFitAreExplained(t *testing.T) {
	s := newServer(t, nil)
	must(t, s.Register(Shapes{}))
	executed := false
	handle(t, s, "Take", func(int, string) (int, error) { executed = true; return 0, nil })
	c := connect(t, s, nil)
	var n, m int
	for _, test := range []struct {
		name    string
		method  string
		in, out any
		id      string
		says    string
	}{
		{"too few", "Take", yodel.Values{1}, yodel.Values{&n}, "YDL2101", "1 values came, 2 are expected"},
		{"too many", "Take", yodel.Values{1, "a", 2}, yodel.Values{&n}, "YDL2101", "3 values came, 2 are expected"},
		{"wrong type", "Take", yodel.Values{1, 2}, yodel.Values{&n}, "YDL2101", "(int, string): value 2: json: cannot unmarshal number"},
		{"one message for a method of values", "Take", &Args{}, nil, "YDL2005", "(int, string) to (int): give yodel.Values"},
		{"values for a method of one message", "Arith.Mul", yodel.Values{1, 2}, nil, "YDL2005", "yodel_test.Args to yodel_test.Reply: give one message"},
		{"too few results", "Arith.DivMod", yodel.Values{17, 5}, yodel.Values{&n}, "YDL2102", "2 values came, 1 are expected"},
		{"too many results", "Shapes.Greet", yodel.Values{"a"}, yodel.Values{new(string), new(string)}, "YDL2102", "1 values came, 2 are expected"},
		{"wrong type of a result", "Arith.DivMod", yodel.Values{17, 5}, yodel.Values{&n, new(string)}, "YDL2102", "value 2: json: cannot unmarshal number"},
		{"one reply for several results", "Arith.DivMod", yodel.Values{17, 5}, &n, "YDL2005", "yodel.Values"},
		{"values for the one reply", "Arith.Mul", &Args{1, 2}, yodel.Values{&n, &m}, "YDL2005", "yodel.Values"},
		{"a value that cannot be encoded", "Take", yodel.Values{1, make(chan int)}, yodel.Values{&n}, "YDL2103", "value 2: json: chan int: a chan cannot be encoded"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var e *yodel.Error
			err := c.Call(t.Context(), test.method, test.in, test.out)
			if e, _ = err.(*yodel.Error); e == nil || e.ID != test.id || !strings.Contains(e.Message, test.says) {
				t.Errorf("got %v, want %q and %s", err, test.says, test.id)
			}
		})
	}
	if executed {
		t.Error("a method was executed with arguments that do not fit")
	}
	if _, err := Mul.Call(t.Context(), c, &Args{1, 2}); err != nil {
		t.Errorf("afterwards the connection is broken: %v", err)
	}
}

// Types that some codecs do not carry.
type (
	hiddenTime time.Time // has content and no exported fields
	holdsTime  struct{ Of []struct{ At hiddenTime } }
	byArray    struct{ Names map[[2]int]string } // no object of JSON
	generated  struct{ TicketID string }
)

func (*generated) ProtoReflect() any { return nil }

// A method is registered if one of the server's codecs carries its types. The error names the
// field, the type and the codec.
func TestRegisterNeedsACodecThatCarriesTheTypes(t *testing.T) {
	s := newServer(t, nil)
	for name, function := range map[string]any{
		"json: yodel_test.holdsTime.Of[].At (yodel_test.hiddenTime): it has content and no exported fields": func(context.Context, *holdsTime) (*int, error) { return nil, nil },
		"json: yodel_test.byArray.Names (map[[2]int]string): a [2]int is no key in JSON":                    func(context.Context, *int) (*byArray, error) { return nil, nil },
		"json: yodel_test.generated: it is a generated message of Protocol Buffers":                         func(context.Context, *generated) (*int, error) { return nil, nil },
		"json: []struct { atomic.Int64 }[].Int64 (atomic.Int64): it has":                                    func(n int, _ []struct{ atomic.Int64 }) int { return n },
	} {
		err := s.Handle("T.M", function)
		if err == nil || !strings.Contains(err.Error(), "YDL4001") || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want an error with %q", err, name)
		}
	}
	func() {
		defer func() {
			if p := fmt.Sprint(recover()); !strings.Contains(p, "holdsTime.Of[].At") {
				t.Errorf("got the panic %s", p)
			}
		}()
		yodel.Method[holdsTime, int]("T.Typed").Handle(s, func(context.Context, *holdsTime) (*int, error) { return nil, nil })
	}()
}

// Register names all methods of a service that it cannot register, whatever is wrong with them. The
// text has a limited length.
func TestRegisterNamesAllMethodsThatItCannotRegister(t *testing.T) {
	s := newServer(t, nil)
	for _, test := range []struct {
		rcvr any
		want string
	}{
		{new(twoFaults), `register *yodel_test.twoFaults as Shop: Add: none of the codecs json, raw carries its types: json: yodel_test.holdsTime.Of[].At (yodel_test.hiddenTime): it has content and no exported fields, so that nothing of it would arrive; or leave it out with "-Add". Other methods that it cannot register: List, Sum`},
		{new(manyFaults), `Other methods that it cannot register: BillTheCustomerOfTheOrder, CancelTheOrderOfTheCustomer, DeliverTheOrderToTheCustomer, ExchangeTheOrder and 2 more`},
	} {
		err := s.RegisterName("Shop", test.rcvr)
		e, ok := errors.AsType[*yodel.Error](err)
		if !ok || e.ID != "YDL4001" || !strings.HasSuffix(e.Message, test.want) {
			t.Errorf("got %v\nwant %s", err, test.want)
		}
	}
	if err := s.RegisterName("Shop", new(twoFaults), "-Add", "-List", "-Sum"); err != nil {
		t.Error(err)
	}
	if in, _ := s.Types("Shop.Get"); len(in) != 1 {
		t.Error("Shop.Get is not registered")
	}
}

type twoFaults struct{}

func (twoFaults) Add(context.Context, *holdsTime) (*int, error) { return nil, nil }

func (twoFaults) Get(context.Context, *int) (*int, error) { return nil, nil }

func (twoFaults) List(context.Context, *int) (*byArray, error) { return nil, nil }

func (twoFaults) Sum(context.Context, ...int) (*int, error) { return nil, nil }

type manyFaults struct{}

func (manyFaults) AcceptTheOrder(context.Context, *holdsTime) error { return nil }

func (manyFaults) BillTheCustomerOfTheOrder(context.Context, *holdsTime) error { return nil }

func (manyFaults) CancelTheOrderOfTheCustomer(context.Context, *holdsTime) error { return nil }

func (manyFaults) DeliverTheOrderToTheCustomer(context.Context, *holdsTime) error { return nil }

func (manyFaults) ExchangeTheOrder(context.Context, *holdsTime) error { return nil }

func (manyFaults) FinishTheOrder(context.Context, *holdsTime) error { return nil }

func (manyFaults) GetTheOrder(context.Context, *holdsTime) error { return nil }

// A call in a codec that does not carry the types of its method fails before it is executed: on the
// client for the types that it has, and on the server for those of the method.
func TestCallsInACodecThatDoesNotCarryTheTypesAreNotExecuted(t *testing.T) {
	t.Attr("rerun", "never")
	s := newServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{gob.Codec}})
	var executed atomic.Int32
	must(t, s.Handle("T.In", func(_ context.Context, in *byArray) (*int, error) {
		executed.Add(1)
		n := len(in.Names)
		return &n, nil
	}))
	must(t, s.Handle("T.Out", func(context.Context, *int) (*byArray, error) {
		executed.Add(1)
		return &byArray{map[[2]int]string{{1, 2}: "a"}}, nil
	}))
	must(t, s.Handle("T.Count", func(context.Context, *int) (*int, error) {
		executed.Add(1)
		return new(int), nil
	}))
	yodel.Feed[int, byArray]("T.Feed").Handle(s, func(_ context.Context, _ *int, send yodel.Send[byArray]) error {
		executed.Add(1)
		return send(&byArray{})
	})
	addr := serve(t, s)
	c := newClient(t, &yodel.ClientOptions{Codec: gob.Codec}, addr)
	var out byArray
	if err := c.Call(t.Context(), "T.Out", new(int), &out); err != nil || len(out.Names) != 1 {
		t.Errorf("gob: got %v, %v", out, err)
	}
	executed.Store(0)
	c = newClient(t, nil, addr)
	feed := func() error {
		_, err := yodel.Feed[int, byArray]("T.Feed").Call(t.Context(), c, new(int)).Next()
		return err
	}
	encoded := &yodel.Encoded{Body: []byte("1")}
	for name, test := range map[string]struct {
		err      error
		id, says string
	}{
		"client, request": {c.Call(t.Context(), "T.In", &byArray{}, new(int)), "YDL2103", "byArray.Names"},
		"client, reply":   {c.Call(t.Context(), "T.Out", new(int), &out), "YDL2102", "byArray.Names"},
		"client, result":  {c.Call(t.Context(), "T.Count", yodel.Values{1}, yodel.Values{&out}), "YDL2102", "byArray.Names"},
		"client, feed":    {feed(), "YDL2103", "byArray.Names"},
		"client, message": {c.Call(t.Context(), "T.Count", &generated{"7"}, new(int)), "YDL2103", "protobuf.JSON"},
		"server, request": {c.Call(t.Context(), "T.In", encoded, new(yodel.Encoded)), "YDL2003", "byArray.Names (map[[2]int]string): a [2]int is no key in JSON (codec json)"},
		"server, reply":   {c.Call(t.Context(), "T.Out", encoded, new(yodel.Encoded)), "YDL2003", "byArray.Names"},
		"server, raw":     {c.Do(t.Context(), &yodel.Call{Method: "T.Count", Args: encoded, Reply: new(yodel.Encoded), Codec: raw.Codec}), "YDL2003", "(codec raw)"},
	} {
		e, ok := test.err.(*yodel.Error)
		if !ok || e.ID != test.id || !e.NotProcessed || !strings.Contains(e.Message, test.says) {
			t.Errorf("%s: got %v, want %s and %q, not processed", name, test.err, test.id, test.says)
		}
	}
	if n := executed.Load(); n > 0 {
		t.Errorf("%d methods were executed", n)
	}
}

// Nil pointers are values in each codec, as arguments and as results.
func TestNilPointersAmongValuesOfACall(t *testing.T) {
	s := newServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{gob.Codec}})
	must(t, s.Handle("T.Swap", func(a *int32, b *Point) (*Point, *int32) { return b, a }))
	addr := serve(t, s)
	for _, codec := range []yodel.Codec{yodel.JSON, gob.Codec} {
		c := newClient(t, &yodel.ClientOptions{Codec: codec}, addr)
		point, number := new(Point), new(int32)
		if err := c.Call(t.Context(), "T.Swap", yodel.Values{(*int32)(nil), (*Point)(nil)}, yodel.Values{&point, &number}); err != nil || point != nil || number != nil {
			t.Errorf("%s: got %v, %v, %v", codec.Name(), point, number, err)
		}
	}
}

const (
	viewEcho yodel.Method[[]byte, []byte]     = "View.Echo"
	viewed   yodel.Method[raw.View, raw.View] = yodel.Method[raw.View, raw.View](viewEcho)
)

// A handler that borrows its argument finds in it what its own caller sent until it returns,
// wherever it runs, also when it waits while other requests are read, and can answer with it.
func TestAViewIsValidUntilTheHandlerReturns(t *testing.T) {
	for where := range placements(newServer(t, nil)) {
		for _, codec := range []yodel.Codec{raw.Codec, yodel.JSON} {
			t.Run(fmt.Sprint(where, " ", codec.Name()), func(t *testing.T) { callWithViews(t, where, codec) })
		}
	}
}

func callWithViews(t *testing.T, where string, codec yodel.Codec) {
	s := newServer(t, nil)
	first, others := make(chan struct{}), make(chan struct{})
	viewed.Handle(s, func(_ context.Context, in *raw.View) (*raw.View, error) {
		if len(*in) > 0 && (*in)[0] == 0 {
			close(first)
			<-others // the memory that it was read into may be wanted meanwhile
		}
		return in, nil
	})
	placements(s)[where](string(viewEcho))
	c := connect(t, s, &yodel.ClientOptions{Codec: codec})
	call := func(letter byte, size int) {
		in := bytes.Repeat([]byte{letter}, size)
		out, err := viewEcho.Call(t.Context(), c, &in)
		if err != nil || !bytes.Equal(*out, in) {
			t.Errorf("%d bytes of %d: got other bytes, error %v", size, letter, err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { call(0, 300) })
	receive(t, first, "the first call")
	for letter := byte(1); letter < 9; letter++ {
		wg.Go(func() {
			for _, size := range []int{0, 1, 128, 5000, 65_500, 65_530, 200_000} {
				for range fewer(5, 2) {
					call(letter, size)
				}
			}
			if letter == 1 {
				close(others)
			}
		})
	}
	wg.Wait()
}

// Only bytes can be borrowed as they came.
func TestAViewOfCompressedBytesIsDecompressed(t *testing.T) {
	s := newServer(t, &yodel.ServerOptions{Compressors: []compress.Compressor{flate.Compressor}})
	viewed.Handle(s, func(_ context.Context, in *raw.View) (*raw.View, error) { return in, nil })
	c := connect(t, s, &yodel.ClientOptions{Codec: raw.Codec, Compressor: flate.Compressor, CompressAbove: 1})
	in := bytes.Repeat([]byte("ab"), 1000)
	out, err := viewEcho.Call(t.Context(), c, &in)
	must(t, err)
	if !bytes.Equal(*out, in) {
		t.Errorf("got %d other bytes", len(*out))
	}
}

// A header reaches the caller, with a reply, with an error, at the end of a stream, and from a
// server of the same process. The header of an earlier attempt does not.
func TestHeadersOfReplies(t *testing.T) {
	s := newServer(t, nil)
	want := yodel.Metadata{"cost": "3"}
	handle(t, s, "Header", func(ctx context.Context, fail *bool) (*int, error) {
		yodel.CallFrom(ctx).SetHeader(want)
		yodel.CallFrom(ctx).Trailer = yodel.Metadata{"last": "1"}
		if *fail {
			return nil, yodel.Errorf(yodel.NotFound, "no such thing")
		}
		return new(1), nil
	})
	const feed yodel.Feed[int, int] = "Feed"
	feed.Handle(s, func(ctx context.Context, _ *int, send yodel.Send[int]) error {
		yodel.CallFrom(ctx).SetHeader(want)
		return send(new(1))
	})
	c := connect(t, s, nil)
	for name, caller := range map[string]yodel.Caller{"client": c, "server": s} {
		for _, fail := range []bool{false, true} {
			call := &yodel.Call{Method: "Header", Args: &fail, Reply: new(int)}
			call.SetHeader(yodel.Metadata{"old": "1"})
			err := caller.Do(t.Context(), call)
			if (err != nil) != fail || !maps.Equal(call.Header(), want) || call.Trailer["last"] != "1" {
				t.Errorf("%s, fail %v: got the header %v, the trailer %v and %v", name, fail, call.Header(), call.Trailer, err)
			}
		}
	}
	call := new(yodel.Call)
	for _, err := range feed.Do(t.Context(), c, call, new(1)) {
		must(t, err)
	}
	if !maps.Equal(call.Header(), want) {
		t.Errorf("a feed: got the header %v", call.Header())
	}
	call = &yodel.Call{Method: "Nothing", Args: new(0)}
	call.SetHeader(want)
	if err := c.Do(t.Context(), call); err == nil || call.Header() != nil {
		t.Errorf("an unknown method: got the header %v and %v", call.Header(), err)
	}
}

// A reply lacks the pairs of a header that exceed the limits. Its outcome is the method's.
func TestHeaderTooLarge(t *testing.T) {
	var log bytes.Buffer
	s := newServer(t, &yodel.ServerOptions{Limits: yodel.Limits{MaxMetadata: 1000}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	handle(t, s, "Header", func(ctx context.Context, n *int) (*int, error) {
		yodel.CallFrom(ctx).SetHeader(yodel.Metadata{"long": strings.Repeat("x", 2000), "short": "1", "zero": ""})
		if *n == 0 {
			return nil, yodel.Errorf(yodel.NotFound, "nothing")
		}
		return n, nil
	})
	c := connect(t, s, nil)
	for _, n := range []int{7, 0} {
		call, got := &yodel.Call{Method: "Header", Args: &n}, 0
		call.Reply = &got
		err := c.Do(t.Context(), call)
		if want := (yodel.Metadata{"short": "1", "zero": ""}); got != n || n == 0 != errors.Is(err, yodel.NotFound) || !maps.Equal(call.Header(), want) {
			t.Errorf("got %d, %v and the header %v", got, err, call.Header())
		}
	}
	if n := s.Stats().LeftOut; n != 2 {
		t.Errorf("the statistics have %d pairs that were left out, want 2", n)
	}
	c.Close()
	const line = `msg="yodel: a reply was sent without a part of its metadata" method=Header key=long reason="with it, the metadata has`
	if said := log.String(); !strings.Contains(said, line) || strings.Contains(said, "xxx") {
		t.Errorf("the log is %s", said)
	}
}

// Values of an Encoded are those that SetValues encoded.
func TestValuesOfAnEncoded(t *testing.T) {
	for _, values := range [][][]byte{nil, {{}}, {[]byte("1"), nil, bytes.Repeat([]byte("x"), 300)}} {
		e := new(yodel.Encoded)
		e.SetValues(values...)
		got, err := e.Values()
		if err != nil || fmt.Sprint(got) != fmt.Sprint(values) {
			t.Errorf("got %v, %v, want %v", got, err, values)
		}
		for n := range e.Body {
			if got, err := (&yodel.Encoded{Body: e.Body[:n], Several: true}).Values(); err == nil {
				t.Errorf("%v without its end: got %v", values, got)
			}
		}
		e.Body = append(e.Body, 0)
		if got, err := e.Values(); err == nil {
			t.Errorf("%v and a byte: got %v", values, got)
		}
	}
	if got, err := (&yodel.Encoded{Body: []byte("x")}).Values(); err != nil || len(got) != 1 || string(got[0]) != "x" {
		t.Errorf("one message: got %q, %v", got, err)
	}
}

// A Protocol can execute methods with several values.
func TestValuesOverASession(t *testing.T) {
	network := serveLines(t, lines{serve: func(_ context.Context, s *yodel.Session) error {
		v := s.Begin("shop/DivMod", s.Codec("json"), nil)
		defer v.End()
		request := new(yodel.Encoded)
		request.SetValues([]byte("17"), []byte("5"))
		v.Body, v.Several = request.Body, v.Positional()
		if e := v.Admit(len(v.Body), true); e != nil {
			return e
		}
		if e := v.Run(); e != nil {
			return e
		}
		body, _, e := v.AppendReply(nil)
		if e != nil {
			return e
		}
		values, err := (&yodel.Encoded{Body: body, Several: true}).Values()
		_, _ = fmt.Fprintf(s, "%s %s %v\n", values, v.Call().Method, err)
		return s.Next()
	}}, yodel.ServerOptions{})
	handle(t, network.Server, "shop.DivMod", func(a, b int) (int, int, error) { return a / b, a % b, nil })
	if got := ask(t, network.dial(t), "DivMod", ""); got != "[3 2] shop.DivMod <nil>" {
		t.Errorf("got %s", got)
	}
}

// A Protocol learns which types a method has, so that it can encode the request in the right way.
func TestTypesOfAServedCall(t *testing.T) {
	network := serveLines(t, lines{serve: func(_ context.Context, s *yodel.Session) error {
		var line []string
		for _, method := range []string{"One", "Two", "Any", "Nothing"} {
			v := s.Begin(method, s.Codec("json"), nil)
			in, out := v.Types()
			line = append(line, fmt.Sprint(in, out))
			v.End()
		}
		_, _ = fmt.Fprintln(s, strings.Join(line, "; "))
		return s.Next()
	}}, yodel.ServerOptions{})
	handle(t, network.Server, "One", func(_ context.Context, in *Args) (*Reply, error) { return new(Reply), nil })
	handle(t, network.Server, "Two", func(a int, b *string) (bool, error) { return true, nil })
	must(t, network.HandleCall("Any", func(context.Context, *yodel.Call) error { return nil }))
	want := "[yodel_test.Args] [yodel_test.Reply]; [int *string] [bool]; [] []; [] []"
	if got := ask(t, network.dial(t), "One", ""); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// An inbox keeps calls that are answered later.
type inbox struct {
	mu      sync.Mutex
	replies []func(any, error)
	in      []int
}

func (x *inbox) put(ctx context.Context, n *int) (*int, error) {
	later := yodel.CallFrom(ctx).Later()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.replies, x.in = append(x.replies, later), append(x.in, *n)
	return nil, nil
}

// take returns what is in the inbox, when it has n calls.
func (x *inbox) take(t *testing.T, n int) (replies []func(any, error), in []int) {
	t.Helper()
	until(t, "all calls have come", func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return len(x.in) == n
	})
	x.mu.Lock()
	defer x.mu.Unlock()
	defer func() { x.replies, x.in = nil, nil }()
	return x.replies, x.in
}

// Calls that wait for a late reply take no goroutine, are open meanwhile, and are answered in any
// order.
func TestALateReplyTakesNoGoroutine(t *testing.T) {
	const calls = 1000
	var x inbox
	var ended atomic.Int64
	s := newServer(t, &yodel.ServerOptions{Observers: []yodel.Observer{{End: func(context.Context, *yodel.Call, error) { ended.Add(1) }}}})
	must(t, s.Handle("Inbox.Put", x.put))
	c := newClient(t, nil, serve(t, s))
	must(t, c.Ready(t.Context()))
	for round := range 3 { // the method is known to be slow after the first one
		var out [calls]int
		outcome := make(chan error, calls)
		before := runtime.NumGoroutine()
		for i := range out {
			c.Go(t.Context(), &yodel.Call{Method: "Inbox.Put", Args: &i, Reply: &out[i]}, func(err error) { outcome <- err })
		}
		replies, in := x.take(t, calls)
		// a pool keeps up to 256 idle goroutines
		until(t, "the goroutines of the handlers have ended", func() bool { return runtime.NumGoroutine() < before+300 })
		if got := ended.Load(); got != int64(round*calls) {
			t.Errorf("%d calls have ended before they were answered", got-int64(round*calls))
		}
		for i := len(replies) - 1; i >= 0; i-- {
			twice := 2 * in[i]
			replies[i](&twice, nil)
			replies[i](&in[i], errors.New("it was answered before")) // no effect
		}
		for range out {
			must(t, <-outcome)
		}
		for i, got := range out {
			if got != 2*i {
				t.Errorf("call %d: got %d", i, got)
			}
		}
		until(t, "observers have seen the end", func() bool { return ended.Load() == int64((round+1)*calls) })
	}
}

// What a handler does after Later decides which reply counts.
func TestOutcomesOfLateReplies(t *testing.T) {
	s := newServer(t, nil)
	var late func(any, error)
	handle := func(name string, f func(later func(any, error)) (*int, error)) {
		must(t, s.Handle(name, func(ctx context.Context, _ *int) (*int, error) {
			late = yodel.CallFrom(ctx).Later()
			return f(late)
		}))
	}
	n := 7
	handle("At once", func(later func(any, error)) (*int, error) { later(&n, nil); return nil, nil })
	handle("Error", func(later func(any, error)) (*int, error) {
		go later(nil, yodel.Errorf(yodel.NotFound, "nobody"))
		return nil, nil
	})
	handle("Nil", func(later func(any, error)) (*int, error) { go later(nil, nil); return nil, nil })
	handle("Failed", func(func(any, error)) (*int, error) { return nil, yodel.Errorf(yodel.Aborted, "no") })
	handle("Panic", func(func(any, error)) (*int, error) { panic("oh") })
	handle("Exit", func(later func(any, error)) (*int, error) { go later(&n, nil); runtime.Goexit(); return nil, nil })
	c := newClient(t, nil, serve(t, s))
	for name, want := range map[string]yodel.Code{
		"At once": 0, "Error": yodel.NotFound, "Nil": yodel.Internal, "Failed": yodel.Aborted, "Panic": yodel.Internal, "Exit": 0,
	} {
		for i := range 20 {
			var got int
			var to yodel.Caller = c
			if i%2 == 1 && name != "Exit" { // as a Protocol calls it, on this goroutine
				to = s
			}
			err := to.Do(t.Context(), &yodel.Call{Method: name, Args: new(int), Reply: &got})
			if yodel.CodeOf(err) != want || want == 0 && got != n {
				t.Errorf("%s: got %d, %v, want %v", name, got, err, want)
			}
			if name == "Failed" || name == "Panic" {
				late(&n, nil) // no effect
			}
		}
	}
	if later := (&yodel.Call{}).Later(); later != nil {
		t.Error("a client's call can be answered later")
	}
}

// Middleware can answer a call later whose method the server does not have. Without a reply it
// fails.
func TestLateReplyOfAnUnknownMethod(t *testing.T) {
	var reply any
	s := newServer(t, &yodel.ServerOptions{Middleware: []yodel.Middleware{func(yodel.Handler) yodel.Handler {
		return func(_ context.Context, call *yodel.Call) error {
			go call.Later()(reply, nil)
			return nil
		}
	}}})
	c := newClient(t, nil, serve(t, s))
	n := 7
	for _, test := range []struct {
		reply any
		want  yodel.Code
	}{{nil, yodel.Internal}, {&n, 0}} {
		var got int
		reply = test.reply
		err := c.Do(t.Context(), &yodel.Call{Method: "No.Such", Args: new(int), Reply: &got})
		if yodel.CodeOf(err) != test.want || test.want == 0 && got != n {
			t.Errorf("with the late reply %v: got %d, %v, want %v", test.reply, got, err, test.want)
		}
	}
}

// A shutdown waits for late replies, and one that comes after its caller has left does no harm.
func TestShutdownWaitsForLateReplies(t *testing.T) {
	var x inbox
	s := newServer(t, nil)
	must(t, s.Handle("Inbox.Put", x.put))
	c := newClient(t, nil, serve(t, s))
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { left <- c.Call(ctx, "Inbox.Put", new(int), new(int)) }()
	replies, in := x.take(t, 1)
	cancel()
	if err := <-left; yodel.CodeOf(err) != yodel.Canceled {
		t.Errorf("got %v, want that the caller has left", err)
	}
	replies[0](&in[0], nil)

	outcome := make(chan error, 1)
	var got int
	n := 21
	c.Go(t.Context(), &yodel.Call{Method: "Inbox.Put", Args: &n, Reply: &got}, func(err error) { outcome <- err })
	replies, in = x.take(t, 1)
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(t.Context()) }()
	select {
	case err := <-stopped:
		t.Errorf("Shutdown has not waited: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	replies[0](&in[0], nil)
	if err := <-outcome; err != nil || got != 21 {
		t.Errorf("got %d, %v", got, err)
	}
	must(t, <-stopped)
}

// A late reply is remembered for its idempotency key, and middleware can ask for it.
func TestLateRepliesAreRemembered(t *testing.T) {
	var x inbox
	var encoded atomic.Int64
	s := newServer(t, &yodel.ServerOptions{
		Keys: once.With(nil),
		Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error {
				err := next(ctx, call)
				if e, encErr := call.Encode(); err == nil && encErr == nil {
					encoded.Add(int64(len(e.Body)))
				}
				return err
			}
		}},
	})
	must(t, s.Handle("Inbox.Put", x.put))
	c := newClient(t, nil, serve(t, s))
	for i, key := range []string{"a", "a", ""} {
		outcome := make(chan error, 1)
		n, got := 7, 0
		c.Go(t.Context(), &yodel.Call{Method: "Inbox.Put", Args: &n, Reply: &got, IdempotencyKey: key}, func(err error) { outcome <- err })
		if i != 1 { // the second call is answered from memory
			replies, in := x.take(t, 1)
			replies[0](&in[0], nil)
		}
		if err := <-outcome; err != nil || got != 7 {
			t.Errorf("call %d: got %d, %v", i, got, err)
		}
	}
	if got := encoded.Load(); got != 3 {
		t.Errorf("middleware has seen %d bytes of replies, want 3", got)
	}
}

// What the raw codec gives to a handler and to a caller is theirs, whatever its size and whether it
// was copied: no later call changes it. A reply goes into the memory that the caller has for it, if
// it is enough.
func TestRawBodiesAreTheUsers(t *testing.T) {
	const calls = 12
	kept := make(chan []byte, 2*calls)
	s := yodel.NewServer(nil)
	largeEcho.Handle(s, func(_ context.Context, in *[]byte) (*[]byte, error) {
		kept <- *in
		return in, nil
	})
	c := connect(t, s, &yodel.ClientOptions{Codec: raw.Codec})
	for _, size := range []int{100, 20 << 10, 100 << 10, 3 << 20} {
		room := make([]byte, 0, size)
		for i := range byte(calls) {
			body := bytes.Repeat([]byte{i}, size)
			attachment := bytes.Repeat([]byte{'a'}, size/2*int(i%2))
			var reply []byte
			if i%3 == 0 {
				reply = room
			}
			call := &yodel.Call{Method: string(largeEcho), Args: &body, Reply: &reply, Attachment: attachment}
			must(t, c.Do(t.Context(), call))
			if i%3 == 0 && &reply[0] != &room[:1][0] {
				t.Errorf("%d bytes: the reply is not in the memory that was there for it", size)
			}
			if i%3 != 0 {
				kept <- reply
			}
			if cap(reply) > size+size/4+64 {
				t.Errorf("%d bytes have room for %d", size, cap(reply))
			}
			clear(body) // it was the caller's all the time
		}
		for len(kept) > 0 {
			if body := <-kept; len(body) != size || bytes.Count(body, body[:1]) != size {
				t.Errorf("%d bytes of %d have changed", size, body[0])
			}
		}
	}
}
