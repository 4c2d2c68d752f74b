// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	std "net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/transport/mem"
)

// A fleet is what a load balancer knows: the address of the server that takes new connections.
type fleet struct{ addr atomic.Pointer[string] }

// client returns a client that dials the current server.
func (f *fleet) client(t testing.TB, h2 bool) *std.Client {
	c := client(t, h2)
	c.Transport.(*std.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, *f.addr.Load())
	}
	return c
}

// No call is lost while servers are replaced under load, and none is executed twice. The clients
// are those of net/http. Calls have an idempotency key, so that net/http repeats one that it sent
// on a connection that has just ended: HTTP/1 cannot tell an idle client.
func TestRollingRestart(t *testing.T) {
	t.Attr("rerun", "never")
	both(t, func(t *testing.T, h2 bool) {
		const callers, restarts = 8, 6
		var f fleet
		var executed atomic.Int64
		var made [callers]atomic.Int64
		start := func() *site {
			s := newSite(t, nil, yodel.ServerOptions{})
			must(t, s.HandleCall("Test.Count", func(_ context.Context, call *yodel.Call) error {
				executed.Add(1)
				return nil
			}))
			f.addr.Store(&s.addr)
			return s
		}
		s := start()
		stop := make(chan struct{})
		var group sync.WaitGroup
		for i := range callers {
			c := f.client(t, h2)
			group.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					r, err := std.NewRequestWithContext(t.Context(), "POST", "http://fleet/Test/Count", strings.NewReader("{}"))
					if err != nil {
						t.Error(err)
						return
					}
					r.Header.Set("Content-Type", "application/json")
					r.Header.Set("Idempotency-Key", fmt.Sprint(i, " ", n))
					response, err := c.Do(r)
					if err != nil {
						t.Errorf("a call was lost: %v", err)
						return
					}
					_, err = io.Copy(io.Discard, response.Body)
					if _ = response.Body.Close(); err != nil || response.StatusCode != std.StatusOK {
						t.Errorf("a call was lost: %s, %v", response.Status, err)
						return
					}
					made[i].Add(1)
				}
			})
		}
		for range restarts {
			old := s
			s = start()
			// A load balancer leaves a server some time after it has told its clients of another
			// one. When a caller has made two calls, it no longer connects to the old server.
			for i := range made {
				began := made[i].Load()
				eventually(t, "each caller makes some calls", func() bool { return made[i].Load() >= began+20 || t.Failed() })
			}
			if err := old.stop(); err != nil {
				t.Errorf("Shutdown: %v", err)
			}
		}
		close(stop)
		group.Wait()
		total := int64(0)
		for i := range made {
			total += made[i].Load()
		}
		if total != executed.Load() {
			t.Errorf("%d calls succeeded, and %d were executed", total, executed.Load())
		}
		t.Logf("%d calls", total)
	})
}

// A call that runs when the drain begins is answered, and its HTTP/1 connection is closed after it.
// The response says so even if the call ends as soon as the drain begins.
func TestDrainTellsTheClient(t *testing.T) {
	s, c := newSite(t, nil, yodel.ServerOptions{}), client(t, false)
	yodel.Method[text, text]("Test.Drain").Handle(s.Server, func(ctx context.Context, in *text) (*text, error) {
		s.began <- struct{}{}
		<-yodel.CallFrom(ctx).Draining()
		return in, nil
	})
	running := make(chan reply, 1)
	go func() { running <- s.post(c, "/Test/Drain", `{"text":"x"}`) }()
	receive(t, s.began)
	must(t, s.stop())
	r := receive(t, running)
	if r.is(t, 200, `{"text":"x"}`); !r.Close {
		t.Errorf("the response does not say that the connection ends: %v", r.Header)
	}
}

// A client of HTTP/2 without requests gets GOAWAY, without an error, before the connection ends.
func TestDrainSendsGoAway(t *testing.T) {
	s := newSite(t, nil, yodel.ServerOptions{})
	conn, err := net.Dial("tcp", s.addr)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	must(t, err)
	const settings, goAway = 4, 7
	if kind, _ := readFrame(t, conn); kind != settings {
		t.Fatalf("the first frame is of type %d", kind)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	for {
		kind, payload := readFrame(t, conn)
		if kind != goAway {
			continue
		}
		if string(payload[4:8]) != "\x00\x00\x00\x00" {
			t.Errorf("GOAWAY has the error %x", payload[4:8])
		}
		break
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Errorf("the connection ends with %v", err)
	}
	must(t, receive(t, stopped))
}

// Connections whose protocol the server recognizes only during the drain are served, and end. None
// of them holds Shutdown.
func TestDrainBeforeTheProtocolIsKnown(t *testing.T) {
	const conns = 600
	s := newSite(t, nil, yodel.ServerOptions{})
	var all [conns]net.Conn
	for i := range all {
		conn, err := net.Dial("tcp", s.addr)
		must(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, "G")
		must(t, err)
		all[i] = conn
	}
	eventually(t, "all connections are accepted", func() bool { return s.Stats().Conns == conns })
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	eventually(t, "the server refuses connections", func() bool {
		conn, err := net.Dial("tcp", s.addr)
		if err == nil {
			_ = conn.Close() // it was not needed
		}
		return err != nil
	})
	for _, conn := range all {
		_, _ = io.WriteString(conn, "ET /nothing HTTP/1.1\r\nHost: test\r\n\r\n") // the server may have closed it
	}
	must(t, receive(t, stopped))
}

// A drain waits for a response that net/http has not yet written, because the client has not
// allowed it: the handler has returned long before.
func TestDrainWaitsForTheResponse(t *testing.T) {
	s := newSite(t, nil, yodel.ServerOptions{})
	conn, err := net.Dial("tcp", s.addr)
	must(t, err)
	defer conn.Close()
	const settings, goAway, data = 4, 7, 0
	headers := "\x83\x86\x04\x0a/Test/Echo\x01\x04test\x0f\x10\x10application/json" // POST, http, path, authority, content type
	_, err = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+
		frame(settings, 0, 0, "\x00\x04\x00\x00\x00\x00")+ // streams begin without a window
		frame(1, 4, 1, headers)+frame(data, 1, 1, `{"text":"x"}`))
	must(t, err)
	must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	until := func(want byte) []byte {
		for {
			if kind, payload := readFrame(t, conn); kind == want {
				return payload
			}
		}
	}
	until(1) // the header of the response: the handler has returned
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	until(goAway)
	must(t, conn.SetReadDeadline(time.Now().Add(2*200*time.Millisecond))) // a session ends after 200 ms without a call
	for {
		var ping [9 + 8]byte // the server wants to know when the client has read GOAWAY
		n, err := io.ReadFull(conn, ping[:])
		if errors.Is(err, os.ErrDeadlineExceeded) && n == 0 {
			break
		}
		if err != nil || ping[3] != 6 {
			t.Fatalf("read %d bytes and %v while the response waits for the client", n, err)
		}
	}
	must(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, frame(8, 0, 1, "\x00\x00\x10\x00"))
	must(t, err)
	if got := strings.TrimSpace(string(until(data))); got != `{"text":"x"}` {
		t.Errorf("the response is %q", got)
	}
	must(t, conn.Close())
	must(t, receive(t, stopped))
}

