// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A request is sent to both servers as it stands.
type request struct {
	verb, target string
	media        string // the content type
	body         string
	route        *route // of which it was made
}

func (r request) String() string {
	return fmt.Sprintf("%s %s %s %q (%s)", r.verb, r.target, r.media, r.body, r.route.method.Name())
}

// A route is one rule of an annotation.
type route struct {
	method protoreflect.MethodDescriptor
	verb   string
	path   string // the template
	body   string
	reply  string // the response_body
}

// routesOf returns the rules of all methods.
func routesOf(files []protoreflect.FileDescriptor) (all []*route) {
	for _, file := range files {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
				if rule == nil {
					continue
				}
				for _, r := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
					all = append(all, routeOf(m, r))
				}
			}
		}
	}
	return all
}

func routeOf(m protoreflect.MethodDescriptor, rule *annotations.HttpRule) *route {
	r := &route{method: m, body: rule.GetBody(), reply: rule.GetResponseBody()}
	switch p := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		r.verb, r.path = "GET", p.Get
	case *annotations.HttpRule_Put:
		r.verb, r.path = "PUT", p.Put
	case *annotations.HttpRule_Post:
		r.verb, r.path = "POST", p.Post
	case *annotations.HttpRule_Delete:
		r.verb, r.path = "DELETE", p.Delete
	case *annotations.HttpRule_Patch:
		r.verb, r.path = "PATCH", p.Patch
	case *annotations.HttpRule_Custom:
		r.verb, r.path = p.Custom.GetKind(), p.Custom.GetPath()
	}
	return r
}

// variables returns the names and the patterns of the variables of the path.
func (r *route) variables() (names, patterns []string) {
	for _, part := range strings.Split(r.path, "{")[1:] {
		inner, _, _ := strings.Cut(part, "}")
		name, pattern, given := strings.Cut(inner, "=")
		if !given {
			pattern = "*"
		}
		names, patterns = append(names, name), append(patterns, pattern)
	}
	return names, patterns
}

// at returns the path in which each variable has the value that value returns.
func (r *route) at(value func(i int, name string) string) string {
	out, rest := "", r.path
	for i := 0; ; i++ {
		before, after, found := strings.Cut(rest, "{")
		out += before
		if !found {
			return out
		}
		inner, after, _ := strings.Cut(after, "}")
		name, pattern, given := strings.Cut(inner, "=")
		if !given {
			pattern = "*"
		}
		v := value(i, name)
		pattern = strings.Replace(pattern, "**", "\x00", 1)
		pattern = strings.ReplaceAll(pattern, "*", v)
		out += strings.ReplaceAll(pattern, "\x00", v)
		rest = after
	}
}

// good returns a path whose variables have values of their types.
func (r *route) good() string {
	return r.at(func(_ int, name string) string { return goodValue(fieldAt(r.method.Input(), name)) })
}

func fieldAt(m protoreflect.MessageDescriptor, name string) (f protoreflect.FieldDescriptor) {
	for part := range strings.SplitSeq(name, ".") {
		if f = m.Fields().ByTextName(part); f == nil {
			f = m.Fields().ByJSONName(part)
		}
		if f == nil {
			return nil
		}
		m = f.Message()
	}
	return f
}

func goodValue(f protoreflect.FieldDescriptor) string {
	switch f.Kind() { //nolint:exhaustive // the others are numbers
	case protoreflect.BoolKind:
		return "true"
	case protoreflect.StringKind:
		return "x"
	case protoreflect.BytesKind:
		return "AQ=="
	case protoreflect.MessageKind:
		return map[protoreflect.FullName]string{
			"google.protobuf.Timestamp": "2026-01-02T03:04:05Z", "google.protobuf.Duration": "3s", "google.protobuf.BoolValue": "true", "google.protobuf.BytesValue": "AQ==",
			"google.protobuf.FieldMask": "name", "google.protobuf.Struct": "{}",
		}[f.Message().FullName()] + map[bool]string{true: "1"}[strings.Contains(string(f.Message().FullName()), "Int")]
	}
	return "1"
}

