// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	std "net/http"
	"net/rpc"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/codec/raw"
	thriftcodec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/conformance/attacks"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/connect"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/protocol/rpcx"
	"github.com/yodel-rpc/yodel/protocol/thrift"
)

var wiresFor = flag.Duration("attacks.wires", 8*time.Second, "how long all protocols are called and attacked at once")

// Clients of all protocols call one port, while attackers send garbage, first bytes that are slow,
// unfinished requests, and floods of connections, calls and resets. Every call of the clients
// returns what it sent. Nothing is sent again.
func TestAllProtocolsUnderAttack(t *testing.T) {
	a := attacks.Start(t, patient)
	before := a.Collected()
	good := goodCallers(t, a.Addr)
	ctx, stop := context.WithTimeout(t.Context(), *wiresFor)
	defer stop()
	var bad, callers sync.WaitGroup
	attackers := attackersOf(a.Addr)
	for _, attacker := range attackers {
		bad.Go(func() { attacker.run(ctx) })
	}
	for _, c := range good {
		for range 2 {
			callers.Go(func() { c.run(ctx) })
		}
	}
	callers.Wait()
	bad.Wait()
	for _, c := range good {
		c.report(t)
	}
	for _, attacker := range attackers {
		if t.Logf("%8d × %s", attacker.times.Load(), attacker.name); attacker.times.Load() == 0 {
			t.Errorf("no attack: %s", attacker.name)
		}
	}
	a.AwaitCalm(before, 0)
}

// An attacker does one thing again and again.
type attacker struct {
	name  string
	do    func(ctx context.Context, random *rand.Rand) error
	every time.Duration // between two beginnings
	times atomic.Int64
}

func (a *attacker) run(ctx context.Context) {
	random := rand.New(rand.NewPCG(1, uint64(len(a.name))))
	for tick := time.NewTicker(a.every); ; {
		select {
		case <-ctx.Done():
			tick.Stop()
			return
		case <-tick.C:
		}
		if a.do(ctx, random) == nil { // what the server refuses is no attack
			a.times.Add(1)
		}
	}
}

// attackersOf returns the attackers of a server.
func attackersOf(addr string) []*attacker {
	// send writes on a new connection and closes it: at once, or when the server has had time to
	// answer.
	send := func(wait time.Duration, parts ...[]byte) error {
		c, err := attacks.Dial(addr)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }() // the server may have closed it
		c.Discard()
		for _, part := range parts {
			c.Raw(part)
		}
		if c.Flush(); wait > 0 {
			c.Closed(wait)
		}
		return nil
	}
	speakers, unfinished, lies := speakers(), unfinishedRequests(1<<20, 60<<10), lies()
	one := func(random *rand.Rand, all [][]byte) []byte { return all[random.IntN(len(all))] }
	return []*attacker{
		{name: "connections that are closed at once", every: 2 * time.Millisecond, do: func(context.Context, *rand.Rand) error {
			return send(0)
		}},
		{name: "connections of random bytes", every: 5 * time.Millisecond, do: func(_ context.Context, random *rand.Rand) error {
			return send(10*time.Millisecond, randomBytes(random, 1+random.IntN(4096)))
		}},
		{name: "requests with wrong bytes", every: 3 * time.Millisecond, do: func(_ context.Context, random *rand.Rand) error {
			request := bytes.Clone(speakers[random.IntN(len(speakers))].echo)
			for range 1 + random.IntN(4) {
				request[random.IntN(len(request))] ^= byte(1 + random.IntN(255))
			}
			return send(10*time.Millisecond, request[:1+random.IntN(len(request))])
		}},
		{name: "connections that leave in a request", every: 5 * time.Millisecond, do: func(_ context.Context, random *rand.Rand) error {
			return send(0, one(random, unfinished))
		}},
		{name: "20 requests of each protocol that do not go on", every: 50 * time.Millisecond, do: func(context.Context, *rand.Rand) error {
			var all sync.WaitGroup
			for i := range 20 * len(unfinished) {
				all.Go(func() { _ = send(2*time.Second, unfinished[i%len(unfinished)]) }) // the server may refuse it
			}
			all.Wait()
			return nil
		}},
		{name: "sizes that lie", every: 5 * time.Millisecond, do: func(_ context.Context, random *rand.Rand) error {
			return send(10*time.Millisecond, one(random, lies))
		}},
		{name: "50 connections with slow first bytes", every: 100 * time.Millisecond, do: func(ctx context.Context, random *rand.Rand) error {
			return slowly(ctx, addr, speakers, random)
		}},
		{name: "2000 streams of HTTP/2, reset at once", every: 100 * time.Millisecond, do: func(context.Context, *rand.Rand) error {
			parts := [][]byte{preface(65_535)}
			for i := range 2000 {
				parts = append(parts, stream(2*i+1, "/T.Block", true), frame(3, 0, 2*i+1, "\x00\x00\x00\x08"))
			}
			return send(100*time.Millisecond, parts...)
		}},
		{name: "1000 pings of HTTP/2", every: 50 * time.Millisecond, do: func(context.Context, *rand.Rand) error {
			return send(50*time.Millisecond, preface(65_535), bytes.Repeat(frame(6, 0, 0, "12345678"), 1000))
		}},
		{name: "200 calls on a connection that does not read", every: 50 * time.Millisecond, do: func(_ context.Context, random *rand.Rand) error {
			c, err := attacks.Dial(addr)
			if err != nil {
				return err
			}
			c.Raw(bytes.Repeat(speakers[2+random.IntN(3)].echo, 200)) // rpcx, Thrift or JSON-RPC
			c.Flush()
			return c.Close()
		}},
	}
}

