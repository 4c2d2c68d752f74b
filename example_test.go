// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/middleware/once"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A server and a client of one method. The contract is a name with the types of the request and of
// the reply, which both sides share.
func Example() {
	type Args struct{ A, B int }
	type Reply struct{ C int }
	const Mul yodel.Method[Args, Reply] = "Arith.Mul"

	s := yodel.NewServer(nil)
	Mul.Handle(s, func(_ context.Context, in *Args) (*Reply, error) {
		return &Reply{C: in.A * in.B}, nil
	})
	l, err := net.Listen("tcp", "127.0.0.1:0") // at a known address: s.ListenAndServe(ctx, ":8972")
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()

	c := yodel.Dial(l.Addr().String())
	reply, err := Mul.Call(ctx, c, &Args{A: 7, B: 8})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(reply.C)

	c.Close()
	stop() // the server shuts down
	fmt.Println(<-served)
	// Output:
	// 56
	// <nil>
}

// serveInBackground serves s at a free port of this machine. Stop shuts it down.
func serveInBackground(s *yodel.Server) (addr string, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()
	return l.Addr().String(), func() {
		cancel()
		if err := <-served; err != nil {
			fmt.Println(err)
		}
	}
}

// A typed method is called and waited for, called asynchronously, or called with all that a Call
// can carry.
func ExampleMethod() {
	const Print yodel.Method[string, string] = "Printer.Print"
	s := yodel.NewServer(nil)
	Print.Handle(s, func(ctx context.Context, in *string) (*string, error) {
		receipt := "printed " + *in
		if user := yodel.CallFrom(ctx).Metadata["user"]; user != "" {
			receipt += " for " + user
		}
		return &receipt, nil
	})
	addr, stop := serveInBackground(s)
	defer stop()
	c := yodel.Dial(addr)
	defer c.Close()
	ctx := context.Background()

	reply, err := Print.Call(ctx, c, new("a report"))
	fmt.Println(*reply, err)

	future := Print.Go(ctx, c, new("a letter")) // does not wait
	reply, err = future.Get()
	fmt.Println(*reply, err)

	call := &yodel.Call{Metadata: yodel.Metadata{"user": "anna"}, Deadline: time.Now().Add(time.Minute)}
	reply, err = Print.Do(ctx, c, call, new("a bill"))
	fmt.Println(*reply, err)
	// Output:
	// printed a report <nil>
	// printed a letter <nil>
	// printed a bill for anna <nil>
}

// The server sends messages for as long as the client ranges over them.
func ExampleFeed() {
	const Count yodel.Feed[int, int] = "Count"
	s := yodel.NewServer(nil)
	Count.Handle(s, func(_ context.Context, from *int, send yodel.Send[int]) error {
		for n := *from; ; n++ {
			if err := send(&n); err != nil {
				return err // the client has left the loop
			}
		}
	})
	addr, stop := serveInBackground(s)
	defer stop()
	c := yodel.Dial(addr)
	defer c.Close()

	for n, err := range Count.Call(context.Background(), c, new(40)) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(*n)
		if *n == 42 {
			break // cancels the call
		}
	}
	// Output:
	// 40
	// 41
	// 42
}

