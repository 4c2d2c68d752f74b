// SPDX-License-Identifier: Apache-2.0

// Command rpcx is a server of rpcx that registers itself with rpcx's own plug-in, or says what
// rpcx's own discovery finds:
//
//	rpcx -registry etcd -at ADDR -base /rpcx_test -listen ADDR -metadata "group=a&weight=7"
//	rpcx -registry zookeeper -at ADDR -base /rpcx_test -find Arith
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/rpcxio/libkv"
	"github.com/rpcxio/libkv/store"
	"github.com/rpcxio/libkv/store/consul"
	"github.com/rpcxio/libkv/store/redis"
	etcdclient "github.com/rpcxio/rpcx-etcd/client"
	etcdplugin "github.com/rpcxio/rpcx-etcd/serverplugin"
	zookeeperclient "github.com/rpcxio/rpcx-zookeeper/client"
	zookeeperplugin "github.com/rpcxio/rpcx-zookeeper/serverplugin"
	"github.com/smallnest/rpcx/client"
	"github.com/smallnest/rpcx/server"
	redisplugin "github.com/smallnest/rpcx/serverplugin"
)

var (
	registry = flag.String("registry", "", "etcd, zookeeper, redis or consul")
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
	switch *registry {
	case "etcd":
		p := &etcdplugin.EtcdV3RegisterPlugin{
			ServiceAddress: addr, EtcdServers: []string{*at}, BasePath: *base, UpdateInterval: interval,
		}
		return p, p.Start()
	case "redis":
		p := &redisplugin.RedisRegisterPlugin{
			ServiceAddress: addr, RedisServers: []string{*at}, BasePath: *base, UpdateInterval: interval,
		}
		return p, p.Start()
	case "consul":
		kv, err := consul.New([]string{*at}, nil)
		return &consulPlugin{addr, kv}, err
	}
	p := &zookeeperplugin.ZooKeeperRegisterPlugin{
		ServiceAddress: addr, ZooKeeperServers: []string{*at}, BasePath: *base, UpdateInterval: interval,
	}
	return p, p.Start()
}

// A consulPlugin does with rpcx's library what the plug-in of github.com/rpcxio/rpcx-consul does,
// whose module is not to be had.
type consulPlugin struct {
	addr string
	kv   store.Store
}

// shortest is the shortest time to live that Consul has.
const shortest = 10 * time.Second

// Register registers a service, and again and again.
func (p *consulPlugin) Register(name string, _ any, metadata string) error {
	base := strings.TrimPrefix(*base, "/")
	for _, folder := range [][2]string{{base, "rpcx_path"}, {base + "/" + name, name}} {
		if err := p.kv.Put(folder[0], []byte(folder[1]), &store.WriteOptions{IsDir: true}); err != nil {
			return err
		}
	}
	put := func() error {
		return p.kv.Put(base+"/"+name+"/"+p.addr, []byte(metadata), &store.WriteOptions{TTL: 2 * shortest})
	}
	go func() {
		for range time.Tick(shortest) {
			if err := put(); err != nil {
				log.Print(err)
			}
		}
	}()
	return put()
}

// Unregister is never called: the process is killed.
func (p *consulPlugin) Unregister(string) error { return nil }

// discover prints keys and metadata.
func discover() error {
	var d client.ServiceDiscovery
	var err error
	switch *registry {
	case "etcd":
		d, err = etcdclient.NewEtcdV3Discovery(*base, *find, []string{*at}, false, nil)
	case "redis":
		return list()
	default:
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

// list does with rpcx's library what the discovery of github.com/rpcxio/rpcx-redis does, whose
// module is not to be had.
func list() error {
	redis.Register()
	kv, err := libkv.NewStore(store.REDIS, []string{*at}, nil)
	if err != nil {
		return err
	}
	folder := *base + "/" + *find
	pairs, err := kv.List(folder)
	if err != nil {
		return err
	}
	for _, pair := range pairs {
		fmt.Println(strings.TrimPrefix(pair.Key, folder+"/"), string(pair.Value))
	}
	return nil
}
