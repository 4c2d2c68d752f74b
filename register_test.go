// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// names asks a server which methods it has, without the built-in ones.
func names(t testing.TB, c *yodel.Client) []string {
	t.Helper()
	info, err := inspect.Info.Call(t.Context(), c, &Empty{})
	must(t, err)
	var all []string
	for _, m := range info.Methods {
		if !strings.HasPrefix(m.Name, "yodel.") {
			all = append(append(all, m.Name), m.Aliases...)
		}
	}
	slices.Sort(all)
	return all
}

func wantNames(t testing.TB, c *yodel.Client, want ...string) {
	t.Helper()
	if got := names(t, c); !slices.Equal(got, want) {
		t.Errorf("got methods %q, want %q", got, want)
	}
}

// Forms has one method for each shape that Register takes.
type Forms struct{}

func (Forms) Plain(_ context.Context, in *Args) (*Reply, error)      { return &Reply{in.A}, nil }
func (Forms) PlainNoContext(in *Args) (*Reply, error)                { return &Reply{in.A}, nil }
func (Forms) RPCX(_ context.Context, in *Args, out *Reply) error     { out.C = in.A; return nil }
func (Forms) RPCXValue(_ context.Context, in Args, out *Reply) error { out.C = in.A; return nil }
func (Forms) NetRPC(in Args, out *Reply) error                       { out.C = in.A; return nil }
func (Forms) NetRPCPointer(in *Args, out *Reply) error               { out.C = in.A; return nil }
func (Forms) NilReply(context.Context, *Args) (*Reply, error)        { return nil, nil }
func (Forms) NilEmpty(context.Context, *Args) (*Empty, error)        { return nil, nil }
func (Forms) FillMap(in Args, out *map[string]int) error             { (*out)["A"] = in.A; return nil }
func (Forms) FillSlice(in Args, out *[]int) error                    { *out = append(*out, in.A); return nil }
func (Forms) Scalars(in *int, out *string) error                     { *out = fmt.Sprint(*in); return nil }
func (Forms) Anything(_ context.Context, in *any) (*map[string]any, error) {
	return &map[string]any{"got": *in}, nil
}

func TestRegisterTakesEveryShape(t *testing.T) {
	s := yodel.NewServer(nil)
	must(t, s.Register(new(Forms)))
	c := connect(t, s, nil)
	for _, name := range []string{"Plain", "PlainNoContext", "RPCX", "RPCXValue", "NetRPC", "NetRPCPointer"} {
		var reply Reply
		if err := c.Call(t.Context(), "Forms."+name, &Args{A: 7}, &reply); err != nil || reply.C != 7 {
			t.Errorf("%s: got %v, %v, want 7", name, reply, err)
		}
	}
	wantError(t, c.Call(t.Context(), "Forms.NilReply", &Args{}, &Reply{}), yodel.Internal, "YDL5003")
	must(t, c.Call(t.Context(), "Forms.NilEmpty", &Args{}, &Empty{})) // there is nothing to say
	var m map[string]int
	if err := c.Call(t.Context(), "Forms.FillMap", &Args{A: 7}, &m); err != nil || m["A"] != 7 {
		t.Errorf("a map as reply: got %v, %v", m, err)
	}
	var ints []int
	if err := c.Call(t.Context(), "Forms.FillSlice", &Args{A: 7}, &ints); err != nil || !slices.Equal(ints, []int{7}) {
		t.Errorf("a slice as reply: got %v, %v", ints, err)
	}
	var text string
	if err := c.Call(t.Context(), "Forms.Scalars", 7, &text); err != nil || text != "7" {
		t.Errorf("scalars: got %q, %v", text, err)
	}
	var anything map[string]any
	if err := c.Call(t.Context(), "Forms.Anything", []string{"a"}, &anything); err != nil || fmt.Sprint(anything) != "map[got:[a]]" {
		t.Errorf("anything: got %v, %v", anything, err)
	}
}

// Odd has methods that cannot be served, and one that can.
type Odd struct{}

func (Odd) Good(*Args) (*Reply, error)   { return nil, nil }
func (Odd) Chan(chan int) error          { return nil }
func (Odd) Func(*Args) (func(), error)   { return nil, nil }
func (Odd) Reader(io.Reader) error       { return nil }
func (Odd) hidden(*Args) (*Reply, error) { return nil, nil } //nolint:unused // it must not be found

// Bad has nothing but.
type Bad struct{}

func (Bad) Chan(chan int) error    { return nil }
func (Bad) Reader(io.Reader) error { return nil }

func TestRegisterSaysWhyItSkips(t *testing.T) {
	var book logbook
	s := yodel.NewServer(&yodel.ServerOptions{Logger: book.everything()})
	must(t, s.Register(Odd{}))
	wantNames(t, connect(t, s, nil), "Odd.Good")
	wantRegistered(t, &book, "Odd.Good", strings.Join([]string{
		"Chan: a chan int cannot be sent",
		"Func: a func() cannot be sent",
		"Reader: an interface (io.Reader) cannot be decoded into; use a concrete type",
	}, "; "))
}

