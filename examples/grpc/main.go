// SPDX-License-Identifier: Apache-2.0

// Command grpc moves a service of grpc-go and its callers to yodel, one by one, and back. The
// service, its callers and the generated code do not change.
//
//	go run ./examples/grpc
//
// It prints:
//
//	grpc-go client, served by grpc-go              3 for 60 minutes, FailedPrecondition: 10 left, 2 messages
//	grpc-go client, served by yodel, for grpc-go   3 for 60 minutes, FailedPrecondition: 10 left, 2 messages
//	  a service that has not moved: 150 cents
//	  health: SERVING
//	  reflection: 4 services
//	yodel   client, served by grpc-go              3 for 60 minutes, FailedPrecondition: 10 left, 2 messages
//	yodel   client, served by grpc-go              3 for 60 minutes, FailedPrecondition: 10 left, 2 messages
//	yodel   client, served by yodel, for yodel     3 for 60 minutes, FailedPrecondition: 10 left, 2 messages
//	yodel   client, served by yodel, for yodel-go  3 for 60 minutes, FailedPrecondition: 10 left, 2 messages
//	yodel   client, served by yodel, for yodel     3 for 60 minutes, FailedPrecondition: 10 left, 2 messages
//	yodel   client, served by grpc-go              3 for 60 minutes, FailedPrecondition: 10 left, 2 messages
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/examples/grpc/shoppb"
	wire "github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/reflection"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/dns"
	"github.com/yodel-rpc/yodel/registry/memory"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	r := memory.New(nil) // or etcd.New("10.0.0.1:2379", nil), consul.New("127.0.0.1:8500", nil) …
	old, err := startBefore()
	if err != nil {
		return err
	}
	defer old.server.Stop()
	now, err := startAfter(ctx, r, old.server)
	if err != nil {
		return err
	}
	if err := callUnchanged(ctx, old.addr, now.addr); err != nil {
		return err
	}
	if err := callByName(ctx, old.addr); err != nil {
		return err
	}
	if err := callMoved(ctx, r, old.addr, now); err != nil {
		return err
	}
	return now.stop()
}

// A before is a running server of grpc-go.
type before struct {
	server *grpc.Server
	addr   string
}

// startBefore starts the server that is to be replaced.
func startBefore() (*before, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	// region before
	s := grpc.NewServer(grpc.UnaryInterceptor(intercept))
	shoppb.RegisterStockServer(s, new(stock))
	shoppb.RegisterPricesServer(s, new(prices))
	// endregion before
	go func() { _ = s.Serve(l) }() // it ends with the server
	return &before{s, l.Addr().String()}, nil
}

// region interceptor

// intercept adds to the trailer of each call who has served it.
func intercept(ctx context.Context, in any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := grpc.SetTrailer(ctx, metadata.Pairs("served-by", "grpc-go")); err != nil {
		return nil, err
	}
	return next(ctx, in)
}

// endregion interceptor

// region middleware

// mark does the same for calls of all kinds and in all protocols.
func mark(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		err := next(ctx, call)
		if call.Trailer == nil {
			call.Trailer = make(yodel.Metadata)
		}
		// The agent ends with the library: yodel over gRPC, yodel-go in its own protocol.
		agent := call.Peer().Agent
		client, _, _ := strings.Cut(agent[strings.LastIndex(agent, " ")+1:], "/")
		call.Trailer["served-by"] = "yodel, for " + client
		return err
	}
}

// endregion middleware

// An after is a running yodel server.
type after struct {
	server *yodel.Server
	addr   string
	stop   func() error
}

// startAfter starts the server that replaces the one of grpc-go. Rest has the services that have
// not moved.
func startAfter(ctx context.Context, r *registry.Registry, rest *grpc.Server) (*after, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	// region server
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs:      []yodel.Codec{protobuf.Codec, protobuf.JSON},
		Compressors: []compress.Compressor{gzip.Compressor},                             // if callers use it
		Protocols:   []yodel.Protocol{http.New(&http.Options{Handler: rest})},           // a *grpc.Server with what has not moved
		Middleware:  []yodel.Middleware{mark},                                           // instead of interceptors
		Registrars:  []discovery.Registrar{r},                                           // for yodel clients
		Instance:    discovery.Instance{State: "inactive", Protocols: []string{"grpc"}}, // its callers do not use it yet
	})
	shoppb.RegisterStockServer(grpcgo.Registrar(s), new(stock))
	err = errors.Join(http.RegisterHealth(s), reflection.Register(s))
	// endregion server
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	return &after{s, l.Addr().String(), func() error { cancel(); return <-served }}, nil
}

