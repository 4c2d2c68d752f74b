// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"net/netip"
	"net/url"
	"reflect"
	"strconv"
	"time"
)

// Types whose content is in unexported fields, and which encode themselves.
type (
	identifier [16]byte                  // as UUIDs of libraries
	decimal    struct{ digits *big.Int } // as decimals of libraries
	onlyJSON   struct{ n int64 }
	onlyText   struct{ n int64 }
	onlyBinary struct{ n int64 }
	onlyGob    struct{ n int64 }
	halfJSON   struct{ N int64 } // without UnmarshalJSON
	halfText   struct{ N int64 }
	byPointer  struct{ n int64 }  // its pointer has the methods
	loudText   string             // whose text is not its content
	anyText    string             // whose text is its content, in all formats
	foldedText struct{ S string } // whose encodings do not tell a from A
	emptyText  struct{ N int64 }  // which is encoded as nothing if N is 0
	nullJSON   struct{ N int64 }  // which is encoded as null if N is 0
	laterJSON  struct{ N int64 }  // with UnmarshalJSON, and without MarshalJSON
	laterText  struct{ N int64 }
	laterBytes struct{ N int64 }
	laterGob   struct{ N int64 }
	textOrJSON struct{ N int64 } // with MarshalText and UnmarshalJSON, and UnmarshalText
	byValue    struct{ N int64 } // whose methods do not have a pointer as receiver
)

func (v anyText) MarshalText() ([]byte, error) { return []byte(v), nil }

func (v *anyText) UnmarshalText(src []byte) error {
	*v = anyText(src)
	return nil
}

func (v anyText) MarshalJSON() ([]byte, error) { return []byte(`"` + v + `"`), nil }

func (v *anyText) UnmarshalJSON(src []byte) error { return v.UnmarshalText(bytes.Trim(src, `"`)) }

func (v foldedText) MarshalText() ([]byte, error) { return bytes.ToLower([]byte(v.S)), nil }

func (v *foldedText) UnmarshalText(src []byte) error {
	v.S = string(src)
	return nil
}

func (v foldedText) MarshalBinary() ([]byte, error) { return v.MarshalText() }

func (v *foldedText) UnmarshalBinary(src []byte) error { return v.UnmarshalText(src) }

func (v emptyText) MarshalText() ([]byte, error) {
	if v.N == 0 {
		return nil, nil
	}
	return strconv.AppendInt(nil, v.N, 10), nil
}

func (v *emptyText) UnmarshalText(src []byte) (err error) {
	if v.N = 0; len(src) > 0 {
		v.N, err = strconv.ParseInt(string(src), 10, 64)
	}
	return err
}

func (v emptyText) MarshalBinary() ([]byte, error) { return v.MarshalText() }

func (v *emptyText) UnmarshalBinary(src []byte) error { return v.UnmarshalText(src) }

func (v nullJSON) MarshalJSON() ([]byte, error) {
	if v.N == 0 {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, v.N, 10), nil
}

func (v *nullJSON) UnmarshalJSON(src []byte) error { return json.Unmarshal(src, &v.N) }

func (v *laterJSON) UnmarshalJSON(src []byte) error { return json.Unmarshal(src, &v.N) }

func (v *laterText) UnmarshalText(src []byte) error { return json.Unmarshal(src, &v.N) }

func (v *laterBytes) UnmarshalBinary(src []byte) error { return json.Unmarshal(src, &v.N) }

func (v *laterGob) GobDecode(src []byte) error { return json.Unmarshal(src, &v.N) }

func (v textOrJSON) MarshalText() ([]byte, error) { return strconv.AppendInt(nil, v.N, 10), nil }

func (v *textOrJSON) UnmarshalText(src []byte) error { return json.Unmarshal(src, &v.N) }

func (v *textOrJSON) UnmarshalJSON(src []byte) error {
	v.N = int64(len(src))
	return nil
}

func (v byValue) MarshalText() ([]byte, error) { return strconv.AppendInt(nil, v.N, 10), nil }

func (v byValue) UnmarshalText(src []byte) error { return json.Unmarshal(src, &v.N) }

func (v byValue) MarshalBinary() ([]byte, error) { return v.MarshalText() }

func (v byValue) UnmarshalBinary(src []byte) error { return v.UnmarshalText(src) }

func (id identifier) MarshalText() ([]byte, error) {
	return []byte(hex.EncodeToString(id[:])), nil
}

func (id *identifier) UnmarshalText(text []byte) error {
	_, err := hex.Decode(id[:], text)
	return err
}

func (d decimal) MarshalText() ([]byte, error) { return d.digits.MarshalText() }

func (d *decimal) UnmarshalText(text []byte) error {
	d.digits = new(big.Int)
	return d.digits.UnmarshalText(text)
}

func (d decimal) MarshalJSON() ([]byte, error) { return []byte(strconv.Quote(d.digits.String())), nil }

