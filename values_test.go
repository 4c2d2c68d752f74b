// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/raw"
)

type Point struct {
	X, Y float64
	Name string
	Tags []string
}

// Shapes has methods with several arguments or results, which travel as Values.
type Shapes struct{}

func (Shapes) None()                                                {}
func (Shapes) Fail() error                                          { return yodel.Errorf(yodel.Aborted, "failed") }
func (Shapes) Only(ctx context.Context) (bool, error)               { return yodel.CallFrom(ctx) != nil, nil }
func (Shapes) Greet(name string) string                             { return "hello " + name }
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
func (twoFaults) Get(context.Context, *int) (*int, error)       { return nil, nil }
func (twoFaults) List(context.Context, *int) (*byArray, error)  { return nil, nil }
func (twoFaults) Sum(context.Context, ...int) (*int, error)     { return nil, nil }

type manyFaults struct{}

func (manyFaults) AcceptTheOrder(context.Context, *holdsTime) error               { return nil }
func (manyFaults) BillTheCustomerOfTheOrder(context.Context, *holdsTime) error    { return nil }
func (manyFaults) CancelTheOrderOfTheCustomer(context.Context, *holdsTime) error  { return nil }
func (manyFaults) DeliverTheOrderToTheCustomer(context.Context, *holdsTime) error { return nil }
func (manyFaults) ExchangeTheOrder(context.Context, *holdsTime) error             { return nil }
func (manyFaults) FinishTheOrder(context.Context, *holdsTime) error               { return nil }
func (manyFaults) GetTheOrder(context.Context, *holdsTime) error                  { return nil }

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
