// SPDX-License-Identifier: Apache-2.0

// Command connect moves a service of connect-go and its callers to yodel, one by one, and back.
// Unary methods do not change.
//
//	go run ./examples/connect
//
// It prints:
//
//	Connect           served by connect-go  3 for 60 minutes, failed_precondition: 10 left, 10 counted, 2 messages
//	Connect with JSON served by connect-go  3 for 60 minutes, failed_precondition: 10 left, 10 counted, 2 messages
//	gRPC              served by connect-go  3 for 60 minutes, failed_precondition: 10 left, 10 counted, 2 messages
//	gRPC-Web          served by connect-go  3 for 60 minutes, failed_precondition: 10 left, 10 counted, 2 messages
//	GET               served by connect-go  10 counted, for https://shop.example
//	Connect           served by yodel       3 for 60 minutes, failed_precondition: 10 left, 10 counted, 2 messages
//	Connect with JSON served by yodel       3 for 60 minutes, failed_precondition: 10 left, 10 counted, 2 messages
//	gRPC              served by yodel       3 for 60 minutes, failed_precondition: 10 left, 10 counted, 2 messages
//	gRPC-Web          served by yodel       3 for 60 minutes, failed_precondition: 10 left, 10 counted, 2 messages
//	GET               served by yodel       10 counted, for https://shop.example
//	yodel             served by connect-go  3 for 60 minutes, failed_precondition: 10 left, 10 counted, 2 messages
//	yodel             served by yodel       3 for 60 minutes, failed_precondition: 10 left, 10 counted, 2 messages
//	Connect           served by connect-go  3 for 60 minutes, failed_precondition: 10 left, 10 counted, 2 messages
//	Connect with JSON served by connect-go  3 for 60 minutes, failed_precondition: 10 left, 10 counted, 2 messages
//	gRPC              served by connect-go  3 for 60 minutes, failed_precondition: 10 left, 10 counted, 2 messages
//	gRPC-Web          served by connect-go  3 for 60 minutes, failed_precondition: 10 left, 10 counted, 2 messages
//	GET               served by connect-go  10 counted, for https://shop.example
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	std "net/http"
	"net/http/httptest"
	"net/url"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/examples/connect/shoppb"
	"github.com/yodel-rpc/yodel/examples/connect/shoppb/shoppbconnect"
	wire "github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// region methods

// The methods of the service, with their types.
const (
	Reserve yodel.Method[shoppb.Item, shoppb.Reservation] = shoppbconnect.StockName + "/Reserve"
	Count   yodel.Method[shoppb.Item, shoppb.Item]        = shoppbconnect.StockName + "/Count"
	Watch   yodel.Feed[shoppb.Item, shoppb.Item]          = shoppbconnect.StockName + "/Watch"
)

// endregion methods

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	// region before
	mux := std.NewServeMux()
	mux.Handle(shoppbconnect.NewStockHandler(stock{}, connect.WithInterceptors(connect.UnaryInterceptorFunc(intercept))))
	// endregion before
	old := httptest.NewUnstartedServer(mux) // stands for the server that is to be replaced
	old.Config.Protocols = new(std.Protocols)
	old.Config.Protocols.SetHTTP1(true)
	old.Config.Protocols.SetUnencryptedHTTP2(true)
	old.Start()
	defer old.Close()

	// region server
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs:      []yodel.Codec{protobuf.Codec, protobuf.JSON},
		Compressors: []compress.Compressor{gzip.Compressor},                                    // clients of connect-go ask for it
		Protocols:   []yodel.Protocol{http.New(&http.Options{Handler: mux, Origins: origins})}, // mux has all that has not moved
		Middleware:  []yodel.Middleware{mark},                                                  // instead of interceptors
	})
	// endregion server
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	err = migrate(ctx, s, l.Addr().String(), old.Listener.Addr().String())
	stop()
	return errors.Join(err, <-served)
}

// origins are the sites whose pages may call the server.
var origins = []string{"https://shop.example"}

// region interceptor

// intercept adds to the trailer of each call who has served it.
func intercept(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		response, err := next(ctx, r)
		if err == nil {
			response.Trailer().Set("Served-By", "connect-go")
		}
		return response, err
	}
}

// endregion interceptor

// region middleware

// mark does the same for calls of all kinds and in all protocols, also for those that fail.
func mark(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		err := next(ctx, call)
		if call.Trailer == nil {
			call.Trailer = make(yodel.Metadata)
		}
		call.Trailer["served-by"] = "yodel"
		return err
	}
}

// endregion middleware

// migrate moves the service and its callers, and back.
func migrate(ctx context.Context, s *yodel.Server, addr, old string) error {
	if err := callAll(ctx, addr); err != nil {
		return err
	}
	// region move
	handle(s, Reserve, stock{}.Reserve) // unchanged
	handle(s, Count, stock{}.Count)
	s.MarkReadOnly(string(Count)) // idempotency_level = NO_SIDE_EFFECTS
	Watch.Handle(s, watch)        // streams change
	// endregion move
	if err := callAll(ctx, addr); err != nil {
		return err
	}
	if err := callMoved(ctx, addr, old); err != nil {
		return err
	}
	// region back
	err := s.Unregister(string(Reserve), string(Count), string(Watch)) // or do not register them
	// endregion back
	if err != nil {
		return err
	}
	return callAll(ctx, addr)
}

