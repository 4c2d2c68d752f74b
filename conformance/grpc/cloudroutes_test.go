// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	std "net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/protobuf"
	"github.com/yodel-rpc/yodel/protocol/grpcgo"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/protocol/http/transcode"
)

// cloudFiles are the files of KMS and Pub/Sub that have services.
var cloudFiles = []protoreflect.FileDescriptor{
	kmspb.File_google_cloud_kms_v1_autokey_proto,
	kmspb.File_google_cloud_kms_v1_autokey_admin_proto,
	kmspb.File_google_cloud_kms_v1_ekm_service_proto,
	kmspb.File_google_cloud_kms_v1_hsm_management_proto,
	kmspb.File_google_cloud_kms_v1_service_proto,
	pubsubpb.File_google_pubsub_v1_pubsub_proto,
	pubsubpb.File_google_pubsub_v1_schema_proto,
}

// A cloudRule is one annotation of a method.
type cloudRule struct {
	method         protoreflect.MethodDescriptor
	verb, template string
	body           string
}

// rulesOf returns the annotations of a method.
func rulesOf(t *testing.T, m protoreflect.MethodDescriptor) (all []cloudRule) {
	t.Helper()
	rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
	if rule == nil {
		return nil
	}
	for _, rule := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
		r := cloudRule{method: m, body: rule.GetBody()}
		switch pattern := rule.GetPattern().(type) {
		case *annotations.HttpRule_Get:
			r.verb, r.template = "GET", pattern.Get
		case *annotations.HttpRule_Put:
			r.verb, r.template = "PUT", pattern.Put
		case *annotations.HttpRule_Post:
			r.verb, r.template = "POST", pattern.Post
		case *annotations.HttpRule_Delete:
			r.verb, r.template = "DELETE", pattern.Delete
		case *annotations.HttpRule_Patch:
			r.verb, r.template = "PATCH", pattern.Patch
		default:
			t.Errorf("%s: this test does not know the pattern %T", m.FullName(), pattern)
		}
		if rule.GetResponseBody() != "" {
			t.Errorf("%s: this test does not know response_body", m.FullName())
		}
		all = append(all, r)
	}
	return all
}

var variable = regexp.MustCompile(`\{([a-z_.]+)(?:=([^}]*))?\}`)

// request returns a request of the rule, with the message that the method should get. Fields that a
// rule cannot carry are not set.
func (r cloudRule) request(t *testing.T, f *filler) (path, body string, want proto.Message) {
	t.Helper()
	want = f.messages(t, r.method.Input(), false, 1)[0]
	values, rest := make(map[string]string), proto.Clone(want)
	path = variable.ReplaceAllStringFunc(r.template, func(found string) string {
		parts := variable.FindStringSubmatch(found)
		value := strings.ReplaceAll(parts[2], "**", "deep/er")
		for strings.Contains(value, "*") || value == "" {
			f.n++
			if value == "" {
				value = "*"
			}
			value = strings.Replace(value, "*", fmt.Sprint("id-", f.n), 1)
		}
		values[parts[1]] = value
		return value
	})
	for name, value := range values {
		set(want.ProtoReflect(), name, &value)
		set(rest.ProtoReflect(), name, nil)
	}
	if r.body == "*" {
		return path, marshal(t, rest), want
	}
	if r.body != "" {
		field := rest.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(r.body))
		body = marshal(t, rest.ProtoReflect().Get(field).Message().Interface())
		rest.ProtoReflect().Clear(field)
	}
	query := make(url.Values)
	r.parameters(t, want.ProtoReflect(), rest.ProtoReflect(), "", query)
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return path, body, want
}

// set sets a field behind dots, or clears it if value is nil.
func set(m protoreflect.Message, path string, value *string) {
	name, inner, nested := strings.Cut(path, ".")
	field := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	switch {
	case nested:
		set(m.Mutable(field).Message(), inner, value)
	case value == nil:
		m.Clear(field)
	default:
		m.Set(field, protoreflect.ValueOfString(*value))
	}
}

