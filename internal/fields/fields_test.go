// SPDX-License-Identifier: Apache-2.0

package fields_test

import (
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/fields"
	"github.com/yodel-rpc/yodel/internal/metadata"
	"github.com/yodel-rpc/yodel/internal/wire"
)

func TestARequestArrivesAsItWasSent(t *testing.T) {
	sent := fields.Request{Attempt: 3, Criticality: -2, Explain: true, IdempotencyKey: "intent", Key: "order", Tenant: "t", Trace: "00-1"}
	f := wire.Fields{KeyBegan: 5} // of the call's last attempt
	sent.Encode(&f)
	if got := fields.ReadRequest(&f); got != sent {
		t.Errorf("got %+v, want %+v", got, sent)
	}
	if n := fields.Size([]byte("md"), &f); n != len("md")+len("intent")+len("order")+len("t")+len("00-1") {
		t.Errorf("%d bytes count as metadata", n)
	}
	if new(fields.Request).Encode(&f); f.Tenant != nil || f.Key != nil || f.IdempotencyKey != nil || f.Trace != nil || f.Explain != 0 || fields.Size(nil, &f) != 0 {
		t.Errorf("an empty request left %+v", f)
	}
	if fields.Size([]byte("md"), nil) != 2 {
		t.Error("a request without fields has another size than its metadata")
	}
}

func TestNumbersOfAClientAreLimited(t *testing.T) {
	got := fields.ReadRequest(&wire.Fields{Attempt: math.MaxUint64, Criticality: math.MaxUint64, Epoch: 1, KeyBegan: 7})
	want := fields.Request{Attempt: 1 << 30, Criticality: -1 << 14, Ordered: true, KeyBegan: -4 * time.Microsecond, KnowsKey: true}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	var f wire.Fields
	(&fields.Request{Criticality: 1000}).Encode(&f)
	if got := fields.ReadRequest(&f).Criticality; got != math.MaxInt8 {
		t.Errorf("a criticality of 1000 arrives as %d", got)
	}
}

// encoded returns the encoding of fields, as an answer has it.
func encoded(f *wire.Fields) []byte { return wire.AppendFields(nil, f)[2:] }

func TestAnAnswerHasMetadataAndAnError(t *testing.T) {
	limits := metadata.Limits{Bytes: 30, Pairs: 2}
	md := map[string]string{"a": "b"}
	f := wire.Fields{Metadata: metadata.Append(nil, md), Header: metadata.Append(nil, md), Load: 9}
	said := fields.Failure{Message: "A.B: it failed", ID: "YDL1", RetryAfter: 1500 * time.Nanosecond}
	said.Encode(&f, func(yield func(string, []byte) bool) { yield("type", []byte("value")) })
	var a fields.Answer
	if err := a.Read(encoded(&f), limits); err != nil || !maps.Equal(a.Trailer, md) || !maps.Equal(a.Head, md) || a.Load != 9 || a.Excess != "" {
		t.Fatalf("got %+v, %v", a, err)
	}
	details := ""
	got := a.Failure("A.B", func() string { return "there" }, func(name string, value []byte) { details += name + "=" + string(value) })
	if want := (fields.Failure{Message: "A.B: there: it failed", ID: "YDL1", RetryAfter: 2 * time.Microsecond}); got != want || details != "type=value" {
		t.Errorf("got %+v with %s, want %+v", got, details, want)
	}
}

func TestValuesOfAServerAreLimited(t *testing.T) {
	limits := metadata.Limits{Bytes: 10, Pairs: 2}
	large := metadata.Append(nil, map[string]string{"a": strings.Repeat("x", 20)})
	f := wire.Fields{Message: []byte(strings.Repeat("x", 5000)), RetryAfter: math.MaxUint64, Metadata: large, Header: metadata.Append(nil, map[string]string{"a": "b"})}
	var a fields.Answer
	if err := a.Read(encoded(&f), limits); err != nil || a.Trailer != nil || a.Head["a"] != "b" || a.Excess != "has 23 bytes, the limit is 10" {
		t.Fatalf("got %v, %v, %q, %v", a.Trailer, a.Head, a.Excess, err)
	}
	got := a.Failure("A.B", nil, nil) // an error of a handler names no address
	if len(got.Message) > fields.MaxText || got.RetryAfter != 24*time.Hour {
		t.Errorf("%d bytes, after %v", len(got.Message), got.RetryAfter)
	}
	for name, f := range map[string]wire.Fields{"trailer": {Metadata: []byte{200}}, "header": {Header: []byte{200}}} {
		if err := new(fields.Answer).Read(encoded(&f), limits); err == nil {
			t.Errorf("a malformed %s was accepted", name)
		}
	}
	if err := new(fields.Answer).Read([]byte{255}, limits); err == nil {
		t.Error("malformed fields were accepted")
	}
}
