// SPDX-License-Identifier: Apache-2.0

package dubbo_test

import (
	"context"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/await"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
	"github.com/yodel-rpc/yodel/registry/zookeeper"
)

const (
	version = "1.0.0"
	group   = "blue"
)

// registryAt returns the registry of Dubbo in a ZooKeeper server.
func registryAt(t *testing.T, addr string) *zookeeper.Dubbo {
	t.Helper()
	r := zookeeper.NewDubbo(addr, "yodel-provider", nil)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// serve starts a yodel server that is announced in registries.
func serve(t *testing.T, registrars ...discovery.Registrar) (addr string, g *Greeter) {
	t.Helper()
	g = &Greeter{gone: make(chan struct{})}
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{hessian2.Codec}, Protocols: []yodel.Protocol{dubbo.Protocol}, Registrars: registrars,
		Instance: discovery.Instance{Version: version, Group: group},
	})
	if err := s.RegisterName("com.acme.Greeter", g); err != nil {
		t.Fatal(err)
	}
	return listen(t, s), g
}

// listen serves until the test ends.
func listen(t *testing.T, s *yodel.Server) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := await.Value(t, ended, "the end of the server"); err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// wanted are the outcomes of a consumer.
var wanted = map[string]string{
	"sayHello": "Hello Java", "add": "42", "sum": "1099511627779", "rename": "1099511627776 Eve [x, y] GREEN {go=1.5} Bob",
	"friends": "1099511627776 Ada 🦉 [x, y] GREEN {go=1.5} Bob;2 Bob null null null null;1099511627776 Ada 🦉 [x, y] GREEN {go=1.5} Bob;",
	"count":   "{a=2, b=1}", "distinct": "[a, b]", "next": "RED", "tomorrow": "1700086400123", "reverse": "[-3, 2, 1]", "twice": "42 null", "nothing": "null",
	"fail": "java.lang.RuntimeException: no such user", "describe": "acme soon 42", "noted": "done", "echo": "echo", "generic": "3",
}

// checkOutcomes compares the outcomes of a consumer with the wanted ones.
func checkOutcomes(t *testing.T, outcomes map[string]string, g *Greeter) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if outcomes[name] != wanted[name] {
			t.Errorf("%s: got %q, want %q", name, outcomes[name], wanted[name])
		}
	}
	if slow := outcomes["slow"]; !strings.Contains(strings.ToLower(slow), "timeout") {
		t.Errorf("slow: got %q, want a timeout", slow)
	}
	select {
	case <-g.gone:
	case <-time.After(20 * time.Second):
		t.Error("the context of the call that timed out has not ended")
	}
}

// needsJava skips a test that needs dubbo-java, unless YODEL_REAL is all. Without it,
// realserver.Dubbo skips the test too, but when the test has started a registry.
func needsJava(t *testing.T) {
	t.Helper()
	if os.Getenv("YODEL_REAL") != "all" {
		t.Skip("dubbo-java is needed: set YODEL_REAL=all, or run make before-end")
	}
}

// A consumer of dubbo-java calls a yodel server that it has found in ZooKeeper, per interface and
// per application.
func TestJavaConsumer(t *testing.T) {
	needsJava(t)
	zk := realserver.ZooKeeper(t)
	r := registryAt(t, zk.Addr)
	for _, step := range []string{"FORCE_INTERFACE", "FORCE_APPLICATION"} {
		t.Run(step, func(t *testing.T) {
			addr, g := serve(t, r)
			found(t, r, greeter, addr)
			checkOutcomes(t, realserver.Dubbo(t, "consumer", "zookeeper://"+zk.Addr, "dubbo", step).Outcomes(), g)
		})
	}
}

// greeter is the name of the service in the registry.
const greeter = group + "/com.acme.Greeter:" + version

// found waits until the registry has the server.
func found(t *testing.T, r finder, service, addr string) discovery.Instance {
	t.Helper()
	return foundWhere(t, r, service, addr, func(*discovery.Instance) bool { return true })
}

// foundWhere waits until the registry has the server, and what it has is as wanted.
func foundWhere(t *testing.T, r finder, service, addr string, wanted func(in *discovery.Instance) bool) discovery.Instance {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var in discovery.Instance
	err := r.Service(service).Watch(ctx, func(all []discovery.Instance) {
		for _, one := range all {
			if one.Addr == addr && wanted(&one) {
				in = one
				cancel()
			}
		}
	})
	if in.Addr == "" {
		t.Fatalf("the registry does not have %s: %v", addr, err)
	}
	return in
}

// registerModes are the modes of Dubbo: a provider registers per interface, or per application.
var registerModes = []string{"interface", "instance"}

// A yodel client calls a provider of dubbo-java that it has found in ZooKeeper.
func TestJavaProvider(t *testing.T) {
	needsJava(t)
	for _, mode := range registerModes {
		t.Run(mode, func(t *testing.T) {
			zk := realserver.ZooKeeper(t)
			javaProvider(t, registryAt(t, zk.Addr), "zookeeper://"+zk.Addr, mode)
		})
	}
}

// A finder is a registry.
type finder interface {
	Service(name string) discovery.Resolver
}

