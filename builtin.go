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
)

// JSON encodes messages with encoding/json. It is the default codec.
//
// Values may be nested 1,000 deep. Append refuses deeper ones, and those that contain themselves,
// as the codecs of this repository do.
var JSON Codec = jsoncodec.New()

// TCP is the default transport of clients and servers. Addresses are host:port.
var TCP Transport = tcp{}

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
