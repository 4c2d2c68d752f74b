// SPDX-License-Identifier: Apache-2.0

package rolling

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	std "net/http"
	"net/rpc"
	"net/rpc/jsonrpc"
	"syscall"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/gob"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/http"
	rpcjson "github.com/yodel-rpc/yodel/protocol/jsonrpc"
	"github.com/yodel-rpc/yodel/protocol/netrpc"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	Child(map[string]Serve{"standard": serveStandard})
	yodeltest.VerifyNoLeaks(m)
}

type (
	job  struct{ ID int64 }
	done struct{ Answer string }
)

const work yodel.Method[job, done] = "Work.Do"

// serveStandard serves the clients of the standard library.
func serveStandard(o *yodel.ServerOptions, execute Execute) (*yodel.Server, error) {
	o.Codecs = []yodel.Codec{gob.Codec}
	o.Protocols = []yodel.Protocol{http.New(nil), netrpc.Protocol, rpcjson.Protocol}
	s := yodel.NewServer(o)
	work.Handle(s, func(_ context.Context, in *job) (*done, error) { return &done{execute(in.ID)}, nil })
	return s, nil
}

// A rpcConn is a client of net/rpc, whose Call ends when the connection does.
type rpcConn struct{ *rpc.Client }

func (c rpcConn) Call(_ context.Context, id int64) (string, error) {
	var reply done
	err := c.Client.Call("Work.Do", &job{id}, &reply)
	return reply.Answer, err
}

// dialing returns a Dial for clients of net/rpc.
func dialing(client func(io.ReadWriteCloser) *rpc.Client) func(t testing.TB, addrs []string, caller int) Call {
	return func(t testing.TB, addrs []string, caller int) Call {
		return Turns(t, addrs, caller, func(ctx context.Context, addr string) (Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			return rpcConn{client(conn)}, nil
		})
	}
}

// A webConn is a client of net/http with connections to one server.
type webConn struct {
	client *std.Client
	url    string
}

func (c webConn) Call(ctx context.Context, id int64) (string, error) {
	body, err := json.Marshal(job{id})
	if err != nil {
		return "", err
	}
	r, err := std.NewRequestWithContext(ctx, std.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := c.client.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if body, err = io.ReadAll(response.Body); err != nil || response.StatusCode != std.StatusOK {
		return "", errors.Join(err, fmt.Errorf("%s: %s", response.Status, body))
	}
	var reply done
	err = json.Unmarshal(body, &reply)
	return reply.Answer, err
}

func (c webConn) Close() error {
	c.client.CloseIdleConnections()
	return nil
}

// dialHTTP1 and dialHTTP2 make calls with net/http.
func dialHTTP1(t testing.TB, addrs []string, caller int) Call {
	var protocols std.Protocols
	protocols.SetHTTP1(true)
	return dialHTTP(t, &protocols, addrs, caller)
}

func dialHTTP2(t testing.TB, addrs []string, caller int) Call {
	var protocols std.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return dialHTTP(t, &protocols, addrs, caller)
}

// dialHTTP leaves out servers that refuse connections.
func dialHTTP(t testing.TB, protocols *std.Protocols, addrs []string, caller int) Call {
	t.Helper()
	var conns []webConn
	for _, addr := range addrs {
		c := webConn{&std.Client{Transport: &std.Transport{Protocols: protocols}}, "http://" + addr + "/Work/Do"}
		t.Cleanup(c.client.CloseIdleConnections)
		conns = append(conns, c)
	}
	at := caller
	return func(ctx context.Context, id int64) (answer string, err error) {
		for range conns {
			at++
			if answer, err = conns[at%len(conns)].Call(ctx, id); !errors.Is(err, syscall.ECONNREFUSED) {
				break
			}
		}
		return answer, err
	}
}

// dialYodel makes calls with yodel's own client.
func dialYodel(t testing.TB, addrs []string, _ int) Call {
	c := yodel.NewClient(discovery.Static(addrs...), nil)
	t.Cleanup(c.Close)
	return func(ctx context.Context, id int64) (string, error) {
		reply, err := work.Call(ctx, c, &job{id})
		if err != nil {
			return "", err
		}
		return reply.Answer, nil
	}
}

// plans are those for the clients of the standard library, and for yodel's own. Net/http fails
// calls whose new connection waits in the kernel when the server stops listening.
var plans = map[string]Plan{
	"yodel":      {Kind: "standard", Dial: dialYodel, Announced: true},
	"HTTP 1":     {Kind: "standard", Dial: dialHTTP1},
	"HTTP 2":     {Kind: "standard", Dial: dialHTTP2},
	"net rpc":    {Kind: "standard", Dial: dialing(rpc.NewClient)},
	"JSON-RPC 1": {Kind: "standard", Dial: dialing(jsonrpc.NewClient)},
}

// Nothing that a server has executed is lost while servers are replaced one after the other.
func TestRollingRestarts(t *testing.T) {
	t.Attr("rerun", "never")
	for name, p := range plans {
		t.Run(name, func(t *testing.T) { Run(t, p) })
		t.Run(name+" handover", func(t *testing.T) {
			if !Long() && name != "HTTP 1" {
				t.Skip("in the short form one client will do")
			}
			p.Handover = true
			Run(t, p)
		})
	}
}

// Servers that do not drain lose calls, and the test notices it.
func TestRollingRestartsWithoutADrain(t *testing.T) {
	t.Attr("rerun", "never")
	for name, p := range plans {
		t.Run(name, func(t *testing.T) { Control(t, p) })
	}
}