// frame returns a frame of HTTP/2.
func frame(kind, flags, stream byte, payload string) string {
	return string([]byte{0, 0, byte(len(payload)), kind, flags, 0, 0, 0, stream}) + payload
}

// readFrame reads a frame of HTTP/2.
func readFrame(t testing.TB, conn net.Conn) (kind byte, payload []byte) {
	t.Helper()
	var head [9]byte
	_, err := io.ReadFull(conn, head[:])
	must(t, err)
	payload = make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	_, err = io.ReadFull(conn, payload)
	must(t, err)
	return head[3], payload
}

// A request that arrives on an idle HTTP/1 connection while the server drains is served, and its
// reply says that the connection ends. Net/http drops such a request once its Shutdown was called.
func TestDrainAnswersTheNextRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		l, err := network.Listen("site")
		must(t, err)
		s := newSiteOn(t, l, nil, yodel.ServerOptions{})
		conn, err := network.Dial(t.Context(), "site")
		must(t, err)
		defer conn.Close()
		in := bufio.NewReader(conn)
		ask := func() (last bool) {
			t.Helper()
			_, err := io.WriteString(conn, "POST /Test/Echo HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n"+`{"text":"x"}`)
			must(t, err)
			r, err := std.ReadResponse(in, nil)
			must(t, err)
			body, err := io.ReadAll(r.Body)
			_ = r.Body.Close() // it was read
			if err != nil || strings.TrimSpace(string(body)) != `{"text":"x"}` {
				t.Fatalf("got %s, %q, %v", r.Status, body, err)
			}
			return r.Close
		}
		if ask() {
			t.Error("the connection ends before the server drains")
		}
		synctest.Wait() // net/http waits for the next request: just behind a reply, it would end the connection
		stopped := make(chan error, 1)
		go func() { stopped <- s.stop() }()
		synctest.Wait() // the server drains, and its time for connections without requests has just begun
		if !ask() {
			t.Error("the response does not say that the connection ends")
		}
		if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("the connection ends with %v", err)
		}
		must(t, <-stopped)
	})
}

// A client of HTTP/2 goes on to write requests until it has read GOAWAY. The server reads them when
// it has closed the connection, for some time: a reset would fail them in doubt.
func TestDrainReadsWhatFollowsGoAway(t *testing.T) {
	s := newSite(t, nil, yodel.ServerOptions{})
	conn, err := net.Dial("tcp", s.addr)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+frame(4, 0, 0, ""))
	must(t, err)
	readFrame(t, conn) // SETTINGS: the server speaks HTTP/2
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Errorf("the connection ends with %v", err)
	}
	for i := range 5 {
		if _, err := io.WriteString(conn, frame(6, 0, 0, "12345678")); err != nil { // PING
			t.Fatalf("the write %d behind the end of the connection: %v", i, err)
		}
	}
	must(t, conn.Close())
	must(t, receive(t, stopped))
}

// A lateListener takes some time to close, and reports whether something happened meanwhile.
type lateListener struct {
	net.Listener
	happens  <-chan struct{}
	happened atomic.Bool
}

func (l *lateListener) Close() error {
	select {
	case <-l.happens:
		l.happened.Store(true)
	case <-time.After(200 * time.Millisecond):
	}
	return l.Listener.Close()
}

// The server stops listening before it tells its clients that it drains. A client that connects
// again at once would be reset.
func TestDrainStopsListeningFirst(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	told := make(chan struct{})
	l := &lateListener{Listener: tcp, happens: told}
	s := newSiteOn(t, l, nil, yodel.ServerOptions{})
	conn, err := net.Dial("tcp", s.addr)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+frame(4, 0, 0, ""))
	must(t, err)
	readFrame(t, conn) // SETTINGS
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	const goAway = 7
	for {
		if kind, _ := readFrame(t, conn); kind == goAway {
			break
		}
	}
	close(told)
	must(t, conn.Close())
	must(t, receive(t, stopped))
	if l.happened.Load() {
		t.Error("the client was told while the server listened")
	}
}
