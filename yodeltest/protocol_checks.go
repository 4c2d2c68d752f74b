// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
)

// This file has the checks of the rules for protocols.

func checkCalls(t *protocolTrial) error {
	used, err := t.connect()
	if err != nil {
		return err
	}
	for _, request := range []string{"", "hello", "ünïcödé \x01\\\" ", strings.Repeat("large ", 50_000)} {
		t.doingf("a call with %d bytes", len(request))
		fresh, err := t.connect()
		if err != nil {
			return err
		}
		if err := errors.Join(used.echo(request), fresh.echo(request)); err != nil {
			return err
		}
	}
	return nil
}

func checkManyCalls(t *protocolTrial) error {
	t.doingf("320 calls on 4 connections")
	clients, err := t.connectAll(4)
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	faults := make(chan error, 16)
	for i := range cap(faults) {
		group.Go(func() {
			var err error
			for j := 0; j < 20 && err == nil; j++ {
				err = clients[i%4].echo(strings.Repeat(fmt.Sprint(i, " ", j), 100))
			}
			faults <- err
		})
	}
	group.Wait()
	for range cap(faults) {
		err = errors.Join(err, <-faults)
	}
	if err != nil || t.OneAtATime {
		return err
	}
	t.doingf("a call while another one of its connection runs")
	waiting := clients[0].start("Test.Wait")
	<-t.began
	err = clients[0].echo("meanwhile")
	close(t.release)
	return errors.Join(err, <-waiting)
}

// checkFails returns a check that calls of a method fail, with a text unless it is "".
func checkFails(doing, method, text string) func(*protocolTrial) error {
	return func(t *protocolTrial) error {
		c, err := t.connect()
		if err != nil {
			return err
		}
		t.doingf("%s", doing)
		return errors.Join(c.fails(method, "no such thing", text), c.fails(method, "no such thing", text))
	}
}

func checkCodes(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	for code := yodel.Canceled; code <= yodel.Unauthenticated; code++ {
		t.doingf("a call that fails with the code %s", code)
		if _, err := c.call("Test.Code", code.String()); yodel.CodeOf(err) != code {
			return fmt.Errorf("the handler's error has the code %s; the client got %v", code, err)
		}
	}
	return nil
}

func checkUnknown(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("calls of methods that do not exist")
	return errors.Join(c.fails("Test.Nothing", "x", ""), c.fails("Nobody.Echo", "x", ""), c.fails("Test."+strings.Repeat("x", 2000), "x", ""))
}

func checkDeadline(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("a call with a deadline")
	ctx, cancel := context.WithTimeout(t.ctx, 20*time.Second)
	defer cancel()
	var left string
	if err = c.caller.Do(ctx, &yodel.Call{Method: "Test.Deadline", Args: new("x"), Reply: &left}); err != nil {
		return err
	}
	if d, err := time.ParseDuration(left); err != nil || d > 20*time.Second || d < 0 {
		return fmt.Errorf("the deadline was in 20 s; the handler had %s left", left)
	}
	t.doingf("the end of a call whose deadline passes")
	short, cancel := context.WithTimeout(t.ctx, 50*time.Millisecond)
	defer cancel()
	if err = c.caller.Do(short, &yodel.Call{Method: "Test.Long", Args: new("x"), Reply: &left}); err == nil {
		return errors.New("a call succeeded although its deadline had passed")
	}
	<-t.ended
	return nil
}

func checkMetadata(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("a call with metadata")
	var got string
	call := &yodel.Call{Method: "Test.Metadata", Args: new("color"), Reply: &got, Metadata: yodel.Metadata{"color": "dark blue", "size": "5"}}
	if err = c.caller.Do(t.ctx, call); err != nil || got != "dark blue" {
		return fmt.Errorf("the metadata is color: dark blue; the handler got %q, and the caller the error %v", got, err)
	}
	return nil
}

func checkLeaves(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("a call")
	outcome := c.start("Test.Long")
	<-t.began
	t.doingf("the end of a handler's context after its client has left")
	_ = c.conn.Close() // the rule tests this
	if err := <-t.ended; err == nil {
		return errors.New("the context ended without a cause")
	}
	<-outcome
	return t.works()
}

func checkCounted(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("calls that succeed and fail")
	methods := []string{"Test.Echo", "Test.Fail", "Test.Panic", "Test.Exit"}
	for _, method := range methods {
		for range 5 {
			_, _ = c.call(method, "x") // other rules check it
		}
	}
	n := int32(5 * len(methods))
	t.doingf("the end of the calls")
	if err := t.Shutdown(t.ctx); err != nil {
		return err
	}
	if got := t.executed.Load(); got != n {
		return fmt.Errorf("of %d calls, handlers executed %d", n, got)
	}
	if got := t.observed.Load(); got != n {
		return fmt.Errorf("of %d calls, observers saw the end of %d", n, got)
	}
	for _, r := range t.Samples(nil).Calls {
		if r.Method == "Test.Fail" && r.Peer == c.conn.LocalAddr().String() {
			return nil
		}
	}
	return errors.New("a failed call is not in the records of the server, or without its peer")
}