func (d *decimal) UnmarshalJSON(src []byte) error { return d.UnmarshalText(bytes.Trim(src, `"`)) }

func (d decimal) MarshalBinary() ([]byte, error) { return d.MarshalText() }

func (d *decimal) UnmarshalBinary(src []byte) error { return d.UnmarshalText(src) }

func (v onlyJSON) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, v.n, 10), nil }

func (v *onlyJSON) UnmarshalJSON(src []byte) (err error) {
	v.n, err = strconv.ParseInt(string(src), 10, 64)
	return err
}

func (v onlyText) MarshalText() ([]byte, error) { return strconv.AppendInt(nil, v.n, 10), nil }

func (v *onlyText) UnmarshalText(src []byte) (err error) {
	v.n, err = strconv.ParseInt(string(src), 10, 64)
	return err
}

func (v onlyBinary) MarshalBinary() ([]byte, error) { return binary.AppendVarint(nil, v.n), nil }

func (v *onlyBinary) UnmarshalBinary(src []byte) error {
	n, size := binary.Varint(src)
	if v.n = n; size != len(src) {
		return fmt.Errorf("%x is no number", src)
	}
	return nil
}

func (v onlyGob) GobEncode() ([]byte, error) { return binary.AppendVarint(nil, v.n), nil }

func (v *onlyGob) GobDecode(src []byte) error { return (*onlyBinary)(v).UnmarshalBinary(src) }

func (v halfJSON) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `{"number":%d}`, v.N), nil }

func (v halfText) MarshalText() ([]byte, error) { return strconv.AppendInt(nil, v.N, 10), nil }

func (v *byPointer) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, v.n, 10), nil }

func (v *byPointer) UnmarshalJSON(src []byte) error { return (*onlyJSON)(v).UnmarshalJSON(src) }

func (v *byPointer) MarshalBinary() ([]byte, error) { return binary.AppendVarint(nil, v.n), nil }

func (v *byPointer) UnmarshalBinary(src []byte) error { return (*onlyBinary)(v).UnmarshalBinary(src) }

func (v loudText) MarshalText() ([]byte, error) { return []byte(v + "!"), nil }

func (v *loudText) UnmarshalText(src []byte) error {
	*v = loudText(bytes.TrimSuffix(src, []byte("!")))
	return nil
}

func addOwn(l *list) {
	everywhere(l, "a UUID", identifier{1, 2})
	asKey(l, "a UUID", identifier{1, 2})
	everywhere(l, "a decimal", decimal{big.NewInt(12345)})
	everywhere(l, "a type with MarshalJSON only", onlyJSON{7})
	everywhere(l, "a type with MarshalText only", onlyText{7})
	asKey(l, "a type with MarshalText only", onlyText{7})
	everywhere(l, "a type with MarshalBinary only", onlyBinary{7})
	everywhere(l, "a type with GobEncode only", onlyGob{7})
	add(l, "a type with MarshalJSON and no UnmarshalJSON", halfJSON{7})
	add(l, "a type with MarshalText and no UnmarshalText", halfText{7})
	add(l, "a type with UnmarshalJSON and no MarshalJSON", laterJSON{7})
	add(l, "a type with UnmarshalText and no MarshalText", laterText{7})
	add(l, "a type with UnmarshalBinary and no MarshalBinary", laterBytes{7})
	add(l, "a type with GobDecode and no GobEncode", laterGob{7})
	add(l, "a type with MarshalText and UnmarshalJSON", textOrJSON{7})
	add(l, "a type whose methods have a value as receiver", byValue{7})
	add(l, "a type that encodes itself as nothing", emptyText{})
	add(l, "a type that encodes itself as nothing, behind a pointer", new(emptyText))
	add(l, "a type that MarshalJSON writes as null", nullJSON{})
	add(l, "a type that MarshalJSON writes as null, behind a pointer", new(nullJSON))
	add(l, "a text of MarshalJSON that is not UTF-8", anyText("a\xffb"))
	add(l, "two keys that encode themselves as the same", map[foldedText]string{{"a"}: "a", {"A"}: "b"})
	add(l, "two keys that differ in an unexported field", map[partlyUnexported]string{{"ann", 1}: "a", {"ann", 2}: "b"})
	everywhere(l, "a type whose pointer has the methods", byPointer{7})
	add(l, "a string with MarshalText", loudText("a"))
	asKey(l, "a string with MarshalText", loudText("a"))
}