// callUnchanged calls both servers with clients of grpc-go.
func callUnchanged(ctx context.Context, old, now string) error {
	for _, addr := range []string{old, now} {
		// region unchanged
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		outcome, served, err := order(ctx, shoppb.NewStockClient(conn))
		// endregion unchanged
		if err != nil {
			return err
		}
		report("grpc-go", served, outcome)
		if addr == now {
			return callOthers(ctx, conn)
		}
	}
	return nil
}

// callOthers calls the services of a yodel server besides Stock.
func callOthers(ctx context.Context, conn *grpc.ClientConn) error {
	price, err := shoppb.NewPricesClient(conn).Get(ctx, &shoppb.Item{Name: "apple", Count: 3})
	if err != nil {
		return err
	}
	health, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "shop.v1.Stock"})
	if err != nil {
		return err
	}
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return err
	}
	err = stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
	if err != nil {
		return err
	}
	list, err := stream.Recv()
	if err != nil {
		return err
	}
	fmt.Printf("  a service that has not moved: %d cents\n  health: %v\n  reflection: %d services\n",
		price.GetCents(), health.GetStatus(), len(list.GetListServicesResponse().GetService()))
	return stream.CloseSend()
}

// region dns

// A grpcHost is the servers of gRPC behind a name in DNS, which does not say what they speak.
type grpcHost struct{ *dns.Resolver }

// Watch implements discovery.Resolver.
func (h grpcHost) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	return h.Resolver.Watch(ctx, func(all []discovery.Instance) {
		all = slices.Clone(all)
		for i := range all {
			all[i].Protocols = []string{"grpc"}
		}
		update(all)
	})
}

// endregion dns

// callByName calls the server of grpc-go with a yodel client and without a registry.
func callByName(ctx context.Context, target string) error {
	// region name
	client := yodel.NewClient(grpcHost{dns.Host(target, nil)}, &yodel.ClientOptions{Wires: []yodel.Wire{wire.Wire}})
	// endregion name
	defer client.Close()
	return await(ctx, shoppb.NewStockClient(grpcgo.Conn(client)), "grpc-go")
}

// callMoved calls the servers with a yodel client, as their records in the registry change.
func callMoved(ctx context.Context, r *registry.Registry, old string, now *after) error {
	// region record
	// Grpc-go does not announce its servers. A program that deploys them writes their records.
	oldServer := discovery.Instance{Addr: old, Protocols: []string{"grpc"}}
	err := r.Announce(ctx, "shop.v1.Stock", oldServer, time.Hour)
	// endregion record
	if err != nil {
		return err
	}
	// region client
	client := yodel.NewClient(r.Service("shop.v1.Stock"), &yodel.ClientOptions{Wires: []yodel.Wire{wire.Wire}})
	defer client.Close()
	stock := shoppb.NewStockClient(grpcgo.Conn(client)) // instead of a *grpc.ClientConn
	// endregion client
	if err := await(ctx, stock, "grpc-go"); err != nil {
		return err
	}
	// region replace
	now.server.UpdateInstance(func(in *discovery.Instance) { in.State = "" })
	if err := await(ctx, stock, "yodel, for yodel"); err != nil { // both servers get calls now
		return err
	}
	err = r.Withdraw(ctx, "shop.v1.Stock", old)
	// endregion replace
	if err != nil {
		return err
	}
	// region native
	now.server.UpdateInstance(func(in *discovery.Instance) { in.Protocols = nil }) // yodel, and the names of its other protocols
	// endregion native
	if err := await(ctx, stock, "yodel, for yodel-go"); err != nil {
		return err
	}
	// region back
	now.server.UpdateInstance(func(in *discovery.Instance) { in.Protocols = []string{"grpc"} })
	// endregion back
	if err := await(ctx, stock, "yodel, for yodel"); err != nil {
		return err
	}
	// region rollback
	err = r.Announce(ctx, "shop.v1.Stock", oldServer, time.Hour)
	// endregion rollback
	if err != nil {
		return err
	}
	if err := await(ctx, stock, "grpc-go"); err != nil {
		return err
	}
	now.server.UpdateInstance(func(in *discovery.Instance) { in.State = "inactive" })
	return nil
}

// await calls the service until the client has learned of a change in the registry, and prints the
// outcome.
func await(ctx context.Context, stock shoppb.StockClient, want string) error {
	end := time.Now().Add(10 * time.Second)
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for {
		outcome, served, err := order(ctx, stock)
		switch {
		case err != nil:
			return err
		case served == want:
			report("yodel", served, outcome)
			return nil
		case time.Now().After(end):
			return fmt.Errorf("the calls are served by %s, want %s", served, want)
		}
		<-again.C
	}
}

func report(client, served, outcome string) {
	fmt.Printf("%-7s client, served by %-19s  %s\n", client, served, outcome)
}