// An OrderError is an error that has the shape of a message.
type OrderError struct{ Reason string }

func (e *OrderError) Error() string { return e.Reason }

// A ValueError is one whose values are errors too.
type ValueError int

func (ValueError) Error() string { return "" }

// Refusal is an error of another interface.
type Refusal interface {
	error
	Retry() bool
}

// An ownContext is a context with more methods.
type ownContext struct{ context.Context }

// A GRPCStream has what the streams of gRPC's generated code have.
type GRPCStream interface {
	Send(*Reply) error
	Context() context.Context
}

// Each of these types has one method that nearly has a suitable shape.
type (
	OwnError        struct{}
	OwnValueError   struct{}
	OwnErrorOnly    struct{}
	OtherError      struct{}
	ErrorFirst      struct{}
	TwoErrors       struct{}
	ContextLast     struct{}
	TwoContexts     struct{}
	ContextPointer  struct{}
	OtherContext    struct{}
	Variadic        struct{}
	VariadicNoCtx   struct{}
	ReplyByValue    struct{}
	NetRPCByValue   struct{}
	ChannelParam    struct{}
	ChannelResult   struct{}
	FuncParam       struct{}
	InterfaceResult struct{}
	FeedNoError     struct{}
	FeedOwnError    struct{}
	SendFirst       struct{}
	SendPointer     struct{}
	FeedByValue     struct{}
	UploadByValue   struct{}
	UploadNoContext struct{}
	FeedOfFuncs     struct{}
	GRPCFeed        struct{}
	PointerReceiver struct{} //nolint:recvcheck // on purpose
)

func (OwnError) M(context.Context, *Args) *OrderError                         { return nil }
func (OwnValueError) M(context.Context, *Args) (*Reply, ValueError)           { return nil, 0 }
func (OwnErrorOnly) M() *OrderError                                           { return nil }
func (OtherError) M(context.Context, *Args) (*Reply, Refusal)                 { return nil, nil }
func (ErrorFirst) M(context.Context, *Args) (error, *Reply)                   { return nil, nil } //nolint:revive,staticcheck // on purpose
func (TwoErrors) M(*Args) (*Reply, error, error)                              { return nil, nil, nil }
func (ContextLast) M(*Args, context.Context) (*Reply, error)                  { return nil, nil } //nolint:revive // on purpose
func (TwoContexts) M(context.Context, context.Context, *Args) (*Reply, error) { return nil, nil }
func (ContextPointer) M(*context.Context, *Args) (*Reply, error)              { return nil, nil }
func (OtherContext) M(ownContext, *Args) (*Reply, error)                      { return nil, nil }
func (Variadic) M(context.Context, ...int) error                              { return nil }
func (VariadicNoCtx) M(...int) int                                            { return 0 }
func (ReplyByValue) M(context.Context, Args, Reply) error                     { return nil }
func (NetRPCByValue) M(*Args, Reply) error                                    { return nil }
func (ChannelParam) M(context.Context, chan int) error                        { return nil }
func (ChannelResult) M(context.Context, *Args) (<-chan int, error)            { return nil, nil }
func (FuncParam) M(context.Context, func(int) error) error                    { return nil }
func (InterfaceResult) M(context.Context, *Args) (fmt.Stringer, error)        { return nil, nil }
func (FeedNoError) M(context.Context, *Args, yodel.Send[Reply])               {}
func (FeedOwnError) M(context.Context, *Args, yodel.Send[Reply]) *OrderError  { return nil }
func (SendFirst) M(context.Context, yodel.Send[Reply], *Args) error           { return nil }
func (SendPointer) M(context.Context, *Args, *yodel.Send[Reply]) error        { return nil }
func (FeedByValue) M(context.Context, Args, yodel.Send[Reply]) error          { return nil }
func (UploadByValue) M(context.Context, yodel.Recv[Args]) (Reply, error)      { return Reply{}, nil }
func (UploadNoContext) M(yodel.Recv[Args]) (*Reply, error)                    { return nil, nil }
func (FeedOfFuncs) M(context.Context, *Args, yodel.Send[func()]) error        { return nil }
func (GRPCFeed) M(*Args, GRPCStream) error                                    { return nil }
func (*PointerReceiver) M(context.Context, *Args) (*Reply, error)             { return nil, nil }
func (PointerReceiver) N(context.Context, *Args) (*Reply, error)              { return nil, nil }

