// SPDX-License-Identifier: Apache-2.0

package yodel

import "github.com/yodel-rpc/yodel/introspect"

// This file lets resolvers and registrars add middleware to the clients and servers that use them:
// see the optional methods in the documentation of Resolver and Registrar.

// amended returns the options of a client of r.
func (o *ClientOptions) amended(r Resolver) *ClientOptions {
	if a, ok := r.(interface {
		AmendClient(o *ClientOptions) *ClientOptions
	}); ok {
		return a.AmendClient(o)
	}
	return o
}

// amended returns the options of s, which has the Registrars of o.
func (o *ServerOptions) amended(s *Server) *ServerOptions {
	for _, r := range o.Registrars {
		if a, ok := r.(interface {
			AmendServer(s *Server, o *ServerOptions) *ServerOptions
		}); ok {
			o = a.AmendServer(s, o)
		}
	}
	return o
}

// rules returns the rules that the server's registrars apply to it.
func (s *Server) rules(*struct{}) *introspect.Rules {
	all := &introspect.Rules{Rules: []introspect.RuleState{}}
	for _, r := range s.opts.Registrars {
		if of, ok := r.(interface{ Rules() introspect.Rules }); ok {
			_ = s.guard.Apart("the Registrar's Rules", nil, func() error { // a failure is in the log
				its := of.Rules()
				all.Name, all.Rules = its.Name, append(all.Rules, its.Rules...)
				return nil
			})
		}
	}
	return all
}