func randomBytes(random *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

// slowly sends a request byte for byte on each of 50 connections.
func slowly(ctx context.Context, addr string, all []speaker, random *rand.Rand) error {
	var conns []*attacks.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close() // the server may have closed it
		}
	}()
	for range 50 {
		c, err := attacks.Dial(addr)
		if err != nil {
			return err
		}
		c.Discard()
		conns = append(conns, c)
	}
	first := random.IntN(len(all))
	for at := range 8 {
		select {
		case <-time.After(80 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		for i, c := range conns {
			c.Raw(all[(first+i)%len(all)].echo[at : at+1])
			c.Flush()
		}
	}
	return nil
}

// A goodCaller calls the server in one protocol.
type goodCaller struct {
	name string
	echo func(ctx context.Context, in []byte) ([]byte, error) // concurrent

	mu     sync.Mutex
	took   []time.Duration
	failed []error
}

// run calls until the context ends. It does not cut off the last call.
func (c *goodCaller) run(ctx context.Context) {
	random := rand.New(rand.NewPCG(2, uint64(len(c.name))))
	for n := 0; ctx.Err() == nil; n++ {
		size := random.IntN(4 << 10)
		if n%64 == 63 {
			size = 200 << 10
		}
		in := randomBytes(random, size)
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		began := time.Now()
		out, err := c.echo(call, in)
		cancel()
		if err == nil && !bytes.Equal(in, out) {
			err = fmt.Errorf("sent %d bytes and received %d others", len(in), len(out))
		}
		c.mu.Lock()
		if c.took = append(c.took, time.Since(began)); err != nil {
			c.failed = append(c.failed, err)
		}
		c.mu.Unlock()
	}
}

func (c *goodCaller) report(t *testing.T) {
	t.Helper()
	slices.Sort(c.took)
	if len(c.took) == 0 {
		t.Errorf("%s: no call", c.name)
		return
	}
	t.Logf("%-22s %7d calls, p50 %v, p99 %v, failed %d", c.name, len(c.took), c.took[len(c.took)/2], c.took[len(c.took)*99/100], len(c.failed))
	if len(c.failed) > 0 {
		t.Errorf("%s: %d of %d calls failed: %v", c.name, len(c.failed), len(c.took), c.failed[0])
	}
}

// goodCallers returns one for each protocol, of yodel and of the standard library, and for streams.
func goodCallers(t *testing.T, addr string) (all []*goodCaller) {
	t.Helper()
	add := func(name string, echo func(ctx context.Context, in []byte) ([]byte, error)) {
		all = append(all, &goodCaller{name: name, echo: echo})
	}
	client := func(wire yodel.Wire, codec yodel.Codec) *yodel.Client {
		o, target := yodel.ClientOptions{Codec: codec}, addr
		if wire != nil {
			o.Wires, target = []yodel.Wire{wire}, wire.Name()+"://"+addr
		}
		c := yodel.NewClient(discovery.Static(target), &o)
		t.Cleanup(c.Close)
		return c
	}
	for _, one := range []struct {
		name   string
		wire   yodel.Wire
		codec  yodel.Codec
		stream bool
	}{
		{"yodel", nil, raw.Codec, true},
		{"gRPC", grpc.Wire, yodel.JSON, true},
		{"gRPC-Web", grpc.Web, yodel.JSON, false},
		{"Connect", connect.Wire(nil), yodel.JSON, true},
		{"rpcx", rpcx.Wire(yodel.JSON), yodel.JSON, false},
		{"Thrift", thrift.Wire(thriftcodec.Codec, &thrift.WireOptions{Multiplexed: true}), thriftcodec.Codec, false},
		{"JSON-RPC 2.0", jsonrpc.Wire(yodel.JSON), yodel.JSON, false},
		{"net/rpc", netrpc.Wire(gob.Codec), gob.Codec, false},
	} {
		c := client(one.wire, one.codec)
		add(one.name, func(ctx context.Context, in []byte) (out []byte, err error) {
			err = c.Call(ctx, string(attacks.Echo), &in, &out)
			return out, err
		})
		if one.stream {
			add(one.name+", streams", func(ctx context.Context, in []byte) ([]byte, error) { return repeated(ctx, c, in) })
		}
	}
	web := &std.Client{Transport: &std.Transport{MaxIdleConnsPerHost: 2}}
	t.Cleanup(web.CloseIdleConnections)
	add("JSON, by net/http", func(ctx context.Context, in []byte) ([]byte, error) { return posted(ctx, web, addr, in) })
	old, err := rpc.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = old.Close() }) // the server may have closed it
	add("net/rpc, by net/rpc", func(_ context.Context, in []byte) (out []byte, err error) {
		err = old.Call(string(attacks.Echo), in, &out)
		return out, err
	})
	return all
}

