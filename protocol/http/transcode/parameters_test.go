// SPDX-License-Identifier: Apache-2.0

package transcode_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/http/transcode"
	"github.com/yodel-rpc/yodel/protocol/http/transcode/internal/testpb"
)

// serveRules serves testpb.Library.UpdateMessage with other rules.
func serveRules(t *testing.T, rules ...string) func(method, path, body string, headers ...string) (int, string) {
	t.Helper()
	var all []http.Route
	for _, text := range rules {
		rule := new(annotations.HttpRule)
		if err := protojson.Unmarshal([]byte(text), rule); err != nil {
			t.Fatal(err)
		}
		routes, err := annotated(t, rule)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for _, route := range routes {
			route.Method = "testpb.Library.UpdateMessage"
			all = append(all, route)
		}
	}
	return serveRoutes(t, all, protobuf.Codec, protobuf.JSON)
}

// A testCase is a request, and the message that the method gets, or the text of the error.
type testCase struct{ verb, path, body, want string }

func (c testCase) run(t *testing.T, do func(method, path, body string, headers ...string) (int, string)) {
	t.Helper()
	status, body := do(c.verb, c.path, c.body)
	var got, want any
	if json.Unmarshal([]byte(c.want), &want) != nil {
		if status != 400 || !strings.Contains(body, c.want) {
			t.Errorf("%s %s %s: got %d %s, want 400 and %q", c.verb, c.path, c.body, status, body, c.want)
		}
		return
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != 200 || !reflect.DeepEqual(got, want) {
		t.Errorf("%s %s %s: got %d %s, want %s", c.verb, c.path, c.body, status, body, c.want)
	}
}

// The codec drops values that it does not know. A filter that is dropped would return everything.
func TestParametersAreNotDropped(t *testing.T) {
	do := serve(t, protobuf.Codec, protobuf.JSON)
	for _, query := range []string{
		"state=NOPE", "state=open", "state=7", "state=", "states.x=1", "sizes=1&sizes=x", "sizes=1.0", "sizes=1e2", "sizes=0x1", "sizes=+1x", "revision=9223372036854775808",
		"number=-1", "paid=yes", "price=inf", "price=0x1p4", "price=1_0", "price=1e999", "data=!", "at=yesterday", "at=2026-02-30T00:00:00Z", "maybe=x", "mask=a__b", "mask=*",
		"labels[a=1", "labels=1", "labels[a].b=1", "tags[0]=x", "labels[a]=1&labels[a]=2", "messageId=1", "message_id=1", "user_id=1&userId=2", "user_id=1&user_id=2",
		"text=a&number=1", "subs.count=1", "at.seconds=1", "maybe.value=true",
	} {
		if status, body := do("GET", "/v2/messages/1?"+query, ""); status != 400 {
			t.Errorf("%s: got %d %s", query, status, body)
		}
	}
	for query, want := range map[string]string{
		"state=1":                             `{"messageId":"1","state":"OPEN"}`,
		"sizes=%2B1&sizes=-01":                `{"messageId":"1","sizes":[1,-1]}`,
		"price=Infinity":                      `{"messageId":"1","price":"Infinity"}`,
		"data=-_8":                            `{"messageId":"1","data":"+/8="}`,
		"labels[a]=1&labels[b]=2":             `{"messageId":"1","labels":{"a":"1","b":"2"}}`,
		"mask=display_name,sub.count":         `{"messageId":"1","mask":"displayName,sub.count"}`,
		"mask=displayName,subfield":           `{"messageId":"1","mask":"displayName,subfield"}`,
		"at=2026-01-02T03:04:05.5%2B02:00":    `{"messageId":"1","at":"2026-01-02T01:04:05.500Z"}`,
		"maybe=1&paid=T&text=&sub.subfield=x": `{"messageId":"1","maybe":true,"paid":true,"text":"","sub":{"subfield":"x"}}`,
	} {
		testCase{"GET", "/v2/messages/1?" + query, "", want}.run(t, do)
	}
}

// The time that parameters take grows with their number alone: without that, a URL of 1 MB would
// take minutes.
func TestManyParametersOfAMap(t *testing.T) {
	routes, err := transcode.Routes(testpb.File_library_proto)
	if err != nil {
		t.Fatal(err)
	}
	const n = 20000
	query := make(url.Values)
	for i := range n {
		query.Set(fmt.Sprintf("labels[%d]", i), "x")
	}
	for _, route := range routes {
		values, ok := route.Binding.Match("GET", "/v2/messages/1")
		if !ok {
			continue
		}
		message, err := route.Binding.Request(values, query, nil)
		if err != nil {
			t.Fatal(err)
		}
		out := new(testpb.Everything)
		if err := protojson.Unmarshal(message, out); err != nil || len(out.GetLabels()) != n {
			t.Errorf("got %d labels, %v", len(out.GetLabels()), err)
		}
		return
	}
	t.Error("there is no route")
}

// Bodies are UTF-8, and so are paths and parameters.
func TestURLsAreUTF8(t *testing.T) {
	do := serve(t, protobuf.Codec, protobuf.JSON)
	for _, test := range []testCase{
		{"GET", "/v2/messages/a%ff", "", "not UTF-8"},
		{"GET", "/v2/messages/%c3%28", "", "not UTF-8"},
		{"GET", "/v2/shelves/1/books/%ff", "", "not UTF-8"},
		{"GET", "/v2/sub/%ff/x/end", "", "not UTF-8"},
		{"GET", "/v2/messages/1?text=%ff", "", "not UTF-8"},
		{"GET", "/v2/messages/1?tags=a&tags=%ff", "", "not UTF-8"},
		{"GET", "/v2/messages/1?labels[%ff]=x", "", "not UTF-8"},
		{"GET", "/v2/messages/1?labels[a]=%ff", "", "not UTF-8"},
		{"GET", "/v2/messages/1?a%ff=x", "", "no such field"},
		{"GET", "/v2/messages/1?text=%zz", "", "escape"},
		{"GET", "/v2/messages/1?text=a;b", "", "semicolon"},
		{"PUT", "/v1/messages/7", "{\"text\":\"\xff\"}", "not UTF-8"},
		{"PUT", "/v1/messages/7", "{\"\xff\":1}", "not UTF-8"},
		{"PATCH", "/v1/messages/7", "{\"subfield\":\"\xff\"}", "not UTF-8"},
		{"GET", "/v2/messages/%C3%A4%00?text=a+b%20c%2Bd", "", `{"messageId":"ä\u0000","text":"a b c+d"}`},
	} {
		test.run(t, do)
	}
}

// A PATCH without a mask has that of its body.
func TestPatchHasAMask(t *testing.T) {
	do := serve(t, protobuf.Codec, protobuf.JSON)
	deep := strings.Repeat(`{"subfield":"x","deeper":`, 900) + `{}` + strings.Repeat(`}`, 900) // 2.8 MB of paths
	for _, test := range []testCase{
		{"PATCH", "/v1/messages/7", `{"deeper":{"count":1,"deeper":{}},"subfield":null}`, `{"messageId":"7","sub":{"deeper":{"count":"1","deeper":{}}},"mask":"deeper.count,deeper.deeper,subfield"}`},
		{"PATCH", "/v1/messages/7", `{}`, `{"messageId":"7","sub":{},"mask":""}`},
		{"PATCH", "/v1/messages/7", ``, `{"messageId":"7","sub":{},"mask":""}`},
		{"PATCH", "/v1/messages/7?mask=count", `{"subfield":"x"}`, `{"messageId":"7","sub":{"subfield":"x"},"mask":"count"}`},
		{"PATCH", "/v1/messages/7?mask=display_name", `{"subfield":"x"}`, `{"messageId":"7","sub":{"subfield":"x"},"mask":"displayName"}`},
		{"PATCH", "/v1/messages/7", `{"color":"x"}`, `has no field \"color\"`},
		{"PATCH", "/v1/messages/7", `{"subfield":1}`, "invalid value"},
		{"PATCH", "/v1/messages/7", `null`, "the body is null"},
		{"PATCH", "/v1/messages/7", `[]`, "unexpected token"},
		{"PATCH", "/v1/messages/7", deep, "more fields than a mask can name"},
		{"PUT", "/v1/messages/7", `{"sub":{"count":"1"}}`, `{"messageId":"7","sub":{"count":"1"}}`},
	} {
		test.run(t, do)
	}
}

// Bodies have one value for each field, and those that are one field have what it takes.
func TestBodiesOfFields(t *testing.T) {
	do := serveRules(t, `{"post":"/all","body":"*"}`, `{"post":"/at","body":"at"}`, `{"post":"/text","body":"text"}`, `{"post":"/count","body":"sub.count"}`, `{"post":"/state","body":"state"}`, `{"post":"/sub/{sub.count}","body":"*"}`)
	for _, test := range []testCase{
		{"POST", "/all", `{"text":"a","text":"b"}`, "twice"},
		{"POST", "/all", `{"text":"a"} x`, "the body"},
		{"POST", "/all", `{"text":"a"}{}`, "the body"},
		{"POST", "/sub/1", `{"sub":{"subfield":"a","subfield":"b"}}`, "twice"},
		{"POST", "/sub/1", `{"sub":{"subfield":"a"}}`, `{"sub":{"subfield":"a","count":"1"}}`},
		{"POST", "/at", `null`, "the body is null"},
		{"POST", "/at", ``, `{"at":"1970-01-01T00:00:00Z"}`},
		{"POST", "/at", `"2026-01-02T03:04:05Z"`, `{"at":"2026-01-02T03:04:05Z"}`},
		{"POST", "/text", ``, `{"text":""}`},
		{"POST", "/text", `null`, `{"text":""}`},
		{"POST", "/count", `5`, `{"sub":{"count":"5"}}`},
		{"POST", "/count", ``, `{}`},
		{"POST", "/count?sub.count=1", `5`, "already"},
		{"POST", "/count?sub.subfield=x", `5`, `{"sub":{"count":"5","subfield":"x"}}`},
		{"POST", "/state", `null`, "the body is null"},
	} {
		test.run(t, do)
	}
}

func TestPathsOfLists(t *testing.T) {
	do := serveRules(t, `{"post":"/tags/{tags}"}`, `{"post":"/sizes/{sizes}"}`, `{"post":"/x/{name}:go"}`, `{"post":"/x/{name}:go:on"}`)
	for _, test := range []testCase{
		{"POST", "/tags/a,b", "", `{"tags":["a","b"]}`},
		{"POST", "/sizes/1,2", "", `{"sizes":[1,2]}`},
		{"POST", "/sizes/1,x", "", "int32"},
		{"POST", "/sizes/1,", "", "int32"},
		{"POST", "/x/y:go", "", `{"name":"y"}`},
		{"POST", "/x/y:go:on", "", `{"name":"y"}`},
		{"POST", "/x/y:on:go", "", `{"name":"y:on"}`},
	} {
		test.run(t, do)
	}
}

// A route with HEAD comes before those with GET, which serve HEAD too.
func TestHeadHasItsOwnRoute(t *testing.T) {
	rule := new(annotations.HttpRule)
	if err := protojson.Unmarshal([]byte(`{"get":"/v1/fixed/{name}","additionalBindings":[{"custom":{"kind":"HEAD","path":"/v1/{name=**}"}}]}`), rule); err != nil {
		t.Fatal(err)
	}
	routes, err := annotated(t, rule)
	if err != nil {
		t.Fatal(err)
	}
	if len(routes) != 2 || !strings.HasPrefix(routes[0].Pattern, "HEAD ") {
		t.Errorf("got %v", routes)
	}
}
