// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A difference is a row of the table in docs/migrate/grpc.md.
type difference struct {
	row  [4]string                                               // what differs, grpc-gateway, transcode, why
	is   func(r request, gateway, ours answer, what string) bool // or nil
	test string                                                  // the file and the name of the test that shows it, if is is nil
}

// says returns a function that reports whether transcode refuses a request with one of texts.
func says(texts ...string) func(request, answer, answer, string) bool {
	return func(_ request, _, ours answer, _ string) bool {
		return ours.status >= 400 && slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(ours.says, text) })
	}
}

// differences are all that may differ. The first that fits explains a request.
var differences = []difference{
	{row: [4]string{
		"an error",
		"`{\"code\":3,\"message\":…,\"details\":[…]}`",
		"the form of all errors over HTTP, and in the member `error` the code, the message and the status of Google's " +
			"APIs. Details are in `details`, in base64",
		"one form for all errors, which Google's clients read too. The server may not have the types of the details",
	},
		is: func(_ request, gateway, ours answer, what string) bool {
			return what == form && gateway.body != ours.body
		}},
	{row: [4]string{
		"fields that are not set, in a response",
		"sent with their defaults",
		"left out with the codec `protobuf.JSON`; with `protobuf.FullJSON` the same",
		"Google's APIs leave them out too",
	},
		test: "codec/protobuf/protobuf_test.go TestFullJSON"},
	{row: [4]string{
		"GET",
		"every method",
		"methods that `MarkReadOnly` names",
		"pages of other sites can make a browser send a GET",
	},
		test: "protocol/http/route_test.go TestRefusalsOfRoutes"},
	{row: [4]string{
		"`Grpc-Timeout`",
		"the deadline",
		"the same, and `Connect-Timeout-Ms`",
		"",
	},
		test: "protocol/http/metadata_test.go TestDeadline"},
	{row: [4]string{
		"a path without a route",
		"code 5, `NOT_FOUND`",
		"the same status, in the form of calls by their names",
		"such a path may be the name of a method",
	},
		is: func(_ request, gateway, ours answer, what string) bool {
			return what == "code" && gateway.status == 404 && ours.method == ""
		}},
	{row: [4]string{
		"`google.api.HttpBody`, uploads, `response_body` of feeds",
		"served",
		"501; the other methods of the file are served",
		"messages are JSON",
	},
		is: says("HttpBody", "the method is of the kind upload", "the method is of the kind duplex", "a method that receives a stream", "a feed with a response_body")},
	{row: [4]string{
		"the replies of a feed",
		"a line `{\"result\":…}` for each",
		"server-sent events, for requests that accept `text/event-stream`",
		"browsers read them",
	},
		is: func(r request, gateway, ours answer, what string) bool {
			return strings.HasPrefix(ours.media, "text/event-stream") && (what == "content type" || gateway.status != 200 && strings.Contains(ours.body, "event: error"))
		}},
	{row: [4]string{
		"a body without `application/json`",
		"read as JSON, or as parameters if it is a form",
		"refused with 415",
		"the same, for POST",
	},
		is: func(_ request, _, ours answer, _ string) bool { return ours.status == 415 }},
	{row: [4]string{
		"HEAD for a route with GET",
		"501",
		"served",
		"RFC 9110",
	},
		is: func(r request, gateway, ours answer, _ string) bool {
			return r.verb == "HEAD" && gateway.status == 501 && ours.status != 405
		}},
	{row: [4]string{
		"`%2F` in a path",
		"separates segments",
		"is part of a segment. In a variable of several segments it remains `%2F`",
		"the rules of `google.api.http`",
	},
		is: func(r request, gateway, ours answer, what string) bool {
			return strings.Contains(strings.ToUpper(pathOf(r)), "%2F") && (gateway.status >= 400 && ours.status == 200 || gateway.status == 404 || gateway.status == 501 || what == "request" || what == "method")
		}},
	{row: [4]string{
		"an empty segment",
		"the value of a variable",
		"no route",
		"`/v1/things/` is not the thing with an empty name",
	},
		is: func(r request, _, ours answer, _ string) bool {
			path := pathOf(r)
			return (ours.status == 404 || ours.status == 405) && (strings.Contains(path, "//") || strings.HasSuffix(path, "/") || strings.Contains(path, "/:"))
		}},
	{row: [4]string{
		"a path with another HTTP method",
		"501",
		"405 with `Allow`",
		"RFC 9110",
	},
		is: func(_ request, gateway, ours answer, _ string) bool {
			return gateway.status == 501 && ours.status == 405
		}},
	{row: [4]string{
		"several routes that match",
		"the last one",
		"the most specific one",
		"the order of files does not matter",
	},
		is: func(r request, _, _ answer, what string) bool {
			path := pathOf(r) // the second form is that of /rpc/path/{a}/{b}/{c}/rpc too
			return what == "method" && strings.Contains(path, "/either/fixed") || strings.HasPrefix(path, "/rpc/path/") && strings.Contains(path, "/query/")
		}},
	{row: [4]string{
		"a parameter that is no field",
		"ignored",
		"refused. Google's system parameters, such as `$alt` and `key`, are ignored",
		"a misspelled filter would return everything",
	},
		is: func(r request, gateway, ours answer, what string) bool {
			return says("no such field")(r, gateway, ours, what) && !inMessage(r)
		}},
	{row: [4]string{
		"fields of `Timestamp`, `Duration`, `Any`, wrappers and so on, behind a dot",
		"set",
		"refused",
		"JSON does not have them",
	},
		is: func(r request, gateway, ours answer, what string) bool {
			return says("no such field")(r, gateway, ours, what) && inMessage(r)
		}},
	{row: [4]string{
		"a parameter of a field that the path or the body has",
		"ignored",
		"refused",
		"one of the values would be lost",
	},
		is: func(r request, gateway, ours answer, what string) bool {
			return says("the path or the body has the field already")(r, gateway, ours, what) ||
				says("a message cannot be a parameter", "a map takes parameters")(r, gateway, ours, what) && gateway.status == 200
		}},
	{row: [4]string{
		"parameters of a method whose body is `*`",
		"ignored",
		"refused",
		"the same",
	},
		is: says("all fields are in the body")},
	{row: [4]string{
		"a query with a wrong escape or a semicolon",
		"ignored if the method takes no parameters",
		"refused",
		"the same",
	},
		is: says("invalid URL escape", "invalid semicolon")},
	{row: [4]string{
		"a body of a method that takes none",
		"ignored",
		"refused, unless it is `{}`",
		"the same",
	},
		is: func(r request, gateway, ours answer, what string) bool {
			return says("the method takes no body")(r, gateway, ours, what) || r.route.body == "" && says("the body: it is not UTF-8")(r, gateway, ours, what)
		}},
	{row: [4]string{
		"what follows the JSON value in a body",
		"ignored",
		"refused",
		"the client meant something",
	},
		is: says("there is more than the object", "after top-level value")},
	{row: [4]string{
		"text that is not UTF-8 in a path or a parameter",
		"500",
		"400",
		"the client is wrong, not the server",
	},
		is: func(r request, gateway, ours answer, what string) bool {
			return gateway.status == 500 && (says("it is not UTF-8")(r, gateway, ours, what) || ours.status == 400 &&
				(strings.Contains(gateway.says, "invalid UTF-8") || strings.Contains(gateway.says, "failed to marshal error")))
		}},
	{row: [4]string{
		"a required field of proto2 that is missing",
		"500",
		"400",
		"the same",
	},
		is: func(r request, gateway, ours answer, what string) bool {
			return gateway.status == 500 && ours.status == 400 && strings.Contains(gateway.says, "required field")
		}},
	{row: [4]string{
		"an object of the body that has the same unknown member twice",
		"ignored",
		"refused",
		"the same as for fields",
	},
		is: func(r request, gateway, ours answer, what string) bool {
			return says("has a member twice")(r, gateway, ours, what) && gateway.status == 200
		}},
	{row: [4]string{
		"a path in a mask that ProtoJSON does not have, such as `*` and `langIdent`",
		"sent to the service",
		"refused. A PATCH with such a field needs another mask as a parameter",
		"messages are JSON",
	},
		is: says("a mask in ProtoJSON cannot have the path")},
	{row: [4]string{
		"a parameter that is a mask with names of JSON, such as `displayName`",
		"sent to the service as it stands",
		"names of the .proto file, `display_name`",
		"as in bodies",
	},
		is: func(r request, gateway, ours answer, what string) bool {
			return what == "request" && strings.Contains(r.target, "ask=") && proto.Equal(withoutMasks(gateway.request), withoutMasks(ours.request))
		}},
	{row: [4]string{
		"a body that is one field other than a message",
		"as encoding/json has it: no 64-bit numbers as texts, no names of enums, null for elements",
		"ProtoJSON",
		"one form for all fields",
	},
		is: func(r request, gateway, ours answer, what string) bool {
			f := bodyField(r)
			return f != nil && (f.Message() == nil || f.IsList() || f.IsMap()) && what == "status" && (gateway.status == 200) != (ours.status == 200)
		}},
	{row: [4]string{
		"a `response_body` that is a 64-bit number or has no bytes",
		"a number, `[]`",
		"a text, as in messages",
		"JavaScript rounds such numbers",
	},
		is: func(r request, gateway, ours answer, what string) bool {
			return what == "response" && (r.route.reply == "int64_value" || gateway.body == "[]" && ours.body == `""`)
		}},
	{row: [4]string{
		"a `response_body` that is a message and is not set",
		"an object with defaults",
		"`null`",
		"so it is in messages",
	},
		is: func(r request, _, ours answer, what string) bool {
			return r.route.reply != "" && what == "response" && ours.body == "null"
		}},
	{row: [4]string{
		"a `response_body` that is NaN or Infinity, and an empty body that is a `Value`",
		"500",
		"served",
		"ProtoJSON has them",
	},
		is: func(_ request, gateway, ours answer, _ string) bool {
			return gateway.status == 500 && ours.status == 200
		}},
	{row: [4]string{
		"a field of the body that the path has too",
		"must fit",
		"is replaced by that of the path",
		"it has no effect",
	},
		is: func(r request, gateway, ours answer, what string) bool {
			return what == "status" && gateway.status == 400 && ours.status == 200 && bodyHasVariable(r)
		}},
	{row: [4]string{
		"a `Duration` in a path, such as `1h`",
		"refused",
		"the same as in parameters",
		"one rule",
	},
		is: func(r request, gateway, ours answer, _ string) bool {
			return strings.HasPrefix(r.target, "/v1/typed/for/") && gateway.status == 400 && ours.status == 200
		}},
}