// Which methods are nearly suitable, and what is wrong with them.
var nearly = map[any]string{
	OwnError{}:        "M: its last result is a *yodel_test.OrderError, which is an error, but would be sent as a value; make the type of the result error",
	OwnValueError{}:   "M: its last result is a yodel_test.ValueError, which is an error",
	OwnErrorOnly{}:    "M: its last result is a *yodel_test.OrderError, which is an error",
	OtherError{}:      "M: its last result is a yodel_test.Refusal, which is an error",
	ErrorFirst{}:      "M: its result 1 is an error; make error the last result, and the only one",
	TwoErrors{}:       "M: its result 2 is an error; make error the last result, and the only one",
	ContextLast{}:     "M: it has a context.Context after its first parameter; make it the first one, and the only one",
	TwoContexts{}:     "M: it has a context.Context after its first parameter",
	ContextPointer{}:  "M: it takes a *context.Context, which callers cannot send; take a context.Context as the first parameter",
	OtherContext{}:    "M: it takes a yodel_test.ownContext, which callers cannot send",
	Variadic{}:        "M: it takes a variable number of arguments; take a slice instead",
	VariadicNoCtx{}:   "M: it takes a variable number of arguments; take a slice instead",
	ReplyByValue{}:    "M: its second parameter is yodel_test.Reply; make it *yodel_test.Reply, so that the result can be written",
	NetRPCByValue{}:   "M: its second parameter is yodel_test.Reply; make it *yodel_test.Reply, so that the result can be written",
	ChannelParam{}:    "M: a chan int cannot be sent",
	ChannelResult{}:   "M: a <-chan int cannot be sent",
	FuncParam{}:       "M: a func(int) error cannot be sent",
	InterfaceResult{}: "M: an interface (fmt.Stringer) cannot be decoded into; use a concrete type",
	FeedNoError{}:     "M: it takes a stream, but is none of",
	FeedOwnError{}:    "M: it takes a stream, but is none of",
	SendFirst{}:       "M: a yodel.Send[github.com/yodel-rpc/yodel_test.Reply] cannot be sent",
	SendPointer{}:     "M: it takes a stream, but is none of",
	FeedByValue{}:     "M: it takes a stream, but is none of",
	UploadByValue{}:   "M: it takes a stream, but is none of",
	UploadNoContext{}: "M: it takes a stream, but is none of",
	FeedOfFuncs{}:     "M: a func() cannot be sent",
	GRPCFeed{}:        "M: it takes a yodel_test.GRPCStream, a stream of gRPC; register the generated service with package protocol/grpcgo",
	PointerReceiver{}: "M: it has a pointer receiver; register a pointer",
}

// A caller of a method that is left out would learn only from its first call that there is none.
func TestRegisterRefusesWhatIsNearlyAMethod(t *testing.T) {
	for service, want := range nearly {
		s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
		err := s.Register(service)
		if err == nil {
			t.Errorf("%T was registered", service)
			continue
		}
		e := wantError(t, err, yodel.InvalidArgument, "YDL4001")
		if _, got, _ := strings.Cut(e.Message, ": "); !strings.HasPrefix(got, want) {
			t.Errorf("got  %s\nwant %s", e.Message, want)
		}
		must(t, s.RegisterName("Beside", struct{ Arith }{}, "Mul"))
		wantNames(t, connect(t, s, nil), "Beside.Mul")
	}
}

// Mixed has a method for callers, and two that its program calls itself.
type Mixed struct{}

func (Mixed) Mul(_ context.Context, in *Args) (*Reply, error) { return &Reply{in.A * in.B}, nil }
func (Mixed) Sync(context.Context, ...int) error              { return nil }
func (Mixed) Limit(string, int) error                         { return nil }

func TestRegisterLeavesMethodsOut(t *testing.T) {
	var book logbook
	s := yodel.NewServer(&yodel.ServerOptions{Logger: book.everything()})
	must(t, s.Register(Mixed{}, "-Sync", "-Limit"))
	wantNames(t, connect(t, s, nil), "Mixed.Mul")
	wantRegistered(t, &book, "Mixed.Mul", "Limit: it was left out; Sync: it was left out")
	for want, methods := range map[string][]string{
		"Sync: it takes a variable number of arguments; take a slice instead; or leave it out with \"-Sync\"": {"-Limit"},
		"Sink: yodel_test.Mixed has no exported method of this name":                                          {"-Sink", "-Sync", "-Limit"},
		"no suitable method: Limit: it was left out; Mul: it was left out; Sync: it was left out":             {"-Mul", "-Sync", "-Limit"},
	} {
		e := wantError(t, s.RegisterName("Other", Mixed{}, methods...), yodel.InvalidArgument, "YDL4001")
		if want = "register yodel_test.Mixed as Other: " + want; e.Message != want {
			t.Errorf("got  %s\nwant %s", e.Message, want)
		}
	}
	must(t, s.RegisterName("One", PointerReceiver{}, "-M"))
	must(t, s.RegisterName("Named", PointerReceiver{}, "N"))
}

type Many struct{}

func (Many) Copy(context.Context, io.Writer) error                         { return nil }
func (Many) Logf(context.Context, string, ...any) error                    { return nil }
func (Many) Sum(...int) int                                                { return 0 }
func (Many) Tx(context.Context, func(context.Context) error) (bool, error) { return false, nil }

