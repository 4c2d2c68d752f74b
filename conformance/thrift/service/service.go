// SPDX-License-Identifier: Apache-2.0

// Package service has the service of Apache Thrift's cross test for yodel, without generated code.
package service

import (
	"context"
	"errors"
	"fmt"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/thrift"
	protocol "github.com/yodel-rpc/yodel/protocol/thrift"
)

// The types of thrifttest.thrift.
type (
	Numberz int32
	UserID  int64

	Xtruct struct {
		StringThing string `thrift:"string_thing,1"`
		ByteThing   int8   `thrift:"byte_thing,4"`
		I32Thing    int32  `thrift:"i32_thing,9"`
		I64Thing    int64  `thrift:"i64_thing,11"`
	}

	Xtruct2 struct {
		ByteThing   int8    `thrift:"byte_thing,1"`
		StructThing *Xtruct `thrift:"struct_thing,2"`
		I32Thing    int32   `thrift:"i32_thing,3"`
	}

	Insanity struct {
		UserMap map[Numberz]UserID `thrift:"userMap,1"`
		Xtructs []*Xtruct          `thrift:"xtructs,2"`
	}

	Choice struct {
		_      struct{} `thrift:",union"`
		Number *int32   `thrift:"number,1"`
		Text   *string  `thrift:"text,2"`
		Thing  *Xtruct  `thrift:"thing,3"`
	}

	Everything struct {
		Yes     bool                           `thrift:"yes,1"`
		No      bool                           `thrift:"no,2"`
		Tiny    int8                           `thrift:"tiny,3"`
		Short   int16                          `thrift:"short,4"`
		Medium  int32                          `thrift:"medium,5"`
		Wide    int64                          `thrift:"wide,6"`
		Real    float64                        `thrift:"real,7"`
		Text    string                         `thrift:"text,8"`
		Data    []byte                         `thrift:"data,9"`
		Number  Numberz                        `thrift:"number,10"`
		Thing   *Xtruct                        `thrift:"thing,11"`
		Flags   []bool                         `thrift:"flags,12"`
		Numbers []int32                        `thrift:"numbers,13"`
		Names   map[string]struct{}            `thrift:"names,14"`
		Things  map[string][]Xtruct            `thrift:"things,15"`
		Sets    map[Numberz]map[int32]struct{} `thrift:"sets,16"`
		Maps    []map[int16]float64            `thrift:"maps,17"`
		Choice  *Choice                        `thrift:"choice,18"`
		Maybe   *int32                         `thrift:"maybe,19"`
		Perhaps *bool                          `thrift:"perhaps,20"`
		Absent  *string                        `thrift:"absent,21"`
		Needed  string                         `thrift:"needed,22,required"`
		Far     int64                          `thrift:"far,300"`
		Empty   []Xtruct                       `thrift:"empty,301"`
	}

	Xception struct {
		ErrorCode int32  `thrift:"errorCode,1"`
		Message   string `thrift:"message,2"`
	}

	Xception2 struct {
		ErrorCode   int32   `thrift:"errorCode,1"`
		StructThing *Xtruct `thrift:"struct_thing,2"`
	}
)

func (e *Xception) Error() string  { return fmt.Sprintf("%d: %s", e.ErrorCode, e.Message) }
func (e *Xception2) Error() string { return fmt.Sprintf("%d", e.ErrorCode) }

// Throws returns the declared exceptions. Name turns the name of a method in Thrift into that of a
// yodel method.
func Throws(name func(method string) string) protocol.Throws {
	return protocol.Throws{
		name("testException"):      {1: (*Xception)(nil)},
		name("testMultiException"): {1: (*Xception)(nil), 2: (*Xception2)(nil)},
	}
}

// NewServer returns a server with both services.
func NewServer(o *yodel.ServerOptions, p *protocol.Options) (*yodel.Server, *ThriftTest, error) {
	o.Codecs = []yodel.Codec{thrift.Codec, thrift.Compact}
	p.Service, p.OneWay = "ThriftTest", []string{"ThriftTest.TestOneway"}
	p.Throws = Throws(func(method string) string { return "ThriftTest.T" + method[1:] })
	o.Protocols = []yodel.Protocol{protocol.New(p)}
	s, service := yodel.NewServer(o), &ThriftTest{OneWay: make(chan int32, 100)}
	return s, service, errors.Join(s.Register(service), s.Register(SecondService{}))
}

