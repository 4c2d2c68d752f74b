// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	codec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/discovery"
	protocol "github.com/yodel-rpc/yodel/protocol/thrift"

	"github.com/yodel-rpc/yodel/conformance/thrift/service"
)

// A yodel client calls an unchanged Apache server.
func TestApacheServer(t *testing.T) {
	variants(t, func(t *testing.T, v variant, c *certificates) {
		if v.old { // a Wire does not send it
			t.Skip("a Wire sends only the strict form")
		}
		h := &handler{make(chan int32, 10)}
		client := v.calling(t, c, v.serveApache(t, c, h))
		checkYodel(t, client, "an error that is not declared")
		checkEverything(t, client)
		if v.multiplexed {
			var got string
			err := client.Call(t.Context(), "SecondService.secondtestString", new("x"), &got)
			same(t, "secondtestString", got, err, `testString("x")`)
		}
		executed(t, h.oneWay, 1)
	})
}

// returns reports an error unless a method of Thrift returns a value.
func returns[T any](t *testing.T, c *yodel.Client, method string, want T, args ...any) {
	t.Helper()
	var got T
	err := c.Call(t.Context(), "ThriftTest."+method, yodel.Values(args), yodel.Values{&got})
	same(t, method, got, err, want)
}

// checkYodel calls the methods of the cross test. Undeclared is the text of an exception that is
// not declared.
func checkYodel(t *testing.T, c *yodel.Client, undeclared string) {
	if err := c.Call(t.Context(), "ThriftTest.testVoid", yodel.Values{}, yodel.Values{}); err != nil {
		t.Errorf("testVoid: %v", err)
	}
	if err := c.Call(t.Context(), "ThriftTest.testVoid", &struct{}{}, &struct{}{}); err != nil {
		t.Errorf("testVoid: %v", err)
	}
	for _, v := range []string{"", "Test", strings.Repeat("x", 100_000)} {
		returns(t, c, "testString", v, v)
	}
	returns(t, c, "testBool", true, true)
	returns(t, c, "testBool", false, false)
	returns(t, c, "testByte", int8(-1), int8(-1))
	returns(t, c, "testI32", int32(-1), int32(-1))
	returns(t, c, "testI64", int64(-34359738368), int64(-34359738368))
	returns(t, c, "testDouble", -5.235, -5.235)
	returns(t, c, "testBinary", []byte{0, 255}, []byte{0, 255})
	returns(t, c, "testUuid", [16]byte{1, 2, 15: 255}, [16]byte{1, 2, 15: 255})
	returns(t, c, "testStringMap", map[string]string{"a": "2", "": "blah"}, map[string]string{"a": "2", "": "blah"})
	returns(t, c, "testTypedef", service.UserID(309858235082523), service.UserID(309858235082523))
	returns(t, c, "testMap", map[int32]int32{1: -9}, map[int32]int32{1: -9})
	returns(t, c, "testSet", map[int32]struct{}{5: {}}, map[int32]struct{}{5: {}})
	returns(t, c, "testList", []int32{1, 2}, []int32{1, 2})
	returns(t, c, "testEnum", service.Numberz(5), service.Numberz(5))
	returns(t, c, "testMapMap", map[int32]map[int32]int32{4: {1: 1, 2: 2, 3: 3, 4: 4}, -4: {-1: -1, -2: -2, -3: -3, -4: -4}}, int32(1))
	five := service.Xtruct{StringThing: "Zero", ByteThing: 1, I32Thing: -3, I64Thing: -5}
	returns(t, c, "testStruct", five, five)
	returns(t, c, "testNest", service.Xtruct2{StructThing: &five}, service.Xtruct2{StructThing: &five})
	returns(t, c, "testMulti", service.Xtruct{StringThing: "Hello2", ByteThing: 1, I32Thing: 2, I64Thing: 3}, int8(1), int32(2), int64(3), map[int16]string{1: "a"}, service.Numberz(1), service.UserID(2))
	insanity := service.Insanity{UserMap: map[service.Numberz]service.UserID{5: 5}, Xtructs: []*service.Xtruct{&five}}
	var crazy map[service.UserID]map[service.Numberz]service.Insanity
	if err := c.Call(t.Context(), "ThriftTest.testInsanity", &insanity, &crazy); err != nil || !reflect.DeepEqual(crazy[1][3], insanity) {
		t.Errorf("testInsanity: got %v, %v", crazy, err)
	}
	if err := c.Notify(t.Context(), "ThriftTest.testOneway", new(int32(1))); err != nil {
		t.Errorf("testOneway: %v", err)
	}
	checkYodelErrors(t, c, undeclared)
}