// The error names each method that does not suit, and is not cut off within a reason.
func TestRegisterNamesAllMethodsThatDoNotSuit(t *testing.T) {
	err := yodel.NewServer(nil).Register(Many{})
	if err == nil {
		t.Fatal("got no error")
	}
	for _, part := range []string{"Copy", "Logf", "Sum", "Tx", `"-Copy"`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error lacks %s: %v", part, err)
		}
	}
	if strings.Contains(err.Error(), "…") {
		t.Errorf("the error is cut: %v", err)
	}
}

// wantRegistered checks the one line that Register logs.
func wantRegistered(t *testing.T, book *logbook, methods, skipped string) {
	t.Helper()
	want := fmt.Sprintf("level=INFO msg=\"yodel: registered\" methods=%s skipped=%q", methods, skipped)
	if got := book.with("registered"); len(got) != 1 || !strings.HasSuffix(got[0], want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
}

// A Bank is a service as net/rpc and rpcx take it, with methods that are for its own process.
type Bank struct {
	sync.Mutex
	*strings.Builder
	bankPages

	balance int
}

type bankPages struct{ pages int }

func (l *bankPages) Pages() int                    { return l.pages }
func (b *Bank) Deposit(n *int, balance *int) error { b.balance += *n; *balance = b.balance; return nil }
func (b *Bank) Balance() int                       { return b.balance }
func (b *Bank) Audit(context.Context)              {}
func (b *Bank) Close() error                       { b.balance = -1; return nil }
func (b *Bank) String() string                     { return "the bank" }
func (b *Bank) MarshalJSON() ([]byte, error)       { return []byte("{}"), nil }
func (b *Bank) Reset()                             { b.balance = 0 }
func (b *Bank) SetLimit(int)                       {}
func (b *Bank) Grow(n *int, size *int) error       { *size = *n; return nil }

func TestRegisterPublishesWhatIsMeant(t *testing.T) {
	var book logbook
	s := yodel.NewServer(&yodel.ServerOptions{Logger: book.everything()})
	bank := &Bank{Builder: &strings.Builder{}}
	must(t, s.Register(bank))
	c := connect(t, s, nil)
	wantNames(t, c, "Bank.Audit", "Bank.Balance", "Bank.Deposit", "Bank.Grow", "Bank.Pages")
	wantRegistered(t, &book, `"Bank.Audit Bank.Balance Bank.Deposit Bank.Grow Bank.Pages"`, strings.Join([]string{
		"Cap: it is promoted from strings.Builder",
		"Close: it belongs to io.Closer",
		"Len: it is promoted from strings.Builder",
		"Lock: it belongs to sync.Locker",
		"MarshalJSON: it belongs to json.Marshaler",
		"Reset: it has neither a context, a result nor an error",
		"SetLimit: it has neither a context, a result nor an error",
		"String: it belongs to fmt.Stringer",
		"TryLock: it is promoted from sync.Mutex",
		"Unlock: it belongs to sync.Locker",
		"Write: it belongs to io.Writer",
		"WriteByte: it belongs to io.ByteWriter",
		"WriteRune: it is promoted from strings.Builder",
		"WriteString: it belongs to io.StringWriter",
	}, "; "))
	for _, name := range []string{"Bank.Lock", "Bank.Close", "Bank.Reset"} {
		wantError(t, c.Call(t.Context(), name, yodel.Values{}, nil), yodel.Unimplemented, "YDL2002")
	}
}

// What is named is meant.
func TestRegisterTakesAnyMethodByName(t *testing.T) {
	s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	bank := &Bank{Builder: &strings.Builder{}, balance: 7}
	must(t, s.Register(bank, "Reset", "Close", "Len"))
	c := connect(t, s, nil)
	wantNames(t, c, "Bank.Close", "Bank.Len", "Bank.Reset")
	must(t, c.Call(t.Context(), "Bank.Reset", yodel.Values{}, nil))
	if bank.balance != 0 {
		t.Errorf("the balance is %d after Reset", bank.balance)
	}
}

type (
	unexported struct{ n int }
	outer      struct{ Arith }
	Pointers   struct{ n int }
)

func (u *unexported) Count() int { u.n++; return u.n }
func (p *Pointers) Count() int   { p.n++; return p.n }

func TestRegisterRefusals(t *testing.T) {
	s := yodel.NewServer(nil)
	must(t, s.Handle("Taken.Mul", func(int) int { return 0 }))
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"nil":              {s.Register(nil), "register: nil has no methods"},
		"no name":          {s.Register(struct{ Arith }{}), "register struct { yodel_test.Arith }: it has no type name; use RegisterName"},
		"a named nil":      {s.RegisterName("A", nil), "register A: nil has no methods"},
		"no methods":       {s.Register(Args{}), "register yodel_test.Args as Args: no suitable method: it has no exported methods"},
		"a value":          {s.Register(Pointers{}), "register yodel_test.Pointers as Pointers: Count: it has a pointer receiver; register a pointer"},
		"bad methods":      {s.Register(Bad{}), "register yodel_test.Bad as Bad: no suitable method: Chan: a chan int cannot be sent; Reader: an interface (io.Reader) cannot be decoded into; use a concrete type"},
		"unknown method":   {s.Register(Arith{}, "Mul", "Mull"), "register yodel_test.Arith as Arith: Mull: yodel_test.Arith has no exported method of this name"},
		"hidden method":    {s.Register(Odd{}, "hidden"), "register yodel_test.Odd as Odd: hidden: yodel_test.Odd has no exported method of this name"},
		"unfit method":     {s.Register(Odd{}, "Good", "Chan"), "register yodel_test.Odd as Odd: Chan: a chan int cannot be sent"},
		"taken name":       {s.RegisterName("Taken", Arith{}, "Mul"), "register Taken.Mul: the name is taken"},
		"no function":      {s.Handle("f", 7), "handle f: int is not a function"},
		"nil function":     {s.Handle("f", (func())(nil)), "handle f: the func() is nil"},
		"no function, nil": {s.Handle("f", nil), "handle f: <nil> is not a function"},
		"unfit function":   {s.Handle("f", func(chan int) {}), "handle f: a chan int cannot be sent"},
		"function twice":   {s.Handle("Taken.Mul", func() {}), "register Taken.Mul: the name is taken"},
		"no name at all":   {s.Handle("", func() {}), "register: a method needs a name"},
		"taken alias":      {s.Alias("Taken.Mul", "Taken.Mul"), "register Taken.Mul: the name is taken"},
	} {
		e := wantError(t, test.err, yodel.InvalidArgument, "YDL4001")
		if e.Message != test.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, e.Message, test.want)
		}
	}
	e := wantError(t, s.Alias("taken.mul", "x"), yodel.Unimplemented, "YDL2001")
	if !strings.Contains(e.Message, `did you mean "Taken.Mul"?`) {
		t.Errorf("an alias of nothing: %v", e)
	}
	// What was refused left nothing behind.
	wantNames(t, connect(t, s, nil), "Taken.Mul")
}

