// SPDX-License-Identifier: Apache-2.0

package http

import (
	"encoding/json"
	std "net/http"
	"net/url"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

// This file describes the methods of the server with OpenAPI 3.1.

// An object is an object of JSON.
type object = map[string]any

// serveOpenAPI sends the description of the server. It calls the built-in method yodel.Info, so
// that the server's middleware decides whether the caller may have it.
func (x *exchange) serveOpenAPI() {
	if x.r.Method != std.MethodGet && x.r.Method != std.MethodHead {
		x.reject(std.StatusMethodNotAllowed, "GET, HEAD", "the description needs the method GET")
		return
	}
	e := x.beginMethod("yodel.Info", x.session.Codec("json"))
	defer x.end()
	if e == nil {
		e = x.v.Admit(len("{}"), true)
	}
	var body []byte
	if e == nil {
		x.v.Body = []byte("{}")
		e = x.run(false)
	}
	if e == nil {
		body, e = x.describe()
	}
	if e != nil {
		x.sendError(e)
		return
	}
	x.w.Header()["Content-Type"] = []string{"application/json"}
	x.within(len(body))
	_, _ = x.w.Write(body) //nolint:gosec // JSON, and sent as such; if it fails, the client has gone
}

// describe returns the description that the reply of yodel.Info makes.
func (x *exchange) describe() ([]byte, *yodel.Error) {
	reply, e := x.v.Reply()
	if e != nil {
		return nil, e
	}
	info, ok := reply.(*introspect.Info)
	if !ok {
		return nil, yodel.Errorf(yodel.Unimplemented, "the server's yodel.Info is not the built-in method")
	}
	body, err := json.Marshal(describe(info, x.router.protocol.opts.Forms))
	if err != nil {
		return nil, x.v.Fail(err)
	}
	return body, nil
}

// describe returns the description of a server: its unary methods, its feeds as server-sent events,
// and its uploads and duplex methods as streams of Connect. With forms, unary methods take forms.
// It leaves out the methods that describe servers, which belong to no program.
func describe(info *introspect.Info, forms bool) object {
	paths := make(object)
	for i := range info.Methods {
		m := &info.Methods[i]
		if introspect.Infrastructure(serviceOf(m.Name)) {
			continue
		}
		path := object{"post": operation(m, forms)}
		if m.ReadOnly && (m.Kind == "" || m.Kind == "feed") {
			path["get"] = getOperation(m)
		}
		paths[pathOf(m.Name)] = path
	}
	return object{
		"openapi":    "3.1.0",
		"info":       object{"title": "Methods of a server", "version": info.Agent},
		"paths":      paths,
		"components": object{"schemas": object{"Error": errorSchema()}},
	}
}

// pathOf returns the path of a method: "shop.Cart.Add" has "/shop.Cart/Add".
func pathOf(method string) string {
	if i := strings.LastIndexAny(method, "./"); i >= 0 {
		return "/" + url.PathEscape(method[:i]) + "/" + url.PathEscape(method[i+1:])
	}
	return "/" + url.PathEscape(method)
}

// operation returns the description of a POST.
func operation(m *introspect.Method, forms bool) object {
	const connect = "application/connect+json"
	request, in := "application/json", argsSchema(m)
	reply, out := replySchema(m)
	about := object{"operationId": m.Name, "tags": []string{serviceOf(m.Name)}}
	if m.Kind == "upload" || m.Kind == "duplex" {
		request, reply, in, out = connect, connect, part(in), part(out)
		about["description"] = "The request and the response are streams of Connect. Each message is JSON, behind a byte of flags and its length in 4 bytes. " +
			"The last message of the response has the flag 2, and the error if the call has failed."
	}
	content := object{request: object{"schema": in}}
	if forms && takesForm(m) {
		content[encodedForm] = object{"schema": formSchema(m, false)}
		content[multipartForm] = object{"schema": formSchema(m, true)}
	}
	about["requestBody"] = object{"required": true, "content": content}
	about["responses"] = responses(reply, out)
	return about
}

// part returns the schema of a stream each of whose events or envelopes has a message.
func part(message object) object {
	return object{"type": "string", "contentMediaType": "application/json", "contentSchema": message}
}

// getOperation returns the description of a GET.
func getOperation(m *introspect.Method) object {
	reply, out := replySchema(m)
	return object{
		"operationId": m.Name + ".get",
		"tags":        []string{serviceOf(m.Name)},
		"parameters": []object{
			{"name": "encoding", "in": "query", "required": true, "schema": object{"const": "json"}},
			{"name": "message", "in": "query", "required": true, "content": object{"application/json": object{"schema": argsSchema(m)}}},
		},
		"responses": responses(reply, out),
	}
}

// replySchema returns the content type and the schema of the reply of a unary method or a feed.
func replySchema(m *introspect.Method) (content string, schema object) {
	if m.Kind == "feed" {
		return "text/event-stream", part(resultSchema(m))
	}
	return "application/json", resultSchema(m)
}

func responses(content string, schema object) object {
	return object{
		"200":     object{"description": "The reply.", "content": object{content: object{"schema": schema}}},
		"default": object{"description": "The call has failed.", "content": object{"application/json": object{"schema": object{"$ref": "#/components/schemas/Error"}}}},
	}
}

// serviceOf returns the part of a method's name that names its service.
func serviceOf(method string) string {
	if i := strings.LastIndexAny(method, "./"); i >= 0 {
		return method[:i]
	}
	return method
}

func argsSchema(m *introspect.Method) object {
	if m.Values {
		return listSchema(m.Args)
	}
	return oneSchema(m.Args)
}

func resultSchema(m *introspect.Method) object {
	if m.Values && len(m.Results) != 1 {
		return listSchema(m.Results)
	}
	return oneSchema(m.Results)
}

// oneSchema returns the schema of the only message. That of methods whose types are not known
// allows everything.
func oneSchema(messages []introspect.Schema) object {
	if len(messages) == 0 {
		return object{}
	}
	return schemaOf(&messages[0])
}

// listSchema returns the schema of an array of values.
func listSchema(values []introspect.Schema) object {
	s := object{"type": "array", "minItems": len(values), "maxItems": len(values)}
	if len(values) > 0 {
		items := make([]object, len(values))
		for i := range values {
			items[i] = schemaOf(&values[i])
		}
		s["prefixItems"] = items
	}
	return s
}

// schemaOf returns the schema of a type in JSON. Slices and maps may be null. A nil schema allows
// everything: in the schema of a type that contains itself, the inner one has no elements.
func schemaOf(s *introspect.Schema) object {
	if s == nil {
		return object{}
	}
	if own, ok := ownSchema(s.Type); ok {
		return own
	}
	switch s.Kind {
	case "object":
		properties := make(object, len(s.Fields))
		for i := range s.Fields {
			properties[s.Fields[i].Name] = schemaOf(&s.Fields[i])
		}
		return object{"type": "object", "properties": properties}
	case "array":
		return object{"type": []string{"array", "null"}, "items": schemaOf(s.Elem)}
	case "map":
		return object{"type": []string{"object", "null"}, "additionalProperties": schemaOf(s.Elem)}
	case "bytes":
		return object{"type": []string{"string", "null"}, "contentEncoding": "base64"}
	case "any":
		return object{}
	}
	return object{"type": s.Kind}
}

// ownSchema returns the schema of a type with a JSON of its own.
func ownSchema(name string) (schema object, ok bool) {
	switch name {
	case "time.Time", "timestamppb.Timestamp":
		return object{"type": "string", "format": "date-time"}, true
	case "durationpb.Duration", "fieldmaskpb.FieldMask":
		return object{"type": "string"}, true
	case "json.RawMessage", "anypb.Any", "structpb.Struct", "structpb.Value", "structpb.ListValue":
		return object{}, true
	}
	return object{}, strings.HasPrefix(name, "wrapperspb.")
}

// errorSchema returns the schema of the body of a failed call.
func errorSchema() object {
	codes := make([]string, 0, yodel.Unauthenticated)
	for c := yodel.Canceled; c <= yodel.Unauthenticated; c++ {
		codes = append(codes, c.String())
	}
	detail := object{
		"type": "object", "properties": object{"type": object{"type": "string"}, "value": object{"type": "string", "contentEncoding": "base64"}},
		"required": []string{"type", "value"},
	}
	text := object{"type": "string"}
	violation := object{"type": "object", "properties": object{"field": text, "rule": text, "message": text}}
	return object{
		"type": "object", "required": []string{"code"},
		"properties": object{
			"code":    object{"type": "string", "enum": codes},
			"message": object{"type": "string"},
			"details": object{"type": "array", "items": detail},

			"violations": object{"type": "array", "items": violation},
		},
	}
}