// parameters adds the fields of rest to a query. It clears those that a query cannot carry in want.
func (r cloudRule) parameters(t *testing.T, want, rest protoreflect.Message, prefix string, query url.Values) {
	t.Helper()
	for field, value := range rest.Range {
		name := prefix + string(field.Name())
		switch {
		case field.IsMap(), field.IsList() && field.Message() != nil:
			want.Clear(field)
		case field.IsList():
			for i := range value.List().Len() {
				query.Add(name, parameter(field, value.List().Get(i)))
			}
		case field.Message() == nil:
			query.Add(name, parameter(field, value))
		case field.Message().ParentFile().Package() == "google.protobuf": // they are strings in JSON
			var text string
			must(t, json.Unmarshal([]byte(marshal(t, value.Message().Interface())), &text))
			query.Add(name, text)
		default:
			r.parameters(t, want.Mutable(field).Message(), value.Message(), name+".", query)
		}
	}
}

// parameter returns the text of a scalar.
func parameter(field protoreflect.FieldDescriptor, value protoreflect.Value) string {
	if field.Kind() == protoreflect.EnumKind {
		return string(field.Enum().Values().ByNumber(value.Enum()).Name())
	}
	return fmt.Sprint(value.Interface())
}

func marshal(t *testing.T, m proto.Message) string {
	t.Helper()
	b, err := protojson.Marshal(m)
	must(t, err)
	return string(b)
}

// TestCloudRoutes calls the methods of KMS and Pub/Sub as JSON over HTTP, by each annotation.
func TestCloudRoutes(t *testing.T) {
	routes, err := transcode.Routes(cloudFiles...)
	must(t, err)
	served := make(map[string]bool)
	r := new(recorder)
	s := yodel.NewServer(&yodel.ServerOptions{
		Codecs: []yodel.Codec{protobuf.Codec, protobuf.JSON}, Logger: slog.New(slog.DiscardHandler),
		Protocols: []yodel.Protocol{http.New(&http.Options{Routes: routes})},
	})
	registerCloud(grpcgo.Registrar(s), r)
	for _, route := range routes {
		served[route.Method+" "+route.Pattern] = true
		if strings.HasPrefix(route.Pattern, "GET ") {
			s.MarkReadOnly(route.Method)
		}
	}
	addr := start(t, s)
	client := &std.Client{Transport: new(std.Transport), Timeout: time.Minute}
	defer client.CloseIdleConnections()
	called := 0
	for _, file := range cloudFiles {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				rules := rulesOf(t, m)
				if len(rules) == 0 && m.Name() != "StreamingPull" { // it streams in both directions
					t.Errorf("%s has no annotation", m.FullName())
				}
				for _, rule := range rules {
					called++
					if !served[fmt.Sprintf("%s %s %s", m.FullName(), rule.verb, rule.template)] {
						t.Errorf("%s: there is no route for %s %s", m.FullName(), rule.verb, rule.template)
					}
					rule.call(t, client, addr, r)
				}
			}
		}
	}
	t.Logf("%d annotations", called)
	if called != len(routes) || called != 93 {
		t.Errorf("got %d routes of %d annotations", len(routes), called)
	}
}

// call calls a method by an annotation.
func (r cloudRule) call(t *testing.T, client *std.Client, addr string, rec *recorder) {
	t.Helper()
	f := new(filler)
	path, body, want := r.request(t, f)
	replies := f.messages(t, r.method.Output(), false, 1)
	rec.prepare(replies, nil)
	name := fmt.Sprintf("%s as %s %s", r.method.FullName(), r.verb, path)
	request, err := std.NewRequestWithContext(t.Context(), r.verb, "http://"+addr+path, strings.NewReader(body))
	must(t, err)
	if r.verb != "GET" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := client.Do(request)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	reply := replies[0].ProtoReflect().New().Interface()
	if err := protojson.Unmarshal(bytes.Clone(text), reply); response.StatusCode != std.StatusOK || err != nil || !proto.Equal(reply, replies[0]) {
		t.Errorf("%s: got status %d, %s, error %v, want %v", name, response.StatusCode, text, err, replies[0])
	}
	method, received := rec.called()
	if method != string(r.method.Name()) || !equalMessages(received, []proto.Message{want}) {
		t.Errorf("%s: the method %s got %v, want %v", name, method, received, want)
	}
}
