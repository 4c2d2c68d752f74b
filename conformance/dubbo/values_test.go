// SPDX-License-Identifier: Apache-2.0

package dubbo_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	apache "github.com/apache/dubbo-go-hessian2"

	"github.com/yodel-rpc/yodel/codec/hessian2"
	"github.com/yodel-rpc/yodel/conformance/valuetable"
)

// reencode decodes a message with Apache's library, checks that the codec decodes the same into an
// interface, and encodes what the library has got. The library knows no types of the catalogue, so
// a struct is a map.
func reencode(b []byte) ([]byte, error) {
	theirs, err := apache.NewDecoder(b).Decode()
	if err != nil {
		return nil, err
	}
	var ours any
	if err := hessian2.Codec.Decode(b, &ours); err != nil {
		return nil, err
	}
	if !sameGeneric(reflect.ValueOf(theirs), reflect.ValueOf(ours)) {
		return nil, fmt.Errorf("the library got %#v, the codec %#v", theirs, ours)
	}
	return encodeTheirs(theirs)
}

// encodeTheirs encodes a value with Apache's library.
func encodeTheirs(v any) ([]byte, error) {
	e := apache.NewEncoder()
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return e.Buffer(), nil
}

// sameGeneric reports whether two values are the same, apart from the types of lists and maps.
func sameGeneric(a, b reflect.Value) bool {
	for a.IsValid() && a.Kind() == reflect.Interface {
		a = a.Elem()
	}
	for b.IsValid() && b.Kind() == reflect.Interface {
		b = b.Elem()
	}
	if !a.IsValid() || !b.IsValid() {
		return a.IsValid() == b.IsValid()
	}
	switch {
	case a.Kind() == reflect.Slice && b.Kind() == reflect.Slice:
		if a.Len() != b.Len() || a.Type() == reflect.TypeFor[[]byte]() && a.Type() != b.Type() {
			return false
		}
		for i := range a.Len() {
			if !sameGeneric(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case a.Kind() == reflect.Map && b.Kind() == reflect.Map:
		return a.Len() == b.Len() && sameEntries(a, b)
	case a.Type() != b.Type():
		return false
	}
	if at, ok := reflect.TypeAssert[time.Time](a); ok {
		bt, _ := reflect.TypeAssert[time.Time](b)
		return at.Equal(bt)
	}
	if a.Kind() == reflect.Float64 { // also NaN and -0
		return fmt.Sprint(a.Float()) == fmt.Sprint(b.Float())
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// sameEntries compares maps of one size.
func sameEntries(a, b reflect.Value) bool {
	for i := a.MapRange(); i.Next(); {
		found := false
		for j := b.MapRange(); j.Next(); {
			found = found || sameGeneric(i.Key(), j.Key()) && sameGeneric(i.Value(), j.Value())
		}
		if !found {
			return false
		}
	}
	return true
}

// Apache's library for Go reads the values that the codec carries as the codec does, and the other
// way round.
func TestValuesBesideApache(t *testing.T) {
	tried := valuetable.Compare(t, hessian2.Codec, valuetable.Reference{
		Decode: func(b []byte, v any) error {
			b, err := reencode(b)
			if err != nil {
				return err
			}
			return hessian2.Codec.Decode(b, v)
		},
		Encode: func(v any) ([]byte, error) {
			b, err := hessian2.Codec.Append(nil, v)
			if err != nil {
				return nil, err
			}
			var generic any
			if err := hessian2.Codec.Decode(b, &generic); err != nil {
				return nil, err
			}
			return encodeTheirs(generic)
		},
		Reads: map[string]string{
			"struct, a key": "it panics, because a key is a map", "two keys that encode themselves as the same": "the same", "negative zero": "it writes 0",
		},
		Writes: map[string]string{
			"struct, a key": "Go has no such map of any", "two keys that encode themselves as the same": "the same", "negative zero": "it writes 0",
		},
	})
	if tried != 134 {
		t.Errorf("%d values were compared", tried)
	}
}

type (
	// A Part is a class of Java.
	Part struct {
		Name  string
		Price float64
		Next  *Part
	}
	// A Parcel has a field of each kind.
	Parcel struct {
		ID      int64
		Count   int32
		Flag    bool
		Text    string
		Weight  float64
		Raw     []byte
		Sent    time.Time
		Names   []string
		Numbers []int64
		Parts   []*Part
		First   *Part
		Labels  map[string]string
		None    *Part
	}
)

func (Part) JavaClassName() string   { return "com.acme.Part" }
func (Parcel) JavaClassName() string { return "com.acme.Parcel" }

// Objects of classes that are known to Apache's library.
func TestObjectsBesideApache(t *testing.T) {
	apache.RegisterPOJO(&Part{})
	apache.RegisterPOJO(&Parcel{})
	first := &Part{"wheel", 1.5, &Part{Name: "screw"}}
	for _, want := range []*Parcel{
		{},
		{
			ID: 1 << 40, Count: -1, Flag: true, Text: "日本 😀", Weight: 0.1, Raw: []byte{0, 255}, Sent: time.UnixMilli(1_700_000_000_123),
			Names: []string{"a", ""}, Numbers: []int64{1, -1 << 40}, Parts: []*Part{first, {"nut", 2, nil}, first}, First: first,
			Labels: map[string]string{"a": "b"},
		},
	} {
		b, err := hessian2.Codec.Append(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := apache.NewDecoder(b).Decode()
		if err != nil || !sameParcel(got, want) {
			t.Errorf("Apache got %+v and error %v, want %+v", got, err, want)
		}
		if b, err = encodeTheirs(want); err != nil {
			t.Fatal(err)
		}
		ours := new(Parcel)
		if err := hessian2.Codec.Decode(b, ours); err != nil || !sameParcel(ours, want) {
			t.Errorf("yodel got %+v and error %v, want %+v", ours, err, want)
		}
	}
}

// sameParcel compares times by their instant.
func sameParcel(got any, want *Parcel) bool {
	p, ok := got.(*Parcel)
	if !ok || !p.Sent.Equal(want.Sent) {
		return false
	}
	twin := *p
	twin.Sent = want.Sent
	return reflect.DeepEqual(&twin, want)
}
