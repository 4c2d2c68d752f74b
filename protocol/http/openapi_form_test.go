// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	std "net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// A pet is a message as protoc-gen-go generates it.
type pet struct {
	FullName string  `protobuf:"bytes,1,opt,name=full_name,json=fullName,proto3" json:"full_name,omitempty"`
	Species  species `protobuf:"varint,2,opt,name=species,proto3,enum=zoo.Species" json:"species,omitempty"`
	Grams    int64   `protobuf:"varint,3,opt,name=grams,proto3" json:"grams,omitempty"`
}

func (*pet) ProtoReflect() {}

// An openJSON is yodel.JSON for messages of Protocol Buffers too, in place of protobuf.JSON.
type openJSON struct{ yodel.Codec }

type species int32

func (species) EnumDescriptor() {}

// A sample is a value for a schema: as a form has it, and as JSON has it.
type sample struct {
	text string
	file bool
	want any
}

// samplesOf returns values for a schema in a document.
func samplesOf(t *testing.T, schema map[string]any, files bool) (all []sample) {
	t.Helper()
	switch kind := schema["type"]; {
	case kind == "array":
		items, _ := schema["items"].(map[string]any)
		return append(samplesOf(t, items, files), samplesOf(t, items, files)...)
	case kind == "integer":
		return []sample{{text: "7", want: 7.0}}
	case kind == "number":
		return []sample{{text: "2.5", want: 2.5}}
	case kind == "boolean":
		return []sample{{text: "true", want: true}}
	case kind != "string":
		t.Errorf("a form has a field with the schema %v", schema)
		return nil
	case schema["contentMediaType"] == "application/octet-stream" && files:
		return []sample{{"\x89PNG\x00", true, base64.StdEncoding.EncodeToString([]byte("\x89PNG\x00"))}}
	case schema["contentEncoding"] == "base64" && !files:
		return []sample{{text: "eA==", want: "eA=="}}
	case schema["format"] == "date-time":
		return []sample{{text: "2026-11-28T00:00:00Z", want: "2026-11-28T00:00:00Z"}}
	}
	return []sample{{text: "x", want: "x"}}
}

// A form that is built from the description of a server is accepted, and each of its fields
// arrives. Methods that take no form are described without one.
func TestOpenAPIDescribesForms(t *testing.T) {
	s, c := newSite(t, &http.Options{OpenAPI: "/openapi.json", Forms: true}, yodel.ServerOptions{Codecs: []yodel.Codec{openJSON{yodel.JSON}}}), client(t, false)
	echo := func(_ context.Context, call *yodel.Call) error {
		var in map[string]any
		call.Reply = &in
		return call.DecodeInto(&in)
	}
	messages := map[string]reflect.Type{
		"Forms.Picture": reflect.TypeFor[picture](), "Forms.Tree": reflect.TypeFor[tree](), "Forms.Pet": reflect.TypeFor[pet](),
		"Forms.Labels": reflect.TypeFor[map[string]int](),
	}
	for name, message := range messages {
		must(t, s.HandleCall(name, echo, message, message))
	}
	must(t, s.HandleCall("Forms.Any", echo))
	without := map[string]reflect.Type{"Forms.Text": reflect.TypeFor[string](), "Forms.Times": reflect.TypeFor[time.Time](), "Forms.List": reflect.TypeFor[[]string]()}
	for name, message := range without {
		must(t, s.HandleCall(name, echo, message, message))
	}
	must(t, s.Handle("Forms.Sum", func(a, b int) int { return a + b }))
	var document struct {
		Paths map[string]map[string]struct {
			RequestBody struct {
				Content map[string]struct{ Schema map[string]any }
			}
		}
	}
	must(t, json.Unmarshal([]byte(s.do(c, "GET", "/openapi.json", "").body), &document))
	const encoded, multipart = "application/x-www-form-urlencoded", "multipart/form-data"
	for _, path := range []string{"/Forms/Text", "/Forms/Times", "/Forms/List", "/Forms/Sum", "/Test/Watch", "/Test/Gather", "/Test/Chat"} {
		for content := range document.Paths[path]["post"].RequestBody.Content {
			if strings.Contains(content, "form") {
				t.Errorf("%s takes no form, and is described with %s", path, content)
			}
		}
	}
	for path, fields := range map[string]string{
		"/Forms/Picture": "by.name image more notes public tags title width",
		"/Forms/Tree":    "Named any at count data green labels.k name raw size",
		"/Forms/Pet":     "fullName grams species",
		"/Forms/Labels":  "k",
		"/Forms/Any":     "",
	} {
		for _, content := range []string{encoded, multipart} {
			described, ok := document.Paths[path]["post"].RequestBody.Content[content]
			if !ok {
				t.Errorf("%s is described without %s", path, content)
				continue
			}
			schemas := make(map[string]any)
			maps.Copy(schemas, object(described.Schema["properties"]))
			for pattern, schema := range object(described.Schema["patternProperties"]) {
				name := strings.NewReplacer("[^.]+$", "k", "^", "", `\.`, ".").Replace(pattern)
				if !regexp.MustCompile(pattern).MatchString(name) {
					t.Fatalf("the pattern %s does not match %s", pattern, name)
				}
				schemas[name] = schema
			}
			var names, pairs []string
			values, want := make(url.Values), make(map[string]any)
			for name, schema := range schemas {
				names = append(names, name)
				samples := samplesOf(t, object(schema), content == multipart)
				var all []any
				for _, one := range samples {
					values.Add(name, one.text)
					mark := ""
					if one.file {
						mark = "@"
					}
					pairs, all = append(pairs, mark+name, one.text), append(all, one.want)
				}
				if object(schema)["type"] == "array" {
					put(want, name, all)
				} else {
					put(want, name, all[0])
				}
			}
			slices.Sort(names)
			if got := strings.Join(names, " "); got != fields {
				t.Errorf("%s, %s: the fields are %s, want %s", path, content, got, fields)
			}
			body, kind := values.Encode(), content
			if content == multipart {
				body, kind = aForm(t, pairs...)
			}
			r := s.do(c, "POST", path, body, "Content-Type", kind)
			var got map[string]any
			if err := json.Unmarshal([]byte(r.body), &got); r.StatusCode != std.StatusOK || err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: a form as described got %d %s, want %v", path, content, r.StatusCode, r.body, want)
			}
		}
	}
	closed := newSite(t, &http.Options{OpenAPI: "/openapi.json"}, yodel.ServerOptions{})
	if body := closed.do(c, "GET", "/openapi.json", "").body; strings.Contains(body, "form-data") || strings.Contains(body, "urlencoded") {
		t.Errorf("a server that takes no forms describes them: %s", body)
	}
}

func object(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// put sets the field of an object at a path with dots.
func put(m map[string]any, path string, value any) {
	name, rest, nested := strings.Cut(path, ".")
	if !nested {
		m[name] = value
		return
	}
	if m[name] == nil {
		m[name] = make(map[string]any)
	}
	put(object(m[name]), rest, value)
}
