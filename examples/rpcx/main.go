// SPDX-License-Identifier: Apache-2.0

// Command rpcx serves and calls a service that was written for rpcx. Its methods stay as they are.
//
//	go run ./examples/rpcx
//
// It prints:
//
//	8 <nil>
//	8 <nil>
//	8 <nil>
//	8 <nil> in the protocol of yodel
//	8 <nil> in the protocol of rpcx
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/retry"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/registry/memory"
)

// region service

// Args is two numbers.
type Args struct{ A, B int }

// Reply is their quotient.
type Reply struct{ C int }

// Arith is a service as rpcx takes it.
type Arith struct{}

// Div divides.
func (*Arith) Div(_ context.Context, args *Args, reply *Reply) error {
	if args.B == 0 {
		return errors.New("divide by zero")
	}
	reply.C = args.A / args.B
	return nil
}

// endregion service

func main() {
	ctx, stop := context.WithCancel(context.Background())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}

	r := memory.New(nil) // or etcd.New("10.0.0.1:2379", nil), consul.New("127.0.0.1:8500", nil) …
	// region server
	s := yodel.NewServer(&yodel.ServerOptions{
		Registrars: []discovery.Registrar{r},        // serverplugin.EtcdV3RegisterPlugin and its like
		Instance:   discovery.Instance{Weight: 10},  // the metadata "weight=10"
		Protocols:  []yodel.Protocol{rpcx.Protocol}, // for rpcx clients that have not moved yet
	})
	if err := s.Register(new(Arith)); err != nil { // s.RegisterName("Arith", new(Arith), "weight=10")
		log.Fatal(err)
	}
	// endregion server
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()
	waitForInstance(ctx, r.Service("Arith"))

	// region client
	c := yodel.NewClient(r.Service("Arith"), &yodel.ClientOptions{ // client.NewXClient
		Balancer:   balance.Smooth,                     // client.WeightedRoundRobin
		Middleware: []yodel.Middleware{retry.Times(4)}, // client.Failover, with 3 retries
		Idempotent: []string{"Arith.Div"},              // these may be sent again when they may have been executed
		Timeout:    5 * time.Second,                    // a context.WithTimeout around each call
	})
	reply := new(Reply)
	err = c.Call(ctx, "Arith.Div", &Args{A: 56, B: 7}, reply) // xclient.Call(ctx, "Div", args, reply)
	// endregion client
	fmt.Println(reply.C, err)

	// region go
	done := make(chan error, 1) // xclient.Go(ctx, "Div", args, reply, nil)
	c.Go(ctx, &yodel.Call{Method: "Arith.Div", Args: &Args{A: 56, B: 7}, Reply: reply}, func(err error) { done <- err })
	err = <-done
	// endregion go
	fmt.Println(reply.C, err)

	if err := typed(ctx, c); err != nil {
		log.Fatal(err)
	}
	c.Close()
	if err := switchProtocols(ctx, s, r.Service("Arith")); err != nil {
		log.Fatal(err)
	}
	stop()
	if err := <-served; err != nil {
		log.Fatal(err)
	}
}

// region typed

// Div is the name of the method with its types, so that the compiler checks each call.
const Div yodel.Method[Args, Reply] = "Arith.Div"

func typed(ctx context.Context, c *yodel.Client) error {
	reply, err := Div.Call(ctx, c, &Args{A: 56, B: 7})
	if err != nil {
		return err
	}
	fmt.Println(reply.C, err)
	return nil
}

// endregion typed

// switchProtocols calls the server with yodel's own protocol, and then with that of rpcx.
func switchProtocols(ctx context.Context, s *yodel.Server, service discovery.Resolver) error {
	// region both
	c := yodel.NewClient(service, &yodel.ClientOptions{
		Codec: yodel.JSON,                          // for yodel servers
		Wires: []yodel.Wire{rpcx.Wire(yodel.JSON)}, // for rpcx servers; msgpack.Codec if they use MessagePack
	})
	// endregion both
	defer c.Close()
	if err := await(ctx, c, "yodel"); err != nil {
		return err
	}
	// region back
	s.UpdateInstance(func(in *discovery.Instance) { in.Protocols = []string{"rpcx"} })
	// endregion back
	return await(ctx, c, "rpcx")
}

// await calls the server until the record of the instance names a protocol first.
func await(ctx context.Context, c *yodel.Client, protocol string) error {
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); <-again.C {
		call := new(yodel.Call)
		reply, err := Div.Do(ctx, c, call, &Args{A: 56, B: 7})
		if err != nil {
			return err
		}
		if call.Endpoint.Instance().Protocols[0] == protocol {
			fmt.Println(reply.C, err, "in the protocol of", protocol)
			return nil
		}
	}
	return fmt.Errorf("the client does not call in the protocol of %s", protocol)
}

// waitForInstance returns when the registry knows an instance of the service.
func waitForInstance(ctx context.Context, service discovery.Resolver) {
	ctx, found := context.WithCancel(ctx)
	defer found()
	if err := service.Watch(ctx, func(all []discovery.Instance) {
		if len(all) > 0 {
			found()
		}
	}); err != nil {
		log.Print(err)
	}
}
