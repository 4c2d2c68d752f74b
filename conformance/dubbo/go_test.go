// SPDX-License-Identifier: Apache-2.0

package dubbo_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/protocol/dubbo"
)

// wantedOfGo are the outcomes of a consumer of dubbo-go.
var wantedOfGo = map[string]string{
	"sayHello": "Hello Go", "add": "42", "rename": "1099511627776 Eve [x] true map[go:1.5]", "friends": "[Ada Bob Ada]", "count": "map[a:2 b:1]",
	"reverse": "[253 2 1]", "describe": "acme",
}

// A consumer of dubbo-go calls a yodel server that it has found in ZooKeeper, per interface and per
// application.
func TestGoConsumer(t *testing.T) {
	zk := realserver.ZooKeeper(t)
	r := registryAt(t, zk.Addr)
	for _, registered := range []string{"interface", "service"} {
		t.Run(registered, func(t *testing.T) {
			addr, _ := serve(t, r)
			found(t, r, greeter, addr)
			outcomes := realserver.DubboGo(t, "consumer", zk.Addr, "dubbo", registered).Outcomes()
			for name, want := range wantedOfGo {
				if outcomes[name] != want {
					t.Errorf("%s: got %q, want %q", name, outcomes[name], want)
				}
			}
			if fail := outcomes["fail"]; !strings.HasPrefix(fail, "error: ") || !strings.Contains(fail, "no such user") {
				t.Errorf("fail: got %q", fail)
			}
			if slow := outcomes["slow"]; !strings.HasPrefix(slow, "error: ") {
				t.Errorf("slow: got %q", slow)
			}
		})
	}
}

// A yodel client calls a provider of dubbo-go that it has found in ZooKeeper.
func TestGoProvider(t *testing.T) {
	for _, registered := range []string{"interface", "service"} {
		t.Run(registered, func(t *testing.T) { goProvider(t, registered) })
	}
}

func goProvider(t *testing.T, registered string) {
	zk := realserver.ZooKeeper(t)
	addr := realserver.FreeAddr(t)
	_, port, _ := net.SplitHostPort(addr) // it is one of this host
	realserver.DubboGo(t, "provider", zk.Addr, "dubbo", registered, port).Ready()
	r := registryAt(t, zk.Addr)
	if in := found(t, r, greeter, addr); in.Metadata["application"] != "go-provider" || !slices.Equal(in.Protocols, []string{"dubbo"}) {
		t.Errorf("got %+v", in)
	}
	c := yodel.NewClient(r.Service("com.acme.Greeter"), &yodel.ClientOptions{Codec: hessian2.Codec, Wires: []yodel.Wire{dubbo.Wire(hessian2.Codec, nil)}})
	defer c.Close()
	do := func(method string, args, reply any) {
		t.Helper()
		if err := c.Call(t.Context(), "com.acme.Greeter."+method, args, reply); err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
	var text string
	var n int32
	var eve User
	var friends []*User
	data := []byte{1, 2, 253}
	user := &User{ID: 1 << 40, Name: "Ada 🦉", Labels: []string{"x"}, Best: &User{ID: 2, Name: "Bob"}, Scores: map[string]float64{"go": 1.5}}
	do("sayHello", new("yodel"), &text)
	do("add", yodel.Values{int32(40), int32(2)}, yodel.Values{&n})
	do("rename", yodel.Values{user, "Eve"}, yodel.Values{&eve})
	do("friends", user, &friends)
	do("reverse", &data, &data)
	if text != "Hello yodel" || n != 42 || eve.Name != "Eve" || eve.Best == nil || eve.Best.Name != "Bob" || eve.ID != 1<<40 || eve.Scores["go"] != 1.5 ||
		len(friends) != 3 || friends[2].Name != "Ada 🦉" || !slices.Equal(data, []byte{253, 2, 1}) {
		t.Errorf("got %q, %d, %+v, %+v, %v", text, n, eve, friends, data)
	}
	if err := c.Call(t.Context(), "com.acme.Greeter.fail", new("no such user"), &text); yodel.CodeOf(err) != yodel.Unknown || !strings.Contains(err.Error(), "no such user") {
		t.Errorf("fail: got %v", err)
	}
	short, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	if err := c.Call(short, "com.acme.Greeter.slow", new(int32(1000)), &text); yodel.CodeOf(err) != yodel.DeadlineExceeded {
		t.Errorf("slow: got %v", err)
	}
}
