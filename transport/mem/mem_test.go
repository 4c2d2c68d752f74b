// SPDX-License-Identifier: Apache-2.0

package mem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

var _ yodel.Transport = (*mem.Network)(nil)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// The suite's rules run in fake time too, in yodeltest.
func TestNetworkIsATransport(t *testing.T) { yodeltest.TestTransport(t, mem.New(), "") }

func TestListenTakesEachAddressOnce(t *testing.T) {
	network := mem.New()
	first := listen(t, network, "a")
	if l, err := network.Listen("a"); err == nil {
		t.Errorf("got a second listener %v at an address in use", l.Addr())
	}
	_ = first.Close()
	if again := listen(t, network, "a"); again.Addr().String() != "a" {
		t.Errorf("got %v after the first one closed, want a", again.Addr())
	}
}

func TestListenFindsFreeAddresses(t *testing.T) {
	network := mem.New()
	listen(t, network, "mem:1")
	seen := map[string]bool{"mem:1": true}
	for _, addr := range []string{"", "", ":0", ":0", "host:0", "host:0"} {
		got := listen(t, network, addr).Addr().String()
		if seen[got] {
			t.Errorf("Listen(%q) gave %q, which is taken", addr, got)
		}
		seen[got] = true
		if _, err := network.Dial(t.Context(), got); err != nil {
			t.Errorf("Listen(%q) gave %q: %v", addr, got, err)
		}
	}
}

func TestDialFailsAtOnceWhereNobodyListens(t *testing.T) {
	network := mem.New()
	listen(t, network, "a")
	listen(t, network, "closed").Close()
	for where, n := range map[string]*mem.Network{"b": network, "closed": network, "a": mem.New()} {
		if _, err := n.Dial(t.Context(), where); err == nil {
			t.Errorf("dial to %q, got no error", where)
		} else if want := fmt.Sprintf("dial mem %s: connection refused: nobody listens there", where); err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
	}
}

func TestDialWaitsForRoomInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.New()
		listener := listen(t, network, "a")
		var err error
		for dialed := 0; err == nil; dialed++ {
			if dialed > 10_000 {
				t.Fatal("the queue of connections that nobody accepts has no bound")
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err = network.Dial(ctx, "a")
			cancel()
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v from the Dial that finds no room, want its context's error", err)
		}
		dialed := make(chan error)
		go func() {
			_, err := network.Dial(t.Context(), "a")
			dialed <- err
		}()
		synctest.Wait()
		if _, err := listener.Accept(); err != nil {
			t.Fatal(err)
		}
		if err := <-dialed; err != nil {
			t.Errorf("got %v when Accept made room, want a connection", err)
		}
		go func() {
			_, err := network.Dial(t.Context(), "a")
			dialed <- err
		}()
		synctest.Wait()
		_ = listener.Close()
		if err := <-dialed; err == nil {
			t.Error("got a connection to a listener that closed while Dial waited for room")
		}
	})
}

func TestListenerCloseEndsConnectionsThatWereNotAccepted(t *testing.T) {
	network := mem.New()
	listener := listen(t, network, "a")
	client, err := network.Dial(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	if n, err := client.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("got %d, %v, want io.EOF", n, err)
	}
}

func TestWriteNeedsNoReaderUntilTheConnectionIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := pair(t)
		const most = 1 << 20
		_ = client.SetWriteDeadline(time.Now().Add(time.Second))
		held, err := client.Write(make([]byte, most))
		if held < 64<<10 || held == most || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("got %d, %v from a Write of 1 MiB that nobody reads, want at least 64 KiB and a timeout", held, err)
		}
		_ = client.SetWriteDeadline(time.Time{})
		written := make(chan int)
		go func() {
			n, _ := client.Write([]byte("more"))
			written <- n
		}()
		synctest.Wait()
		select {
		case <-written:
			t.Fatal("Write did not wait for a reader, though the connection is full")
		default:
		}
		if _, err := io.ReadFull(server, make([]byte, held)); err != nil {
			t.Fatal(err)
		}
		if n := <-written; n != 4 {
			t.Errorf("got %d bytes written when there was room again, want 4", n)
		}
	})
}

