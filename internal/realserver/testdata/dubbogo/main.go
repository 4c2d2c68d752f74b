// SPDX-License-Identifier: Apache-2.0

// Program dubbogo uses dubbo-go: it is a provider or a consumer of com.acme.Greeter, or of
// com.acme.Texts over triple. The arguments are "provider" or "consumer", the address of ZooKeeper,
// the protocol, and "interface" or "service": how providers are registered. A provider has its port
// as another argument.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"dubbo.apache.org/dubbo-go/v3"
	"dubbo.apache.org/dubbo-go/v3/client"
	"dubbo.apache.org/dubbo-go/v3/common"
	"dubbo.apache.org/dubbo-go/v3/common/constant"
	_ "dubbo.apache.org/dubbo-go/v3/imports"
	"dubbo.apache.org/dubbo-go/v3/protocol"
	"dubbo.apache.org/dubbo-go/v3/protocol/triple/triple_protocol"
	"dubbo.apache.org/dubbo-go/v3/registry"
	"dubbo.apache.org/dubbo-go/v3/server"
	hessian "github.com/apache/dubbo-go-hessian2"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	version = "1.0.0"
	group   = "blue"
)

// A User is a com.acme.User.
type User struct {
	ID     int64 `hessian:"id"`
	Name   string
	Labels []string
	Best   *User
	Scores map[string]float64
}

func (*User) JavaClassName() string { return "com.acme.User" }

// Greeter implements a part of com.acme.Greeter.
type Greeter struct{}

func (*Greeter) SayHello(_ context.Context, name string) (string, error) { return "Hello " + name, nil }
func (*Greeter) Add(_ context.Context, a, b int32) (int32, error)        { return a + b, nil }
func (*Greeter) Rename(_ context.Context, user *User, name string) (*User, error) {
	user.Name = name
	return user, nil
}
func (*Greeter) Friends(_ context.Context, user *User) ([]*User, error) {
	return []*User{user, user.Best, user}, nil
}
func (*Greeter) Reverse(_ context.Context, data []byte) ([]byte, error) {
	slices.Reverse(data)
	return data, nil
}
func (*Greeter) Fail(_ context.Context, text string) (string, error) { return "", errors.New(text) }
func (*Greeter) Slow(_ context.Context, millis int32) (string, error) {
	time.Sleep(time.Duration(millis) * time.Millisecond)
	return "slow", nil
}

func (*Greeter) Reference() string { return "Greeter" }

// MethodMapper says which methods of Java the methods of Go are.
func (*Greeter) MethodMapper() map[string]string {
	return map[string]string{
		"SayHello": "sayHello", "Add": "add", "Rename": "rename", "Friends": "friends", "Reverse": "reverse", "Fail": "fail", "Slow": "slow",
	}
}

// Texts implements com.acme.Texts.
type Texts struct{}

func (Texts) Upper(_ context.Context, in *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	if in.Value == "" {
		return nil, errors.New("no text")
	}
	return wrapperspb.String(strings.ToUpper(in.Value)), nil
}

func main() {
	log.SetOutput(os.Stderr)
	hessian.RegisterPOJO(&User{})
	var err error
	switch os.Args[1] {
	case "provider":
		err = provide(os.Args[2], os.Args[3], os.Args[4], os.Args[5])
	case "caller":
		err = makeCalls(os.Args[2])
	default:
		err = consume(os.Args[2], os.Args[3], os.Args[4])
	}
	if err != nil {
		log.Fatal(err)
	}
}

// how returns the option for a way to register.
func how(registered string) registry.Option {
	if registered == "service" {
		return registry.WithRegisterService()
	}
	return registry.WithRegisterInterface()
}

