// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"context"
	"errors"

	apache "github.com/apache/thrift/lib/go/thrift"

	"github.com/yodel-rpc/yodel/conformance/thrift/gen/thrifttest"
)

// A handler implements both services for an Apache server. Most methods return their argument.
type handler struct{ oneWay chan int32 }

func (*handler) TestVoid(context.Context) error                           { return nil }
func (*handler) TestString(_ context.Context, v string) (string, error)   { return v, nil }
func (*handler) TestBool(_ context.Context, v bool) (bool, error)         { return v, nil }
func (*handler) TestByte(_ context.Context, v int8) (int8, error)         { return v, nil }
func (*handler) TestI32(_ context.Context, v int32) (int32, error)        { return v, nil }
func (*handler) TestI64(_ context.Context, v int64) (int64, error)        { return v, nil }
func (*handler) TestDouble(_ context.Context, v float64) (float64, error) { return v, nil }
func (*handler) TestBinary(_ context.Context, v []byte) ([]byte, error)   { return v, nil }
func (*handler) TestUuid(_ context.Context, v apache.Tuuid) (apache.Tuuid, error) {
	return v, nil
}
func (*handler) TestSet(_ context.Context, v []int32) ([]int32, error)  { return v, nil }
func (*handler) TestList(_ context.Context, v []int32) ([]int32, error) { return v, nil }
func (*handler) SecondtestString(_ context.Context, v string) (string, error) {
	return `testString("` + v + `")`, nil
}

func (*handler) TestStruct(_ context.Context, v *thrifttest.Xtruct) (*thrifttest.Xtruct, error) {
	return v, nil
}

func (*handler) TestNest(_ context.Context, v *thrifttest.Xtruct2) (*thrifttest.Xtruct2, error) {
	return v, nil
}

func (*handler) TestMap(_ context.Context, v map[int32]int32) (map[int32]int32, error) {
	return v, nil
}

func (*handler) TestStringMap(_ context.Context, v map[string]string) (map[string]string, error) {
	return v, nil
}

func (*handler) TestEnum(_ context.Context, v thrifttest.Numberz) (thrifttest.Numberz, error) {
	return v, nil
}

func (*handler) TestTypedef(_ context.Context, v thrifttest.UserId) (thrifttest.UserId, error) {
	return v, nil
}

func (*handler) TestEverything(_ context.Context, v *thrifttest.Everything) (*thrifttest.Everything, error) {
	return v, nil
}

func (*handler) TestMapMap(context.Context, int32) (map[int32]map[int32]int32, error) {
	m := map[int32]map[int32]int32{-4: {}, 4: {}}
	for i := int32(1); i < 5; i++ {
		m[4][i], m[-4][-i] = i, -i
	}
	return m, nil
}

func (*handler) TestInsanity(_ context.Context, v *thrifttest.Insanity) (map[thrifttest.UserId]map[thrifttest.Numberz]*thrifttest.Insanity, error) {
	return map[thrifttest.UserId]map[thrifttest.Numberz]*thrifttest.Insanity{1: {2: v, 3: v}, 2: {6: thrifttest.NewInsanity()}}, nil
}

func (*handler) TestMulti(_ context.Context, a int8, b int32, c int64, _ map[int16]string, _ thrifttest.Numberz, _ thrifttest.UserId) (*thrifttest.Xtruct, error) {
	return &thrifttest.Xtruct{StringThing: "Hello2", ByteThing: a, I32Thing: b, I64Thing: c}, nil
}

func (*handler) TestException(_ context.Context, v string) error {
	switch v {
	case "Xception":
		return &thrifttest.Xception{ErrorCode: 1001, Message: v}
	case "TException":
		return errors.New("an error that is not declared")
	}
	return nil
}

func (*handler) TestMultiException(_ context.Context, a, b string) (*thrifttest.Xtruct, error) {
	switch a {
	case "Xception":
		return nil, &thrifttest.Xception{ErrorCode: 1001, Message: "This is an Xception"}
	case "Xception2":
		return nil, &thrifttest.Xception2{ErrorCode: 2002, StructThing: &thrifttest.Xtruct{StringThing: "This is an Xception2"}}
	}
	return &thrifttest.Xtruct{StringThing: b}, nil
}

func (h *handler) TestOneway(_ context.Context, v int32) error {
	h.oneWay <- v
	return nil
}