func TestConnectionsGoOnAfterADeadline(t *testing.T) {
	client, server := pair(t)
	_ = client.SetDeadline(time.Unix(1, 0))
	if n, err := client.Write([]byte("lost")); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %d, %v from Write after its deadline, want os.ErrDeadlineExceeded", n, err)
	}
	_, _ = server.Write([]byte("x"))
	if n, err := client.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %d, %v from Read after its deadline, want os.ErrDeadlineExceeded", n, err)
	}
	_ = client.SetDeadline(time.Now().Add(time.Hour))
	_, _ = client.Write([]byte("kept"))
	got := make([]byte, 4)
	if _, err := io.ReadFull(server, got); err != nil || string(got) != "kept" {
		t.Errorf("got %q, %v, want what was written after the deadline was moved", got, err)
	}
	if n, err := client.Read(got); n != 1 || err != nil {
		t.Errorf("got %d, %v from Read after the deadline was moved, want 1 byte", n, err)
	}
}

func TestDeadlineEndsWhatWaitsAndNoLaterOneDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := pair(t)
		began := time.Now()
		_ = client.SetReadDeadline(began.Add(time.Second))
		_ = client.SetReadDeadline(began.Add(time.Minute))
		time.AfterFunc(10*time.Second, func() { _ = client.SetReadDeadline(began.Add(30 * time.Second)) })
		_, err := client.Read(make([]byte, 1))
		if took := time.Since(began); took != 30*time.Second || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v after %v, want a timeout after 30s, the last deadline", err, took)
		}
	})
}

func TestErrorsSayWhoClosed(t *testing.T) {
	client, server := pair(t)
	_, _ = client.Write([]byte("last"))
	_ = client.Close()
	_ = client.Close() // twice does no harm
	b := make([]byte, 8)
	if n, err := server.Read(b); string(b[:n]) != "last" || err != nil {
		t.Errorf("the peer got %q, %v, want what was written before Close", b[:n], err)
	}
	tests := []struct {
		name string
		do   func() error
		want error
	}{
		{"own Read", func() error { _, err := client.Read(b); return err }, net.ErrClosed},
		{"own Write", func() error { _, err := client.Write(b); return err }, net.ErrClosed},
		{"own SetDeadline", func() error { return client.SetDeadline(time.Time{}) }, net.ErrClosed},
		{"own SetWriteDeadline", func() error { return client.SetWriteDeadline(time.Time{}) }, net.ErrClosed},
		{"peer's Read", func() error { _, err := server.Read(b); return err }, io.EOF},
		{"peer's Write", func() error { _, err := server.Write(b); return err }, io.ErrClosedPipe},
	}
	for _, test := range tests {
		if err := test.do(); !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", test.name, err, test.want)
		}
	}
}

// The peer closes its end as soon as it reads that this one is closed, in every round at another
// moment.
func TestAPendingReadEndsWithItsOwnClose(t *testing.T) {
	network := mem.New()
	listener := listen(t, network, "server")
	for range 5000 {
		client, server := connect(t, network, listener)
		var both sync.WaitGroup
		both.Go(func() {
			_, _ = client.Read(make([]byte, 1))
			_ = client.Close()
		})
		both.Go(func() {
			if _, err := server.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("got %v, want net.ErrClosed", err)
			}
		})
		_ = server.Close()
		both.Wait()
	}
}

