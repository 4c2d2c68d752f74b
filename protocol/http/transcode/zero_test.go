// SPDX-License-Identifier: Apache-2.0

package transcode_test

import (
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/apipb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/typepb"

	"github.com/yodel-rpc/yodel/protocol/http/transcode"
	"github.com/yodel-rpc/yodel/protocol/http/transcode/internal/testpb"
)

// A response_body that ProtoJSON leaves out of the message is the JSON of its default. An enum of
// proto3 has no explicit default.
func TestResponseBodiesOfDefaultsAreJSON(t *testing.T) {
	t.Parallel()
	options := protojson.MarshalOptions{EmitUnpopulated: true}
	for _, m := range []proto.Message{&testpb.Everything{}, &typepb.Field{}, &typepb.Type{}, &apipb.Method{}, &structpb.Struct{}} {
		b, err := options.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatal(err)
		}
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			if got := transcode.Zero(f); want[f.JSONName()] != nil && string(got) != string(want[f.JSONName()]) {
				t.Errorf("%s: got %s, want %s", f.FullName(), got, want[f.JSONName()])
			}
		}
	}
	null := (&structpb.Value{}).ProtoReflect().Descriptor().Fields().ByName("null_value")
	if got := transcode.Zero(null); string(got) != "null" {
		t.Errorf("null_value: got %s", got)
	}
}