// region stream

// watch is Watch with a stream of yodel.
func watch(_ context.Context, in *shoppb.Item, send yodel.Send[shoppb.Item]) error {
	for left := range in.GetCount() {
		if err := send(&shoppb.Item{Name: in.GetName(), Count: left}); err != nil {
			return err
		}
	}
	return nil
}

// endregion stream

// callAll calls a server with unchanged clients of connect-go, in all their protocols.
func callAll(ctx context.Context, addr string) error {
	c, h2 := new(std.Client), new(std.Client)
	protocols := new(std.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	h2.Transport = &std.Transport{Protocols: protocols}
	c.Transport = new(std.Transport)
	defer h2.CloseIdleConnections()
	defer c.CloseIdleConnections()
	for _, use := range []struct {
		name    string
		client  *std.Client
		options []connect.ClientOption
	}{
		{"Connect", c, []connect.ClientOption{connect.WithHTTPGet()}},
		{"Connect with JSON", c, []connect.ClientOption{connect.WithProtoJSON()}},
		{"gRPC", h2, []connect.ClientOption{connect.WithGRPC()}},
		{"gRPC-Web", c, []connect.ClientOption{connect.WithGRPCWeb()}},
	} {
		// region unchanged
		client := shoppbconnect.NewStockClient(use.client, "http://"+addr, use.options...)
		// endregion unchanged
		outcome, served, err := order(ctx, client)
		if err != nil {
			return fmt.Errorf("%s: %w", use.name, err)
		}
		report(use.name, served, outcome)
	}
	return browse(ctx, c, addr)
}

func report(client, served, outcome string) {
	fmt.Printf("%-17s served by %-10s  %s\n", client, served, outcome)
}

// browse does what a page of another site does in a browser: a GET that a cache may answer.
func browse(ctx context.Context, c *std.Client, addr string) error {
	query := url.Values{"encoding": {"json"}, "message": {`{"name":"apple"}`}, "connect": {"v1"}}
	r, err := std.NewRequestWithContext(ctx, std.MethodGet, "http://"+addr+"/"+string(Count)+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	r.Header.Set("Origin", origins[0])
	response, err := c.Do(r)
	if err != nil {
		return err
	}
	var left struct {
		Count int `json:"count"`
	}
	err = json.NewDecoder(response.Body).Decode(&left)
	report("GET", response.Header.Get("Trailer-Served-By"), fmt.Sprintf("%d counted, for %s", left.Count, response.Header.Get("Access-Control-Allow-Origin")))
	return errors.Join(err, response.Body.Close())
}

// callMoved calls the server of connect-go and the yodel server with one yodel client.
func callMoved(ctx context.Context, addr, old string) error {
	// region client
	client := yodel.NewClient(discovery.Static("connect://"+old, addr), &yodel.ClientOptions{
		Codec: protobuf.Codec,
		Wires: []yodel.Wire{wire.Wire(nil)},
	})
	// endregion client
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	outcomes := make(map[string]string)
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(10 * time.Second); len(outcomes) < 2; <-again.C { // both servers get calls
		outcome, served, err := orderNew(ctx, client)
		switch {
		case err != nil:
			return err
		case time.Now().After(end):
			return fmt.Errorf("one server alone has served all calls: %v", outcomes)
		}
		outcomes[served] = outcome
		if _, err = Count.Call(ctx, client, &shoppb.Item{}); err != nil { // the calls go to the servers in turn: make their number odd
			return err
		}
	}
	for _, served := range []string{"connect-go", "yodel"} {
		report("yodel", served, outcomes[served])
	}
	return nil
}

// orderNew is order with a yodel client.
func orderNew(ctx context.Context, client *yodel.Client) (outcome, served string, err error) {
	// region call
	call := &yodel.Call{Metadata: yodel.Metadata{"user": "ann"}}
	reply, err := Reserve.Do(ctx, client, call, &shoppb.Item{Name: "apple", Count: 3})
	// endregion call
	if err != nil {
		return "", "", err
	}
	served = call.Trailer["served-by"]
	// region error
	call = &yodel.Call{Metadata: yodel.Metadata{"user": "ann"}}
	_, refused := Reserve.Do(ctx, client, call, &shoppb.Item{Name: "apple", Count: 30})
	left := new(shoppb.Shortage)
	if e, ok := errors.AsType[*yodel.Error](refused); ok && len(e.Details) == 1 {
		err = proto.Unmarshal(e.Details[0].Value, left)
	}
	// endregion error
	if err != nil {
		return "", "", err
	}
	count, err := Count.Call(ctx, client, &shoppb.Item{Name: "apple"})
	if err != nil {
		return "", "", err
	}
	messages := 0
	// region feed
	for _, err := range Watch.Call(ctx, client, &shoppb.Item{Name: "apple", Count: 2}) {
		if err != nil {
			return "", "", err
		}
		messages++
	}
	// endregion feed
	return outcomeOf(reply, yodel.CodeOf(refused), left, count, messages), served, nil
}
