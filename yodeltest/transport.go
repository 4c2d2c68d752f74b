// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/leak"
)

// TestTransport checks every rule that yodel requires of a transport. For each broken rule, it
// explains what the rule is good for. It listens at addr again for each rule. So addr must be an
// address with the port 0, or an address that is free as soon as its listener is closed.
//
//	func TestTransport(t *testing.T) { yodeltest.TestTransport(t, unix.Transport{}, path) }
//
// It must not run in parallel with other tests, because it would regard their goroutines as the
// transport's.
func TestTransport(t *testing.T, tr yodel.Transport, addr string) {
	for _, rule := range transportRules {
		t.Run(rule.name, func(t *testing.T) {
			if err := rule.try(tr, addr, 30*time.Second); err != nil {
				t.Errorf("%v\nThe rule: %s", err, rule.why)
			}
		})
	}
}

// A transportRule is one rule for transports.
type transportRule struct {
	name  string
	why   string // explains the rule, and what it is good for
	check func(*transportTrial) error
}

var transportRules = []transportRule{
	{"echo", `Dial reaches the listener at what its Addr says, and each side reads what the other wrote.
With port 0 nothing else tells where a server listens.`, checkEcho},
	{"addresses", `A listener and both ends of a connection have addresses, and the end that dialed names
its peer. Logs, filters and the list of connections show them.`, checkAddresses},
	{"large transfers", `Bytes arrive complete, unchanged and in order, both ways at once. Reading one way
does not wait for writing the other way: calls and replies overlap.`, checkLarge},
	{"half packets", `A connection is a stream of bytes: how they were cut into Writes does not show, an empty
Write says nothing, and a Read into a small buffer leaves the rest for the next one.`, checkHalfPackets},
	{"buffers", `Write does not keep its buffer: yodel fills it anew as soon as Write returns.`, checkBuffers},
	{"read deadline", `A deadline ends a pending Read with an error whose Timeout method says true, also when it
is moved into the past meanwhile; one that was taken back in time does nothing. Silent peers are found this way.`, checkReadDeadline},
	{"write deadline", `A connection holds a bounded number of bytes that the peer does not read, and then a deadline
ends the Write with an error whose Timeout method says true. Else one slow reader takes all memory, or a writer for ever.`, checkWriteDeadline},
	{"close ends read", `Close ends a Read of its own end that is pending, and fails later ones.`, checkCloseEndsRead},
	{"close ends write", `Close ends a Write of its own end that is pending, and fails later ones.`, checkCloseEndsWrite},
	{"close does not wait", `Close returns at once, though the peer reads nothing. Who gives a stuck connection up has no
time to lose with it.`, checkCloseDoesNotWait},
	{"close ends accept", `Close of a listener ends an Accept that is pending, and fails later ones, with errors that
match net.ErrClosed. After other errors a server tries again.`, checkCloseEndsAccept},
	{"close reaches the peer", `The peer of a closed connection reads what was written before, then io.EOF, and its
Writes fail sooner or later. A client finds another server then.`, checkCloseReachesPeer},
	{"dial ends with its context", `Dial fails when its context ends, whatever the other side does. The
context's deadline is the call's.`, checkDialEnds},
	{"silent peers", `Accept does not wait for what a peer has to say. Else one silent peer keeps all others
out.`, checkSilentPeers},
	{"many connections", `Connections do not hold each other up.`, checkMany},
	{"nothing stays behind", `When a listener and its connections are closed, the goroutines that worked for them
end.`, checkNothingStays},
}

// try tests the rule, within limit.
func (r transportRule) try(tr yodel.Transport, addr string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	before := leak.Goroutines()
	listener, err := tr.Listen(addr)
	if err != nil {
		return fmt.Errorf("Listen at %q: %w", addr, err)
	}
	if listener.Addr() == nil {
		_ = listener.Close()
		return errors.New("Addr of the listener is nil")
	}
	t := &transportTrial{trial: trial{ctx: ctx}, tr: tr, listener: listener, before: before}
	defer t.close()
	return t.run(func() error { return r.check(t) })
}

