// SPDX-License-Identifier: Apache-2.0

// Command rpcx is a server of rpcx that registers itself with rpcx's own plug-in, or says what rpcx's own discovery finds:
//
//	rpcx -registry etcd -at ADDR -base /rpcx_test -listen ADDR -metadata "group=a&weight=7"
//	rpcx -registry zookeeper -at ADDR -base /rpcx_test -find Arith
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"time"

	etcdclient "github.com/rpcxio/rpcx-etcd/client"
	etcdplugin "github.com/rpcxio/rpcx-etcd/serverplugin"
	zookeeperclient "github.com/rpcxio/rpcx-zookeeper/client"
	zookeeperplugin "github.com/rpcxio/rpcx-zookeeper/serverplugin"
	"github.com/smallnest/rpcx/client"
	"github.com/smallnest/rpcx/server"
)

var (
	registry = flag.String("registry", "", "etcd or zookeeper")
	at       = flag.String("at", "", "the address of the registry")
	base     = flag.String("base", "/rpcx_test", "what its keys begin with")
	listen   = flag.String("listen", "", "the address to serve at")
	metadata = flag.String("metadata", "", "of the service Arith")
	find     = flag.String("find", "", "the service to look for")
)

func main() {
	flag.Parse()
	run := serve
	if *find != "" {
		run = discover
	}
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// Arith is the service.
type Arith struct{}

// Mul multiplies two numbers.
func (Arith) Mul(_ context.Context, args *[2]int, reply *int) error {
	*reply = args[0] * args[1]
	return nil
}

func serve() error {
	plugin, err := register()
	if err != nil {
		return err
	}
	s := server.NewServer()
	s.Plugins.Add(plugin)
	if err = s.RegisterName("Arith", Arith{}, *metadata); err != nil {
		return err
	}
	return s.Serve("tcp", *listen)
}

// register returns the plug-in that registers services, which has started.
func register() (server.Plugin, error) {
	const interval = time.Second
	addr := "tcp@" + *listen
	if *registry == "etcd" {
		p := &etcdplugin.EtcdV3RegisterPlugin{
			ServiceAddress: addr, EtcdServers: []string{*at}, BasePath: *base, UpdateInterval: interval,
		}
		return p, p.Start()
	}
	p := &zookeeperplugin.ZooKeeperRegisterPlugin{
		ServiceAddress: addr, ZooKeeperServers: []string{*at}, BasePath: *base, UpdateInterval: interval,
	}
	return p, p.Start()
}

// discover prints keys and metadata.
func discover() error {
	var d client.ServiceDiscovery
	var err error
	if *registry == "etcd" {
		d, err = etcdclient.NewEtcdV3Discovery(*base, *find, []string{*at}, false, nil)
	} else {
		d, err = zookeeperclient.NewZookeeperDiscovery(*base, *find, []string{*at}, nil)
	}
	if err != nil {
		return err
	}
	for _, pair := range d.GetServices() {
		fmt.Println(pair.Key, pair.Value)
	}
	return nil
}
