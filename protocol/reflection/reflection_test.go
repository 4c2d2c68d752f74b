// SPDX-License-Identifier: Apache-2.0

package reflection

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	_ "google.golang.org/protobuf/types/gofeaturespb" // has an extension
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// A codec is the codec "protobuf". For a client it decodes replies.
type codec struct {
	reply protoreflect.MessageDescriptor
}

func (*codec) Name() string { return "protobuf" }

func (*codec) Append(dst []byte, v any) ([]byte, error) {
	if p, ok := v.(**dynamicpb.Message); ok {
		v = *p
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, v.(proto.Message))
}

func (c *codec) Decode(src []byte, v any) error {
	if p, ok := v.(**dynamicpb.Message); ok {
		*p = dynamicpb.NewMessage(c.reply)
		v = *p
	}
	return proto.Unmarshal(src, v.(proto.Message))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type (
	text     = wrapperspb.StringValue
	duration = durationpb.Duration
	plain    struct{ Text string }
)

// start starts a server, and returns a function that asks it.
func start(t testing.TB) func(t testing.TB, version, field string, value any) []*dynamicpb.Message {
	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{new(codec)}, Logger: slog.New(slog.DiscardHandler)})
	unary := func(name string) {
		yodel.Method[text, duration](name).Handle(s, func(context.Context, *text) (*duration, error) { return nil, nil })
	}
	unary("shop.Cart/Add")
	unary("shop.Cart.Add")
	unary("shop.Cart.not-a-name")
	unary("Hello.Greet")
	unary("not-a-name.Greet")
	must(t, s.Alias("shop.Cart/Add", "shop.Cart/Insert"))
	yodel.Feed[text, duration]("shop.Cart.Watch").Handle(s, func(context.Context, *text, yodel.Send[duration]) error { return nil })
	yodel.Upload[text, duration]("shop.Cart.Load").Handle(s, func(context.Context, yodel.Recv[text]) (*duration, error) { return nil, nil })
	yodel.Duplex[text, duration]("shop.Cart.Talk").Handle(s, func(context.Context, yodel.Recv[text], yodel.Send[duration]) error { return nil })
	yodel.Method[plain, text]("shop.Cart.Plain").Handle(s, func(context.Context, *plain) (*text, error) { return nil, nil })
	yodel.Method[plain, plain]("Plain.Plain").Handle(s, func(context.Context, *plain) (*plain, error) { return nil, nil })
	must(t, Register(s))
	files, err := newFiles(s)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		must(t, <-ended)
	})
	replies := new(codec)
	c := yodel.NewClient(discovery.Static(l.Addr().String()), &yodel.ClientOptions{Codec: replies})
	t.Cleanup(c.Close)
	return func(t testing.TB, version, field string, value any) (answers []*dynamicpb.Message) {
		d, err := files.own.FindDescriptorByName(protoreflect.FullName("grpc.reflection." + version + ".ServerReflectionResponse"))
		must(t, err)
		replies.reply = d.(protoreflect.MessageDescriptor)
		request := dynamicpb.NewMessage(replies.reply.Fields().ByName("original_request").Message())
		set(request, "host", "a host")
		switch {
		case field == "file_containing_extension":
			extension := childOf(request, "file_containing_extension")
			set(extension, "containing_type", value)
			set(extension, "extension_number", int32(1002))
		case field != "":
			set(request, protoreflect.Name(field), value)
		}
		method := yodel.Duplex[*dynamicpb.Message, *dynamicpb.Message]("grpc.reflection." + version + ".ServerReflection/ServerReflectionInfo")
		must(t, method.Call(t.Context(), c, func(recv yodel.Recv[*dynamicpb.Message], send yodel.Send[*dynamicpb.Message]) error {
			for range 2 {
				if err := send(&request); err != nil {
					return err
				}
				reply, err := recv.Next()
				if err != nil {
					return err
				}
				answers = append(answers, *reply)
			}
			return nil
		}))
		for _, reply := range answers {
			if host := reply.Get(replies.reply.Fields().ByName("valid_host")).String(); host != "a host" {
				t.Errorf("the host is %q", host)
			}
			if echo := reply.Get(replies.reply.Fields().ByName("original_request")).Message().Interface(); !proto.Equal(echo, request) {
				t.Errorf("the request of the reply is %v, want %v", echo, request)
			}
		}
		return answers
	}
}

// describe returns the files of a reply.
func describe(reply *dynamicpb.Message) (paths []string, set *descriptorpb.FileDescriptorSet, err error) {
	set = new(descriptorpb.FileDescriptorSet)
	list := listOf(childOf(reply, "file_descriptor_response"), "file_descriptor_proto")
	for i := range list.Len() {
		var f descriptorpb.FileDescriptorProto
		if err := proto.Unmarshal(list.Get(i).Bytes(), &f); err != nil {
			return nil, nil, err
		}
		paths, set.File = append(paths, f.GetName()), append(set.File, &f)
	}
	return paths, set, nil
}

func TestListServices(t *testing.T) {
	ask := start(t)
	for _, version := range []string{"v1", "v1alpha"} {
		var names []string
		list := listOf(childOf(ask(t, version, "list_services", "")[0], "list_services_response"), "service")
		for i := range list.Len() {
			service := list.Get(i).Message()
			names = append(names, service.Get(service.Descriptor().Fields().ByName("name")).String())
		}
		want := "Hello Plain grpc.reflection.v1.ServerReflection grpc.reflection.v1alpha.ServerReflection not-a-name shop.Cart"
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: got %s\nwant %s", version, got, want)
		}
	}
}