func TestRegisterMistakesThatPanic(t *testing.T) {
	for name, test := range map[string]struct {
		mistake func(s *yodel.Server)
		want    string
	}{
		"registered twice":       {func(s *yodel.Server) { Mul.Handle(s, Arith{}.Mul) }, "yodel: invalid_argument: register Arith.Mul: the name is taken [YDL4001]"},
		"idempotent and unknown": {func(s *yodel.Server) { s.MarkIdempotent("Arith.mul") }, `yodel: mark: Arith.mul: service "Arith" has no method "mul"; did you mean "Arith.Mul"?`},
		"inline and unknown":     {func(s *yodel.Server) { s.MarkInline("Mul") }, `yodel: mark: Mul: this server has no such method; did you mean "Arith.Mul"?`},
		"concurrent and unknown": {func(s *yodel.Server) { s.MarkConcurrent("Arit.Mul") }, `yodel: mark: Arit.Mul: this server has no service "Arit"; did you mean "Arith.Mul"?`},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if got := recover(); got != test.want {
					t.Errorf("got panic %v, want %s", got, test.want)
				}
			}()
			test.mistake(newServer(t, nil))
		})
	}
}

func TestMethodsHaveAnyName(t *testing.T) {
	s := yodel.NewServer(nil)
	must(t, s.Register(Arith{}, "Mul", "Add")) // an allow-list
	must(t, s.RegisterName("shop.Cart", Arith{}, "Mul"))
	must(t, s.RegisterName("shop.Cart/", Arith{}, "Mul"))
	must(t, s.RegisterName("arith", &unexported{}))
	must(t, s.Register(&unexported{}))
	must(t, s.Register(outer{}, "Mul")) // a promoted method
	long := strings.Repeat("long.", 50) + "mul"
	for _, name := range []string{"mul", "/v1/mul", "日本 mul", long} {
		must(t, s.Handle(name, Arith{}.Mul))
	}
	must(t, s.Alias("mul", "times", "shop.Cart/Times"))
	c := connect(t, s, nil)
	wantNames(t, c, slices.Sorted(slices.Values([]string{
		"Arith.Add", "Arith.Mul", "shop.Cart.Mul", "shop.Cart/Mul", "arith.Count", "unexported.Count", "outer.Mul",
		"mul", "/v1/mul", "日本 mul", long, "times", "shop.Cart/Times",
	}))...)
	for _, name := range names(t, c) {
		switch {
		case strings.HasSuffix(name, "Count"):
			must(t, c.Call(t.Context(), name, yodel.Values{}, nil))
		case name != "Arith.Add":
			if reply, err := yodel.Method[Args, Reply](name).Call(t.Context(), c, &Args{6, 7}); err != nil || reply.C != 42 {
				t.Errorf("%s: got %v, %v", name, reply, err)
			}
		}
	}
	wantError(t, c.Call(t.Context(), "Arith.DivMod", yodel.Values{1, 1}, nil), yodel.Unimplemented, "YDL2002")
}