// A transportTrial is a test of one rule with its own listener.
type transportTrial struct {
	trial
	tr       yodel.Transport
	listener net.Listener
	before   map[string]string // the goroutines before Listen

	mu     sync.Mutex
	closed bool
	conns  []net.Conn // closed at the end of the trial
}

func (t *transportTrial) close() {
	t.mu.Lock()
	conns := t.conns
	t.closed = true
	t.mu.Unlock()
	_ = t.listener.Close()
	for _, c := range conns {
		_ = c.Close()
	}
}

// closeLater closes c at the end of the trial.
func (t *transportTrial) closeLater(c net.Conn) net.Conn {
	t.mu.Lock()
	closed := t.closed
	t.conns = append(t.conns, c)
	t.mu.Unlock()
	if closed {
		_ = c.Close()
	}
	return c
}

func (t *transportTrial) dial(ctx context.Context) (net.Conn, error) {
	addr := t.listener.Addr().String()
	c, err := t.tr.Dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("Dial to %q, the listener's Addr: %w", addr, err)
	}
	return t.closeLater(c), nil
}

func (t *transportTrial) accept() (net.Conn, error) {
	c, err := t.listener.Accept()
	if err != nil {
		return nil, fmt.Errorf("Accept: %w", err)
	}
	return t.closeLater(c), nil
}

// pair returns the ends of a new connection. It sends a byte in each direction, so that all
// handshakes are over.
func (t *transportTrial) pair() (client, server net.Conn, err error) {
	type greeted struct {
		conn net.Conn
		err  error
	}
	accepted := make(chan greeted, 1)
	go func() {
		c, err := t.accept()
		if err == nil {
			err = errors.Join(receive(c, 0, 1, 1), send(c, 0, 1, 1))
		}
		accepted <- greeted{c, err}
	}()
	t.doingf("Dial to the listener's Addr")
	if client, err = t.dial(t.ctx); err != nil {
		return nil, nil, err
	}
	t.doingf("Dial, Accept and a byte each way")
	if err := errors.Join(send(client, 0, 1, 1), receive(client, 0, 1, 1)); err != nil {
		return nil, nil, fmt.Errorf("on the client: %w", err)
	}
	g := <-accepted
	if g.err != nil {
		return nil, nil, fmt.Errorf("on the server: %w", g.err)
	}
	return client, g.conn, nil
}

// eachEnd runs check with the client's end of one connection and with the server's end of another.
func (t *transportTrial) eachEnd(check func(own, peer net.Conn) error) error {
	client, server, err := t.pair()
	if err != nil {
		return err
	}
	if err := check(client, server); err != nil {
		return fmt.Errorf("on the client: %w", err)
	}
	if client, server, err = t.pair(); err != nil {
		return err
	}
	if err := check(server, client); err != nil {
		return fmt.Errorf("on the server: %w", err)
	}
	return nil
}

// serveEcho sends back the bytes that clients of the listener send, until the listener is closed.
func (t *transportTrial) serveEcho() {
	for {
		c, err := t.accept()
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(c, c) }()
	}
}

// send writes size bytes derived from seed, at most step at a time. It overwrites its buffer
// between the writes.
func send(c net.Conn, seed byte, size, step int) error {
	source, buffer := rand.NewChaCha8([32]byte{seed}), make([]byte, step)
	for done := 0; done < size; {
		b := buffer[:min(step, size-done)]
		_, _ = source.Read(b)
		n, err := c.Write(b)
		if err != nil {
			return fmt.Errorf("Write behind %d bytes: %w", done, err)
		}
		if n != len(b) {
			return fmt.Errorf("Write of %d bytes returned %d and no error", len(b), n)
		}
		clear(buffer)
		done += n
	}
	return nil
}