// checkEverything calls a method that Apache's cross test does not have.
func checkEverything(t *testing.T, c *yodel.Client) {
	five := service.Xtruct{StringThing: "Zero", ByteThing: 1, I32Thing: -3, I64Thing: -5}
	all := &service.Everything{
		Yes: true, Tiny: -1, Short: -2, Medium: 3, Wide: 4, Real: 5, Text: "six", Data: []byte{7}, Number: 8, Thing: &five, Flags: []bool{true, false},
		Numbers: make([]int32, 20), Names: map[string]struct{}{"a": {}}, Things: map[string][]service.Xtruct{"x": {five}}, Sets: map[service.Numberz]map[int32]struct{}{2: {7: {}}},
		Maps: []map[int16]float64{{-3: 2.5}}, Choice: &service.Choice{Text: new("choice")}, Maybe: new(int32(0)), Perhaps: new(true), Needed: "needed", Far: 1, Empty: []service.Xtruct{},
	}
	for range 3 {
		got := new(service.Everything)
		err := c.Call(t.Context(), "ThriftTest.testEverything", all, got)
		same(t, "testEverything", got, err, all)
	}
}

func checkYodelErrors(t *testing.T, c *yodel.Client, undeclared string) {
	call := func(method string, args ...any) error {
		return c.Call(t.Context(), "ThriftTest."+method, yodel.Values(args), yodel.Values{new(service.Xtruct)})
	}
	var first *service.Xception
	if err := c.Call(t.Context(), "ThriftTest.testException", yodel.Values{"Xception"}, yodel.Values{}); !errors.As(err, &first) || first.ErrorCode != 1001 {
		t.Errorf("testException: got %v", err)
	}
	if err := call("testMultiException", "Xception", "x"); !errors.As(err, &first) || first.Message != "This is an Xception" {
		t.Errorf("testMultiException: got %v", err)
	}
	var second *service.Xception2
	if err := call("testMultiException", "Xception2", "x"); !errors.As(err, &second) || second.StructThing.StringThing != "This is an Xception2" {
		t.Errorf("testMultiException: got %v", err)
	}
	if err := call("testException", "TException"); yodel.CodeOf(err) != yodel.Unknown || !strings.HasSuffix(err.Error(), undeclared) {
		t.Errorf("testException: got %v", err)
	}
	if err := call("testNothing"); yodel.CodeOf(err) != yodel.Unimplemented || !yodel.NotProcessed(err) {
		t.Errorf("testNothing: got %v", err)
	}
	returns(t, c, "testString", "and on", "and on") // a oneway call before this may keep the server busy
}

// A client calls Apache's servers and yodel's servers at the same time.
func TestMixedFleet(t *testing.T) {
	t.Attr("rerun", "never")
	v, keys := variant{framed: true}, newCertificates(t)
	old := v.serveApache(t, keys, &handler{make(chan int32, 1)})
	server, _, err := service.NewServer(&yodel.ServerOptions{Logger: slog.New(slog.DiscardHandler)}, &protocol.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const method yodel.Method[service.Xtruct, service.Xtruct] = "ThriftTest.testStruct"
	method.Handle(server, func(_ context.Context, in *service.Xtruct) (*service.Xtruct, error) {
		return &service.Xtruct{StringThing: in.StringThing, ByteThing: 1}, nil
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	client := yodel.NewClient(discovery.Static("thrift://"+old, l.Addr().String()), &yodel.ClientOptions{
		Codec: codec.Codec, Wires: []yodel.Wire{protocol.Wire(codec.Codec, &protocol.WireOptions{Service: "ThriftTest"})},
	})
	t.Cleanup(client.Close)
	answered := make(map[int8]int)
	for range 10 {
		got, err := method.Call(t.Context(), client, &service.Xtruct{StringThing: "x"})
		if err != nil || got.StringThing != "x" {
			t.Fatalf("got %v, %v", got, err)
		}
		answered[got.ByteThing]++
	}
	if answered[0] != 5 || answered[1] != 5 {
		t.Errorf("Apache's server answered %d calls and yodel's %d, want 5 each", answered[0], answered[1])
	}
}