// The client sends many messages and gets one reply.
func ExampleUpload() {
	const Sum yodel.Upload[int, int] = "Sum"
	s := yodel.NewServer(nil)
	Sum.Handle(s, func(_ context.Context, recv yodel.Recv[int]) (*int, error) {
		sum := 0
		for n, err := range recv {
			if err != nil {
				return nil, err // the client has gone: these may not be all
			}
			sum += *n
		}
		return &sum, nil
	})
	addr, stop := serveInBackground(s)
	defer stop()
	c := yodel.Dial(addr)
	defer c.Close()

	sum, err := Sum.Call(context.Background(), c, func(send yodel.Send[int]) error {
		for n := range 5 {
			if err := send(&n); err != nil {
				return err
			}
		}
		return nil // no more messages: now the server replies
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*sum)
	// Output: 10
}

// Both sides send messages. Here the client waits for each answer before it asks again.
func ExampleDuplex() {
	const Square yodel.Duplex[int, int] = "Square"
	s := yodel.NewServer(nil)
	Square.Handle(s, func(_ context.Context, recv yodel.Recv[int], send yodel.Send[int]) error {
		for n, err := range recv {
			if err != nil {
				return err
			}
			if err := send(new(*n * *n)); err != nil {
				return err
			}
		}
		return nil
	})
	addr, stop := serveInBackground(s)
	defer stop()
	c := yodel.Dial(addr)
	defer c.Close()

	err := Square.Call(context.Background(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
		for n := range 3 {
			if err := send(&n); err != nil {
				return err
			}
			square, err := recv.Next()
			if err != nil {
				return err
			}
			fmt.Println(*square)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// 0
	// 1
	// 4
	// <nil>
}

// Calculator is a service. Its methods have three of the shapes that Register takes.
type Calculator struct{}

func (*Calculator) Double(_ context.Context, n *int) (*int, error) { return new(2 * *n), nil }

func (*Calculator) Negate(n int, out *int) error { *out = -n; return nil }

func (*Calculator) DivMod(a, b int) (quotient, remainder int) { return a / b, a % b }

// Register takes the methods of a struct, also those that were written for net/rpc and rpcx.
func ExampleServer_Register() {
	s := yodel.NewServer(nil)
	if err := s.Register(new(Calculator)); err != nil {
		fmt.Println(err)
		return
	}
	addr, stop := serveInBackground(s)
	defer stop()
	c := yodel.Dial(addr)
	defer c.Close()
	ctx := context.Background()

	var double, negative, quotient, remainder int
	err := errors.Join(
		c.Call(ctx, "Calculator.Double", 21, &double),
		c.Call(ctx, "Calculator.Negate", 42, &negative),
		c.Call(ctx, "Calculator.DivMod", yodel.Values{17, 5}, yodel.Values{&quotient, &remainder}),
	)
	fmt.Println(double, negative, quotient, remainder, err)
	// Output: 42 -42 3 2 <nil>
}

// Shutdown lets the calls finish that the server has accepted. What handlers use is closed
// afterwards.
func ExampleServer_Shutdown() {
	const Order yodel.Method[string, string] = "Cafe.Order"
	const Brew yodel.Method[string, string] = "Kitchen.Brew"
	kitchen := yodel.NewServer(nil)
	begun, finish := make(chan struct{}), make(chan struct{})
	Brew.Handle(kitchen, func(_ context.Context, item *string) (*string, error) {
		close(begun)
		<-finish
		return new("a cup of " + *item), nil
	})
	kitchenAddr, stopKitchen := serveInBackground(kitchen)
	defer stopKitchen()
	downstream := yodel.Dial(kitchenAddr) // what the handlers of the server use

	s := yodel.NewServer(nil)
	Order.Handle(s, func(ctx context.Context, item *string) (*string, error) {
		return Brew.Call(ctx, downstream, item)
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	served := make(chan error)
	go func() { served <- s.Serve(context.Background(), l) }()
	c := yodel.Dial(l.Addr().String())
	defer c.Close()
	order := Order.Go(context.Background(), c, new("tea"))
	<-begun
	go close(finish) // the call ends while the server shuts down

	// region shutdown
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // not the context that has just ended
	defer cancel()
	err = s.Shutdown(ctx) // an error names the calls that were cut off
	downstream.Close()    // after the server: handlers used it until now
	// endregion shutdown
	fmt.Println(err, errors.Is(<-served, yodel.ErrServerClosed))

	cup, err := order.Get()
	fmt.Println(*cup, err)
	// Output:
	// <nil> true
	// a cup of tea <nil>
}

// A server announces itself in a registry, and a client follows the service there: instances may
// come and go. The registry of this example is in the process; registry/etcd and its neighbours are
// used in the same way.
func ExampleNewClient() {
	const Double yodel.Method[int, int] = "Calculator.Double"
	r := memory.New(nil) // or etcd.New("10.0.0.1:2379", nil), consul.New("127.0.0.1:8500", nil) …

	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}})
	Double.Handle(s, func(_ context.Context, n *int) (*int, error) { return new(2 * *n), nil })
	_, stop := serveInBackground(s)
	defer stop()
	waitForInstance(r.Service("Calculator"))

	c := yodel.NewClient(r.Service("Calculator"), &yodel.ClientOptions{Timeout: time.Minute})
	defer c.Close()
	double, err := Double.Call(context.Background(), c, new(21))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*double)
	// Output: 42
}

// waitForInstance returns when a registry knows an instance of the service.
func waitForInstance(service discovery.Resolver) {
	ctx, found := context.WithCancel(context.Background())
	defer found()
	if err := service.Watch(ctx, func(all []discovery.Instance) {
		if len(all) > 0 {
			found()
		}
	}); err != nil {
		fmt.Println(err)
	}
}

// A handler chooses the code of its error, and can add details for the caller's program. The caller
// compares codes.
func ExampleError() {
	const Order yodel.Method[string, struct{}] = "Cafe.Order"
	s := yodel.NewServer(nil)
	Order.Handle(s, func(_ context.Context, item *string) (*struct{}, error) {
		err := yodel.Errorf(yodel.NotFound, "there is no %s", *item)
		err.Details = []yodel.Detail{{Type: "cafe.Instead", Value: []byte("tea")}}
		return nil, err
	})
	addr, stop := serveInBackground(s)
	defer stop()
	c := yodel.Dial(addr)
	defer c.Close()

	_, err := Order.Call(context.Background(), c, new("coffee"))
	fmt.Println(err)
	fmt.Println(errors.Is(err, yodel.NotFound), yodel.NotProcessed(err))
	if e, ok := errors.AsType[*yodel.Error](err); ok {
		fmt.Printf("%s: %s\n", e.Details[0].Type, e.Details[0].Value)
	}
	// Output:
	// not_found: there is no coffee
	// true false
	// cafe.Instead: tea
}

// A middleware wraps the handler of all calls. This one refuses calls of a server that come without
// a user; the method then does not run.
func ExampleMiddleware() {
	known := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Metadata["user"] == "" {
				return yodel.Errorf(yodel.Unauthenticated, "%s: say who you are", call.Method)
			}
			return next(ctx, call)
		}
	}
	const Hello yodel.Method[struct{}, string] = "Hello"
	s := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{known}})
	Hello.Handle(s, func(ctx context.Context, _ *struct{}) (*string, error) {
		return new("hello " + yodel.CallFrom(ctx).Metadata["user"]), nil
	})
	addr, stop := serveInBackground(s)
	defer stop()
	c := yodel.Dial(addr)
	defer c.Close()
	ctx := context.Background()

	_, err := Hello.Call(ctx, c, &struct{}{})
	fmt.Println(err)
	text, err := Hello.Do(ctx, c, &yodel.Call{Metadata: yodel.Metadata{"user": "anna"}}, &struct{}{})
	fmt.Println(*text, err)
	// Output:
	// unauthenticated: Hello: say who you are
	// hello anna <nil>
}