// SecondService is called by clients with TMultiplexedProtocol.
type SecondService struct{}

func (SecondService) SecondtestString(_ context.Context, thing string) (string, error) {
	return `testString("` + thing + `")`, nil
}

// ThriftTest is the service of the cross test.
type ThriftTest struct {
	OneWay chan int32 // the arguments of testOneway
}

func (*ThriftTest) TestVoid(context.Context) error                           { return nil }
func (*ThriftTest) TestString(_ context.Context, v string) (string, error)   { return v, nil }
func (*ThriftTest) TestBool(_ context.Context, v bool) (bool, error)         { return v, nil }
func (*ThriftTest) TestByte(_ context.Context, v int8) (int8, error)         { return v, nil }
func (*ThriftTest) TestI32(_ context.Context, v int32) (int32, error)        { return v, nil }
func (*ThriftTest) TestI64(_ context.Context, v int64) (int64, error)        { return v, nil }
func (*ThriftTest) TestDouble(_ context.Context, v float64) (float64, error) { return v, nil }
func (*ThriftTest) TestBinary(_ context.Context, v []byte) ([]byte, error)   { return v, nil }
func (*ThriftTest) TestUuid(_ context.Context, v [16]byte) ([16]byte, error) { return v, nil }
func (*ThriftTest) TestStruct(_ context.Context, v *Xtruct) (*Xtruct, error) { return v, nil }
func (*ThriftTest) TestNest(_ context.Context, v *Xtruct2) (*Xtruct2, error) { return v, nil }
func (*ThriftTest) TestList(_ context.Context, v []int32) ([]int32, error)   { return v, nil }
func (*ThriftTest) TestEnum(_ context.Context, v Numberz) (Numberz, error)   { return v, nil }
func (*ThriftTest) TestTypedef(_ context.Context, v UserID) (UserID, error)  { return v, nil }
func (*ThriftTest) TestMap(_ context.Context, v map[int32]int32) (map[int32]int32, error) {
	return v, nil
}

func (*ThriftTest) TestStringMap(_ context.Context, v map[string]string) (map[string]string, error) {
	return v, nil
}

func (*ThriftTest) TestSet(_ context.Context, v map[int32]struct{}) (map[int32]struct{}, error) {
	return v, nil
}

func (*ThriftTest) TestEverything(_ context.Context, v *Everything) (*Everything, error) {
	return v, nil
}

func (*ThriftTest) TestMapMap(context.Context, int32) (map[int32]map[int32]int32, error) {
	m := map[int32]map[int32]int32{-4: {}, 4: {}}
	for i := int32(1); i < 5; i++ {
		m[4][i], m[-4][-i] = i, -i
	}
	return m, nil
}

func (*ThriftTest) TestInsanity(_ context.Context, v *Insanity) (*map[UserID]map[Numberz]Insanity, error) {
	return &map[UserID]map[Numberz]Insanity{1: {2: *v, 3: *v}, 2: {6: {}}}, nil
}

func (*ThriftTest) TestMulti(_ context.Context, a int8, b int32, c int64, _ map[int16]string, _ Numberz, _ UserID) (Xtruct, error) {
	return Xtruct{"Hello2", a, b, c}, nil
}

func (*ThriftTest) TestException(_ context.Context, v string) error {
	switch v {
	case "Xception":
		return &Xception{1001, v}
	case "TException":
		return errors.New("an error that is not declared")
	}
	return nil
}

func (*ThriftTest) TestMultiException(_ context.Context, a, b string) (*Xtruct, error) {
	switch a {
	case "Xception":
		return nil, &Xception{1001, "This is an Xception"}
	case "Xception2":
		return nil, &Xception2{2002, &Xtruct{StringThing: "This is an Xception2"}}
	}
	return &Xtruct{StringThing: b}, nil
}

func (t *ThriftTest) TestOneway(_ context.Context, v int32) error {
	select {
	case t.OneWay <- v:
	default: // nobody looks
	}
	return nil
}