// A name that errors and logs would show as another one is no name: a call of "T.a\nb" must not
// execute "T.a b".
func TestNamesAreShownAsTheyAre(t *testing.T) {
	s := yodel.NewServer(nil)
	must(t, s.Handle("T.a b", Arith{}.Mul))
	must(t, s.Handle("T.a\ufffdb", Arith{}.Mul))
	c := connect(t, s, nil)
	for _, bad := range []string{"T.a\nb", "T.a\x00b", "T.a\u2028b", "T.a\u202eb", "T.a\x85b", "T.a\xffb", "T.a\u0085b", "T.a\x7fb"} {
		want := fmt.Sprintf("register %q: the name has control characters, or is not valid UTF-8", bad)
		for how, err := range map[string]error{
			"Handle":     s.Handle(bad, Arith{}.Mul),
			"HandleCall": s.HandleCall(bad, func(context.Context, *yodel.Call) error { return nil }),
			"Alias":      s.Alias("T.a b", bad),
		} {
			if e := wantError(t, err, yodel.InvalidArgument, "YDL4001"); e.Message != want {
				t.Errorf("%s: got %s, want %s", how, e.Message, want)
			}
		}
		e := wantError(t, s.RegisterName(bad, Arith{}, "Mul"), yodel.InvalidArgument, "YDL4001")
		if want := fmt.Sprintf("register %q: the name", bad+".Mul"); !strings.HasPrefix(e.Message, want) {
			t.Errorf("got %s, want %s…", e.Message, want)
		}
		wantError(t, c.Call(t.Context(), bad, &Args{6, 7}, &Reply{}), yodel.Unimplemented, "YDL2001")
	}
	var reply Reply
	for _, good := range []string{"T.a b", "T.a\ufffdb"} {
		must(t, c.Call(t.Context(), good, &Args{6, 7}, &reply))
	}
}

func TestClosuresKeepTheirState(t *testing.T) {
	s := yodel.NewServer(nil)
	p := &Pointers{}
	must(t, s.Register(p))
	sum := 0
	must(t, s.Handle("sum", func(n int) int { sum += n; return sum }))
	c := connect(t, s, nil)
	for range 3 {
		must(t, c.Call(t.Context(), "Pointers.Count", yodel.Values{}, nil))
		must(t, c.Call(t.Context(), "sum", yodel.Values{5}, nil))
	}
	var got int
	if err := c.Call(t.Context(), "sum", yodel.Values{0}, yodel.Values{&got}); err != nil || got != 15 || p.n != 3 {
		t.Errorf("got %d, %d, %v, want 15 and 3", got, p.n, err)
	}
}

func TestUnknownNamesAreExplained(t *testing.T) {
	s := newServer(t, nil)
	handle(t, s, "mul", Arith{}.Mul)
	must(t, s.RegisterName("shop.Cart/", Arith{}, "Add"))
	c := connect(t, s, nil)
	for name, want := range map[string]struct{ id, says string }{
		"Arith.mul":      {"YDL2002", `service "Arith" has no method "mul"; did you mean "Arith.Mul"?`},
		"arith.mul":      {"YDL2001", `this server has no service "arith"; did you mean "Arith.Mul"?`},
		"Arith.Mult":     {"YDL2002", `service "Arith" has no method "Mult"; did you mean "Arith.Mul"?`},
		"Aritj.Mul":      {"YDL2001", `this server has no service "Aritj"; did you mean "Arith.Mul"?`},
		"shop.Cart/add":  {"YDL2002", `service "shop.Cart" has no method "add"; did you mean "shop.Cart/Add"?`},
		"MUL":            {"YDL2002", `this server has no such method; did you mean "mul"?`},
		"Weather.Report": {"YDL2001", `this server has no service "Weather"`},
		"Arith.Integral": {"YDL2002", `service "Arith" has no method "Integral"`},
		"":               {"YDL2001", "a call without a method name"},
	} {
		e := wantError(t, c.Call(t.Context(), name, &Args{}, nil), yodel.Unimplemented, want.id)
		if !strings.HasSuffix(e.Message, want.says) || !e.NotProcessed {
			t.Errorf("%q: got %v, want %s", name, e, want.says)
		}
	}
}