// repeated sends in twice on a stream and returns what came back second.
func repeated(ctx context.Context, c *yodel.Client, in []byte) (out []byte, err error) {
	err = attacks.Repeat.Call(ctx, c, func(recv yodel.Recv[[]byte], send yodel.Send[[]byte]) error {
		if err := send(&in); err != nil {
			return err
		}
		received := 0
		for reply, err := range recv {
			if err != nil {
				return err
			}
			out = bytes.Clone(*reply)
			if received++; received == 1 {
				err = errors.Join(send(&in), send.End())
			}
			if err != nil {
				return err
			}
		}
		if received != 2 {
			return fmt.Errorf("%d messages have come back", received)
		}
		return nil
	})
	return out, err
}

// posted sends in as JSON with POST.
func posted(ctx context.Context, c *std.Client, addr string, in []byte) (out []byte, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	r, err := std.NewRequestWithContext(ctx, std.MethodPost, "http://"+addr+"/"+string(attacks.Echo), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := c.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }() // it has been read
	if body, err = io.ReadAll(response.Body); err != nil {
		return nil, err
	}
	if response.StatusCode != std.StatusOK {
		return nil, fmt.Errorf("status %d: %s", response.StatusCode, body)
	}
	err = json.Unmarshal(body, &out)
	return out, err
}