// form is what differs between two errors with the same status and the same code.
const form = "form"

// explain returns the first difference that two answers show, or -1.
func explain(r request, gateway, ours answer, what string) int {
	return slices.IndexFunc(differences, func(d difference) bool { return d.is != nil && d.is(r, gateway, ours, what) })
}

func pathOf(r request) string {
	path, _, _ := strings.Cut(r.target, "?")
	return path
}

func bodyField(r request) protoreflect.FieldDescriptor {
	if r.route.body == "" || r.route.body == "*" {
		return nil
	}
	return fieldAt(r.route.method.Input(), r.route.body)
}

// inMessage reports whether a parameter names a field of a message of package google.protobuf.
func inMessage(r request) bool {
	_, query, _ := strings.Cut(r.target, "?")
	for part := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(part, "=")
		name, _ = url.QueryUnescape(name)
		if i := strings.LastIndexByte(name, '.'); i > 0 {
			f := fieldAt(r.route.method.Input(), name[:i])
			if f != nil && f.Message() != nil && f.Message().FullName().Parent() == "google.protobuf" {
				return true
			}
		}
	}
	return false
}

// bodyHasVariable reports whether a field of the path is in the body too.
func bodyHasVariable(r request) bool {
	names, _ := r.route.variables()
	return slices.ContainsFunc(names, func(name string) bool {
		of := r.route.method.Input()
		if r.route.body != "*" {
			inner, inBody := strings.CutPrefix(name, r.route.body+".")
			if !inBody {
				return false
			}
			name, of = inner, bodyField(r).Message()
		}
		first, _, _ := strings.Cut(name, ".")
		f := fieldAt(of, first)
		return strings.Contains(r.body, `"`+string(f.Name())+`":`) || strings.Contains(r.body, `"`+f.JSONName()+`":`)
	})
}