// An observer sees each call begin and end, and changes nothing: it is for logs, metrics and
// traces.
func ExampleObserver() {
	type began struct{}
	// region observer
	log := yodel.Observer{
		Start: func(ctx context.Context, call *yodel.Call) context.Context {
			return context.WithValue(ctx, began{}, call.Now())
		},
		End: func(ctx context.Context, call *yodel.Call, err error) {
			took := time.Since(ctx.Value(began{}).(time.Time))
			fmt.Println(call.Method, yodel.CodeOf(err), took < time.Minute)
		},
	}
	// endregion observer
	s := yodel.NewServer(nil)
	addr, stop := serveInBackground(s)
	defer stop()
	c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{Observers: []yodel.Observer{log}})
	defer c.Close()
	ctx := context.Background()

	inspect.Ping.Call(ctx, c, &struct{}{})
	c.Call(ctx, "Nobody.Home", &struct{}{}, nil)
	// Output:
	// yodel.Ping ok true
	// Nobody.Home unimplemented true
}

// A handler hands its call over to a queue and returns. The goroutine that takes the call from the
// queue replies.
func ExampleCall_Later() {
	const Ask yodel.Method[string, string] = "Oracle.Ask"
	s := yodel.NewServer(nil)
	// region later
	type question struct {
		text  string
		reply func(reply any, err error)
	}
	queue := make(chan question, 100)
	Ask.Handle(s, func(ctx context.Context, text *string) (*string, error) {
		select {
		case queue <- question{*text, yodel.CallFrom(ctx).Later()}:
			return nil, nil // the reply comes later
		default:
			return nil, yodel.Errorf(yodel.ResourceExhausted, "the queue is full")
		}
	})
	go func() {
		for q := range queue {
			answer := "the answer to " + q.text
			q.reply(&answer, nil)
		}
	}()
	// endregion later
	defer close(queue)
	addr, stop := serveInBackground(s)
	defer stop()
	c := yodel.Dial(addr)
	defer c.Close()

	text := "everything"
	answer, err := Ask.Call(context.Background(), c, &text)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*answer)
	// Output: the answer to everything
}

// Two calls with the same idempotency key are executed once, if the server remembers keys. So a
// caller that does not know whether its call was executed can make it again.
func ExampleCall_idempotencyKey() {
	const Withdraw yodel.Method[int, int] = "Bank.Withdraw"
	balance := 100
	s := yodel.NewServer(&yodel.ServerOptions{Keys: once.With(nil)})
	Withdraw.Handle(s, func(_ context.Context, amount *int) (*int, error) {
		balance -= *amount
		return new(balance), nil
	})
	addr, stop := serveInBackground(s)
	defer stop()
	c := yodel.Dial(addr)
	defer c.Close()
	ctx := context.Background()

	for range 2 {
		left, err := Withdraw.Do(ctx, c, &yodel.Call{IdempotencyKey: "withdrawal 7"}, new(30))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(*left)
	}
	// Output:
	// 70
	// 70
}

