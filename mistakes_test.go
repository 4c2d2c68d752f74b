// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// Who makes one of these mistakes is told which one, in words that fit: the whole text is compared.
// hidden is a struct of which no codec sees anything.
type hidden struct{ a, b int } //nolint:unused // that is the mistake

func TestMistakesAreExplained(t *testing.T) {
	s := newServer(t, nil)
	handle(t, s, "Arith.Try", echo)
	addr, empty := serve(t, s), serve(t, yodel.NewServer(nil))
	gobs := serve(t, newServer(t, &yodel.ServerOptions{Codecs: []yodel.Codec{gob.Codec}}))
	at := func(addr string, o *yodel.ClientOptions, call *yodel.Call) error {
		if call.Method == "" {
			call.Method = "Arith.Mul"
		}
		if call.Args == nil {
			call.Args = &Args{1, 2}
		}
		return newClient(t, o, addr).Do(t.Context(), call)
	}
	const reply = "internal: Arith.Mul: the reply cannot be decoded into "
	for name, mistake := range map[string]struct {
		make func() error
		want string
	}{
		"no port": {
			func() error { return at("localhost", nil, &yodel.Call{}) },
			`invalid_argument: Arith.Mul: "localhost" is no address: missing port in address; want host:port, for example 127.0.0.1:8972 [YDL4003]`,
		},
		"a URL": {
			func() error { return at("tcp://"+addr, nil, &yodel.Call{}) },
			`invalid_argument: Arith.Mul: "tcp://ADDR" is no address: too many colons in address; want host:port, for example 127.0.0.1:8972 [YDL4003]`,
		},
		"two addresses in one": {
			func() error { return at(addr+","+addr, nil, &yodel.Call{}) },
			`invalid_argument: Arith.Mul: "ADDR,ADDR" is no address: it has a comma or a space, and each address stands by itself; want host:port, for example 127.0.0.1:8972 [YDL4003]`,
		},
		"a space": {
			func() error { return at(" "+addr, nil, &yodel.Call{}) },
			`invalid_argument: Arith.Mul: " ADDR" is no address: it has a comma or a space, and each address stands by itself; want host:port, for example 127.0.0.1:8972 [YDL4003]`,
		},
		"no service": {
			func() error { return at(addr, nil, &yodel.Call{Method: "Mul"}) },
			`unimplemented: Mul: ADDR: this server has no such method; did you mean "Arith.Mul"? [YDL2001]`,
		},
		"no method": {
			func() error { return at(addr, nil, &yodel.Call{Method: "Arith.Mod"}) },
			`unimplemented: Arith.Mod: ADDR: service "Arith" has no method "Mod" [YDL2002]`,
		},
		"nothing registered": {
			func() error { return at(empty, nil, &yodel.Call{}) },
			`unimplemented: Arith.Mul: ADDR: this server has no service "Arith": no methods were registered [YDL2001]`,
		},
		"a feed that is none": {
			func() error {
				_, err := yodel.Feed[Args, Args]("Arith.Mul").Call(t.Context(), newClient(t, nil, addr), &Args{}).Next()
				return err
			},
			`invalid_argument: Arith.Mul: ADDR: the method is a unary method of yodel_test.Args to yodel_test.Reply; the call is for a feed [YDL2006]`,
		},
		"no upload": {
			func() error {
				handle(t, s, "Arith.Up", func(context.Context, yodel.Recv[int]) (*int, error) { return new(int), nil })
				return at(addr, nil, &yodel.Call{Method: "Arith.Up"})
			},
			`invalid_argument: Arith.Up: ADDR: the method is an upload of int to int; the call is for a unary method [YDL2006]`,
		},
		"the reply by value": {
			func() error { return at(addr, nil, &yodel.Call{Reply: Reply{}}) },
			reply + `yodel_test.Reply: give a pointer to it [YDL2102]`,
		},
		"the reply by value, in gob": {
			func() error { return at(gobs, &yodel.ClientOptions{Codec: gob.Codec}, &yodel.Call{Reply: Reply{}}) },
			reply + `yodel_test.Reply: give a pointer to it [YDL2102]`,
		},
		"a reply that is a nil pointer": {
			func() error { return at(addr, nil, &yodel.Call{Reply: (*Reply)(nil)}) },
			reply + `a nil *yodel_test.Reply: give a pointer to it [YDL2102]`,
		},
		"a nil request": {
			func() error { return at(addr, nil, &yodel.Call{Args: (*Args)(nil), Reply: &Reply{}}) },
			`invalid_argument: Arith.Mul: the request is a nil *yodel_test.Args [YDL2103]`,
		},
		"a result by value": {
			func() error {
				return at(addr, nil, &yodel.Call{Method: "Arith.DivMod", Args: yodel.Values{7, 2}, Reply: yodel.Values{new(int), 0}})
			},
			`internal: Arith.DivMod: result 2 cannot be decoded into int: give a pointer to it [YDL2102]`,
		},
		"a type that hides all": {
			func() error { return s.Handle("Arith.Sub", func(context.Context, *hidden) (*Reply, error) { return nil, nil }) },
			`invalid_argument: handle Arith.Sub: yodel_test.hidden has no exported fields, so that nothing of it would be sent [YDL4001]`,
		},
		"TLS on the client alone": {
			func() error { return at(addr, &yodel.ClientOptions{Transport: new(tls.Transport)}, &yodel.Call{}) },
			`unavailable: Arith.Mul: ADDR: TLS: the server ended the connection during the handshake; is TLS set up on one side only? [YDL1108]`,
		},
		"a nil function": {
			func() error { return s.Handle("Arith.Sub", (func(int) int)(nil)) },
			`invalid_argument: handle Arith.Sub: the func(int) int is nil [YDL4001]`,
		},
		"no function": {
			func() error { return s.Handle("Arith.Sub", 7) },
			`invalid_argument: handle Arith.Sub: int is not a function [YDL4001]`,
		},
		"nothing to register": {
			func() error { return s.Register(nil) },
			`invalid_argument: register: nil has no methods [YDL4001]`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := mistake.make()
			if err == nil {
				t.Fatal("there is no error")
			}
			got := err.Error()
			for _, addr := range []string{addr, empty, gobs} {
				got = strings.ReplaceAll(got, addr, "ADDR")
			}
			if got != mistake.want && (strings.HasSuffix(mistake.want, "]") || !strings.HasPrefix(got, mistake.want)) {
				t.Errorf("got\n%s\nwant\n%s", got, mistake.want)
			}
		})
	}
}

// A function that is nil is refused when it is registered, not when somebody calls it.
func TestNilFunctionsAreRefused(t *testing.T) {
	s := newServer(t, nil)
	for name, register := range map[string]func(){
		"Try.Method": func() { yodel.Method[int, int]("Try.Method").Handle(s, nil) },
		"Try.Feed":   func() { yodel.Feed[int, int]("Try.Feed").Handle(s, nil) },
		"Try.Upload": func() { yodel.Upload[int, int]("Try.Upload").Handle(s, nil) },
		"Try.Duplex": func() { yodel.Duplex[int, int]("Try.Duplex").Handle(s, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				want := "yodel: invalid_argument: register " + name + ": the function is nil [YDL4001]"
				if got := fmt.Sprint(recover()); got != want {
					t.Errorf("it panics with\n%s\nwant\n%s", got, want)
				}
			}()
			register()
		})
	}
}

// One record of several that is not usable costs no call.
func TestAnAddressThatIsNoneIsPassedOver(t *testing.T) {
	addr := serve(t, newServer(t, nil))
	for range 4 { // a new client begins anywhere
		c := newClient(t, nil, "localhost", addr, "tcp://"+addr)
		for range 6 {
			if _, err := Mul.Call(t.Context(), c, &Args{1, 2}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