func TestMethodsMayBeRegisteredWhileServing(t *testing.T) {
	s := newServer(t, nil)
	c := connect(t, s, nil)
	const Late yodel.Method[int, int] = "Late"
	if _, err := Late.Call(t.Context(), c, new(int)); yodel.CodeOf(err) != yodel.Unimplemented {
		t.Fatalf("got %v", err)
	}
	Late.Handle(s, func(_ context.Context, n *int) (*int, error) { return n, nil })
	// on the connection where it was unknown
	if got, err := Late.Call(t.Context(), c, new(7)); err != nil || *got != 7 {
		t.Errorf("got %v, %v", got, err)
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			name := fmt.Sprintf("Late%d", i)
			must(t, s.Handle(name, func(n int) int { return n }))
			s.MarkIdempotent(name)
			must(t, s.Alias(name, name+"Too"))
			var got int
			if err := c.Call(t.Context(), name+"Too", yodel.Values{i}, yodel.Values{&got}); err != nil || got != i {
				t.Errorf("%s: got %d, %v", name, got, err)
			}
			names(t, c)
		})
	}
	wg.Wait()
	if got := maps.Collect(slices.All(names(t, c))); len(got) != 3+1+40 {
		t.Errorf("%d methods, want 44", len(got))
	}
}

func TestOnRegisterMayRefuseBuiltInMethods(t *testing.T) {
	defer func() {
		if value := recover(); value != nil {
			t.Errorf("NewServer panicked: %v", value)
		}
	}()
	s := yodel.NewServer(&yodel.ServerOptions{OnRegister: func(method string) error {
		if !strings.HasPrefix(method, "Hook.") {
			return errHook
		}
		return nil
	}})
	if err := s.Handle("Hook.Func", func() int { return 1 }); err != nil {
		t.Error(err)
	}
}

func TestAnAliasThatOnRegisterRefusesIsForgotten(t *testing.T) {
	h := startHooked(t, mem.New(), &yodel.ServerOptions{OnRegister: func(method string) error {
		if method == "Hook.Alias" {
			return errHook
		}
		return nil
	}}, nil)
	if err := h.server.Alias(string(hookDouble), "Hook.Alias"); !errors.Is(err, errHook) {
		t.Errorf("got %v, want the hook's error", err)
	}
	info, err := inspect.Info.Call(t.Context(), h.client, &inspect.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range info.Methods {
		if len(m.Aliases) > 0 {
			t.Errorf("%s has the aliases %q", m.Name, m.Aliases)
		}
	}
}

// Nobody can call a method that OnRegister has not agreed to, and a connection that asked for it
// meanwhile does not keep it.
func TestNobodyCallsAMethodBeforeOnRegisterAgrees(t *testing.T) {
	refuse := true
	var h *hooked
	var during error
	h = startHooked(t, mem.New(), &yodel.ServerOptions{OnRegister: func(method string) error {
		if method != "Hook.New" {
			return nil
		}
		during = h.client.Call(t.Context(), method, yodel.Values{1}, nil)
		if err := h.server.Handle(method, func(n int) int { return n }); err == nil {
			t.Error("another method got the name while the hook decided")
		}
		if refuse {
			return errHook
		}
		return nil
	}}, nil)
	h.works(t, 42)
	for _, refuse = range []bool{true, false} {
		if err := h.server.Handle("Hook.New", func(n int) int { return n }); errors.Is(err, errHook) != refuse {
			t.Errorf("refused is %t, and Handle returned %v", refuse, err)
		}
		if yodel.CodeOf(during) != yodel.Unimplemented {
			t.Errorf("a call while the hook decided: got %v, want unimplemented", during)
		}
		err := h.client.Call(t.Context(), "Hook.New", yodel.Values{1}, nil)
		if want := map[bool]yodel.Code{true: yodel.Unimplemented}[refuse]; yodel.CodeOf(err) != want {
			t.Errorf("refused is %t, and a call returned %v", refuse, err)
		}
	}
}

// A name whose hook panicked can be registered later.
func TestANameIsFreeAfterItsHookPanicked(t *testing.T) {
	panics := true
	s := yodel.NewServer(&yodel.ServerOptions{NoIntrospection: true, OnRegister: func(string) error {
		if panics {
			panic("no")
		}
		return nil
	}})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic of the hook did not reach its caller")
			}
		}()
		_ = s.Handle("A.B", func() int { return 1 })
	}()
	panics = false
	must(t, s.Handle("A.B", func() int { return 1 }))
}