func TestCloseWriteEndsOneDirection(t *testing.T) {
	client, server := pair(t)
	half := client.(interface{ CloseWrite() error })
	_, _ = client.Write([]byte("question"))
	_ = half.CloseWrite()
	if got, err := io.ReadAll(server); string(got) != "question" || err != nil {
		t.Errorf("got %q, %v, want the question and its end", got, err)
	}
	if _, err := client.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v from Write after CloseWrite, want io.ErrClosedPipe", err)
	}
	_, _ = server.Write([]byte("answer"))
	_ = server.Close()
	if got, err := io.ReadAll(client); string(got) != "answer" || err != nil {
		t.Errorf("got %q, %v, want the answer through the other direction", got, err)
	}
	_ = client.Close()
	_ = half.CloseWrite()
	if _, err := client.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v from Write after Close, want net.ErrClosed", err)
	}
}

func TestConcurrentWritesDoNotMix(t *testing.T) {
	client, server := pair(t)
	const writers, size = 8, 300 << 10 // more than a connection holds
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() { _, _ = client.Write(bytes.Repeat([]byte{byte('a' + i)}, size)) })
	}
	for range writers {
		got := make([]byte, size)
		if _, err := io.ReadFull(server, got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, bytes.Repeat(got[:1], size)) {
			t.Fatal("the bytes of two Writes are mixed")
		}
	}
	all.Wait()
}

func TestMethodsAreUsedConcurrently(t *testing.T) {
	client, server := pair(t)
	var all sync.WaitGroup
	for _, c := range []net.Conn{client, server} {
		for range 4 {
			all.Go(func() {
				b := make([]byte, 1000)
				for range 100 {
					_ = c.SetReadDeadline(time.Now().Add(time.Microsecond))
					_ = c.SetWriteDeadline(time.Now().Add(time.Microsecond))
					_, _ = c.Write(b)
					_, _ = c.Read(b)
					_, _ = c.LocalAddr(), c.RemoteAddr()
				}
				_ = c.Close()
			})
		}
	}
	all.Wait()
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v in the end, want net.ErrClosed", err)
	}
}

func TestAddressesTellConnectionsApart(t *testing.T) {
	network := mem.New()
	listener := listen(t, network, "a")
	seen := map[string]bool{}
	for range 3 {
		client, err := network.Dial(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if client.RemoteAddr().String() != "a" || server.LocalAddr().String() != "a" {
			t.Errorf("got %v and %v for the server's address, want a", client.RemoteAddr(), server.LocalAddr())
		}
		if client.LocalAddr() != server.RemoteAddr() || seen[server.RemoteAddr().String()] {
			t.Errorf("got %v and %v for the client's address, want the same, and a new one", client.LocalAddr(), server.RemoteAddr())
		}
		seen[server.RemoteAddr().String()] = true
	}
}

func listen(t testing.TB, network *mem.Network, addr string) net.Listener {
	t.Helper()
	listener, err := network.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func pair(t testing.TB) (client, server net.Conn) {
	t.Helper()
	network := mem.New()
	return connect(t, network, listen(t, network, "server"))
}

// connect returns both ends of a new connection.
func connect(t testing.TB, network *mem.Network, listener net.Listener) (client, server net.Conn) {
	t.Helper()
	client, err := network.Dial(t.Context(), listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return client, server
}

func BenchmarkRoundTrip(b *testing.B) {
	client, server := pair(b)
	go func() { _, _ = io.Copy(server, server) }()
	message := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Write(message); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(client, message); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOneWay(b *testing.B) {
	client, server := pair(b)
	go func() { _, _ = io.Copy(io.Discard, server) }()
	message := make([]byte, 16<<10)
	b.SetBytes(int64(len(message)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Write(message); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDial(b *testing.B) {
	network := mem.New()
	listener := listen(b, network, "server")
	b.ReportAllocs()
	for b.Loop() {
		client, err := network.Dial(b.Context(), "server")
		if err != nil {
			b.Fatal(err)
		}
		server, err := listener.Accept()
		if err != nil {
			b.Fatal(err)
		}
		_, _ = client.Close(), server.Close()
	}
}