// receive reads size bytes that send has written, at most step at a time.
func receive(c net.Conn, seed byte, size, step int) error {
	source, buffer, want := rand.NewChaCha8([32]byte{seed}), make([]byte, step), make([]byte, step)
	for done := 0; done < size; {
		n, err := c.Read(buffer[:min(step, size-done)])
		_, _ = source.Read(want[:n])
		if !bytes.Equal(buffer[:n], want[:n]) {
			return fmt.Errorf("what Read returned behind %d bytes is not what was written", done)
		}
		done += n
		if err != nil && done < size {
			return fmt.Errorf("Read behind %d of %d bytes: %w", done, size, err)
		}
	}
	return nil
}

// exchange sends size bytes from a to b, and waits for both.
func exchange(a, b net.Conn, seed byte, size, writeStep, readStep int) error {
	sent := make(chan error, 1)
	go func() { sent <- send(a, seed, size, writeStep) }()
	if err := receive(b, seed, size, readStep); err != nil {
		return err
	}
	return <-sent
}

// soon runs f when the caller's next operation has probably blocked. If it has not, the rule must
// hold too.
func soon(f func()) { time.AfterFunc(20*time.Millisecond, f) }

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// fill writes until Write fails, and returns its error. It gives up if the connection accepts all
// bytes.
func fill(c net.Conn) error {
	const bound = 64 << 20
	chunk := make([]byte, 64<<10)
	for done := 0; done < bound; {
		n, err := c.Write(chunk)
		if err != nil {
			return err
		}
		done += n
	}
	return errUnbounded
}

var errUnbounded = errors.New("64 MiB accepted that nobody read")

func checkEcho(t *transportTrial) error {
	client, server, err := t.pair()
	if err != nil {
		return err
	}
	t.doingf("1000 bytes each way")
	return errors.Join(exchange(client, server, 1, 1000, 1000, 1000), exchange(server, client, 2, 1000, 1000, 1000))
}

func checkAddresses(t *transportTrial) error {
	client, server, err := t.pair()
	if err != nil {
		return err
	}
	named := []net.Addr{t.listener.Addr(), client.RemoteAddr()}
	for i, addr := range append(named, client.LocalAddr(), server.LocalAddr(), server.RemoteAddr()) {
		whose := []string{"Addr of the listener", "RemoteAddr of the client", "LocalAddr of the client", "LocalAddr of the server", "RemoteAddr of the server"}[i]
		if addr == nil || addr.Network() == "" {
			return fmt.Errorf("%s is %v, which names no network", whose, addr)
		}
		if i < len(named) && addr.String() == "" { // other addresses may be empty, like that of a unix socket's client
			return fmt.Errorf("%s is the empty string", whose)
		}
	}
	return nil
}

func checkLarge(t *transportTrial) error {
	client, server, err := t.pair()
	if err != nil {
		return err
	}
	t.doingf("8 MiB each way at once")
	const size = 8 << 20
	outcome := make(chan error, 2)
	go func() { outcome <- exchange(client, server, 1, size, 1<<20, 32<<10) }()
	go func() { outcome <- exchange(server, client, 2, size, 10_000, 1<<20) }()
	if err := <-outcome; err != nil {
		return err
	}
	return <-outcome
}

func checkHalfPackets(t *transportTrial) error {
	client, server, err := t.pair()
	if err != nil {
		return err
	}
	t.doingf("an empty Write, then 500 bytes written one by one")
	if n, err := client.Write(nil); n != 0 || err != nil {
		return fmt.Errorf("an empty Write returned %d, %v", n, err)
	}
	if err := exchange(client, server, 1, 500, 1, 500); err != nil {
		return err
	}
	t.doingf("a Write of 500 bytes, read one by one")
	return exchange(client, server, 2, 500, 500, 1)
}

func checkBuffers(t *transportTrial) error {
	client, server, err := t.pair()
	if err != nil {
		return err
	}
	t.doingf("1000 Writes out of one buffer")
	return exchange(client, server, 1, 100_000, 100, 64<<10)
}

