// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"encoding/json"
	std "net/http"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// A tree has all kinds of fields.
type tree struct {
	Name     string            `json:"name"`
	At       time.Time         `json:"at"`
	Size     float64           `json:"size"`
	Count    uint8             `json:"count,omitempty"`
	Green    bool              `json:"green"`
	Data     []byte            `json:"data"`
	Raw      json.RawMessage   `json:"raw"`
	Labels   map[string]string `json:"labels"`
	Any      any               `json:"any"`
	Hidden   string            `json:"-"`
	Named    int
	Branches []tree `json:"branches"`
}

// Lists and maps of themselves.
type (
	nests map[string]nest
	nest  []nests
)

// described returns the description of a server with all kinds of methods.
func described(t testing.TB) string {
	t.Helper()
	s, c := newSite(t, &http.Options{OpenAPI: "/openapi.json", Forms: true}, yodel.ServerOptions{}), client(t, false)
	must(t, s.Handle("grpc.health.v1.Health.Check", func() {}))
	grow := yodel.Method[tree, tree]("forest.Trees.Grow")
	grow.Handle(s.Server, func(_ context.Context, in *tree) (*tree, error) { return in, nil })
	must(t, s.Handle("Values.DivMod", func(a, b int) (int, int) { return a / b, a % b }))
	must(t, s.Handle("Values.Sum", func(a, b int) int { return a + b }))
	must(t, s.Handle("Values.None", func() {}))
	must(t, s.Handle("Nests.Get", func(context.Context, *nests) (*nest, error) { return nil, nil }))
	must(t, s.HandleCall("Any {thing}", func(context.Context, *yodel.Call) error { return nil }))
	must(t, s.HandleCall("Bridged.Get", func(context.Context, *yodel.Call) error { return nil }, reflect.TypeFor[text](), reflect.TypeFor[int]()))
	r := s.do(c, "GET", "/openapi.json", "")
	if r.StatusCode != std.StatusOK || r.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("got %d %v %s", r.StatusCode, r.Header, r.body)
	}
	return r.body
}

func TestOpenAPI(t *testing.T) {
	var all map[string]any
	must(t, json.Unmarshal([]byte(described(t)), &all))
	at := func(path ...string) any {
		var value any = all
		for _, key := range path {
			members, _ := value.(map[string]any)
			if value = members[key]; value == nil {
				t.Errorf("there is no %s", strings.Join(path, " "))
				return nil
			}
		}
		return value
	}
	for want, path := range map[string][]string{
		`"3.1.0"`: {"openapi"},
		`{"properties":{"text":{"type":"string"}},"type":"object"}`:                                        {"paths", "/Test/Echo", "post", "requestBody", "content", "application/json", "schema"},
		`{"type":["array","null"],"items":{"type":"object","properties":{}}}`:                              {"paths", "/forest.Trees/Grow", "post", "requestBody", "content", "application/json", "schema", "properties", "branches"},
		`{"type":"string","format":"date-time"}`:                                                           {"paths", "/forest.Trees/Grow", "post", "requestBody", "content", "application/json", "schema", "properties", "at"},
		`{"type":"integer"}`:                                                                               {"paths", "/forest.Trees/Grow", "post", "requestBody", "content", "application/json", "schema", "properties", "Named"},
		`{"type":["string","null"],"contentEncoding":"base64"}`:                                            {"paths", "/forest.Trees/Grow", "post", "responses", "200", "content", "application/json", "schema", "properties", "data"},
		`{"type":["object","null"],"additionalProperties":{"type":"string"}}`:                              {"paths", "/forest.Trees/Grow", "post", "responses", "200", "content", "application/json", "schema", "properties", "labels"},
		`{"type":"array","minItems":2,"maxItems":2,"prefixItems":[{"type":"integer"},{"type":"integer"}]}`: {"paths", "/Values/DivMod", "post", "responses", "200", "content", "application/json", "schema"},
		`{"type":"integer" }`:                                         {"paths", "/Values/Sum", "post", "responses", "200", "content", "application/json", "schema"},
		`{"type":"array","minItems":0,"maxItems":0}`:                  {"paths", "/Values/None", "post", "requestBody", "content", "application/json", "schema"},
		`{"properties":{"text":{"type":"string"}},"type":"object"}  `: {"paths", "/Bridged/Get", "post", "requestBody", "content", "application/json", "schema"},
		`{"type":"integer"}  `:                                        {"paths", "/Bridged/Get", "post", "responses", "200", "content", "application/json", "schema"},
		`{}`:                                                          {"paths", "/Any%20%7Bthing%7D", "post", "requestBody", "content", "application/json", "schema"},
		`{"type":"string","contentMediaType":"application/json","contentSchema":{"properties":{"text":{"type":"string"}},"type":"object"}}`:        {"paths", "/Test/Gather", "post", "requestBody", "content", "application/connect+json", "schema"},
		`{"properties":{"text":{"type":"string"}},"type":"object"} `:                                                                               {"paths", "/Test/Chat", "post", "responses", "200", "content", "application/connect+json", "schema", "contentSchema"},
		`{"type":["object","null"],"additionalProperties":{"type":["array","null"],"items":{"type":["object","null"],"additionalProperties":{}}}}`: {"paths", "/Nests/Get", "post", "requestBody", "content", "application/json", "schema"},
		`{"type":["array","null"],"items":{"type":["object","null"],"additionalProperties":{"type":["array","null"],"items":{}}}}`:                 {"paths", "/Nests/Get", "post", "responses", "200", "content", "application/json", "schema"},
		`"string"`:                              {"paths", "/Test/Watch", "post", "responses", "200", "content", "text/event-stream", "schema", "type"},
		`"Test.Read.get"`:                       {"paths", "/Test/Read", "get", "operationId"},
		`{"$ref":"#/components/schemas/Error"}`: {"paths", "/Test/Echo", "post", "responses", "default", "content", "application/json", "schema"},
	} {
		var expected any
		must(t, json.Unmarshal([]byte(want), &expected))
		got, err := json.Marshal(at(path...))
		must(t, err)
		if again, _ := json.Marshal(expected); string(got) != string(again) {
			t.Errorf("%s: got %s, want %s", strings.Join(path, " "), got, again)
		}
	}
	paths := at("paths").(map[string]any)
	for path := range paths {
		if strings.HasPrefix(path, "/yodel/") || strings.HasPrefix(path, "/grpc.") {
			t.Errorf("%s belongs to no program", path)
		}
	}
	if paths["/Test/Echo"].(map[string]any)["get"] != nil {
		t.Error("a method that is not read-only has GET")
	}
	if codes := at("components", "schemas", "Error", "properties", "code", "enum").([]any); !slices.Contains(codes, any("not_found")) || len(codes) != 16 {
		t.Errorf("the codes are %v", codes)
	}
}

