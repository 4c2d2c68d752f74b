// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/yodel-rpc/yodel"
)

// This file has the checks of the rules for Wires.

// wireMemory is the memory of the client in the rule "memory".
const wireMemory = 1 << 20

func checkAnswer(t *wireTrial) error {
	if err := t.works(); err != nil {
		return err
	}
	t.doingf("a call whose handler fails")
	c, err := t.call("Test.Fail", "x")
	e, ok := errors.AsType[*yodel.Error](c.attempt())
	if err == nil || !ok || e.NotProcessed || !strings.Contains(e.Message, "no such thing") {
		return fmt.Errorf("the handler fails with %q; Do returned %s", "no such thing", described(c.attempt()))
	}
	t.doingf("a reply of 300,000 bytes")
	if c, err = t.call("Test.Large", "300000"); err != nil || len(c.reply) != 300_000 {
		return fmt.Errorf("a reply of 300,000 bytes: got %d bytes, %w", len(c.reply), err)
	}
	return t.works()
}

func checkNotSent(t *wireTrial) error {
	if err := t.works(); err != nil {
		return err
	}
	t.doingf("the end of Closing, when the connection has been cut")
	t.executed.Store(0)
	t.before.Store(new(func(l *trialLink) {
		_ = l.conn.Close() // the rule tests this
		select {
		case <-l.Closing():
		case <-l.Done():
		case <-t.ctx.Done():
		}
	}))
	c, err := t.call("Test.Echo", "again")
	if err := notProcessed(c.attempt()); err != nil {
		return err
	}
	if e, _ := errors.AsType[*yodel.Error](c.attempt()); e.Code != yodel.Unavailable || e.Cause == nil || e.ID != "" {
		return fmt.Errorf("nothing was sent; Do returned %s", described(e))
	}
	if n := t.executed.Load(); err != nil || n != 1 || c.reply != "again" {
		return fmt.Errorf("the client sends the call again: it was executed %d times, with the reply %q and the error %w", n, c.reply, err)
	}
	return nil
}

func checkLost(t *wireTrial) error {
	t.doingf("a call")
	c := t.begin(t.ctx, &yodel.Call{Method: "Test.Wait", Args: new("x")})
	<-t.began
	t.doingf("the end of a call whose connection has been cut")
	_ = t.link.Load().conn.Close() // the rule tests this
	return t.executedOnce(c)
}

func checkHalfReply(t *wireTrial) error {
	if err := t.works(); err != nil {
		return err
	}
	t.executed.Store(0)
	conn := t.link.Load().conn
	conn.cut.Store(true)
	conn.reads.Store(200_000)
	t.doingf("the end of a call whose reply is cut")
	return t.executedOnce(t.begin(t.ctx, &yodel.Call{Method: "Test.Large", Args: new("1000000")}))
}

// executedOnce checks that a call fails as one that may have been executed, and is not sent again.
func (t *wireTrial) executedOnce(c *trialCall) error {
	select {
	case <-c.ended:
	case <-t.began: // the client has sent it again
	}
	if err := maybeExecuted(c.attempt()); err != nil {
		return err
	}
	if n := t.executed.Load(); n != 1 {
		return fmt.Errorf("the call was executed %d times", n)
	}
	return nil
}

func checkHalfRequest(t *wireTrial) error {
	if err := t.works(); err != nil {
		return err
	}
	t.executed.Store(0)
	l := t.link.Load()
	l.conn.writes.Store(100_000)
	t.doingf("a call whose request is cut")
	c, err := t.call("Test.Echo", strings.Repeat("x", 1<<20))
	if first := c.attempt(); first == nil {
		return errors.New("Do has returned nil, and the request did not leave whole")
	} else if n := t.executed.Load(); n > 1 || n == 1 && err != nil || n == 0 && yodel.NotProcessed(first) {
		return fmt.Errorf("Do returned %s; the method was executed %d times, and the call has the error %w", described(first), n, err)
	}
	t.doingf("the end of Closing, when the connection has been cut")
	t.await(l.Closing())
	return t.works()
}

func checkLacks(t *wireTrial) error {
	t.doingf("a call with an attachment")
	c := t.begin(t.ctx, &yodel.Call{Method: "Test.Echo", Args: new("x"), Attachment: []byte("attached")})
	if err := <-c.ended; err == nil {
		return nil // the protocol carries it
	}
	if err := notProcessed(c.attempt()); err != nil {
		return err
	}
	if n := t.executed.Load(); n != 0 {
		return errors.New("the call was executed")
	}
	return t.works()
}

