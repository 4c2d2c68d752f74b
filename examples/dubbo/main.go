// SPDX-License-Identifier: Apache-2.0

// Command dubbo serves a service of Apache Dubbo to Dubbo consumers and to yodel clients on one
// port, and calls Dubbo providers and yodel servers with one client. It needs no generated code.
//
//	go run ./examples/dubbo
//
// It prints:
//
//	Ada <nil>
//	Ada <nil>
//	Ada <nil>
//	Ada <nil>
//	not_found: no user 2
//	42 <nil>
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"sync"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
	"github.com/yodel-rpc/yodel/registry/nacos"
)

// region service

// A User is a com.acme.User. Its fields in Java are id, name and tags.
type User struct {
	ID   int64
	Name string
	Tags []string
}

// JavaClassName names the class.
func (User) JavaClassName() string { return "com.acme.User" }

// Methods of the interface
//
//	package com.acme;
//
//	public interface Users {
//	    User find(long id);
//	    int add(int a, int b);
//	}
const (
	Find yodel.Method[int64, User] = "com.acme.Users.find"
	Add  string                    = "com.acme.Users.add"
)

func find(_ context.Context, id *int64) (*User, error) {
	if *id != 1 {
		return nil, yodel.Errorf(yodel.NotFound, "no user %d", *id)
	}
	return &User{ID: 1, Name: "Ada"}, nil
}

func add(_ context.Context, a, b int32) (int32, error) { return a + b, nil }

// endregion service

func main() {
	registry := flag.String("nacos", "", "the address of a Nacos in which consumers of Dubbo find the server")
	flag.Parse()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup

	registrars, closeRegistry := announce(*registry)
	// region server
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs:     []yodel.Codec{hessian2.Codec},
		Protocols:  []yodel.Protocol{dubbo.Protocol},
		Registrars: registrars,
		Instance:   discovery.Instance{Version: "1.0.0", Group: "blue"}, // of the service in Dubbo
	})
	Find.Handle(s, find)
	err := s.Handle(Add, add)
	// endregion server
	if err != nil {
		log.Fatal(err)
	}
	addr := start(ctx, &running, s)
	old := startOld(ctx, &running) // stands for a provider of Dubbo

	// region client
	c := yodel.NewClient(discovery.Static("dubbo://"+old, addr), &yodel.ClientOptions{
		Codec: hessian2.Codec,
		Wires: []yodel.Wire{dubbo.Wire(hessian2.Codec, nil)},
	})
	for range 4 { // two of them go to each server
		user, err := Find.Call(ctx, c, new(int64(1)))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(user.Name, err)
	}
	// endregion client
	_, err = Find.Call(ctx, c, new(int64(2)))
	fmt.Println(err)
	// region values
	var sum int32
	err = c.Call(ctx, Add, yodel.Values{int32(40), int32(2)}, yodel.Values{&sum})
	// endregion values
	fmt.Println(sum, err)

	// region back
	s.UpdateInstance(func(in *discovery.Instance) { in.Protocols = []string{"dubbo"} })
	// endregion back
	c.Close()
	stop()
	running.Wait()
	if err = closeRegistry(); err != nil {
		log.Fatal(err)
	}
}

// announce returns the registry of Dubbo in the Nacos at an address, if there is one.
func announce(addr string) (registrars []discovery.Registrar, closeRegistry func() error) {
	if addr == "" {
		return nil, func() error { return nil }
	}
	// region registry
	r := nacos.NewDubbo(addr, "users", nil) // or zookeeper.NewDubbo("10.0.0.1:2181", "users", nil)
	registrars = []discovery.Registrar{r}   // for ServerOptions
	// endregion registry
	return registrars, r.Close
}

// start serves until ctx ends, and returns the address.
func start(ctx context.Context, running *sync.WaitGroup, s *yodel.Server) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	running.Go(func() {
		if err := s.Serve(ctx, l); err != nil {
			log.Fatal(err)
		}
	})
	return l.Addr().String()
}

// startOld starts a server of the same service.
func startOld(ctx context.Context, running *sync.WaitGroup) (addr string) {
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{hessian2.Codec}, Protocols: []yodel.Protocol{dubbo.Protocol}})
	Find.Handle(s, find)
	if err := s.Handle(Add, add); err != nil {
		log.Fatal(err)
	}
	return start(ctx, running, s)
}
