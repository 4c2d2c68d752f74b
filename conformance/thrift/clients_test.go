// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	apache "github.com/apache/thrift/lib/go/thrift"

	"github.com/yodel-rpc/yodel/conformance/thrift/gen/thrifttest"
)

// everything returns a message with a value of every type.
func everything() *thrifttest.Everything {
	five := thrifttest.Xtruct{StringThing: "five", ByteThing: 5, I32Thing: math.MinInt32, I64Thing: math.MaxInt64}
	return &thrifttest.Everything{
		Yes: true, Tiny: -128, Short: math.MaxInt16, Medium: -1, Wide: math.MinInt64, Real: -1.5e300, Text: "ünïcödé\x00", Data: []byte{0, 255, 128},
		Number: thrifttest.Numberz_EIGHT, Thing: &five, Flags: []bool{true, false, true}, Numbers: make([]int32, 100), Names: []string{"a"},
		Things: map[string][]*thrifttest.Xtruct{"x": {&five, &five}, "": {}}, Sets: map[thrifttest.Numberz][]int32{2: {7}},
		Maps: []map[int16]float64{{-3: 2.5}, {}}, Choice: &thrifttest.Choice{Thing: &five}, Maybe: new(int32(0)), Perhaps: new(false),
		Needed: "needed", Far: 1 << 40, Empty: []*thrifttest.Xtruct{},
	}
}

// Unchanged Apache clients call a yodel server.
func TestApacheClients(t *testing.T) {
	variants(t, func(t *testing.T, v variant, c *certificates) {
		addr, s := v.serve(t, c)
		var all sync.WaitGroup
		for range 3 {
			clients := v.dial(t, addr, c)
			all.Go(func() {
				checkApache(t, clients)
				checkUndeclared(t, clients.first)
			})
		}
		all.Wait()
		for range 3 {
			executed(t, s.OneWay, 42)
		}
	})
}

// same reports an error unless a call succeeded with the result that is wanted.
func same[T any](t *testing.T, method string, got T, err error, want T) {
	t.Helper()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v, %v, want %+v", method, got, err, want)
	}
}

// echoes reports an error unless a method returns its argument.
func echoes[T any](t *testing.T, name string, method func(context.Context, T) (T, error), values ...T) {
	t.Helper()
	for _, v := range values {
		got, err := method(t.Context(), v)
		same(t, name, got, err, v)
	}
}

