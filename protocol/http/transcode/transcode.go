// SPDX-License-Identifier: Apache-2.0

// Package transcode lets clients call methods at the paths that google.api.http annotations in
// .proto files give them, as Google's APIs, grpc-gateway and Envoy do:
//
//	routes, err := transcode.Routes(shoppb.File_shop_proto)
//	…
//	server := yodel.NewServer(&yodel.ServerOptions{
//		Codecs:    []yodel.Codec{protobuf.Codec, protobuf.JSON},
//		Protocols: []yodel.Protocol{http.New(&http.Options{Routes: routes})},
//	})
//
// The rules are those of google/api/http.proto. The server needs protobuf.JSON, because the bodies
// are ProtoJSON. GET needs a method that Server.MarkReadOnly names, and a request with a body, or
// with POST, needs the content type application/json: see http.Route. Feeds are server-sent events.
//
// A request gets the answer that it gets from grpc-gateway, except for the differences that
// docs/migrate/grpc.md lists. It fails if it has a parameter that is not a field, or that the path
// or the body has already, if a value is not of the type of its field or not UTF-8, and if it has a
// body that the annotation does not name. A parameter may have the name of a field in the .proto
// file or in JSON. Enums have names or numbers. The members of a map have parameters such as
// labels[key]=value. Parameters of messages are Timestamp, Duration (1.5s or 1m30s), FieldMask
// (with names of the .proto file or of JSON), the wrappers, and Struct and Value, which are JSON.
// Of other messages, the fields behind a dot are parameters.
//
// A PATCH whose body is a field of the request gets the mask of the fields that the body has, if
// the request has one FieldMask and the client sends none: a service without a mask may replace the
// whole resource. Fields that the message does not have fail such a request.
//
// The system parameters of Google's APIs have no meaning: alt, fields, key, prettyPrint and
// quotaUser, unless the request has such a field, and all names that begin with "$". An error has
// the form of all errors over HTTP, and its member "error" is that of Google's APIs, with the code,
// the message and the status. With protobuf.FullJSON in place of protobuf.JSON, responses have the
// fields that are not set too.
package transcode

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// Routes returns the routes of all annotated methods in files. Each route names its annotation as
// Pattern, for example "GET /v1/{name=shelves/*}". The routes with the more specific paths come
// first: the first route that matches a request serves it. Routes fails if an annotation is wrong.
// This package has no google.api.HttpBody, no methods that receive a stream and no response_body of
// feeds: the routes of such methods answer with the status 501, and the others work.
func Routes(files ...protoreflect.FileDescriptor) ([]http.Route, error) {
	var all []*binding
	for _, file := range files {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				bindings, err := bindingsOf(methods.Get(j))
				if err != nil {
					return nil, fmt.Errorf("transcode: %s: %w", methods.Get(j).FullName(), err)
				}
				all = append(all, bindings...)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *binding) int {
		if isHead := a.verb == "HEAD"; isHead != (b.verb == "HEAD") { // routes with GET serve HEAD too, if no route names it
			return map[bool]int{true: -1, false: 1}[isHead]
		}
		return a.template.compare(b.template)
	})
	routes := make([]http.Route, len(all))
	for i, b := range all {
		routes[i] = http.Route{Pattern: b.verb + " " + b.template.text, Method: string(b.method.FullName()), Binding: b}
	}
	return routes, nil
}

// bindingsOf returns the bindings of the annotation of a method.
func bindingsOf(m protoreflect.MethodDescriptor) ([]*binding, error) {
	rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
	if rule == nil {
		return nil, nil
	}
	var all []*binding
	for i, r := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
		if i > 0 && len(r.GetAdditionalBindings()) > 0 {
			return nil, errors.New("an additional binding has additional bindings")
		}
		b, err := newBinding(m, r)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

// newBinding returns the binding of one rule.
func newBinding(m protoreflect.MethodDescriptor, rule *annotations.HttpRule) (*binding, error) {
	b := &binding{method: m}
	var path string
	switch p := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		b.verb, path = "GET", p.Get
	case *annotations.HttpRule_Put:
		b.verb, path = "PUT", p.Put
	case *annotations.HttpRule_Post:
		b.verb, path = "POST", p.Post
	case *annotations.HttpRule_Delete:
		b.verb, path = "DELETE", p.Delete
	case *annotations.HttpRule_Patch:
		b.verb, path = "PATCH", p.Patch
	case *annotations.HttpRule_Custom:
		b.verb, path = p.Custom.GetKind(), p.Custom.GetPath()
	default:
		return nil, errors.New("the annotation has no path")
	}
	var err error
	if b.template, err = parse(path); err != nil {
		return nil, fmt.Errorf("the path %q: %w", path, err)
	}
	if err := b.bindFields(rule); err != nil {
		return nil, err
	}
	if b.verb == "GET" && (b.wholeBody || b.body != nil) {
		return nil, errors.New("GET has no body")
	}
	if b.verb == "PATCH" && len(b.body) == 1 && b.field().Message() != nil && !b.field().IsList() && !b.field().IsMap() {
		b.mask = maskField(b.method.Input())
	}
	b.unserved = b.check()
	return b, nil
}

// bindFields looks up the fields that a rule names.
func (b *binding) bindFields(rule *annotations.HttpRule) error {
	for i := range b.template.variables {
		v := &b.template.variables[i]
		var err error
		if v.fields, err = fieldsAt(b.method.Input(), v.name); err != nil {
			return fmt.Errorf("the path %q: %w", b.template.text, err)
		}
		if last := v.fields[len(v.fields)-1]; last.IsMap() || !isScalar(last) {
			return fmt.Errorf("the path %q: the field %s is a map or a message", b.template.text, v.name)
		}
	}
	switch name := rule.GetBody(); name {
	case "":
	case "*":
		b.wholeBody = true
	default:
		var err error
		if b.body, err = fieldsAt(b.method.Input(), name); err != nil {
			return fmt.Errorf("the body %q is not a field of %s", name, b.method.Input().FullName())
		}
	}
	if name := rule.GetResponseBody(); name != "" {
		if b.reply = fieldOf(b.method.Output(), name); b.reply == nil {
			return fmt.Errorf("the response_body %q is not a field of %s", name, b.method.Output().FullName())
		}
	}
	return nil
}

// check returns an error for what this package does not have.
func (b *binding) check() *yodel.Error {
	const httpBody = "google.api.HttpBody"
	for _, d := range []protoreflect.Descriptor{b.method.Input(), b.method.Output(), messageOf(b.field()), messageOf(b.reply)} {
		if d != nil && d.FullName() == httpBody {
			return yodel.Errorf(yodel.Unimplemented, "the method has no route, because %s is not supported", httpBody)
		}
	}
	switch {
	case b.method.IsStreamingClient():
		return yodel.Errorf(yodel.Unimplemented, "a method that receives a stream has no route")
	case b.method.IsStreamingServer() && b.reply != nil:
		return yodel.Errorf(yodel.Unimplemented, "the method has no route, because it is a feed with a response_body")
	}
	return nil
}

// messageOf returns the type of a field that is a message, or nil.
func messageOf(f protoreflect.FieldDescriptor) protoreflect.Descriptor {
	if f == nil || f.Message() == nil {
		return nil
	}
	return f.Message()
}