func provide(zk, kind, registered, port string) error {
	n, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	of := protocol.WithDubbo()
	if kind == "tri" {
		of = protocol.WithTriple()
	}
	instance, err := dubbo.NewInstance(dubbo.WithName("go-provider"), dubbo.WithRemoteMetadata(),
		dubbo.WithRegistry(registry.WithZookeeper(), registry.WithAddress(zk), how(registered)),
		dubbo.WithProtocol(of, protocol.WithIp("127.0.0.1"), protocol.WithPort(n)))
	if err != nil {
		return err
	}
	s, err := instance.NewServer()
	if err != nil {
		return err
	}
	if kind == "tri" {
		err = s.Register(Texts{}, &common.ServiceInfo{InterfaceName: "com.acme.Texts", ServiceType: (*any)(nil), Methods: []common.MethodInfo{{
			Name: "upper", Type: constant.CallUnary, ReqInitFunc: func() any { return new(wrapperspb.StringValue) },
			MethodFunc: func(ctx context.Context, args []any, handler any) (any, error) {
				reply, err := handler.(Texts).Upper(ctx, args[0].(*wrapperspb.StringValue))
				if err != nil {
					return nil, err
				}
				return triple_protocol.NewResponse(reply), nil
			},
		}}}, server.WithVersion(version), server.WithGroup(group))
	} else {
		err = s.RegisterService(&Greeter{}, server.WithInterface("com.acme.Greeter"), server.WithVersion(version), server.WithGroup(group))
	}
	if err != nil {
		return err
	}
	go func() {
		if err := s.Serve(); err != nil {
			log.Fatal(err)
		}
	}()
	fmt.Println("ready") // the registry has it a little later
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

func consume(zk, kind, registered string) error {
	instance, err := dubbo.NewInstance(dubbo.WithName("go-consumer"),
		dubbo.WithRegistry(registry.WithZookeeper(), registry.WithAddress(zk), how(registered)))
	if err != nil {
		return err
	}
	options := []client.ClientOption{client.WithClientProtocolDubbo(), client.WithClientSerialization(constant.Hessian2Serialization)}
	name := "com.acme.Greeter"
	if kind == "tri" {
		options, name = []client.ClientOption{client.WithClientProtocolTriple()}, "com.acme.Texts"
	}
	c, err := instance.NewClient(append(options, client.WithClientRequestTimeout(3*time.Second), client.WithClientRetries(0))...)
	if err != nil {
		return err
	}
	conn, err := c.DialWithInfo(name, &client.ClientInfo{InterfaceName: name, MethodNames: []string{"upper"}}, client.WithVersion(version), client.WithGroup(group))
	if err != nil {
		return err
	}
	if kind == "tri" {
		for _, text := range []string{"go", ""} {
			reply := new(wrapperspb.StringValue)
			err := conn.CallUnary(context.Background(), []any{wrapperspb.String(text)}, reply, "upper")
			say("upper "+text, reply.Value, err)
		}
	} else {
		callGreeter(conn)
	}
	fmt.Println("done")
	return nil
}

// makeCalls makes the calls whose numbers it reads, all at the same time. Its clients use the servers
// in turn, and repeat no call.
func makeCalls(addrs string) error {
	var urls []string
	for addr := range strings.SplitSeq(addrs, ",") {
		urls = append(urls, "dubbo://"+addr+"/com.acme.Work")
	}
	var conns [4]*client.Connection
	for i := range conns {
		instance, err := dubbo.NewInstance(dubbo.WithName("go-caller"))
		if err != nil {
			return err
		}
		c, err := instance.NewClient(client.WithClientProtocolDubbo(), client.WithClientSerialization(constant.Hessian2Serialization),
			client.WithClientRequestTimeout(40*time.Second), client.WithClientRetries(0), client.WithClientClusterFailFast(), client.WithClientLoadBalanceRoundRobin())
		if err != nil {
			return err
		}
		if conns[i], err = c.Dial("com.acme.Work", client.WithURL(strings.Join(urls, ";"))); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		id, err := strconv.ParseInt(lines.Text(), 10, 64)
		if err != nil {
			return err
		}
		go func() { // it ends with the call
			var answer string
			if err := conns[id%int64(len(conns))].CallUnary(context.Background(), []any{id}, &answer, "do"); err != nil {
				answer = "error: " + strings.ReplaceAll(err.Error(), "\n", " ")
			}
			fmt.Printf("%d %s\n", id, answer)
		}()
	}
	return nil
}

func callGreeter(conn *client.Connection) {
	ctx := context.WithValue(context.Background(), constant.AttachmentKey, map[string]any{"tenant": "acme"})
	user := &User{ID: 1 << 40, Name: "Ada", Labels: []string{"x"}, Best: &User{ID: 2, Name: "Bob"}, Scores: map[string]float64{"go": 1.5}}
	var text string
	err := conn.CallUnary(ctx, []any{"Go"}, &text, "sayHello")
	say("sayHello", text, err)
	var n int32
	err = conn.CallUnary(ctx, []any{int32(40), int32(2)}, &n, "add")
	say("add", n, err)
	eve := new(User)
	err = conn.CallUnary(ctx, []any{user, "Eve"}, eve, "rename")
	say("rename", fmt.Sprintln(eve.ID, eve.Name, eve.Labels, eve.Best != nil && eve.Best.Name == "Bob", eve.Scores), err)
	var friends []any // Dubbo-go does not decode a list of Java as []*User
	err = conn.CallUnary(ctx, []any{user}, &friends, "friends")
	var names []string
	for _, friend := range friends {
		if u, ok := friend.(*User); ok {
			names = append(names, u.Name)
		}
	}
	say("friends", names, err)
	var counts map[any]any // Dubbo-go does not decode a map as map[string]int32
	err = conn.CallUnary(ctx, []any{[]string{"a", "b", "a"}}, &counts, "count")
	say("count", counts, err)
	var data []byte
	err = conn.CallUnary(ctx, []any{[]byte{1, 2, 253}}, &data, "reverse")
	say("reverse", data, err)
	about := make(map[any]any)
	err = conn.CallUnary(ctx, []any{}, &about, "describe")
	say("describe", about["tenant"], err)
	err = conn.CallUnary(ctx, []any{"no such user"}, &text, "fail")
	say("fail", text, err)
	err = conn.CallUnary(ctx, []any{int32(20_000)}, &text, "slow")
	say("slow", text, err)
}

// say prints the outcome of a call in one line.
func say(name string, reply any, err error) {
	if err != nil {
		reply = "error: " + strings.ReplaceAll(err.Error(), "\n", " ")
	}
	fmt.Printf("> %s: %v\n", name, strings.TrimSpace(fmt.Sprint(reply)))
}