type (
	// Named is embedded, so it is exported.
	Named struct {
		Name string `pb:"1" thrift:"1"`
	}
	named     struct{ Name string }
	embedding struct {
		Named
		Age int64 `pb:"2" thrift:"2"`
	}
	embeddingTagged struct {
		Named `json:"named" hessian:"named" msgpack:"named,noinline" pb:"1" thrift:"1"`
		Age   int64 `pb:"2" thrift:"2"`
	}
	embeddingUnexported struct {
		named
		Age int64 `pb:"2" thrift:"2"`
	}
	embeddingPointer struct {
		*Named `pb:"1" thrift:"1"`
		Age    int64 `pb:"2" thrift:"2"`
	}
	embeddingUnexportedPointer struct {
		*named
		Age int64 `pb:"2" thrift:"2"`
	}
	embeddingDeeper struct {
		within
		Age int64 `pb:"2" thrift:"2"`
	}
	within             struct{ named }
	stringer           interface{ String() string }
	count              int64
	embeddingInterface struct {
		stringer
		Age int64 `pb:"2" thrift:"2"`
	}
	embeddingNumber struct {
		count
		Age int64 `pb:"2" thrift:"2"`
	}
	// Nothing is embedded, so it is exported.
	Nothing          struct{}
	embeddingNothing struct {
		*Nothing `pb:"1" thrift:"1"`
		Age      int64 `pb:"2" thrift:"2"`
	}
	embeddingURL struct {
		*url.URL `pb:"1" thrift:"1"`
	}
	embeddingTime struct {
		time.Time `pb:"1" thrift:"1"`
		Name      string `pb:"2" thrift:"2"`
	}
	embeddingOnlyTime struct {
		time.Time `pb:"1" thrift:"1"`
	}
	shadowed struct {
		Named `pb:"1" thrift:"1"`
		Name  int64 `pb:"2" thrift:"2"`
	}
	partlyUnexported struct {
		Name string `pb:"1" thrift:"1"`
		age  int64
	}
	taggedUnexported struct {
		Name string `pb:"1" thrift:"1"`
		age  int64  `hessian:"age" msgpack:"age" pb:"2" thrift:"2"`
	}
	withHidden struct {
		Name string `pb:"1" thrift:"1"`
		Of   []map[string]struct {
			At stamp `pb:"1" thrift:"1"`
		} `pb:"2" thrift:"2"`
	}
	withPrivateState struct {
		Name  string `pb:"1" thrift:"1"`
		state struct{ n int }
	}
	tree struct {
		Name     string  `pb:"1" thrift:"1"`
		Children []*tree `pb:"2" thrift:"2"`
	}
	pair[K comparable, V any] struct {
		Key   K `pb:"1" thrift:"1"`
		Value V `pb:"2" thrift:"2"`
	}
)

// twoNames returns a struct that go vet would refuse, with content.
func twoNames() any {
	const tag = `json:"x" hessian:"x" msgpack:"x" pb:"%d" thrift:"%d"`
	var fields []reflect.StructField
	for i, name := range []string{"A", "B"} {
		fields = append(fields, reflect.StructField{Name: name, Type: reflect.TypeFor[string](), Tag: reflect.StructTag(fmt.Sprintf(tag, i+1, i+1))})
	}
	v := reflect.New(reflect.StructOf(fields))
	v.Elem().Field(0).SetString("a")
	v.Elem().Field(1).SetString("b")
	return v.Interface()
}

func addStructs(l *list) {
	whole := func(name string, message any) { *l = append(*l, catalogued{name, message}) }
	whole("embedded struct", &embedding{Named{"ann"}, 7})
	whole("embedded struct with tags", &embeddingTagged{Named{"ann"}, 7})
	whole("embedded unexported struct", &embeddingUnexported{named{"ann"}, 7})
	whole("embedded pointer", &embeddingPointer{&Named{"ann"}, 7})
	whole("embedded pointer, nil", &embeddingPointer{nil, 7})
	whole("embedded pointer to an unexported struct", &embeddingUnexportedPointer{&named{"ann"}, 7})
	whole("embedded unexported struct within another one", &embeddingDeeper{within{named{"ann"}}, 7})
	whole("embedded unexported interface", &embeddingInterface{netip.MustParseAddr("10.0.0.1"), 7})
	whole("embedded unexported number", &embeddingNumber{3, 7})
	whole("embedded pointer to a struct without fields", &embeddingNothing{&Nothing{}, 7})
	whole("embedded pointer with methods", &embeddingURL{&url.URL{Host: "example.com"}})
	whole("embedded time.Time beside a field", &embeddingTime{time.Unix(0, 0).UTC(), "ann"})
	whole("embedded time.Time alone", &embeddingOnlyTime{time.Unix(0, 0).UTC()})
	whole("shadowed field", &shadowed{Named{"ann"}, 7})
	whole("two fields of one name", twoNames())
	whole("unexported field", &partlyUnexported{"ann", 7})
	whole("unexported field with a tag", &taggedUnexported{"ann", 7})
	whole("unexported field with a struct", &withPrivateState{Name: "ann", state: struct{ n int }{7}})
	whole("a struct with only unexported fields, deep in a type", &withHidden{Name: "ann"})
	whole("a type that contains itself", &tree{"root", []*tree{{Name: "child"}}})
	whole("generic struct", &pair[string, holder[int64]]{"a", holder[int64]{7}})
	whole("generic struct over time.Time", &pair[string, time.Time]{"a", time.Unix(1, 0).UTC()})
}