func checkMiddleware(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("calls that middleware looks at")
	if err = c.echo("x"); err != nil {
		return err
	}
	if seen := t.seen.Load(); seen == nil || *seen != "Test.Echo, body true" {
		return errors.New("middleware did not see the method and its body")
	}
	before := t.executed.Load()
	if _, err = c.call("Test.Echo", "refuse me"); err == nil || t.executed.Load() != before {
		return errors.New("a call was executed that the middleware refuses")
	}
	return c.fails("Test.Echo", "refuse me", "the middleware refuses it")
}

func checkRefused(t *protocolTrial, m ProtocolMiddleware) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("%d calls that pass, and one that is refused", m.Passes)
	for range m.Passes {
		if err := c.echo("x"); err != nil {
			return err
		}
	}
	_, err = c.call("Test.Echo", "x")
	switch n := int(t.executed.Load()); {
	case n != m.Passes || err == nil:
		return fmt.Errorf("%d calls were executed, want %d, and the last one has the outcome %v", n, m.Passes, err)
	case t.Codes && yodel.CodeOf(err) != m.Code:
		return fmt.Errorf("the caller gets the code %v, want %v: %w", yodel.CodeOf(err), m.Code, err)
	}
	return nil
}

func checkKinds(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	for method, want := range map[string]string{"Test.Echo": `Kind "unary", Streams false`, "Test.Absent": `Kind "", Streams false`} {
		t.doingf("a call of %s", method)
		_, err := c.call(method, "x")
		if fails := method == "Test.Absent"; (err != nil) != fails {
			return fmt.Errorf("%s: got the error %v, want one: %t", method, err, fails)
		}
		if got, ok := t.kinds.Load(method); !ok || got != want {
			return fmt.Errorf("to middleware, a call of %s has %v, want %s", method, got, want)
		}
	}
	return nil
}

func checkMaxOpen(t *protocolTrial) error {
	t.doingf("6 calls, of which 2 may be open")
	const calls = 6
	clients, err := t.connectAll(calls)
	if err != nil {
		return err
	}
	var outcomes []chan error
	for _, c := range clients {
		outcomes = append(outcomes, c.start("Test.Wait"))
	}
	<-t.began
	<-t.began
	select {
	case <-t.began:
		return errors.New("3 calls run, and MaxOpen is 2")
	case <-time.After(100 * time.Millisecond): // a protocol that fulfills the rule passes in any case
	}
	t.doingf("calls that waited for room")
	close(t.release)
	for _, outcome := range outcomes {
		err = errors.Join(err, <-outcome)
	}
	return err
}

func checkMaxMessage(t *protocolTrial) error {
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("a request that is too large")
	if _, err = c.call("Test.Echo", strings.Repeat("x", 256<<10)); err == nil || t.executed.Load() > 0 {
		return errors.New("a request of 256 KiB was executed, and the limit is 64 KiB")
	}
	return t.works()
}

func checkMaxConns(t *protocolTrial) error {
	t.doingf("calls on as many connections as there may be")
	clients, err := t.connectAll(2)
	if err != nil {
		return err
	}
	if err = errors.Join(clients[0].echo("x"), clients[1].echo("x")); err != nil {
		return err
	}
	if err = t.works(); err == nil {
		return errors.New("a call succeeded on a third connection, and MaxConns is 2")
	}
	_ = clients[0].conn.Close() // the server will notice it soon
	for t.works() != nil {
		t.doingf("a call on a new connection after another one has ended")
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.ctx.Done():
			return errors.New("a connection has ended, and no other one gets its place")
		}
	}
	return nil
}

func checkDrain(t *protocolTrial) error {
	const calls = 4
	clients, err := t.connectAll(calls + 1)
	if err != nil {
		return err
	}
	idle := clients[calls]
	if err = idle.echo("x"); err != nil {
		return err
	}
	var outcomes []chan error
	for _, c := range clients[:calls] {
		outcomes = append(outcomes, c.start("Test.Wait"))
	}
	t.doingf("calls")
	for range calls {
		<-t.began
	}
	stopped := make(chan error, 1)
	go func() { stopped <- t.Shutdown(t.ctx) }()
	t.doingf("the end of an idle connection while the server drains")
	_, _ = io.Copy(io.Discard, idle.conn) // until the connection ends, in any way
	close(t.release)
	t.doingf("calls that were open when the server began to drain")
	for _, outcome := range outcomes {
		if err = <-outcome; err != nil {
			return fmt.Errorf("a call that ran was lost: %w", err)
		}
	}
	t.doingf("the end of Shutdown")
	return <-stopped
}