// javaProvider starts a provider, and checks it when the registry has it.
func javaProvider(t *testing.T, r finder, registry, mode string) {
	addr := realserver.FreeAddr(t)
	_, port, _ := net.SplitHostPort(addr) // it is one of this host
	realserver.Dubbo(t, "provider", registry, "dubbo", port, mode).Ready()
	for _, name := range []string{"com.acme.Greeter", greeter} {
		// Nacos may list an instance before it has the metadata of the application
		in := foundWhere(t, r, name, addr, func(in *discovery.Instance) bool { return in.Metadata["application"] != "" })
		if in.Metadata["application"] != "java-provider" || !slices.Equal(in.Protocols, []string{"dubbo"}) || in.Version != version || in.Group != group {
			t.Errorf("%s: got %+v", name, in)
		}
	}
	checkProvider(t, r.Service("com.acme.Greeter"), "java.lang.IllegalStateException: no such user")
}

// checkProvider calls com.acme.Greeter.
func checkProvider(t *testing.T, from discovery.Resolver, failure string) {
	t.Helper()
	c := yodel.NewClient(from, &yodel.ClientOptions{Codec: hessian2.Codec, Wires: []yodel.Wire{dubbo.Wire(hessian2.Codec, &dubbo.WireOptions{
		Parameters: map[string]string{"com.acme.Greeter.sum": "[J", "com.acme.Greeter.distinct": "Ljava/util/Set;"},
	})}})
	defer c.Close()
	do := func(method string, args, reply any) {
		t.Helper()
		if err := c.Call(t.Context(), "com.acme.Greeter."+method, args, reply); err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
	check := func(method string, ok bool, got any) {
		t.Helper()
		if !ok {
			t.Errorf("%s: got %v", method, got)
		}
	}
	var text string
	do("sayHello", new("Go"), &text)
	check("sayHello", text == "Hello Go", text)
	var n int32
	do("add", yodel.Values{int32(40), int32(2)}, yodel.Values{&n})
	check("add", n == 42, n)
	var long int64
	do("sum", &[]int64{1, 2, 1 << 40}, &long)
	check("sum", long == 1<<40+3, long)
	user := &User{ID: 1 << 40, Name: "Ada 🦉", Labels: []string{"x"}, Best: &User{ID: 2, Name: "Bob"}, Color: "GREEN", Scores: map[string]float64{"go": 1.5}}
	var eve User
	do("rename", yodel.Values{user, "Eve"}, yodel.Values{&eve})
	check("rename", eve.ID == user.ID && eve.Name == "Eve" && eve.Best.Name == "Bob" && eve.Color == "GREEN" && eve.Scores["go"] == 1.5, eve)
	var friends []*User
	do("friends", user, &friends)
	check("friends", len(friends) == 3 && friends[0] == friends[2] && friends[1].Name == "Bob" && friends[0].Name == "Ada 🦉", friends)
	var counts map[string]int
	do("count", &[]string{"a", "b", "a"}, &counts)
	check("count", maps.Equal(counts, map[string]int{"a": 2, "b": 1}), counts)
	var words []string
	do("distinct", &[]string{"b", "a"}, &words)
	check("distinct", slices.Equal(words, []string{"a", "b"}), words)
	color := Color("BLUE")
	do("next", &color, &color)
	check("next", color == "RED", color)
	day := time.UnixMilli(1_700_000_000_123)
	do("tomorrow", &day, &day)
	check("tomorrow", day.UnixMilli() == 1_700_086_400_123, day)
	data := []byte{1, 2, 253}
	do("reverse", &data, &data)
	check("reverse", slices.Equal(data, []byte{253, 2, 1}), data)
	twice := new(int64(21))
	do("twice", yodel.Values{twice}, yodel.Values{&twice})
	check("twice", twice != nil && *twice == 42, twice)
	do("nothing", yodel.Values{}, yodel.Values{&text})
	check("nothing", text == "", text)
	if err := c.Call(t.Context(), "com.acme.Greeter.fail", new("no such user"), nil); yodel.CodeOf(err) != yodel.Unknown || !strings.Contains(err.Error(), failure) {
		t.Errorf("fail: got %v, want %q", err, failure)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	about := make(map[string]string)
	call := &yodel.Call{Method: "com.acme.Greeter.describe", Args: yodel.Values{}, Reply: yodel.Values{&about}, Metadata: yodel.Metadata{"tenant": "acme"}}
	if err := c.Do(ctx, call); err != nil || about["tenant"] != "acme" || call.Trailer["answer"] != "42" {
		t.Errorf("describe: got %v, %v, %v", about, call.Trailer, err)
	}
	do("note", new("done"), nil)
	do("noted", yodel.Values{}, yodel.Values{&text})
	check("noted", text == "done", text)
	short, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	if err := c.Call(short, "com.acme.Greeter.slow", new(int32(2000)), &text); yodel.CodeOf(err) != yodel.DeadlineExceeded {
		t.Errorf("slow: got %v", err)
	}
	if err := c.Call(t.Context(), "com.acme.Greeter.nope", yodel.Values{}, yodel.Values{&text}); err == nil {
		t.Error("nope: got no error")
	}
}