func TestAMethodThatWasUnregisteredIsRefused(t *testing.T) {
	s := newServer(t, nil)
	const Late, Other yodel.Method[int, int] = "Late.Method", "Late.Other"
	times := func(factor int) func(context.Context, *int) (*int, error) {
		return func(_ context.Context, n *int) (*int, error) { return new(factor * *n), nil }
	}
	var mayRepeat bool
	c := connect(t, s, &yodel.ClientOptions{Middleware: []yodel.Middleware{hookAfter(func(call *yodel.Call, err error) error {
		mayRepeat = call.Attempts().NoRepeat(yodel.Errorf(yodel.Unavailable, "lost")) == ""
		return err
	})}})
	gives := func(m yodel.Method[int, int], want int) {
		t.Helper()
		if got, err := m.Call(t.Context(), c, new(7)); err != nil || *got != want {
			t.Errorf("%s: got %v, want %d", m, err, want)
		}
	}
	refused := func(m yodel.Method[int, int]) {
		t.Helper()
		_, err := m.Call(t.Context(), c, new(7))
		if yodel.CodeOf(err) != yodel.Unimplemented || !yodel.NotProcessed(err) {
			t.Errorf("%s: got %v, want unimplemented, not executed", m, err)
		}
	}
	Late.Handle(s, times(2))
	must(t, s.Alias(string(Late), string(Other)))
	s.MarkIdempotent(string(Late))
	gives(Late, 14)
	gives(Other, 14)
	gives(Late, 14)
	if !mayRepeat {
		t.Error("the client has not learned that the method is idempotent")
	}

	if err := s.Unregister(string(Other), "Late.Nothing"); yodel.CodeOf(err) != yodel.Unimplemented {
		t.Errorf("Unregister of an unknown name: got %v, want unimplemented", err)
	}
	gives(Other, 14)
	must(t, s.Unregister(string(Late)))
	refused(Late)
	gives(Other, 14) // its other name
	if err := s.Alias(string(Late), "Late.Third"); err == nil {
		t.Error("a method that is not registered got an alias")
	}

	Late.Handle(s, times(3))
	gives(Late, 21)
	gives(Other, 14)
	gives(Late, 21)
	if mayRepeat {
		t.Error("the client takes the new method for idempotent, as the old one was")
	}
	must(t, s.Unregister(string(Late), string(Other), string(Late)))
	refused(Late)
	refused(Other)
	info, err := inspect.Info.Call(t.Context(), c, &inspect.Empty{})
	must(t, err)
	for _, m := range info.Methods {
		if strings.HasPrefix(m.Name, "Late.") {
			t.Errorf("the server still says that it has %s", m.Name)
		}
	}
}

// A service without methods is withdrawn from registries.
func TestAServiceWhoseMethodsWereUnregisteredIsWithdrawn(t *testing.T) {
	registry := memory.New(nil)
	s := newServer(t, &yodel.ServerOptions{Registrars: []discovery.Registrar{registry}})
	handle(t, s, "Late.Method", func(n int) int { return n })
	serve(t, s)
	known := make(chan int, 100)
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan error, 1)
	go func() {
		watched <- registry.Service("Late").Watch(ctx, func(instances []discovery.Instance) { known <- len(instances) })
	}()
	receiveValue(t, known, 1, "the service is announced")
	must(t, s.Unregister("Late.Method"))
	receiveValue(t, known, 0, "the service is withdrawn")
	cancel()
	<-watched
}

// What is being executed ends as if nothing had happened.
func TestUnregisterLetsCallsEnd(t *testing.T) {
	s := newServer(t, nil)
	begun, goOn := make(chan struct{}), make(chan struct{})
	const Wait yodel.Method[int, int] = "Late.Wait"
	Wait.Handle(s, func(_ context.Context, n *int) (*int, error) {
		close(begun)
		<-goOn
		return n, nil
	})
	c := connect(t, s, nil)
	ended := make(chan error, 1)
	Wait.Then(t.Context(), c, new(1), func(_ *int, err error) { ended <- err })
	<-begun
	must(t, s.Unregister(string(Wait)))
	close(goOn)
	must(t, receive(t, ended, "the call ends"))
}

// A connection calls a method while it goes and comes. Each call is executed or refused.
func TestMethodsGoAndComeWhileTheyAreCalled(t *testing.T) {
	s := newServer(t, nil)
	const Late yodel.Method[int, int] = "Late.Method"
	register := func() { Late.Handle(s, func(_ context.Context, n *int) (*int, error) { return n, nil }) }
	c := connect(t, s, nil)
	register()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := Late.Call(t.Context(), c, new(1)); err != nil && yodel.CodeOf(err) != yodel.Unimplemented {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 200 {
		must(t, s.Unregister(string(Late)))
		_, err := Late.Call(t.Context(), c, new(1))
		wantError(t, err, yodel.Unimplemented, "YDL2001")
		register()
		_, err = Late.Call(t.Context(), c, new(1))
		must(t, err)
	}
	close(stop)
	wg.Wait()
}

// The first calls of methods that a server does not have are told a similar name.
func TestSearchesForSimilarNamesAreLimited(t *testing.T) {
	inMemory(t, func(t *testing.T, network *mem.Network) {
		s := yodel.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
		must(t, s.Handle("Shop.Order", func(int) int { return 1 }))
		serveInMemory(t, network, s, "shop")
		c := newClient(t, &yodel.ClientOptions{Transport: network}, "shop")
		told := 0
		for i := range 100 {
			err := c.Call(t.Context(), fmt.Sprintf("Shop.Orde%d", i), yodel.Values{1}, nil)
			if strings.HasSuffix(wantError(t, err, yodel.Unimplemented, "YDL2002").Message, `did you mean "Shop.Order"?`) {
				told++
			}
		}
		if told != 50 {
			t.Errorf("%d calls were told a similar name, want 50", told)
		}
	})
}
