// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"fmt"
	"reflect"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/introspect"
)

// A Description says what a Resolver or a Registrar can do besides what its interface requires.
// Both may have a method Describe() Description. Clients and servers call it when they are made.
// Each field may be zero, and the functions are called concurrently.
//
// A Resolver or Registrar that wraps another one should have this method too, and return
// Description{}.Over(inner). It then keeps all that the inner one can do, also what later versions
// add to Description. The test yodeltest.TestWrapper checks this.
type Description struct {
	// Name is the name of a registry, or describes a service and its registry, in errors and logs.
	// It has no secrets. For example, service "Arith" in etcd at 10.0.0.1:2379. Default: the result
	// of the method String() string, if there is one.
	Name string

	// Service is the service whose methods the clients of a Resolver call, or "". If it is set, a
	// client does not use a server of another service that listens at the address of an instance
	// (YDL1109).
	Service string
	// Refresh is called when a client of a Resolver could not connect to an instance or lost a
	// connection. The Resolver then looks the instances up again soon. Refresh must not block. A
	// Resolver that does not learn of every change at once should have it.
	Refresh func()
	// Services returns the name of the service that was asked for and the names of the services in
	// the registry of a Resolver. A client without instances uses them to suggest the name that its
	// caller meant. Services must return within two seconds, and may leave out names beyond a few
	// hundred.
	Services func(ctx context.Context) (asked string, known []string, err error)
	// AmendClient returns the options of a client that is made with a Resolver. It must not change
	// o. Package rules adds middleware in this way.
	AmendClient func(o *ClientOptions) *ClientOptions

	// AmendServer returns the options of s, a server that is being made with a Registrar. It must
	// not change o, and only middleware may use s.
	AmendServer func(s *Server, o *ServerOptions) *ServerOptions
	// Rules returns the rules that a Registrar applies to its servers.
	Rules func() introspect.Rules
	// Overrides returns the settings of operators for a service, in the form of instances. A
	// Registrar with settings announces the state and the weight that an operator has set in place
	// of those of the instance. The metadata of a setting that cannot be read has the reason under
	// "problem". Overrides may return nil.
	Overrides func(service string) discovery.Resolver
	// Override sets the state and the weight of an instance: see registry.Override.
	Override func(ctx context.Context, service, addr, state string, weight int) error
	// Writable returns an error if servers cannot announce themselves in the registry. It changes
	// nothing.
	Writable func(ctx context.Context) error
}

// Over returns the description of a wrapper of inner, a Resolver or a Registrar: the fields of d
// that are set, and otherwise those of inner. Without fields in d, it describes inner.
func (d Description) Over(inner any) Description {
	var of Description
	if r, ok := inner.(interface{ Describe() Description }); ok {
		of = r.Describe()
	}
	if named, ok := inner.(fmt.Stringer); ok && of.Name == "" && d.Name == "" {
		of.Name = named.String()
	}
	to, from := reflect.ValueOf(&d).Elem(), reflect.ValueOf(of)
	for i := range to.NumField() {
		if to.Field(i).IsZero() {
			to.Field(i).Set(from.Field(i))
		}
	}
	return d
}

// amended returns the options of a client whose Resolver d describes.
func (o *ClientOptions) amended(d Description) *ClientOptions {
	if d.AmendClient == nil {
		return o
	}
	return d.AmendClient(o)
}

// amended returns the options of s, which has the Registrars of o.
func (o *ServerOptions) amended(s *Server) *ServerOptions {
	for _, r := range o.Registrars {
		if d := (Description{}).Over(r); d.AmendServer != nil {
			o = d.AmendServer(s, o)
		}
	}
	return o
}
