// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
)

// Raw passes bytes through: messages are []byte or *[]byte. Decoding copies, into the capacity
// that the target already has; a large body becomes the target's without being copied when that is not enough. What a handler has
// returned is sent from where it is, and must not be changed any more.
var Raw Codec = rawCodec{}

// TCP is the transport of clients and servers that name none. Addresses are host:port.
var TCP Transport = tcp{}

// Static returns a resolver for a fixed list of addresses.
func Static(addrs ...string) Resolver { return static(addrs) }

// RoundRobin takes the endpoints in turn. It is the balancer of a client that names none.
func RoundRobin(endpoints []*Endpoint, last Picker) Picker {
	p := &roundRobin{endpoints: endpoints}
	if last, ok := last.(*roundRobin); ok {
		p.next.Store(last.next.Load()) // so that frequent changes do not favour the first endpoints
	} else {
		p.next.Store(rand.Uint64()) // so that many new clients do not begin at the same endpoint
	}
	return p
}

type tcp struct{}

func (tcp) Dial(ctx context.Context, addr string) (net.Conn, error) {
	if err := checkAddr(addr); err != nil {
		return nil, err
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

func (tcp) Listen(addr string) (net.Listener, error) {
	if err := checkAddr(addr); err != nil {
		return nil, err
	}
	var l net.ListenConfig
	return l.Listen(context.Background(), "tcp", addr)
}

func checkAddr(addr string) error {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return refusal("YDL4003", "%q is no address: %v; want host:port, for example 127.0.0.1:8972", addr, plain(err))
	}
	return nil
}

type static []string

func (s static) Watch(ctx context.Context, update func([]Instance)) error {
	update(s.instances())
	<-ctx.Done()
	return nil
}

func (s static) instances() []Instance {
	instances := make([]Instance, len(s))
	for i, addr := range s {
		instances[i].Addr = addr
	}
	return instances
}

type roundRobin struct {
	endpoints []*Endpoint
	next      atomic.Uint64
}

func (p *roundRobin) Pick(call *Call) *Endpoint {
	n := uint64(len(p.endpoints))
	if n == 0 {
		return nil
	}
	if ep := p.endpoints[p.next.Add(1)%n]; !call.Avoids(ep) {
		return ep
	}
	// The turn of one that is avoided goes to any of the others, not always to its neighbour.
	var picked *Endpoint
	left := 0
	for _, ep := range p.endpoints {
		if call.Avoids(ep) {
			continue
		}
		if left++; rand.IntN(left) == 0 { // each of those that are left with the same chance
			picked = ep
		}
	}
	return picked
}

type rawCodec struct{}

var errNilBytes = errors.New("the raw codec was given a nil *[]byte")

func (rawCodec) Name() string { return "raw" }

func (rawCodec) Append(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case *[]byte:
		if v == nil {
			return dst, errNilBytes
		}
		return append(dst, *v...), nil
	case []byte:
		return append(dst, v...), nil
	}
	return dst, fmt.Errorf("the raw codec takes []byte or *[]byte, not %T", v)
}

func (rawCodec) Decode(src []byte, v any) error {
	p, ok := v.(*[]byte)
	if ok && p == nil {
		return errNilBytes
	}
	if !ok {
		return fmt.Errorf("the raw codec decodes into *[]byte, not %T", v)
	}
	*p = append((*p)[:0], src...)
	return nil
}
