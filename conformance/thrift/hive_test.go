// SPDX-License-Identifier: Apache-2.0

package thrift_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	apache "github.com/apache/thrift/lib/go/thrift"
	hive "github.com/beltran/gohive/hive_metastore"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/apachethrift"
	codec "github.com/yodel-rpc/yodel/codec/thrift"
	"github.com/yodel-rpc/yodel/discovery"
	protocol "github.com/yodel-rpc/yodel/protocol/thrift"
)

// This file serves Hive's metastore, a public service whose methods have names in snake case, with
// the code that Apache's compiler generated for a client of it.

// A stub stands for the handler of a generated service. It is the generated client, which
// implements the interface of the handler, over this TClient.
type stub struct {
	mu      sync.Mutex
	answer  func(result reflect.Value) error // result is nil for a oneway method
	called  map[string]bool
	args    any
	oneWays chan struct{}
}

// Call implements apache.TClient. It keeps the arguments and fills in the result.
func (s *stub) Call(_ context.Context, method string, args, result apache.TStruct) (apache.ResponseMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called[method] = true
	s.args = args
	if result == nil {
		s.oneWays <- struct{}{}
		return apache.ResponseMeta{}, nil
	}
	return apache.ResponseMeta{}, s.answer(reflect.ValueOf(result).Elem())
}

func (s *stub) answers(answer func(reflect.Value) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// got returns the arguments of the last call, without the types of the fields.
func (s *stub) got() (args []any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.args == nil { // it was not called
		return []any{"nothing"}
	}
	for _, v := range reflect.ValueOf(s.args).Elem().Fields() {
		args = append(args, v.Interface())
	}
	return args
}

// fill sets all of v to values that are not zero.
func fill(v reflect.Value, n int) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		_, union := v.Addr().Type().MethodByName("CountSetFields" + v.Type().Name())
		for i := range v.NumField() {
			fill(v.Field(i), n+i+1)
			if union {
				return
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), n)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n)
		fill(value, n+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprint("text ", n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(float64(n) + 0.5)
	case reflect.Uint8:
		v.SetUint(uint64(n%255 + 1))
	default:
		v.SetInt(int64(n%100 + 1))
	}
}

// each calls all methods of service, a generated client whose handler is s, and checks that
// arguments, results, declared exceptions and other errors arrive as they were.
func (s *stub) each(t *testing.T, service reflect.Value, handler reflect.Type) (methods, exceptions int) {
	t.Helper()
	for m := range handler.Methods() {
		in := []reflect.Value{reflect.ValueOf(t.Context())}
		var sent []any
		for i := 1; i < m.Type.NumIn(); i++ {
			arg := reflect.New(m.Type.In(i)).Elem()
			fill(arg, i)
			in, sent = append(in, arg), append(sent, arg.Interface())
		}
		call := func() (result any, err error) {
			out := service.MethodByName(m.Name).Call(in)
			err, _ = reflect.TypeAssert[error](out[len(out)-1])
			if len(out) > 1 {
				result = out[0].Interface()
			}
			return result, err
		}
		var want any
		var fields []int // of the exceptions
		oneWay := true
		s.answers(func(result reflect.Value) error {
			oneWay, fields = false, nil
			for i, f := range reflect.VisibleFields(result.Type()) {
				if f.Name != "Success" {
					fields = append(fields, i)
					continue
				}
				fill(result.Field(i), 50)
				if want = result.Field(i).Interface(); m.Type.Out(0).Kind() != f.Type.Kind() {
					want = result.Field(i).Elem().Interface()
				}
			}
			return nil
		})
		got, err := call()
		if len(s.oneWays) > 0 || m.Type.NumOut() == 1 && oneWay {
			<-s.oneWays
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", m.Name, got, err, want)
		}
		if args := s.got(); !reflect.DeepEqual(args, sent) {
			t.Errorf("%s: the handler got %+v, want %+v", m.Name, args, sent)
		}
		methods++
		for _, i := range fields {
			var thrown any
			s.answers(func(result reflect.Value) error {
				fill(result.Field(i), 70)
				thrown = result.Field(i).Interface()
				return nil
			})
			if _, err := call(); !reflect.DeepEqual(err, thrown) {
				t.Errorf("%s: got %v, want the exception %v", m.Name, err, thrown)
			}
			exceptions++
		}
		if oneWay {
			continue
		}
		s.answers(func(reflect.Value) error { return errors.New("an error that is not declared") })
		if _, err := call(); err == nil || !strings.Contains(err.Error(), "an error that is not declared") {
			t.Errorf("%s: got %v, want the error of the handler", m.Name, err)
		}
	}
	return methods, exceptions
}

func TestHiveMetastore(t *testing.T) {
	s := &stub{called: make(map[string]bool), oneWays: make(chan struct{}, 1)}
	processor := hive.NewThriftHiveMetastoreProcessor(hive.NewThriftHiveMetastoreClient(s))
	server := yodel.NewServer(&yodel.ServerOptions{
		Codecs:    []yodel.Codec{codec.Codec, codec.Compact},
		Protocols: []yodel.Protocol{protocol.New(&protocol.Options{Service: "ThriftHiveMetastore"})},
		Logger:    slog.New(slog.DiscardHandler),
	})
	if err := apachethrift.Register(server, "ThriftHiveMetastore", processor); err != nil {
		t.Fatal(err)
	}
	addr := variant{}.listen(t, nil, server)
	handler := reflect.TypeFor[hive.ThriftHiveMetastore]()
	check := func(t *testing.T, client apache.TClient) {
		t.Helper()
		clear(s.called)
		methods, exceptions := s.each(t, reflect.ValueOf(hive.NewThriftHiveMetastoreClient(client)), handler)
		want := slices.Sorted(maps.Keys(processor.ProcessorMap()))
		if got := slices.Sorted(maps.Keys(s.called)); !slices.Equal(got, want) || methods != len(want) {
			t.Errorf("%d methods were called, as %q, want %q", methods, got, want)
		}
		t.Logf("%d methods, %d exceptions", methods, exceptions)
	}
	for _, v := range []variant{{}, {framed: true}, {compact: true, framed: true}, {compact: true}} {
		t.Run(v.String(), func(t *testing.T) { check(t, v.dialOne(t, addr)) })
	}
	for _, own := range []yodel.Codec{apachethrift.New(codec.Codec), apachethrift.New(codec.Compact)} {
		t.Run("yodel "+own.Name(), func(t *testing.T) {
			c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{Codec: own})
			defer c.Close()
			check(t, apachethrift.Client(c, own, "ThriftHiveMetastore"))
		})
	}
}

// dialOne returns Apache's client of a server.
func (v variant) dialOne(t *testing.T, addr string) apache.TClient {
	t.Helper()
	config := v.config(&certificates{})
	transport, err := v.transports(config).GetTransport(apache.NewTSocketConf(addr, config))
	if err == nil {
		err = transport.Open()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = transport.Close() })
	p := v.protocols(config).GetProtocol(transport)
	return apache.NewTStandardClient(p, p)
}
