// SPDX-License-Identifier: Apache-2.0

package dubbo_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
)

// A User is a com.acme.User.
type User struct {
	ID   int64
	Name string
}

func (User) JavaClassName() string { return "com.acme.User" }

// Users implements the interface
//
//	package com.acme;
//
//	public interface Users {
//	    User find(long id);
//	    int add(int a, int b);
//	}
type Users struct{}

func (Users) Find(_ context.Context, id *int64) (*User, error) {
	if *id != 1 {
		return nil, yodel.Errorf(yodel.NotFound, "no user %d", *id)
	}
	return &User{ID: 1, Name: "Ada"}, nil
}

func (Users) Add(_ context.Context, a, b int32) (int32, error) { return a + b, nil }

// A server that unchanged consumers of Dubbo call, and a client that calls unchanged providers.
func Example() {
	server := yodel.NewServer(&yodel.ServerOptions{
		Codecs:    []yodel.Codec{hessian2.Codec},
		Protocols: []yodel.Protocol{dubbo.Protocol},
	})
	if err := server.RegisterName("com.acme.Users", Users{}); err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()

	client := yodel.NewClient(discovery.Static("dubbo://"+l.Addr().String()), &yodel.ClientOptions{
		Codec: hessian2.Codec,
		Wires: []yodel.Wire{dubbo.Wire(hessian2.Codec, nil)},
	})
	var user User
	err = client.Call(ctx, "com.acme.Users.find", new(int64(1)), &user)
	fmt.Println(user.Name, err)
	err = client.Call(ctx, "com.acme.Users.find", new(int64(2)), &user)
	fmt.Println(err)
	var sum int32
	err = client.Call(ctx, "com.acme.Users.add", yodel.Values{int32(40), int32(2)}, yodel.Values{&sum})
	fmt.Println(sum, err)

	client.Close()
	stop()
	<-ended
	// Output:
	// Ada <nil>
	// not_found: no user 2
	// 42 <nil>
}
