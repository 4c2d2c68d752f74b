// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/leak"
)

// A Wire is a yodel.Wire that TestWire checks.
type Wire struct {
	yodel.Wire
	// Protocol serves the clients of the Wire.
	Protocol yodel.Protocol
	// Codec is the codec of both sides, for messages of type string. Default yodel.JSON.
	Codec yodel.Codec
	// ReadsWhole says that a reply does not announce its size, or that it names its call behind the
	// message. The Wire then reads a reply for which there is no memory to its end, without keeping
	// it, before it fails the call.
	ReadsWhole bool
}

// TestWire checks that the Links of w fulfill the contract of yodel.Link: their errors say whether
// a call was executed, and they count the memory of replies before they read them. It starts
// servers on loopback.
//
// The methods belong to the service Test, their arguments and replies are strings. TestWire must
// not run in parallel with other tests, because it would regard their goroutines as those of the
// Wire. Run it with the race detector.
func TestWire(t *testing.T, w Wire) {
	t.Helper()
	if w.Codec == nil {
		w.Codec = yodel.JSON
	}
	for _, rule := range wireRules {
		t.Run(rule.name, func(t *testing.T) {
			if err := rule.try(w, 30*time.Second); err != nil {
				t.Errorf("%v\nThe rule: %s", err, rule.why)
			}
		})
	}
}

// A wireRule is one rule for Wires.
type wireRule struct {
	name   string
	why    string
	limits yodel.Limits // of the client
	check  func(*wireTrial) error
}

var wireRules = []wireRule{
	{name: "answer", check: checkAnswer, why: `Do returns nil when the reply is decoded, and for an error of the handler an *Error without NotProcessed.`},
	{name: "not sent", check: checkNotSent, why: `On a connection that has ended, Do returns an *Error with the code Unavailable, NotProcessed and
the Cause, and no ID. The client then sends the call to another endpoint.`},
	{name: "lost after it was sent", check: checkLost, why: `When the connection ends while the method runs, the error of Do does not have
NotProcessed: the client must not send the call again.`},
	{name: "half a reply", check: checkHalfReply, why: `When the connection ends within the reply, the error of Do does not have NotProcessed.`},
	{name: "half a request", check: checkHalfRequest, why: `A call whose request did not leave whole is executed once if the client sends it again, and otherwise never.`},
	{name: "what the protocol lacks", check: checkLacks, why: `If the protocol cannot carry a call, Do returns an *Error with NotProcessed and sends nothing.`},
	{name: "caller gives up", check: checkGivesUp, why: `When the context of Do ends, Do returns its cause.`},
	{name: "MaxMessage", check: checkWireMaxMessage, limits: yodel.Limits{MaxMessage: 1 << 20}, why: `A request beyond Limits.MaxMessage fails with
NotProcessed, a reply beyond it without. Both have the code ResourceExhausted, and other calls go on.`},
	{name: "memory", check: checkWireMemory, limits: yodel.Limits{MaxMemory: wireMemory}, why: `A reply for which Endpoint.Reserve has no room fails
its call with YDL3007 before it is allocated, and without NotProcessed. Release uncounts what was read of it.`},
	{name: "close when idle", check: checkCloseIdle, why: `Close(true) closes Closing, lets the calls in flight end, and then closes Done.`},
	{name: "close at once", check: checkCloseNow, why: `Close(false) ends the calls in flight, whose errors do not have NotProcessed. Err says why.`},
	{name: "server ends the connection", check: checkServerEnds, why: `When the server has ended an idle connection, Closing and Done are closed.`},
}

// try tests the rule, within limit.
func (r wireRule) try(w Wire, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	before := leak.Goroutines()
	t := &wireTrial{Wire: w, servedTrial: newServedTrial(ctx)}
	stop, err := t.start(r.limits)
	if err != nil {
		return err
	}
	err = t.run(func() error { return r.check(t) })
	stop()
	if err != nil {
		return err
	}
	if left := leak.Outliving(before); left != "" {
		return fmt.Errorf("goroutines that did not end:\n\n%s", left)
	}
	return nil
}

// notProcessed checks that err is an *Error that says that the call was certainly not executed.
func notProcessed(err error) error {
	if e, ok := errors.AsType[*yodel.Error](err); !ok || !e.NotProcessed {
		return fmt.Errorf("the call was certainly not executed; Do returned %s", described(err))
	}
	return nil
}

// maybeExecuted checks that err is an error that does not say that the call was not executed.
func maybeExecuted(err error) error {
	if err == nil || yodel.NotProcessed(err) {
		return fmt.Errorf("the call may have been executed; Do returned %s", described(err))
	}
	return nil
}

// described returns an error with its fields.
func described(err error) string {
	if e, ok := errors.AsType[*yodel.Error](err); ok {
		return fmt.Sprintf("the *Error %q with the code %s, the ID %q, NotProcessed %t and the cause %v", e.Message, e.Code, e.ID, e.NotProcessed, e.Cause)
	}
	return fmt.Sprintf("the error %v", err)
}
