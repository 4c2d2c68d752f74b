// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/big"
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
	byPointer  struct{ n int64 } // its pointer has the methods
	loudText   string            // whose text is not its content
)

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
