// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/middleware/fallback"
)

// This file is what the kinds share that answer in place of a method.

// An Answer is a reply in place of the reply of the method. Mock gives it without executing the
// method. Fallback gives it if the call fails because the service is unavailable.
type Answer struct {
	Reply json.RawMessage `json:"reply,omitempty"` // the reply as JSON
	// Code makes a mock fail with this code and Message. A fallback has none.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

func (c *checker) answer(field string, a *Answer) {
	c.code(field+".code", a.Code)
	c.text(field+".message", a.Message, false)
	switch {
	case len(a.Reply) > maxReply:
		c.addf("YDL-R003", field+".reply", fmt.Sprintf("use at most %d", maxReply), "it has %d bytes", len(a.Reply))
	case len(a.Reply) > 0 && !json.Valid(a.Reply):
		c.addf("YDL-R001", field+".reply", "", "it is not JSON")
	case a.Code != "" && len(a.Reply) > 0:
		c.addf("YDL-R010", field, "set one of reply and code", "it has both")
	case a.Code == "" && len(a.Reply) == 0:
		c.addf("YDL-R009", field, "set reply or code", "it has no reply")
	}
}

// answers makes the middleware that gives own in place of the reply of the method, always or if the
// call fails. The rule counts the calls that it answers.
func (a *active) answers(own *Answer, always bool) {
	force := new(atomic.Bool)
	force.Store(always)
	a.countsItself = true
	a.wrap = func(server *yodel.Server) yodel.Middleware {
		return fallback.With(&fallback.Options{Force: force, Func: func(_ context.Context, call *yodel.Call, _ error) (any, error) {
			return a.answer(server, call, own)
		}})
	}
}

// answer returns the reply of a Mock or a Fallback. Server is nil on a client. The reply of the
// rule is JSON. For a call in another codec, it becomes a value of the type that the caller expects
// or the method returns, which is encoded in that codec.
func (a *active) answer(server *yodel.Server, call *yodel.Call, own *Answer) (any, error) {
	a.counts.hits.Add(1)
	if own.Code != "" {
		return nil, &yodel.Error{
			Code: codes[own.Code], ID: "YDL3602", NotProcessed: true,
			Message: fmt.Sprintf("%s: %s (rule %s)", call.Method, cmp.Or(own.Message, "a mock"), a.ID),
		}
	}
	codec := call.Encoding()
	isJSON := codec != nil && codec.Name() == yodel.JSON.Name()
	if server == nil && call.Reply == nil && !isJSON {
		return nil, nil //nolint:nilnil // a caller that expects no reply gets none
	}
	types, several, err := replyTypes(server, call)
	switch {
	case err != nil:
		return nil, err
	case several:
		return a.decodeAll(call, own.Reply, types)
	case isJSON:
		return &yodel.Encoded{Body: own.Reply}, nil
	case len(types) == 1:
		return a.decode(call, own.Reply, types[0])
	}
	return nil, yodel.Errorf(yodel.Internal, "%s: the reply of rule %s is JSON, the call has another codec, and the rule cannot know the type of the reply", call.Method, a.ID)
}

// replyTypes returns the types of the values in the reply of a call, if they are known, and whether
// the reply is of several values. Server is nil on a client.
func replyTypes(server *yodel.Server, call *yodel.Call) (types []reflect.Type, several bool, err error) {
	if server != nil {
		var request yodel.Encoded
		if err := call.Request(&request); err != nil {
			return nil, false, err
		}
		_, types = server.Types(call.Method)
		return types, request.Several, nil
	}
	switch reply := call.Reply.(type) {
	case nil, *yodel.Encoded:
		return nil, false, nil
	case yodel.Values:
		for _, value := range reply {
			types = append(types, pointee(value))
		}
		return types, true, nil
	}
	return []reflect.Type{pointee(call.Reply)}, false, nil
}

// pointee returns the type that v points to. If v is no pointer, the value cannot be decoded into
// it, and the error of the decoder says so.
func pointee(v any) reflect.Type {
	if t := reflect.TypeOf(v); t != nil && t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return reflect.TypeFor[any]()
}

// decode returns a pointer to the value of type t that the JSON of the rule stands for.
func (a *active) decode(call *yodel.Call, text json.RawMessage, t reflect.Type) (any, error) {
	reply := reflect.New(t).Interface()
	if err := json.Unmarshal(text, reply); err != nil {
		return nil, yodel.Errorf(yodel.Internal, "%s: the reply of rule %s does not fit %v: %v", call.Method, a.ID, t, err)
	}
	return reply, nil
}

// decodeAll returns the values of these types that the JSON array of the rule stands for.
func (a *active) decodeAll(call *yodel.Call, text json.RawMessage, types []reflect.Type) (any, error) {
	var texts []json.RawMessage
	if err := json.Unmarshal(text, &texts); err != nil || len(texts) != len(types) {
		return nil, yodel.Errorf(yodel.Internal, "%s: the reply of rule %s is no JSON array of the %d values that the method returns", call.Method, a.ID, len(types))
	}
	values := make(yodel.Values, len(types))
	for i, t := range types {
		value, err := a.decode(call, texts[i], t)
		if err != nil {
			return nil, err
		}
		values[i] = value
	}
	return values, nil
}