// Values that parameters of all types get, escaped.
var anyValues = []string{
	"", "x", "1", "-1", "%2B1", "+1", "01", "1.0", "1e2", "0x10", "1_0", "%201", "2147483647", "2147483648", "-2147483649", "4294967295", "4294967296",
	"9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "true", "TRUE", "t", "maybe", "null", "%22x%22",
	"NaN", "Infinity", "-Infinity", "inf", "nan", "1e400", "0x1p4", "3.5e38", "-0", "1e-5", ".5", "5.",
	"AQ", "AQ==", "AQ=", "-_8=", "%2B/8=", "-_8", "A", "%21", "a%ff", "%c3%a4", "%c3", "%00", "a%20b", "a+b", "a%2Fb", "a;b", "a%3Bb", "%25", "%zz", "%", "a%26b",
	"ONE", "one", "DEF", "OPEN", "open", "0", "2", "99", "%7B%7D", "%7B%22a_B%22:1%7D", "%5B1%5D",
}

// Values of messages that are one value.
var messageValues = map[protoreflect.FullName][]string{
	"google.protobuf.Timestamp": {"2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123456789%2B02:00", "2026-01-02t03:04:05z", "2026-01-02", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-01:00", "1", "2026-02-30T00:00:00Z"},
	"google.protobuf.Duration":  {"3s", "1.5s", "1h", "1m30s", "-1s", "1", "1d", "10ms", "+1s", "%2B1s", "1.0000000001s"},
	"google.protobuf.FieldMask": {"name", "display_name", "displayName", "part.deeper.name", "a,b", "a,,b", "*", "langIdent", "a__b", "a_1", "-", "part.display_name,name"},
	"google.protobuf.Struct":    {"%7B%7D", "%7B%22a%22:%7B%22b%22:null%7D%7D", "1", "%5B%5D", "null", "%7B", "%7B%22a%22:1,%22a%22:2%7D"},
	"google.protobuf.Value":     {"1", "%22x%22", "x", "null", "%5B1,%7B%7D%5D", "%7B", "NaN"},
	"google.protobuf.Empty":     {"", "%7B%7D", "x", "null"},
}

// valuesFor returns the values for a field that a parameter or a path may have.
func valuesFor(f protoreflect.FieldDescriptor) []string {
	if f.Message() == nil {
		return anyValues
	}
	if own, ok := messageValues[f.Message().FullName()]; ok {
		return append(slices.Clone(own), "", "a%ff")
	}
	return anyValues
}

// A named is a name of a parameter, and its field.
type named struct {
	name  string
	field protoreflect.FieldDescriptor
}

// parametersOf returns the names of all fields up to a depth, in both forms.
func parametersOf(m protoreflect.MessageDescriptor, prefix string, depth int) (all []named) {
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		for _, name := range slices.Compact([]string{string(f.Name()), f.JSONName()}) {
			all = append(all, named{prefix + name, f})
			if depth > 1 && f.Message() != nil && !f.IsList() && !f.IsMap() {
				all = append(all, parametersOf(f.Message(), prefix+name+".", depth-1)...)
			}
		}
	}
	return all
}

// generate returns the requests: one in every of a systematic part, and n random ones.
func generate(routes []*route, every, n int) (all []request) {
	for _, r := range routes {
		all = append(all, ofPaths(r, every)...)
		all = append(all, ofQueries(r, every)...)
		all = append(all, ofBodies(r, every)...)
	}
	random := rand.New(rand.NewPCG(25, 3)) //nolint:gosec // the requests are the same each time
	for range n {
		all = append(all, randomRequest(random, routes[random.IntN(len(routes))]))
	}
	// An answer to HEAD does not tell why the request failed.
	return slices.DeleteFunc(all, func(r request) bool { return r.verb == "HEAD" && strings.ContainsAny(r.target, "?%") })
}

