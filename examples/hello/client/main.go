// SPDX-License-Identifier: Apache-2.0

// Command client calls the servers of the example four times, in turn. The output is that of
// a run with one server.
//
// It prints:
//
//	hello Ann, from 127.0.0.1:8972
//	hello Ann, from 127.0.0.1:8972
//	hello Ann, from 127.0.0.1:8972
//	hello Ann, from 127.0.0.1:8972
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/examples/hello"
)

// region main

func main() {
	servers := flag.String("servers", "127.0.0.1:8972", "where the servers listen, separated by commas")
	flag.Parse()

	c := yodel.Dial(strings.Split(*servers, ",")...)
	for range 4 {
		reply, err := hello.Greet.Call(context.Background(), c, &hello.Request{Name: "Ann"})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(reply.Text)
	}
	c.Close()
}

// endregion main