func checkGivesUp(t *wireTrial) error {
	t.doingf("a call")
	cause := errors.New("the caller gives up")
	ctx, cancel := context.WithCancelCause(t.ctx)
	c := t.begin(ctx, &yodel.Call{Method: "Test.Wait", Args: new("x")})
	<-t.began
	t.doingf("the end of a call whose context has ended")
	cancel(cause)
	<-c.ended
	close(t.release)
	if err := c.attempt(); !errors.Is(err, cause) {
		return fmt.Errorf("the context of Do ended with the cause %q; Do returned %s", cause, described(err))
	}
	return t.works()
}

func checkWireMaxMessage(t *wireTrial) error {
	t.doingf("a call with a large request")
	const size = 3 << 20
	c, err := t.call("Test.Echo", strings.Repeat("x", size))
	if err == nil || t.executed.Load() != 0 {
		return fmt.Errorf("a request beyond Limits.MaxMessage was executed %d times: %w", t.executed.Load(), err)
	}
	if err := errors.Join(notProcessed(c.attempt()), exhausted(c.attempt())); err != nil {
		return err
	}
	t.doingf("a call with a large reply")
	c, _ = t.call("Test.Large", strconv.Itoa(size))
	return errors.Join(maybeExecuted(c.attempt()), exhausted(c.attempt()), t.works())
}

// exhausted checks the code of an error.
func exhausted(err error) error {
	if yodel.CodeOf(err) != yodel.ResourceExhausted {
		return fmt.Errorf("a limit was exceeded; Do returned %s", described(err))
	}
	return nil
}

func checkWireMemory(t *wireTrial) error {
	if err := t.works(); err != nil {
		return err
	}
	conn := t.link.Load().conn
	if !t.ReadsWhole { // it must not need more of the reply than it has memory for
		conn.reads.Store(wireMemory + 300_000)
	}
	t.doingf("a call whose reply has %d bytes, when %d have arrived and the client may hold %d", 8*wireMemory, wireMemory+300_000, wireMemory)
	c, _ := t.call("Test.Large", strconv.Itoa(8*wireMemory))
	close(conn.open)
	if err := errors.Join(maybeExecuted(c.attempt()), exhausted(c.attempt())); err != nil {
		return err
	}
	for range 20 { // more than the memory in all
		t.doingf("a call whose reply has 100,000 bytes, after one for which there was no memory")
		if c, err := t.call("Test.Large", "100000"); err != nil || len(c.reply) != 100_000 {
			return fmt.Errorf("a reply that fits into the memory, after one that did not: %w", err)
		}
	}
	return nil
}

func checkCloseIdle(t *wireTrial) error {
	t.doingf("a call")
	c := t.begin(t.ctx, &yodel.Call{Method: "Test.Wait", Args: new("x")})
	<-t.began
	l := t.link.Load()
	t.doingf("the end of Closing after Close(true)")
	l.Close(true)
	t.await(l.Closing())
	select {
	case <-l.Done():
		return errors.New("the connection has ended while a call was in flight")
	default:
	}
	t.doingf("the end of the call in flight, and then of Done")
	close(t.release)
	if err := <-c.ended; err != nil || c.reply != "x" {
		return fmt.Errorf("the call in flight: %w", err)
	}
	t.await(l.Done())
	if l.Err() == nil {
		return errors.New("Err returns nil when the connection has ended")
	}
	return t.works()
}

func checkCloseNow(t *wireTrial) error {
	t.doingf("a call")
	c := t.begin(t.ctx, &yodel.Call{Method: "Test.Wait", Args: new("x")})
	<-t.began
	l := t.link.Load()
	t.doingf("the end of the call in flight, and of Done, after Close(false)")
	l.Close(false)
	l.Close(false)
	if err := t.executedOnce(c); err != nil {
		return err
	}
	t.await(l.Done())
	if l.Err() == nil {
		return errors.New("Err returns nil when the connection has ended")
	}
	return nil
}

func checkServerEnds(t *wireTrial) error {
	if err := t.works(); err != nil {
		return err
	}
	l := t.link.Load()
	t.doingf("the end of the connection after the server has been shut down")
	ended, stop := context.WithCancel(context.Background())
	stop()
	_ = t.server.Shutdown(ended) // its error is that of ended
	t.await(l.Closing())
	t.await(l.Done())
	if l.Err() == nil {
		return errors.New("Err returns nil when the connection has ended")
	}
	return nil
}