const jsonMedia = "application/json"

// plain returns a request without parameters, whose body is an object if it may have one.
func plain(r *route) request {
	out := request{verb: r.verb, target: r.good(), route: r}
	if r.verb == "POST" {
		out.media = jsonMedia
	}
	if r.body != "" {
		out.media, out.body = jsonMedia, goodBody(r)
	}
	return out
}

// ofPaths returns requests with each value in each variable.
func ofPaths(r *route, every int) (all []request) {
	names, _ := r.variables()
	for at, name := range names {
		f := fieldAt(r.method.Input(), name)
		for i, value := range append(valuesFor(f), "a:b", "a,b", "1,2", "a/b", ".", "..", "a%252Fb", "a%3Ab", "x:look", "~a", "a%2fb") {
			few := 1 + every/4
			if r.method.Parent().Name() != "Shapes" {
				few = every
			}
			switch {
			case len(names) > 3:
				few *= 7
			case f.Message() != nil:
				few = 1
			}
			if (i+at+len(r.path))%few > 0 {
				continue
			}
			out := plain(r)
			out.target = r.at(func(i int, name string) string {
				if i == at {
					return value
				}
				return goodValue(fieldAt(r.method.Input(), name))
			})
			all = append(all, out)
		}
	}
	for i, change := range []func(string) string{
		func(p string) string { return p + "/" },
		func(p string) string { return "/" + p },
		func(p string) string { return p + ":nope" },
		func(p string) string { return strings.Replace(p, "/v1", "/V1", 1) },
		func(p string) string { return strings.Replace(p, "/v1/", "/%76%31/", 1) },
		func(p string) string { return p + "%" },
		func(p string) string { return p[:strings.LastIndexByte(p, '/')] },
		func(p string) string { return p + "?" },
		func(p string) string { return p + "?&&" },
		func(p string) string { return p + "?nope=1" },
		func(p string) string { return p + "?nope.x=1" },
		func(p string) string { return p + "?=1" },
		func(p string) string { return p + "?%zz=1" },
		func(p string) string { return p + "?a%ff=1" },
		func(p string) string { return p + "?a=1;b=2" },
		func(p string) string { return p + "?nope[x]=1" },
	} {
		if r.method.Parent().Name() != "Shapes" && (i+len(r.path))%(1+every/4) > 0 {
			continue
		}
		out := plain(r)
		out.target = change(out.target)
		all = append(all, out)
	}
	for i, verb := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"} {
		if (i+len(r.path))%(1+every/8) > 0 {
			continue
		}
		out := plain(r)
		out.verb = verb
		all = append(all, out)
	}
	return all
}

// everyValue names the routes whose parameters get every value. The others get one in ten.
var everyValue = map[string]bool{"/v1/list": true, "/v1/example/a_bit_of_everything/query/{uuid}": true}

// ofQueries returns requests with each parameter.
func ofQueries(r *route, every int) (all []request) {
	add := func(query string) {
		out := plain(r)
		out.target += "?" + query
		all = append(all, out)
	}
	sparse := 0
	parameters := parametersOf(r.method.Input(), "", 2)
	switch {
	case r.body == "*" && len(parameters) > 3:
		parameters = parameters[:3] // all of them are refused
	case !everyValue[r.path] && len(parameters) > 30:
		parameters = parameters[:30]
	}
	for _, p := range parameters {
		isJSON := p.name[strings.LastIndexByte(p.name, '.')+1:] != string(p.field.Name())
		for _, value := range valuesFor(p.field) {
			if sparse++; everyValue[r.path] && !isJSON && sparse%every == 0 || sparse%97 == 0 {
				add(p.name + "=" + value)
			}
		}
		if !everyValue[r.path] || sparse%(1+every/8) > 0 {
			continue
		}
		good := goodValue(p.field)
		add(p.name)
		add(p.name + "=" + good + "&" + p.name + "=" + good)
		add(string(p.field.Name()) + "=" + good + "&" + p.field.JSONName() + "=" + good)
		add(p.name + "[a]=" + good)
		add(p.name + "[1]=" + good)
		add(p.name + "[]=" + good)
		add(p.name + "[a]=ONE&" + p.name + "[b]=ONE")
		add(p.name + "[a]=x&" + p.name + "[a]=x")
		add(p.name + "[a%ff]=x")
		add(p.name + ".name=" + good)
		add(p.name + ".value=" + good)
		add(url.QueryEscape(p.name) + "=" + good)
		add(strings.ToUpper(p.name) + "=" + good)
	}
	return all
}