// A service without a description gets one from the types of its methods, without those that
// Protocol Buffers cannot describe.
func TestDescriptionOfMethods(t *testing.T) {
	ask := start(t)
	for _, question := range []struct{ field, value string }{
		{"file_containing_symbol", "shop.Cart"}, {"file_containing_symbol", "shop.Cart.Add"}, {"file_by_filename", "yodel/shop.Cart.proto"},
	} {
		replies := ask(t, "v1", question.field, question.value)
		paths, set, err := describe(replies[0])
		must(t, err)
		if got := strings.Join(paths, " "); got != "yodel/shop.Cart.proto google/protobuf/wrappers.proto google/protobuf/duration.proto" {
			t.Fatalf("%v: got the files %s", question, got)
		}
		if paths, _, _ = describe(replies[1]); len(paths) != 1 {
			t.Errorf("%v: the files were sent twice: %v", question, paths)
		}
		files, err := protodesc.NewFiles(set)
		must(t, err)
		d, err := files.FindDescriptorByName("shop.Cart")
		must(t, err)
		var methods []string
		for i := range d.(protoreflect.ServiceDescriptor).Methods().Len() {
			m := d.(protoreflect.ServiceDescriptor).Methods().Get(i)
			methods = append(methods, fmt.Sprintf("%s(%t %s) (%t %s)", m.Name(), m.IsStreamingClient(), m.Input().Name(), m.IsStreamingServer(), m.Output().Name()))
		}
		slices.Sort(methods)
		const in, stream, out, outStream = "(false StringValue) ", "(true StringValue) ", "(false Duration)", "(true Duration)"
		want := "Add" + in + out + ", Insert" + in + out + ", Load" + stream + out + ", Talk" + stream + outStream + ", Watch" + in + outStream
		if got := strings.Join(methods, ", "); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// Generated descriptions, those of the package and extensions are found.
func TestDescriptionsThatExist(t *testing.T) {
	ask := start(t)
	for _, test := range []struct{ field, value, path string }{
		{"file_containing_symbol", "google.protobuf.StringValue.value", "google/protobuf/wrappers.proto"},
		{"file_by_filename", "google/protobuf/wrappers.proto", "google/protobuf/wrappers.proto"},
		{"file_containing_symbol", "Hello.Greet", "yodel/Hello.proto"},
		{"file_containing_symbol", "grpc.health.v1.Health", "grpc/health/v1/health.proto"},
		{"file_containing_symbol", "grpc.reflection.v1.ServerReflection", "grpc/reflection/v1/reflection.proto"},
		{"file_by_filename", "grpc/reflection/v1alpha/reflection.proto", "grpc/reflection/v1alpha/reflection.proto"},
		{"file_containing_extension", "google.protobuf.FeatureSet", "google/protobuf/go_features.proto"},
	} {
		paths, _, err := describe(ask(t, "v1alpha", test.field, test.value)[0])
		if must(t, err); len(paths) == 0 || paths[0] != test.path {
			t.Errorf("%s %s: got %v, want %s", test.field, test.value, paths, test.path)
		}
	}
	reply := ask(t, "v1", "all_extension_numbers_of_type", "google.protobuf.FeatureSet")[0]
	if numbers := listOf(childOf(reply, "all_extension_numbers_response"), "extension_number"); numbers.Len() != 1 || numbers.Get(0).Int() != 1002 {
		t.Errorf("the extensions: got %v", reply)
	}
}

// What cannot be described is an error of its request, and the stream goes on.
func TestNoDescription(t *testing.T) {
	ask := start(t)
	for _, test := range []struct {
		field, value string
		code         yodel.Code
	}{
		{"file_containing_symbol", "Plain", yodel.NotFound},
		{"file_containing_symbol", "Plain.Plain", yodel.NotFound},
		{"file_containing_symbol", "not-a-name", yodel.NotFound},
		{"file_containing_symbol", "no.Service", yodel.NotFound},
		{"file_containing_symbol", "", yodel.NotFound},
		{"file_by_filename", "no.proto", yodel.NotFound},
		{"file_by_filename", "yodel/no.proto", yodel.NotFound},
		{"file_containing_extension", "google.protobuf.StringValue", yodel.NotFound},
		{"all_extension_numbers_of_type", "no.Message", yodel.NotFound},
		{"all_extension_numbers_of_type", "google.protobuf.StringValue.value", yodel.InvalidArgument},
		{"", "", yodel.InvalidArgument},
	} {
		for _, reply := range ask(t, "v1", test.field, test.value) {
			e := childOf(reply, "error_response")
			if code := e.Get(e.Descriptor().Fields().ByName("error_code")).Int(); code != int64(test.code) {
				t.Errorf("%s %q: got %v, want %v", test.field, test.value, e, test.code)
			}
		}
	}
}

func TestRegisterOnce(t *testing.T) {
	s := yodel.NewServer(nil)
	must(t, Register(s))
	if err := Register(s); err == nil {
		t.Error("no error")
	}
}

// Whatever a client asks for, it gets files that belong together, or an error.
func FuzzSymbol(f *testing.F) {
	for _, seed := range []string{"shop.Cart", "Plain", "yodel/shop.Cart.proto", "google/protobuf/wrappers.proto", "google.protobuf.FeatureSet", ".", "a..b", "\xff"} {
		f.Add(seed)
	}
	ask := start(f)
	f.Fuzz(func(t *testing.T, name string) {
		name = strings.ToValidUTF8(name, "?") // protobuf refuses to encode others
		for _, field := range []string{"file_containing_symbol", "file_by_filename", "file_containing_extension", "all_extension_numbers_of_type"} {
			paths, set, err := describe(ask(t, "v1", field, name)[0])
			must(t, err)
			if len(paths) > 0 {
				if _, err = protodesc.NewFiles(set); err != nil {
					t.Errorf("%s %q: %v", field, name, err)
				}
			}
		}
	})
}