// A server pushes news to all clients that are connected, and calls a client back while it works on
// its call.
func ExampleServer_Peers() {
	const (
		News yodel.Method[string, struct{}] = "News"
		Name yodel.Method[struct{}, string] = "Name"
		Join yodel.Method[struct{}, string] = "Join"
	)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	server := yodel.NewServer(nil)
	Join.Handle(server, func(ctx context.Context, _ *struct{}) (*string, error) {
		// over the connection that the call came on
		name, err := Name.Call(ctx, yodel.CallFrom(ctx).Peer(), &struct{}{})
		if err != nil {
			return nil, err
		}
		welcome := "welcome, " + *name
		return &welcome, nil
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()

	heard := make(chan string)
	own := yodel.NewServer(nil) // what the client serves; it does not listen
	News.Handle(own, func(_ context.Context, text *string) (*struct{}, error) {
		heard <- *text
		return nil, nil
	})
	Name.Handle(own, func(context.Context, *struct{}) (*string, error) {
		name := "anna"
		return &name, nil
	})
	client := yodel.NewClient(discovery.Static(l.Addr().String()), &yodel.ClientOptions{Server: own})
	welcome, err := Join.Call(ctx, client, &struct{}{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*welcome)

	text := "the shop is open"
	for _, peer := range server.Peers() {
		if err := News.Notify(ctx, peer, &text); err != nil {
			fmt.Println(err) // it has gone meanwhile; the others are told
		}
	}
	fmt.Println(<-heard)

	client.Close()
	cancel()
	fmt.Println(<-served)
	// Output:
	// welcome, anna
	// the shop is open
	// <nil>
}

func ExampleCall_Report() {
	network := mem.New()
	l, err := network.Listen("cafe")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := yodel.NewServer(nil)
	server.Handle("Cafe.Order", func(item string) error {
		if item == "tea" {
			return nil
		}
		return yodel.Errorf(yodel.NotFound, "there is no %s", item)
	})
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()
	client := yodel.NewClient(discovery.Static("cafe"), &yodel.ClientOptions{Transport: network})

	// region error
	err = client.Call(ctx, "Cafe.Order", yodel.Values{"coffee"}, nil)
	if report, ok := errors.AsType[*introspect.CallReport](err); ok { // fmt.Printf("%+v", err) prints it
		last := report.Attempts[len(report.Attempts)-1]
		fmt.Println(last.Addr, last.Code, last.Message)
	}
	// endregion error

	// region explain
	call := &yodel.Call{Method: "Cafe.Order", Args: yodel.Values{"tea"}, Explain: true}
	if err := client.Do(ctx, call); err == nil {
		report := call.Report() // fmt.Println(report) prints it
		fmt.Println(report.Candidates[0].Addr, report.Candidates[0].Verdict, report.Attempts[0].Took > 0)
	}
	// endregion explain

	// region samples
	samples := client.Samples(&introspect.SamplesQuery{Method: "Cafe.Order", Failed: true})
	for _, report := range samples.Calls {
		fmt.Println(report.Side, report.Method, report.Code)
	}
	// endregion samples

	client.Close()
	stop()
	<-served
	// Output:
	// cafe not_found there is no coffee
	// cafe picked true
	// client Cafe.Order not_found
}

func Example_liveData() { //nolint:testableexamples // its output depends on the time
	network := mem.New()
	l, err := network.Listen("cafe")
	if err != nil {
		fmt.Println(err)
		return
	}
	const order yodel.Method[string, int] = "Cafe.Order"
	server := yodel.NewServer(&yodel.ServerOptions{Diagnostics: true})
	order.Handle(server, func(_ context.Context, drink *string) (*int, error) { return new(len(*drink)), nil })
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()
	client := yodel.NewClient(discovery.Static("cafe"), &yodel.ClientOptions{Transport: network, Name: "waiter"})
	drink := "tea"
	if _, err := order.Call(ctx, client, &drink); err != nil {
		fmt.Println(err)
	}

	// region live
	live, err := inspect.Live.Call(ctx, client, &introspect.LiveQuery{Span: time.Hour, Side: "server"})
	if err == nil {
		for _, s := range live.Series {
			last := len(s.Calls) - 1
			fmt.Println(s.Method, "from", s.Peer+":", s.Calls[last], "calls in the last", live.Step)
		}
	}
	// endregion live

	client.Close()
	stop()
	<-served
}
