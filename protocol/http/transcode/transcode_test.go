// SPDX-License-Identifier: Apache-2.0

package transcode_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	std "net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/http/transcode"
	"github.com/yodel-rpc/yodel/protocol/http/transcode/internal/testpb"
)

// serve serves the annotated methods, which return their requests, and returns a function that
// sends a request and returns the status and the body of the response.
func serve(t testing.TB, codecs ...yodel.Codec) func(method, path, body string, headers ...string) (int, string) {
	t.Helper()
	routes, err := transcode.Routes(testpb.File_library_proto)
	if err != nil {
		t.Fatal(err)
	}
	return serveRoutes(t, routes, codecs...)
}

// serveRoutes is serve with other routes of the same methods.
func serveRoutes(t testing.TB, routes []http.Route, codecs ...yodel.Codec) func(method, path, body string, headers ...string) (int, string) {
	t.Helper()
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs: codecs, Protocols: []yodel.Protocol{http.New(&http.Options{Routes: routes})}, Logger: slog.New(slog.DiscardHandler),
	})
	for _, name := range []yodel.Method[testpb.Everything, testpb.Everything]{"GetByName", "GetMessage", "UpdateMessage", "NotAnnotated"} {
		method := "testpb.Library." + name
		method.Handle(s, func(_ context.Context, in *testpb.Everything) (*testpb.Everything, error) { return in, nil })
	}
	yodel.Feed[testpb.Everything, testpb.Everything]("testpb.Library.Watch").Handle(s, func(_ context.Context, in *testpb.Everything, send yodel.Send[testpb.Everything]) error {
		return send(in)
	})
	for _, route := range routes {
		if strings.HasPrefix(route.Pattern, "GET ") {
			s.MarkReadOnly(route.Method)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	c := &std.Client{Transport: new(std.Transport), Timeout: time.Minute}
	t.Cleanup(func() {
		c.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func(method, path, body string, headers ...string) (int, string) {
		t.Helper()
		r, err := std.NewRequestWithContext(context.Background(), method, "http://"+l.Addr().String()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if body != "" || method == "POST" {
			r.Header.Set("Content-Type", "application/json")
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		response, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		b, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(b)
	}
}

// The first requests are the examples in the comments of google/api/http.proto.
func TestRequests(t *testing.T) {
	do := serve(t, protobuf.Codec, protobuf.JSON)
	for _, test := range []struct{ method, path, body, want string }{
		{"GET", "/v1/messages/123456", "", `{"name":"messages/123456"}`},
		{"GET", "/v2/messages/123456?revision=2&sub.subfield=foo", "", `{"messageId":"123456","revision":"2","sub":{"subfield":"foo"}}`},
		{"GET", "/v2/messages/1?tags=A&tags=B", "", `{"messageId":"1","tags":["A","B"]}`},
		{"PATCH", "/v1/messages/123456", `{"subfield":"Hi!"}`, `{"messageId":"123456","sub":{"subfield":"Hi!"},"mask":"subfield"}`},
		{"PUT", "/v1/messages/123456", `{"text":"Hi!"}`, `{"messageId":"123456","text":"Hi!"}`},
		{"GET", "/v2/messages/123456", "", `{"messageId":"123456"}`},
		{"GET", "/v2/users/me/messages/123456", "", `{"messageId":"123456","userId":"me"}`},

		{"GET", "/v2/shelves/1/books/", "", `{"name":"shelves/1/books/"}`},
		{"GET", "/v2/shelves/1/books", "", `{"name":"shelves/1/books"}`},
		{"GET", "/v2/shelves/1/books/a/b%20c/d%2Fe", "", `{"name":"shelves/1/books/a/b c/d%2Fe"}`},
		{"GET", "/v2/messages/a%2Fb%3F%25", "", `{"messageId":"a/b?%"}`},
		{"GET", "/v2/sub/x/anything/end", "", `{"sub":{"subfield":"x"}}`},
		{"GET", "/v2/sub/x/y/end?sub.count=3&sub.deeper.subfield=z", "", `{"sub":{"subfield":"x","count":"3","deeper":{"subfield":"z"}}}`},
		{"GET", "/v2/number/-5", "", `{"revision":"-5"}`},
		{"LOOK", "/v2/custom?userId=json&message_id=proto", "", `{"messageId":"proto","userId":"json"}`},
		{"HEAD", "/v1/messages/1", "", ``},
		{"GET", "/v2/messages/1?sizes=1&sizes=2&state=OPEN&paid=true&price=1.5&data=AAE=&maybe=false&number=7", "",
			`{"messageId":"1","sizes":[1,2],"state":"OPEN","paid":true,"price":1.5,"data":"AAE=","maybe":false,"number":7}`},
		{"GET", "/v2/messages/1?state=1&at=2026-01-02T03:04:05Z&mask=a,b.c", "", `{"messageId":"1","state":"OPEN","at":"2026-01-02T03:04:05Z","mask":"a,b.c"}`},

		{"POST", "/v1/messages/7:publish", `{"text":"x"}`, `{"messageId":"7","text":"x"}`},
		{"POST", "/v1/messages/7:publish", "", `{"messageId":"7"}`},
		{"POST", "/v1/shelves/a/b:move", `{"name":"other","message_id":"m"}`, `{"name":"shelves/a/b","messageId":"m"}`},
		{"PUT", "/v1/messages/7", `{"message_id":"other"}`, `{"messageId":"7"}`},
		{"POST", "/v1/sub/x", `{"sub":{"subfield":"other","count":2}}`, `{"sub":{"subfield":"x","count":"2"}}`},
		{"POST", "/v1/sub/x", `{"sub":null}`, `{"sub":{"subfield":"x"}}`},
		{"PATCH", "/v1/messages/7?user_id=u", `{"count":2}`, `{"messageId":"7","sub":{"count":"2"},"userId":"u","mask":"count"}`},
		{"POST", "/v1/tags", `["a","b"]`, `["a","b"]`},
		{"POST", "/v1/tags", `[]`, `[]`},
		{"DELETE", "/v1/messages/7?name=gone", "", `"gone"`},
		{"DELETE", "/v1/messages/7", "{}", `""`},
	} {
		status, body := do(test.method, test.path, test.body)
		var got, want any
		if json.Unmarshal([]byte(body), &got); test.want != "" {
			if err := json.Unmarshal([]byte(test.want), &want); err != nil {
				t.Fatal(err)
			}
		}
		if status != 200 || !reflect.DeepEqual(got, want) {
			t.Errorf("%s %s %s: got %d %s, want %s", test.method, test.path, test.body, status, body, test.want)
		}
	}
	if status, body := do("GET", "/v1/watch/x?tags=a", "", "Accept", "text/event-stream"); status != 200 || !strings.HasPrefix(strings.ReplaceAll(body, " ", ""), `data:{"name":"x","tags":["a"]}`) {
		t.Errorf("got %d %s", status, body)
	}
}

func TestRefusedRequests(t *testing.T) {
	do := serve(t, protobuf.Codec, protobuf.JSON)
	for _, test := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"GET", "/v2/messages/1?color=red", "", 400, "no such field"},
		{"GET", "/v2/messages/1?revision=1&revision=2", "", 400, "one value"},
		{"GET", "/v2/messages/1?revision=x", "", 400, "revision"},
		{"GET", "/v2/messages/1?paid=maybe", "", 400, "true or false"},
		{"GET", "/v2/messages/1?message_id=2", "", 400, "already"},
		{"GET", "/v2/messages/1?messageId=2", "", 400, "already"},
		{"GET", "/v2/messages/1?sub=x", "", 400, "behind a dot"},
		{"GET", "/v2/messages/1?sub.x=1", "", 400, "no such field"},
		{"GET", "/v2/messages/1?name.x=1", "", 400, "no such field"},
		{"GET", "/v2/messages/1?at.seconds=1", "", 400, "no such field"},
		{"GET", "/v2/messages/1?labels=x", "", 400, "a map takes"},
		{"GET", "/v2/messages/1?subs=x", "", 400, "behind a dot"},
		{"GET", "/v2/messages/1?" + strings.Repeat("sub.", 1) + strings.Repeat("deeper.", 20) + "count=1", "", 400, "no such field"},
		{"GET", "/v2/messages/1?text=a&number=1", "", 400, "choice"},
		{"PATCH", "/v1/messages/7?sub.count=1", `{}`, 400, "already"},
		{"PATCH", "/v1/messages/7", `{"subfield":"a"`, 400, ""},
		{"PUT", "/v1/messages/7?user_id=1", `{}`, 400, "no parameters"},
		{"PUT", "/v1/messages/7", `[]`, 400, "not a JSON object"},
		{"PUT", "/v1/messages/7", `null`, 400, "not a JSON object"},
		{"POST", "/v1/sub/x", `{"sub":1}`, 400, "not a JSON object"},
		{"DELETE", "/v1/messages/7", `{"name":"x"}`, 400, "no body"},
		{"GET", "/v1/messages", "", 404, ""},
		{"GET", "/v1/messages/", "", 404, ""},
		{"GET", "/v1/messages/1/2", "", 404, ""},
		{"GET", "/v3/messages/1", "", 404, ""},
	} {
		status, body := do(test.method, test.path, test.body)
		if status != test.status || !strings.Contains(body, test.says) {
			t.Errorf("%s %s %s: got %d %s, want %d and %q", test.method, test.path, test.body, status, body, test.status, test.says)
		}
	}
	if status, body := serve(t, protobuf.Codec)("GET", "/v1/messages/1", ""); status != 501 || !strings.Contains(body, "add protobuf.JSON") {
		t.Errorf("without protobuf.JSON: got %d %s", status, body)
	}
	if status, _ := do("POST", "/v1/messages/7:publish", "{}", "Content-Type", "text/plain"); status != 415 {
		t.Errorf("text: got %d", status)
	}
}

// The more specific routes come first.
func TestOrderOfRoutes(t *testing.T) {
	rule := new(annotations.HttpRule)
	if err := protojson.Unmarshal([]byte(`{"get":"/v1/{name=**}","additionalBindings":[
		{"get":"/v1/{name}"},{"get":"/v1/fixed"},{"get":"/v1/{name=**}:go"},{"get":"/v1/{name}:go"},{"get":"/v1/fixed/{name=**}"},{"get":"/v1/fixed/{name}"}]}`), rule); err != nil {
		t.Fatal(err)
	}
	routes, err := annotated(t, rule)
	if err != nil {
		t.Fatal(err)
	}
	var patterns []string
	for _, route := range routes {
		patterns = append(patterns, strings.TrimPrefix(route.Pattern, "GET /v1/"))
	}
	if got := strings.Join(patterns, " "); got != "{name}:go {name=**}:go fixed/{name} fixed/{name=**} fixed {name} {name=**}" {
		t.Errorf("got %s", got)
	}
}

// annotated returns the routes of a method with an annotation.
func annotated(t testing.TB, rule *annotations.HttpRule) ([]http.Route, error) {
	t.Helper()
	file := protodesc.ToFileDescriptorProto(testpb.File_library_proto)
	file.Name, file.Package = new("wrong.proto"), new("wrong")
	options := new(descriptorpb.MethodOptions)
	proto.SetExtension(options, annotations.E_Http, rule)
	file.Service = []*descriptorpb.ServiceDescriptorProto{{Name: new("Service"), Method: []*descriptorpb.MethodDescriptorProto{{
		Name: new("Method"), InputType: new(".testpb.Everything"), OutputType: new(".testpb.Everything"), Options: options,
	}}}}
	file.MessageType, file.EnumType, file.Dependency = nil, nil, []string{"library.proto", "google/api/annotations.proto"}
	built, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return transcode.Routes(built)
}

func TestWrongAnnotations(t *testing.T) {
	for _, test := range []struct{ rule, says string }{
		{`{}`, "no path"},
		{`{"get":"v1"}`, "begin with /"},
		{`{"get":"/"}`, "empty"},
		{`{"get":"/v1/"}`, "empty"},
		{`{"get":"/v1//x"}`, "empty"},
		{`{"get":"/v1:"}`, "empty"},
		{`{"get":"/v1/{name"}`, "braces"},
		{`{"get":"/v1/name}"}`, "braces"},
		{`{"get":"/v1/{name={text}}"}`, "braces"},
		{`{"get":"/v1/{name}x"}`, "braces"},
		{`{"get":"/v1/{}"}`, "no name"},
		{`{"get":"/v1/{name}/{name}"}`, "same"},
		{`{"get":"/v1/**/x"}`, "last"},
		{`{"get":"/v1/{name=**}/x"}`, "last"},
		{`{"get":"/v1/%zz"}`, "escape"},
		{`{"get":"/v1/{color}"}`, "no such field"},
		{`{"get":"/v1/{subs}"}`, "a message"},
		{`{"get":"/v1/{sub}"}`, "a message"},
		{`{"get":"/v1/{labels}"}`, "a map"},
		{`{"get":"/v1","body":"*"}`, "GET has no body"},
		{`{"post":"/v1","body":"color"}`, "not a field"},
		{`{"post":"/v1","responseBody":"color"}`, "not a field"},
		{`{"get":"/v1","additionalBindings":[{"get":"/v2","additionalBindings":[{"get":"/v3"}]}]}`, "additional bindings"},
	} {
		rule := new(annotations.HttpRule)
		if err := protojson.Unmarshal([]byte(test.rule), rule); err != nil {
			t.Fatal(err)
		}
		if _, err := annotated(t, rule); err == nil || !strings.Contains(err.Error(), test.says) || !strings.HasPrefix(err.Error(), "transcode: wrong.Service.Method: ") {
			t.Errorf("%s: got %v, want %q", test.rule, err, test.says)
		}
	}
	good := &annotations.HttpRule{Pattern: &annotations.HttpRule_Get{Get: "/v1"}}
	if _, err := annotated(t, good); err != nil {
		t.Error(err)
	}
}

// Methods that have no route answer with the status 501, and do not keep others from their routes.
func TestMethodsWithoutARouteLeaveTheOthers(t *testing.T) {
	file := protodesc.ToFileDescriptorProto(testpb.File_library_proto)
	method := func(name, in, out string, streams bool) *descriptorpb.MethodDescriptorProto {
		options := new(descriptorpb.MethodOptions)
		rule := &annotations.HttpRule{Pattern: &annotations.HttpRule_Post{Post: "/v1/" + name}, Body: "*"}
		proto.SetExtension(options, annotations.E_Http, rule)
		return &descriptorpb.MethodDescriptorProto{Name: &name, InputType: &in, OutputType: &out, Options: options, ClientStreaming: &streams}
	}
	const message, blob = ".testpb.Everything", ".google.api.HttpBody"
	file.Name, file.Package, file.MessageType, file.EnumType = new("some.proto"), new("some"), nil, nil
	file.Dependency = []string{"library.proto", "google/api/annotations.proto", httpbody.File_google_api_httpbody_proto.Path()}
	file.Service = []*descriptorpb.ServiceDescriptorProto{{Name: new("Library"), Method: []*descriptorpb.MethodDescriptorProto{
		method("Download", message, blob, false), method("Upload", blob, message, false), method("Collect", message, message, true), method("GetMessage", message, message, false),
	}}}
	built, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	routes, err := transcode.Routes(built)
	if err != nil {
		t.Fatal(err)
	}
	for i := range routes {
		routes[i].Method = "testpb.Library.GetMessage" // which the server has
	}
	do := serveRoutes(t, routes, protobuf.Codec, protobuf.JSON)
	for name, says := range map[string]string{"Download": "google.api.HttpBody", "Upload": "google.api.HttpBody", "Collect": "receives a stream"} {
		if status, body := do("POST", "/v1/"+name, "{}"); status != 501 || !strings.Contains(body, says) || !strings.Contains(body, `"code":"unimplemented"`) {
			t.Errorf("%s: got %d %s", name, status, body)
		}
	}
	if status, body := do("POST", "/v1/GetMessage", `{"text":"x"}`); status != 200 {
		t.Errorf("got %d %s", status, body)
	}
}

// Clients of Google's APIs send system parameters, and read an error in the member "error".
func TestClientsOfGoogleAPIs(t *testing.T) {
	do := serve(t, protobuf.Codec, protobuf.JSON)
	for _, test := range []struct{ method, path, body string }{
		{"GET", "/v2/messages/1?%24alt=json%3Benum-encoding%3Dint", ""},
		{"GET", "/v2/messages/1?$alt=json&alt=json&prettyPrint=false&key=k&quotaUser=u&fields=text&$.xgafv=1", ""},
		{"PUT", "/v1/messages/1?$alt=json", "{}"},
	} {
		if status, body := do(test.method, test.path, test.body); status != 200 {
			t.Errorf("%s: got %d %s", test.path, status, body)
		}
	}
	for _, test := range []struct {
		method, path string
		status       int
		name         string
	}{
		{"GET", "/v2/messages/1?alt=proto", 400, "INVALID_ARGUMENT"},
		{"GET", "/v2/messages/1?$alt=media", 400, "INVALID_ARGUMENT"},
		{"GET", "/v2/messages/1?color=red", 400, "INVALID_ARGUMENT"},
		{"GET", "/v1/watch/x", 501, "UNIMPLEMENTED"}, // it is a feed
		{"POST", "/v1/tags", 415, "UNKNOWN"},
	} {
		var said struct {
			Code, Message string
			Error         struct {
				Code            int
				Message, Status string
			}
		}
		headers := map[bool][]string{true: {"Content-Type", "text/plain"}}[test.status == 415]
		status, body := do(test.method, test.path, "", headers...)
		if err := json.Unmarshal([]byte(body), &said); err != nil || status != test.status || said.Error.Code != status || said.Error.Status != test.name ||
			said.Error.Message == "" || said.Message != said.Error.Message || said.Code != strings.ToLower(test.name) {
			t.Errorf("%s: got %d %s, %v", test.path, status, body, err)
		}
	}
}

// Whatever a client sends, a binding does not panic, and makes a JSON object or an error.
func FuzzBinding(f *testing.F) {
	routes, err := transcode.Routes(testpb.File_library_proto)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("POST", "/v1/messages/7:publish", "", `{"text":"x"}`)
	f.Add("GET", "/v2/shelves/1/books/a%2Fb", "revision=2&sub.subfield=foo&tags=a&tags=b", "")
	f.Add("PATCH", "/v1/messages/1", "user_id=\xff", `{"sub":null}`)
	f.Add("POST", "/v1/sub/x", "", `{"sub":{"subfield":1}}`)
	f.Fuzz(func(t *testing.T, verb, path, query, body string) {
		parameters, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		for _, route := range routes {
			values, ok := route.Binding.Match(verb, path)
			if !ok {
				continue
			}
			message, err := route.Binding.Request(values, parameters, []byte(body))
			var fields map[string]any
			if err == nil && (json.Unmarshal(message, &fields) != nil || fields == nil) {
				t.Errorf("%s %s?%s %s: the message is %s", verb, path, query, body, message)
			}
			if reply := route.Binding.Reply(); reply != nil {
				_, _ = reply([]byte(body)) // it may fail
			}
		}
	})
}