func checkApache(t *testing.T, clients apacheClients) {
	c, ctx := clients.first, t.Context()
	if err := c.TestVoid(ctx); err != nil {
		t.Errorf("testVoid: %v", err)
	}
	echoes(t, "testString", c.TestString, "Test", "", strings.Repeat("x", 100_000), "ü\x00")
	echoes(t, "testBool", c.TestBool, true, false)
	echoes(t, "testByte", c.TestByte, 1, -1, math.MinInt8)
	echoes(t, "testI32", c.TestI32, -1, 0, math.MaxInt32, math.MinInt32)
	echoes(t, "testI64", c.TestI64, -34359738368, math.MaxInt64, math.MinInt64)
	echoes(t, "testDouble", c.TestDouble, -5.235098235, 0, math.Inf(1), math.MaxFloat64)
	echoes(t, "testBinary", c.TestBinary, []byte{}, []byte{0, 255})
	echoes(t, "testUuid", c.TestUuid, apache.Tuuid{1, 2, 15: 255}, apache.Tuuid{})
	five := &thrifttest.Xtruct{StringThing: "Zero", ByteThing: 1, I32Thing: -3, I64Thing: -5}
	echoes(t, "testStruct", c.TestStruct, five, &thrifttest.Xtruct{})
	echoes(t, "testNest", c.TestNest, &thrifttest.Xtruct2{ByteThing: 1, StructThing: five, I32Thing: 5})
	echoes(t, "testMap", c.TestMap, map[int32]int32{0: -10, 1: -9}, map[int32]int32{})
	echoes(t, "testStringMap", c.TestStringMap, map[string]string{"a": "2", "b": "blah"})
	echoes(t, "testList", c.TestList, []int32{-2, -1, 0, 1, 2}, []int32{})
	echoes(t, "testEnum", c.TestEnum, thrifttest.Numberz_ONE, thrifttest.Numberz_EIGHT)
	echoes(t, "testTypedef", c.TestTypedef, 309858235082523)
	echoes(t, "testEverything", c.TestEverything, everything())
	set, err := c.TestSet(ctx, []int32{-2, 5})
	slices.Sort(set)
	same(t, "testSet", set, err, []int32{-2, 5})
	maps, err := c.TestMapMap(ctx, 1)
	same(t, "testMapMap", maps, err, map[int32]map[int32]int32{4: {1: 1, 2: 2, 3: 3, 4: 4}, -4: {-1: -1, -2: -2, -3: -3, -4: -4}})
	insanity := &thrifttest.Insanity{UserMap: map[thrifttest.Numberz]thrifttest.UserId{5: 5, 8: 8}, Xtructs: []*thrifttest.Xtruct{five}}
	crazy, err := c.TestInsanity(ctx, insanity)
	if err != nil || !reflect.DeepEqual(crazy[1][2], insanity) || !reflect.DeepEqual(crazy[1][3], insanity) || crazy[2][6] == nil {
		t.Errorf("testInsanity: got %v, %v", crazy, err)
	}
	multi, err := c.TestMulti(ctx, 42, 4242, 424242, map[int16]string{1: "a"}, 2, 24)
	same(t, "testMulti", multi, err, &thrifttest.Xtruct{StringThing: "Hello2", ByteThing: 42, I32Thing: 4242, I64Thing: 424242})
	if err := c.TestOneway(ctx, 42); err != nil {
		t.Errorf("testOneway: %v", err)
	}
	checkExceptions(t, c)
	if clients.second != nil {
		text, err := clients.second.SecondtestString(ctx, "x")
		same(t, "secondtestString", text, err, `testString("x")`)
	}
}

// checkExceptions checks that declared exceptions arrive, and leave the connection usable.
func checkExceptions(t *testing.T, c *thrifttest.ThriftTestClient) {
	ctx := t.Context()
	var first *thrifttest.Xception
	if err := c.TestException(ctx, "Xception"); !errors.As(err, &first) || first.ErrorCode != 1001 || first.Message != "Xception" {
		t.Errorf("testException: got %v", err)
	}
	if err := c.TestException(ctx, "success"); err != nil {
		t.Errorf("testException: got %v", err)
	}
	if _, err := c.TestMultiException(ctx, "Xception", "x"); !errors.As(err, &first) || first.Message != "This is an Xception" {
		t.Errorf("testMultiException: got %v", err)
	}
	var second *thrifttest.Xception2
	if _, err := c.TestMultiException(ctx, "Xception2", "x"); !errors.As(err, &second) || second.ErrorCode != 2002 || second.StructThing.StringThing != "This is an Xception2" {
		t.Errorf("testMultiException: got %v", err)
	}
	got, err := c.TestMultiException(ctx, "success", "x")
	same(t, "testMultiException", got, err, &thrifttest.Xtruct{StringThing: "x"})
	echoes(t, "testString", c.TestString, "and on")
}

// checkUndeclared checks the errors that are not declared.
func checkUndeclared(t *testing.T, c *thrifttest.ThriftTestClient) {
	var other apache.TApplicationException
	if err := c.TestException(t.Context(), "TException"); !errors.As(err, &other) || other.TypeId() != apache.INTERNAL_ERROR || err.Error() != "an error that is not declared" {
		t.Errorf("testException: got %v", err)
	}
	_, err := c.Client_().Call(t.Context(), "nope", &thrifttest.ThriftTestTestStringArgs{Thing: "x"}, &thrifttest.ThriftTestTestStringResult{})
	if !errors.As(err, &other) || other.TypeId() != apache.UNKNOWN_METHOD {
		t.Errorf("nope: got %v", err)
	}
	echoes(t, "testString", c.TestString, "and on")
}
