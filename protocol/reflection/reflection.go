// SPDX-License-Identifier: Apache-2.0

// Package reflection tells clients of gRPC the services and messages of a yodel server. With it,
// grpcurl, grpcui, ghz and Postman call the server without .proto files:
//
//	s := yodel.NewServer(&yodel.ServerOptions{Codecs: []yodel.Codec{protobuf.Codec}, Protocols: []yodel.Protocol{http.New(nil)}})
//	err := reflection.Register(s)
//
// All services of the server are listed, except the built-in one. A service is described if one of
// these holds:
//
//   - Its .proto file was generated and is linked into the program. That includes the services of
//     package protocol/grpcgo.
//   - Some of its methods take and return messages that protoc-gen-go generated. The description
//     then has these methods. It leaves out methods with other types, such as plain structs, because
//     Protocol Buffers cannot describe them.
//   - It is the health protocol, or the service of this package.
//
// The clients learn about all generated messages that are linked into the program, also if no
// method takes them.
package reflection

import (
	"context"
	"errors"
	"io"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/yodel-rpc/yodel"
)

// Register registers the services grpc.reflection.v1.ServerReflection and
// grpc.reflection.v1alpha.ServerReflection, which differ only in name. The server needs a codec
// "protobuf" that takes generated messages: that of package codec/protobuf, or
// pbstruct.With(protobuf.Codec). With pbstruct.Codec alone, calls of the services fail. Calls pass
// through the server's middleware, which can refuse callers. Register fails if a method is
// registered already.
func Register(s *yodel.Server) error {
	files, err := newFiles(s)
	if err != nil {
		return err
	}
	var errs []error
	for _, version := range []protoreflect.FullName{"grpc.reflection.v1", "grpc.reflection.v1alpha"} {
		reply, err := files.own.FindDescriptorByName(version + ".ServerReflectionResponse")
		if err != nil {
			return err
		}
		d := dialect{files: files, reply: reply.(protoreflect.MessageDescriptor)} //nolint:forcetypeassert // it is a message
		d.request = d.reply.Fields().ByName("original_request").Message()
		errs = append(errs, s.HandleStream(string(version)+".ServerReflection/ServerReflectionInfo", "duplex", d.serve))
	}
	return errors.Join(errs...)
}

// A dialect is a version of the protocol.
type dialect struct {
	files          *files
	request, reply protoreflect.MessageDescriptor
}

// serve answers the requests of a stream. It sends each file once.
func (d dialect) serve(_ context.Context, _ *yodel.Call, recv, send func(any) error) error {
	sent := make(map[string]bool)
	for {
		request := dynamicpb.NewMessage(d.request)
		if err := recv(request); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		reply := dynamicpb.NewMessage(d.reply)
		set(reply, "valid_host", request.Get(d.request.Fields().ByName("host")).String())
		set(reply, "original_request", request)
		if err := d.answer(request, reply, sent); err != nil {
			e := childOf(reply, "error_response")
			set(e, "error_code", int32(err.Code))
			set(e, "error_message", err.Message)
		}
		if err := send(reply.Interface()); err != nil {
			return err
		}
	}
}

// answer sets the answer of a request in reply.
func (d dialect) answer(request, reply protoreflect.Message, sent map[string]bool) *yodel.Error {
	asked := request.WhichOneof(d.request.Oneofs().ByName("message_request"))
	if asked == nil {
		return yodel.Errorf(yodel.InvalidArgument, "the request asks for nothing that the server knows")
	}
	var file *file
	var err *yodel.Error
	switch value := request.Get(asked); asked.Name() {
	case "list_services":
		d.listServices(childOf(reply, "list_services_response"))
		return nil
	case "all_extension_numbers_of_type":
		return listExtensions(value.String(), childOf(reply, "all_extension_numbers_response"))
	case "file_by_filename":
		file, err = d.files.named(value.String())
	case "file_containing_symbol":
		file, err = d.files.containing(value.String())
	case "file_containing_extension":
		extension := value.Message()
		fields := extension.Descriptor().Fields()
		file, err = extending(extension.Get(fields.ByName("containing_type")).String(), extension.Get(fields.ByName("extension_number")).Int())
	}
	if err != nil {
		return err
	}
	encoded, failed := file.encode(sent)
	if failed != nil {
		return yodel.Errorf(yodel.Internal, "%v", failed)
	}
	list := listOf(childOf(reply, "file_descriptor_response"), "file_descriptor_proto")
	for _, b := range encoded {
		list.Append(protoreflect.ValueOfBytes(b))
	}
	return nil
}

func (d dialect) listServices(reply protoreflect.Message) {
	list := listOf(reply, "service")
	for _, name := range d.files.server.Services() {
		service := list.AppendMutable().Message()
		set(service, "name", name)
	}
}

// set sets a field of m.
func set(m protoreflect.Message, name protoreflect.Name, value any) {
	if child, ok := value.(protoreflect.ProtoMessage); ok {
		value = child.ProtoReflect()
	}
	m.Set(m.Descriptor().Fields().ByName(name), protoreflect.ValueOf(value))
}

// childOf sets a field to an empty message, and returns that.
func childOf(m protoreflect.Message, name protoreflect.Name) protoreflect.Message {
	return m.Mutable(m.Descriptor().Fields().ByName(name)).Message()
}

// listOf returns a repeated field.
func listOf(m protoreflect.Message, name protoreflect.Name) protoreflect.List {
	return m.Mutable(m.Descriptor().Fields().ByName(name)).List()
}

// marshal encodes a message. The same message always has the same bytes.
func marshal(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}