func checkReadDeadline(t *transportTrial) error {
	ways := map[string]func(net.Conn){
		"SetReadDeadline":             func(c net.Conn) { _ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)) },
		"SetDeadline":                 func(c net.Conn) { _ = c.SetDeadline(time.Now().Add(20 * time.Millisecond)) },
		"SetReadDeadline in the past": func(c net.Conn) { soon(func() { _ = c.SetReadDeadline(time.Unix(1, 0)) }) },
	}
	for _, way := range slices.Sorted(maps.Keys(ways)) {
		err := t.eachEnd(func(own, _ net.Conn) error {
			t.doingf("%s, and a Read of nothing", way)
			ways[way](own)
			if n, err := own.Read(make([]byte, 1)); n != 0 || !isTimeout(err) {
				return fmt.Errorf("%s: got %d, %v from the Read that it ends, want a timeout", way, n, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return t.eachEnd(func(own, peer net.Conn) error {
		t.doingf("a deadline that was taken back, and a byte after it")
		_ = own.SetDeadline(time.Now().Add(20 * time.Millisecond))
		_ = own.SetDeadline(time.Time{})
		time.AfterFunc(50*time.Millisecond, func() { _ = send(peer, 1, 1, 1) })
		if err := receive(own, 1, 1, 1); err != nil {
			return fmt.Errorf("after a deadline that was taken back: %w", err)
		}
		return nil
	})
}

func checkWriteDeadline(t *transportTrial) error {
	ways := map[string]func(net.Conn){
		"SetWriteDeadline":             func(c net.Conn) { _ = c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)) },
		"SetDeadline":                  func(c net.Conn) { _ = c.SetDeadline(time.Now().Add(50 * time.Millisecond)) },
		"SetWriteDeadline in the past": func(c net.Conn) { soon(func() { _ = c.SetWriteDeadline(time.Unix(1, 0)) }) },
	}
	for _, way := range slices.Sorted(maps.Keys(ways)) {
		err := t.eachEnd(func(own, _ net.Conn) error {
			t.doingf("%s, and Writes that nobody reads", way)
			ways[way](own)
			if err := fill(own); !isTimeout(err) {
				return fmt.Errorf("%s: got %w, want a timeout", way, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func checkCloseEndsRead(t *transportTrial) error {
	return t.eachEnd(func(own, _ net.Conn) error {
		t.doingf("a Read, and Close of its connection")
		soon(func() { _ = own.Close() })
		_, first := own.Read(make([]byte, 1))
		_, later := own.Read(make([]byte, 1))
		if first == nil || later == nil {
			return fmt.Errorf("got %v from the Read that Close ends and %v from the next one, want errors", first, later)
		}
		return nil
	})
}

func checkCloseEndsWrite(t *transportTrial) error {
	return t.eachEnd(func(own, _ net.Conn) error {
		t.doingf("Writes that nobody reads, and Close of their connection")
		closed := make(chan struct{})
		soon(func() {
			_ = own.Close()
			close(closed)
		})
		if err := fill(own); errors.Is(err, errUnbounded) {
			return err
		}
		<-closed
		if _, err := own.Write(make([]byte, 1)); err == nil {
			return errors.New("Write after Close returned no error")
		}
		return nil
	})
}

func checkCloseDoesNotWait(t *transportTrial) error {
	return t.eachEnd(func(own, _ net.Conn) error {
		t.doingf("Writes that nobody reads, then Close")
		_ = own.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		if err := fill(own); errors.Is(err, errUnbounded) {
			return err
		}
		began := time.Now()
		_ = own.Close()
		if took := time.Since(began); took > 3*time.Second { // generous, for a busy machine
			return fmt.Errorf("Close took %v", took)
		}
		return nil
	})
}

func checkCloseEndsAccept(t *transportTrial) error {
	t.doingf("Accept, and Close of the listener")
	soon(func() { _ = t.listener.Close() })
	_, first := t.listener.Accept()
	_, later := t.listener.Accept()
	if !errors.Is(first, net.ErrClosed) || !errors.Is(later, net.ErrClosed) {
		return fmt.Errorf("got %v from the Accept that Close ends and %v from the next one, want net.ErrClosed", first, later)
	}
	return nil
}

func checkCloseReachesPeer(t *transportTrial) error {
	return t.eachEnd(func(own, peer net.Conn) error {
		t.doingf("1000 bytes, then Close, and Reads of the peer")
		if err := send(own, 1, 1000, 1000); err != nil {
			return err
		}
		_ = own.Close()
		if err := receive(peer, 1, 1000, 1000); err != nil {
			return fmt.Errorf("the peer, of what was written before Close: %w", err)
		}
		if n, err := peer.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			return fmt.Errorf("the peer's Read behind the end returned %d, %v, and not io.EOF", n, err)
		}
		t.doingf("Writes to a peer that has closed")
		if err := fill(peer); errors.Is(err, errUnbounded) {
			return fmt.Errorf("the peer: %w", err)
		}
		return nil
	})
}

func checkDialEnds(t *transportTrial) error {
	over, cancel := context.WithCancel(t.ctx)
	cancel()
	t.doingf("Dial with a context that has ended")
	if _, err := t.dial(over); err == nil {
		return errors.New("Dial with a context that has ended returned no error")
	}
	t.doingf("Dial to a listener that does not accept")
	if _, late := t.dialBriefly(); late != nil { // without a handshake, Dial may succeed
		return late
	}
	_ = t.listener.Close()
	t.doingf("Dial to an address where nobody listens")
	err, late := t.dialBriefly()
	if err == nil {
		return errors.New("Dial to an address where nobody listens returned no error")
	}
	return late
}

// dialBriefly dials for a fifth of a second. late is not nil if that took much longer.
func (t *transportTrial) dialBriefly() (err, late error) {
	const patience, grace = 200 * time.Millisecond, 5 * time.Second // grace is for a busy machine
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	began := time.Now()
	_, err = t.dial(ctx)
	if took := time.Since(began); took > patience+grace {
		late = fmt.Errorf("Dial took %v with a context of %v", took, patience)
	}
	return err, late
}

func checkSilentPeers(t *transportTrial) error {
	addr := t.listener.Addr()
	if network := addr.Network(); network == "tcp" || network == "unix" { // without TLS or another layer
		silent, err := net.Dial(network, addr.String())
		if err != nil {
			return fmt.Errorf("Addr of the listener is not its own: %w", err)
		}
		t.closeLater(silent)
	}
	go t.serveEcho()
	t.doingf("Dial of a connection that then says nothing")
	if _, err := t.dial(t.ctx); err != nil {
		return err
	}
	t.doingf("a connection behind one that says nothing")
	client, err := t.dial(t.ctx)
	if err != nil {
		return err
	}
	return exchange(client, client, 1, 1000, 1000, 1000)
}

func checkMany(t *transportTrial) error {
	go t.serveEcho()
	t.doingf("32 connections at once, each with 64 KiB and back")
	const conns = 32
	outcome := make(chan error, conns)
	for i := range conns {
		go func() {
			client, err := t.dial(t.ctx)
			if err == nil {
				err = exchange(client, client, byte(i), 64<<10, 8<<10, 8<<10)
			}
			outcome <- err
		}()
	}
	for range conns {
		if err := <-outcome; err != nil {
			return err
		}
	}
	return nil
}

func checkNothingStays(t *transportTrial) error {
	for range 3 {
		if _, _, err := t.pair(); err != nil {
			return err
		}
	}
	t.doingf("Close of everything")
	t.close()
	if left := leak.Outliving(t.before); left != "" {
		return fmt.Errorf("goroutines that stayed:\n\n%s", left)
	}
	return nil
}