func checkCutOff(t *protocolTrial) error {
	sent, err := t.request("x")
	if err != nil {
		return err
	}
	half, err := t.dial()
	if err != nil {
		return err
	}
	if _, err = half.Write(sent[:len(sent)-1]); err != nil {
		return err
	}
	c, err := t.connect()
	if err != nil {
		return err
	}
	t.doingf("a call")
	outcome := c.start("Test.Long")
	<-t.began
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	if err := t.Shutdown(ctx); err == nil {
		return errors.New("Shutdown with a context that has ended cut off a call, and returned no error")
	}
	t.doingf("the end of a handler's context after Shutdown")
	<-t.ended
	t.doingf("the end of a call that was cut off")
	if err := <-outcome; err == nil {
		return errors.New("a call that was cut off succeeded")
	}
	t.doingf("the end of a connection with half a request")
	_, _ = io.Copy(io.Discard, half) // until the connection ends, in any way
	return nil
}

// garbageAtOnce is how many connections send garbage at the same time, because a server may wait
// for a second before it closes one.
const garbageAtOnce = 25

func checkGarbage(t *protocolTrial) error {
	sent, err := t.request("hello")
	if err != nil {
		return err
	}
	good, err := t.connect()
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 / garbageAtOnce {
		var senders sync.WaitGroup
		failed := make(chan error, garbageAtOnce)
		for i := range garbageAtOnce {
			garbage := spoil(rng, sent, i)
			t.doingf("garbage such as %.100q", garbage)
			senders.Go(func() { failed <- t.sendAndLeave(garbage) })
		}
		senders.Wait()
		for range garbageAtOnce {
			if err = errors.Join(err, <-failed); err != nil {
				return err
			}
		}
		if err = good.echo("x"); err != nil {
			return fmt.Errorf("another client: %w", err)
		}
	}
	return t.works()
}

// spoil returns bytes that are partly a request.
func spoil(rng *rand.Rand, sent []byte, i int) []byte {
	garbage := bytes.Clone(sent)
	for range 1 + rng.IntN(4) {
		garbage[rng.IntN(len(garbage))] = byte(rng.Uint32())
	}
	switch i % 4 {
	case 0: // after a request
		garbage = slices.Concat(sent, garbage)
	case 1:
		garbage = make([]byte, 1+rng.IntN(1000))
		for j := range garbage {
			garbage[j] = byte(rng.Uint32())
		}
	case 2: // after the beginning of a request
		garbage = slices.Concat(sent[:rng.IntN(len(sent))], garbage)
	}
	return garbage
}

func checkTruncated(t *protocolTrial) error {
	sent, err := t.request(strings.Repeat("hello ", 20))
	if err != nil {
		return err
	}
	before := t.executed.Load()
	for i := range sent {
		t.doingf("the first %d bytes of a request", i)
		if err = t.sendAndLeave(sent[:i]); err != nil {
			return err
		}
	}
	if err = t.alone(); err != nil { // all calls have ended
		return err
	}
	if got := t.executed.Load(); got != before {
		return fmt.Errorf("%d calls were executed whose requests were not complete", got-before)
	}
	return t.works()
}

func checkSlow(t *protocolTrial) error {
	c, err := t.dial()
	if err != nil {
		return err
	}
	t.doingf("a call whose request arrives byte by byte")
	return (&protocolClient{c, t.client(slowConn{c}), t.ctx}).echo("slow")
}

// A slowConn writes single bytes.
type slowConn struct{ net.Conn }

func (s slowConn) Write(b []byte) (int, error) {
	for i := range b {
		if _, err := s.Conn.Write(b[i : i+1]); err != nil {
			return i, err
		}
		<-time.After(100 * time.Microsecond) // most bytes then arrive alone
	}
	return len(b), nil
}

func checkHalf(t *protocolTrial) error {
	sent, err := t.request("hello")
	if err != nil {
		return err
	}
	for _, n := range []int{1, len(sent) / 2, len(sent) - 1} {
		c, err := t.dial()
		if err != nil {
			return err
		}
		if _, err = c.Write(sent[:n]); err != nil {
			return err
		}
		t.doingf("the end of a connection with %d bytes of a request, which has %d", n, len(sent))
		_, _ = io.Copy(io.Discard, c) // until the connection ends, in any way
	}
	return t.works()
}

func checkUnread(t *protocolTrial) error {
	c, err := t.dial()
	if err != nil {
		return err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		if err = tcp.SetReadBuffer(64 << 10); err != nil {
			return err
		}
	}
	unread := &unreadConn{Conn: c, closed: make(chan struct{})}
	defer unread.Close()
	outcome := (&protocolClient{unread, t.client(unread), t.ctx}).start("Test.Large")
	for t.executed.Load() == 0 {
		t.doingf("a call of a client that does not read")
		<-time.After(time.Millisecond)
	}
	if err = t.works(); err != nil { // the unread connection leaves room for other clients
		return err
	}
	_ = unread.Close()
	<-outcome
	return nil
}

// An unreadConn is a connection whose Read waits until it is closed.
type unreadConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (u *unreadConn) Read([]byte) (int, error) {
	<-u.closed
	return 0, net.ErrClosed
}

func (u *unreadConn) Close() error {
	u.once.Do(func() { close(u.closed) })
	return u.Conn.Close()
}
