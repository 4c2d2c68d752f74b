// SPDX-License-Identifier: Apache-2.0

// Command client finds a server in the registry and calls it once.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/cmd/yodel/starter/greeting"
	"github.com/yodel-rpc/yodel/recommended"
	"github.com/yodel-rpc/yodel/registry/file"
)

func main() {
	folder := flag.String("registry", ".yodel", "the folder of the registry")
	name := flag.String("name", "Ann", "whom to greet")
	flag.Parse()
	if err := call(context.Background(), *folder, *name); err != nil {
		log.Fatal(err)
	}
}

func call(ctx context.Context, folder, name string) error {
	servers := file.New(folder, nil).Service("starter")
	c := yodel.NewClient(servers, recommended.Client(&yodel.ClientOptions{Timeout: time.Second}))
	defer c.Close()
	reply, err := greeting.Greet.Call(ctx, c, &greeting.Request{Name: name})
	if err != nil {
		return err
	}
	fmt.Println(reply.Text)
	return nil
}
