// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file is the calls with streams of the call tester.

// maxMessages is how many messages of a stream a page sends or gets.
const maxMessages = 100

// A collection is the messages that a call has received.
type collection struct {
	messages []string // JSON
	room     int      // bytes that further messages may have
	cut      string   // "messages" or "bytes" if the call was ended because a limit was reached
}

// take adds a message, and reports whether there is room for another one.
func (c *collection) take(m json.RawMessage) bool {
	if c.room -= len(m); c.room < 0 {
		c.cut = "bytes"
		return false
	}
	if c.messages = append(c.messages, string(m)); len(c.messages) == maxMessages {
		c.cut = "messages"
	}
	return c.cut == ""
}

// doStream makes one call of a method with a stream. The call ends after the timeout at the latest.
// The messages that came until then are the result.
func doStream(ctx context.Context, caller yodel.Caller, in *callRequest, method *introspect.Method, timeout time.Duration, room int) *callResult {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	messages, err := messagesOf(in.Args, method.Kind)
	if err != nil {
		return &callResult{Code: yodel.InvalidArgument.String(), Message: errorText(err)}
	}
	call := &yodel.Call{Metadata: in.Metadata, Codec: yodel.JSON, Explain: true}
	got := &collection{messages: []string{}, room: room}
	began := time.Now()
	switch method.Kind {
	case "feed":
		err = feed(ctx, caller, call, in.Method, messages[0], got)
	case "upload":
		err = upload(ctx, caller, call, in.Method, messages, got)
	default:
		err = duplex(ctx, caller, call, in.Method, messages, got)
	}
	if err != nil && (ctx.Err() != nil || errors.Is(err, yodel.DeadlineExceeded)) && len(got.messages) > 0 {
		got.cut, err = "time", nil
	}
	out := resultOfCall(call, time.Since(began), err)
	out.Messages, out.Cut = got.messages, got.cut
	return out
}

// messagesOf returns the messages that the user sends: one for a feed, else those of an array.
func messagesOf(args json.RawMessage, kind string) ([]json.RawMessage, error) {
	args = bytes.TrimSpace(args)
	if kind == "feed" {
		if len(args) == 0 {
			args = json.RawMessage("null")
		}
		return []json.RawMessage{args}, nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(args, &list); err != nil || len(list) > maxMessages {
		return nil, yodel.Errorf(yodel.InvalidArgument, "the method takes an array of at most %d messages", maxMessages)
	}
	return list, nil
}

func feed(ctx context.Context, caller yodel.Caller, call *yodel.Call, method string, in json.RawMessage, got *collection) error {
	for m, err := range yodel.Feed[json.RawMessage, json.RawMessage](method).Do(ctx, caller, call, &in) {
		if err != nil {
			return err
		}
		if !got.take(*m) {
			break
		}
	}
	return nil
}

func upload(ctx context.Context, caller yodel.Caller, call *yodel.Call, method string, messages []json.RawMessage, got *collection) error {
	reply, err := yodel.Upload[json.RawMessage, json.RawMessage](method).Do(ctx, caller, call, func(send yodel.Send[json.RawMessage]) error {
		return sendAll(send, messages)
	})
	if err == nil {
		got.take(*reply)
	}
	return err
}

func duplex(ctx context.Context, caller yodel.Caller, call *yodel.Call, method string, messages []json.RawMessage, got *collection) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	full := false
	err := yodel.Duplex[json.RawMessage, json.RawMessage](method).Do(ctx, caller, call, func(recv yodel.Recv[json.RawMessage], send yodel.Send[json.RawMessage]) error {
		var sendErr error
		sent := make(chan struct{}) // closed when sendErr is set
		go func() {
			defer close(sent)
			if sendErr = sendAll(send, messages); sendErr == nil {
				sendErr = send.End()
			}
		}()
		for m, err := range recv {
			if err != nil {
				<-sent // the call has ended, so the sender ends too
				return err
			}
			if full = !got.take(*m); full {
				cancel() // it ends the sender
				break
			}
		}
		<-sent
		if errors.Is(sendErr, io.EOF) {
			return nil
		}
		return sendErr
	})
	if full {
		return nil
	}
	return err
}

// sendAll sends messages until the server takes no more.
func sendAll(send yodel.Send[json.RawMessage], messages []json.RawMessage) error {
	for i := range messages {
		if err := send(&messages[i]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}
