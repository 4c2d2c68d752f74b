// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file is screen S9, the call tester.

const (
	maxRepeat   = 100
	maxCallTime = 30 * time.Second
	maxReplied  = 1 << 20 // bytes of replies that a page gets, all together
	prod        = "PROD"  // the environment in which calls have to be confirmed
)

// A callRequest is a call that a user makes.
type callRequest struct {
	Service  string            `json:"service"`
	Method   string            `json:"method"`
	Addr     string            `json:"addr"` // empty: any instance
	Args     json.RawMessage   `json:"args"`
	Metadata map[string]string `json:"metadata"`
	Timeout  int               `json:"timeout"` // milliseconds; default 5000
	Repeat   int               `json:"repeat"`  // default 1
	Confirm  string            `json:"confirm"` // the name of the method, where it is wanted
}

// A callResult is the outcome of a call. Replies are texts, because a browser would round their
// numbers.
type callResult struct {
	Code    string `json:"code,omitempty"`
	ID      string `json:"id,omitempty"`
	Message string `json:"message,omitempty"`
	Reply   string `json:"reply,omitempty"` // JSON
	Raw     string `json:"raw,omitempty"`   // a reply that is not JSON
	// Messages is what a stream has sent, as JSON. Cut says why the console ended the call:
	// "time", "messages" or "bytes"; empty if the server ended it.
	Messages []string `json:"messages,omitempty"`
	Cut      string   `json:"cut,omitempty"`

	Took    time.Duration          `json:"took"`
	Trailer yodel.Metadata         `json:"trailer,omitempty"`
	Report  *introspect.CallReport `json:"report,omitempty"`
	Text    string                 `json:"text,omitempty"` // the report for people
}

// call makes calls for a user.
func (c *Console) call(r *http.Request, user User) (any, error) {
	var in callRequest
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	s, err := c.fleet.get(r.Context(), time.Minute)
	if err != nil {
		return nil, err
	}
	method := methodOf(s.Service(in.Service), in.Method)
	switch {
	case method == nil:
		return nil, yodel.Errorf(yodel.NotFound, "no instance of %s that answers has a method %q", in.Service, in.Method)
	case c.opts.Environment == prod && !method.ReadOnly && in.Confirm != in.Method:
		return nil, yodel.Errorf(yodel.FailedPrecondition, "this is PROD: confirm the call with the name of the method")
	}
	sender, done, err := c.sender(r.Context(), in.Service, in.Addr)
	if err != nil {
		return nil, err
	}
	defer done()
	results := in.repeat(r.Context(), sender, method)
	failed := 0
	for _, result := range results {
		if result.Code != "" {
			failed++
		}
	}
	// The arguments may be secret: the log has their size only.
	c.audit.add(r, user, entry{
		Action: "call", Object: strings.TrimSpace(in.Method + " " + in.Addr),
		After: fmt.Sprintf("%d calls, %d bytes of arguments, %d failed", len(results), len(in.Args), failed), Result: "ok",
	})
	return results, nil
}

// methodOf returns a method of a service, or nil. The service may be nil too.
func methodOf(service *fleet.Service, name string) *introspect.Method {
	if service == nil {
		return nil
	}
	for i := range service.Methods {
		if m := &service.Methods[i].Method; m.Name == name {
			return m
		}
	}
	return nil
}

// repeat makes the calls of a request, one after the other, until ctx or maxCallTime ends.
func (in *callRequest) repeat(ctx context.Context, sender yodel.Caller, method *introspect.Method) []*callResult {
	timeout := min(time.Duration(in.Timeout)*time.Millisecond, maxCallTime)
	if timeout <= 0 {
		timeout = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, maxCallTime)
	defer cancel()
	results, room := []*callResult{}, maxReplied
	for range min(max(in.Repeat, 1), maxRepeat) {
		var result *callResult
		if method.Kind != "" {
			result = doStream(ctx, sender, in, method, timeout, room)
		} else {
			result = do(ctx, sender, in, method.Values, timeout, room)
		}
		results = append(results, result)
		room -= result.size()
		if ctx.Err() != nil {
			break
		}
	}
	return results
}

// sender returns what sends the calls: the client of one instance, or a client of the service.
func (c *Console) sender(ctx context.Context, service, addr string) (sender yodel.Caller, done func(), err error) {
	if addr != "" {
		client, err := c.fleet.client(ctx, addr)
		return client, func() {}, err
	}
	var opts yodel.ClientOptions
	if c.opts.Client != nil {
		opts = *c.opts.Client
	}
	opts.Codec = yodel.JSON
	client := yodel.NewClient(fleet.Bounded(c.source.Service(service)), &opts)
	return client, func() { client.Close() }, nil
}

// size returns how many bytes of replies a result has.
func (r *callResult) size() int {
	n := len(r.Reply) + len(r.Raw)
	for _, m := range r.Messages {
		n += len(m)
	}
	return n
}

// do makes one call of a method without streams. The reply may have room bytes.
func do(ctx context.Context, caller yodel.Caller, in *callRequest, values bool, timeout time.Duration, room int) *callResult {
	args, reply := &yodel.Encoded{Body: bytes.TrimSpace(in.Args)}, &yodel.Encoded{}
	if len(args.Body) == 0 {
		args.Body = []byte("null")
	}
	if values {
		var list []json.RawMessage
		if err := json.Unmarshal(args.Body, &list); err != nil {
			return &callResult{Code: "invalid_argument", Message: "the method takes a list of arguments: [1, 2]"}
		}
		encoded := make([][]byte, len(list))
		for i, one := range list {
			encoded[i] = one
		}
		args.SetValues(encoded...)
	}
	call := &yodel.Call{Method: in.Method, Args: args, Reply: reply, Metadata: in.Metadata, Codec: yodel.JSON, Explain: true, Deadline: time.Now().Add(timeout)}
	began := time.Now()
	err := caller.Do(ctx, call)
	out := resultOfCall(call, time.Since(began), err)
	if err != nil {
		return out
	}
	body := reply.Body
	if parts, err := reply.Values(); reply.Several && err == nil {
		body = append(append([]byte{'['}, bytes.Join(parts, []byte{','})...), ']')
	}
	switch {
	case len(body) > room:
		out.Raw = fmt.Sprintf("the reply has %d bytes; the console shows %d of all replies together", len(body), maxReplied)
	case json.Valid(body):
		out.Reply = string(body)
	default:
		out.Raw = string(body)
	}
	return out
}

// resultOfCall returns the outcome of a call, without its reply.
func resultOfCall(call *yodel.Call, took time.Duration, err error) *callResult {
	out := &callResult{Took: took, Trailer: call.Trailer, Report: call.Report()}
	if out.Report != nil {
		out.Text, out.ID = out.Report.String(), out.Report.ID
	}
	if err != nil {
		out.Code, out.Message = yodel.CodeOf(err).String(), errorText(err)
	}
	return out
}