// goodBody returns a body that fits.
func goodBody(r *route) string {
	if r.body == "*" {
		return objectOf(r.method.Input())
	}
	f := fieldAt(r.method.Input(), r.body)
	switch {
	case f.IsList():
		return "[]"
	case f.IsMap(), f.Message() == nil && f.Kind() != protoreflect.StringKind:
		return map[bool]string{true: "{}", false: "1"}[f.IsMap()]
	case f.Message() == nil:
		return `"x"`
	}
	return objectOf(f.Message())
}

// objectOf returns a message without most of its fields.
func objectOf(m protoreflect.MessageDescriptor) string {
	switch name := strings.TrimPrefix(string(m.FullName()), "google.protobuf."); name {
	case "StringValue", "BytesValue":
		return `"AQ=="`
	case "BoolValue":
		return "true"
	case "Timestamp":
		return `"2026-01-02T03:04:05Z"`
	case "DoubleValue", "FloatValue", "Int32Value", "Int64Value", "UInt32Value", "UInt64Value", "Value":
		return "1"
	case "Any":
		return `{"@type":"type.googleapis.com/google.protobuf.Duration","value":"1s"}`
	}
	out := "{"
	for i := range m.Fields().Len() {
		if f := m.Fields().Get(i); f.Cardinality() == protoreflect.Required {
			out += `"` + f.JSONName() + `":"x",`
		}
	}
	return strings.TrimSuffix(out, ",") + "}"
}

// Values that members of bodies get.
var bodyValues = []string{
	`null`, `1`, `"1"`, `-1`, `1.5`, `1e2`, `"x"`, `""`, `true`, `"true"`, `[]`, `{}`, `[1]`, `["x"]`, `[null]`, `[{}]`, `{"a":1}`, `{"a":"x"}`, `{"name":"x"}`, `{"name":null}`,
	`{"name":"x","count":"2"}`, `{"nope":1}`, `{"deeper":{"deeper":{"name":"x"}}}`, `{"deeper":{}}`, `{"value":"x"}`, `"ONE"`, `"OPEN"`, `"NOPE"`, `99`, `"AQ=="`, `"2026-01-02T03:04:05Z"`,
	`"3s"`, `"1h"`, `"a,b"`, `"display_name"`, `"displayName"`, `9223372036854775808`, `"\ud800"`, "\"\xff\"", `{"@type":"type.googleapis.com/google.protobuf.Duration","value":"1s"}`,
	`{"@type":"x"}`, `{"a":{"b":{}},"c":[{"d":1}]}`, `{"aB":1}`, `{"a_b":1}`, `{"a.b":1}`, `"NaN"`, `{"amount":1}`, `{"subThing":{"sub_value":"x"}}`, `{"b":1,"b":2}`,
}

