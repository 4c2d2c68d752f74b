// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/jsoncodec"
	"github.com/yodel-rpc/yodel/internal/rawcodec"
)

// JSON encodes messages with encoding/json. It is the default codec.
//
// Values may be nested 1,000 deep. Append refuses deeper ones, and those that contain themselves,
// as the codecs of this repository do.
var JSON Codec = jsoncodec.New()

// Raw is the codec for messages that are bytes already: []byte, View, or pointers to either.
// Decoding copies into the capacity of the target. If that is too small for a large body, the
// target takes over the received buffer without a copy. Bytes that a handler returns are sent
// without a copy and must not be changed afterwards. Small messages of a stream that arrived
// together share an allocation of 2 KiB, which remains in memory while any of them is in use.
var Raw Codec = rawcodec.Codec[View]{}

// TCP is the default transport of clients and servers. Addresses are host:port.
var TCP Transport = tcp{}

// Static returns a resolver for a fixed list of addresses. An address may begin with the name of
// the protocol that its server speaks, as in "netrpc://10.0.0.7:1234": see Instance.Protocols.
func Static(addrs ...string) Resolver { return static(addrs) }

// RoundRobin is a Balancer that picks the endpoints in turn. It is the default.
func RoundRobin(endpoints []*Endpoint, last Picker) Picker {
	p := &roundRobin{endpoints: endpoints}
	if last, ok := last.(*roundRobin); ok {
		p.next.Store(last.next.Load()) // so that the first endpoints do not get more calls when the set often changes
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
	host, port, err := net.SplitHostPort(addr)
	why := ""
	switch e, ok := errors.AsType[*net.AddrError](err); {
	case strings.ContainsAny(addr, ", "):
		why = "it has a comma or a space, and each address stands by itself"
	case ok:
		why = e.Err // without the address
	case err != nil:
		why = err.Error()
	case strings.Contains(host, "@"):
		why = "there is an @ before the host: the network of rpcx's addresses, as in tcp@host:port, is left out here"
	default:
		if number, err := strconv.Atoi(port); err == nil && (number < 0 || number > 65535) {
			why = "ports go from 0 to 65535"
		}
	}
	if why == "" {
		return nil
	}
	return refusal("YDL4003", "%q is no address: %s; want host:port, for example 127.0.0.1:8972", addr, why)
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
		// the transport explains what is wrong with tcp://
		if protocol, rest, ok := strings.Cut(addr, "://"); ok && protocol != "tcp" {
			instances[i].Addr, instances[i].Protocols = rest, []string{protocol}
		}
	}
	return instances
}

type roundRobin struct {
	endpoints []*Endpoint
	next      atomic.Uint64
}

func (p *roundRobin) Pick(call *Call) *Endpoint {
	n := uint64(len(p.endpoints))
	switch n {
	case 0:
		return nil
	case 1: // so that callers do not all write to the counter
		if ep := p.endpoints[0]; !call.Attempts().Avoids(ep) {
			return ep
		}
		return nil
	}
	if ep := p.endpoints[p.next.Add(1)%n]; !call.Attempts().Avoids(ep) {
		return ep
	}
	// If the call avoids the next endpoint, pick a random one of the other endpoints. Always
	// picking the following endpoint would double its load.
	var picked *Endpoint
	left := 0
	for _, ep := range p.endpoints {
		if call.Attempts().Avoids(ep) {
			continue
		}
		if left++; rand.IntN(left) == 0 { // picks each remaining endpoint with the same probability
			picked = ep
		}
	}
	return picked
}
