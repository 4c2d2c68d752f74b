// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/console"
	"github.com/yodel-rpc/yodel/discovery"
	yodelhttp "github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/registry/memory"
)

func ExampleNew() {
	r := memory.New(nil) // or etcd.New("10.0.0.1:2379", nil), consul.New("127.0.0.1:8500", nil) ...
	// region mount
	c, err := console.New(r, &console.Options{Environment: "staging"}) // c.Close() when the server has ended
	if err != nil {
		log.Fatal(err)
	}
	server := yodel.NewServer(&yodel.ServerOptions{
		Diagnostics: true,
		Registrars:  []discovery.Registrar{r},
		Protocols:   []yodel.Protocol{yodelhttp.New(&yodelhttp.Options{Handler: c})},
	})
	// endregion mount
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, l) }()
	link := "http://" + l.Addr().String() + c.LoginLink(console.User{Name: "ann", Role: console.Admin})
	// region mux
	mux := http.NewServeMux()
	mux.Handle("/ops/", http.StripPrefix("/ops", c))
	// endregion mux
	res, err := http.Get(link)
	if err == nil {
		fmt.Println(res.StatusCode)
		res.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	if err := errors.Join(<-served, c.Close()); err != nil {
		log.Fatal(err)
	}
	// Output: 401
}