// ofBodies returns requests with bodies of all kinds.
func ofBodies(r *route, every int) (all []request) {
	add := func(media, body string) {
		out := plain(r)
		out.media, out.body = media, body
		all = append(all, out)
	}
	good := goodBody0(r)
	for i, body := range []string{
		"", " ", "{}", " {} ", "null", "[]", "1", `"x"`, "true", "{", "}", "{}x", "{}{}", `{"nope":1}`, `{"nope":1,"nope":2}`, `{"":1}`, "\xff", "{\"\xff\":1}", "[1,2]", `["a","b"]`,
		`{"a":"b"}`, "1.5", "-1", `"1"`, `"ONE"`, `"EXAMPLE_ENUM_FIRST"`, `{"a":null}`, `[null]`, "9223372036854775808", `"2026-01-02T03:04:05Z"`, `"NaN"`, `{"@type":"x"}`, "\ufeff{}", "{} // x",
	} {
		if (i+len(r.path))%every == 0 || r.body != "" && (i+len(r.path))%(1+every/8) == 0 {
			add(jsonMedia, body)
		}
	}
	for i, media := range []string{"", "text/plain", "application/json; charset=utf-8", "application/x-www-form-urlencoded", "application/xml", "x"} {
		if (i+len(r.path))%(1+every/8) == 0 {
			add(media, good)
		}
	}
	add("application/x-www-form-urlencoded", "name=x&a=1")
	of := bodyMessage(r)
	if of == nil {
		return all
	}
	for i := range of.Fields().Len() {
		f := of.Fields().Get(i)
		for j, value := range bodyValues {
			if name := f.JSONName(); (i+j)%(3*every) == 0 || of.Fields().Len() < 12 && (i+j)%(1+every/2) == 0 || r.verb == "PATCH" && (i+j)%every == 0 {
				add(jsonMedia, `{"`+name+`":`+value+`}`)
			}
		}
		add(jsonMedia, `{"`+string(f.Name())+`":null}`)
		add(jsonMedia, `{"`+f.JSONName()+`":"x","`+f.JSONName()+`":"x"}`)
		add(jsonMedia, `{"`+string(f.Name())+`":"x","`+f.JSONName()+`":"x"}`)
	}
	if r.verb == "PATCH" {
		for _, mask := range append(messageValues["google.protobuf.FieldMask"], "") {
			for _, name := range []string{"update_mask", "updateMask"} {
				out := plain(r)
				out.target += "?" + name + "=" + mask
				all = append(all, out)
				out.body = `{"name":"x"}`
				all = append(all, out)
			}
		}
	}
	return all
}

func goodBody0(r *route) string {
	if r.body == "" {
		return "{}"
	}
	return goodBody(r)
}

// bodyMessage returns the message that the body is, or nil.
func bodyMessage(r *route) protoreflect.MessageDescriptor {
	if r.body == "" {
		return nil
	}
	of := r.method.Input()
	if r.body != "*" {
		f := fieldAt(of, r.body)
		if f.Message() == nil || f.IsList() || f.IsMap() {
			return nil
		}
		of = f.Message()
	}
	if objectOf(of)[0] != '{' {
		return nil
	}
	return of
}

// randomRequest returns a request with several parameters, a body, and values in the path.
func randomRequest(random *rand.Rand, r *route) request {
	pick := func(values []string) string { return values[random.IntN(len(values))] }
	out := plain(r)
	out.target = r.at(func(_ int, name string) string {
		f := fieldAt(r.method.Input(), name)
		if random.IntN(4) > 0 {
			return goodValue(f)
		}
		return pick(valuesFor(f))
	})
	if parameters := parametersOf(r.method.Input(), "", 2); len(parameters) > 0 && r.body != "*" {
		for i := range random.IntN(4) {
			p := parameters[random.IntN(len(parameters))]
			value := goodValue(p.field)
			if random.IntN(3) == 0 {
				value = pick(valuesFor(p.field))
			}
			out.target += string("?&"[min(i, 1)]) + p.name + "=" + value
		}
	}
	if of := bodyMessage(r); of != nil && of.Fields().Len() > 0 {
		var members []string
		for range random.IntN(4) {
			f := of.Fields().Get(random.IntN(of.Fields().Len()))
			members = append(members, `"`+pick([]string{string(f.Name()), f.JSONName()})+`":`+pick(bodyValues))
		}
		out.body = "{" + strings.Join(members, ",") + "}"
	}
	return out
}