// A validator of OpenAPI 3.1 accepts the description.
func TestOpenAPIIsValid(t *testing.T) {
	tool := realserver.Tool(t, "openapi", ".")
	text := described(t)
	validate := func(text string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), tool)
		realserver.EndWithParent(cmd)
		cmd.Stdin = strings.NewReader(text)
		return cmd.CombinedOutput()
	}
	if out, err := validate(text); err != nil {
		t.Errorf("%v\n%s\n%s", err, out, text)
	}
	for good, bad := range map[string]string{
		`"in":"query"`:                    `"in":"body"`,
		`"type":"string"`:                 `"type":"text"`,
		`"$ref":"#/components/schemas/Er`: `"$ref":"#/components/schemas/Mi`,
	} {
		if _, err := validate(strings.Replace(text, good, bad, 1)); err == nil {
			t.Errorf("the validator accepts %s", bad)
		}
	}
}

// Middleware decides who gets the description, and NoIntrospection turns it off.
func TestOpenAPIIsACall(t *testing.T) {
	c := client(t, true)
	allow := func(next yodel.Handler) yodel.Handler {
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Metadata["authorization"] != "Bearer x" {
				return yodel.Errorf(yodel.Unauthenticated, "who are you?")
			}
			return next(ctx, call)
		}
	}
	s := newSite(t, &http.Options{OpenAPI: "/openapi.json"}, yodel.ServerOptions{Middleware: []yodel.Middleware{allow}})
	s.do(c, "GET", "/openapi.json", "").fails(t, 401, yodel.Unauthenticated, "who are you?")
	if r := s.do(c, "GET", "/openapi.json", "", "Authorization", "Bearer x"); r.StatusCode != std.StatusOK {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	if r := s.post(c, "/openapi.json", "{}"); r.StatusCode != std.StatusMethodNotAllowed {
		t.Errorf("POST: got %d", r.StatusCode)
	}
	s = newSite(t, &http.Options{OpenAPI: "/openapi.json"}, yodel.ServerOptions{NoIntrospection: true})
	s.do(c, "GET", "/openapi.json", "").fails(t, 404, yodel.Unimplemented, "yodel.Info")
	s = newSite(t, nil, yodel.ServerOptions{})
	if r := s.do(c, "GET", "/openapi.json", ""); r.StatusCode != std.StatusNotFound {
		t.Errorf("without the option: got %d", r.StatusCode)
	}
}
