// SPDX-License-Identifier: Apache-2.0

package reflection

import (
	_ "embed"
	"reflect"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/yodel-rpc/yodel"
)

// descriptors is the FileDescriptorSet of grpc/reflection/v1/reflection.proto, its version v1alpha
// and grpc/health/v1/health.proto. They are not in protoregistry.GlobalFiles, where those of
// package google.golang.org/grpc would conflict with them.
//
//go:embed descriptors.binpb
var descriptors []byte

// A files finds descriptions: generated ones, those of descriptors, and those that are made from
// the methods of the server.
type files struct {
	server *yodel.Server
	own    *protoregistry.Files
}

func newFiles(s *yodel.Server) (*files, error) {
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(descriptors, &set); err != nil {
		return nil, err
	}
	own, err := protodesc.NewFiles(&set)
	if err != nil {
		return nil, err
	}
	return &files{s, own}, nil
}

// A file is a description with the files that it imports.
type file struct {
	path    string
	content *descriptorpb.FileDescriptorProto
	imports []protoreflect.FileDescriptor
}

func fileOf(fd protoreflect.FileDescriptor) *file {
	f := &file{path: fd.Path(), content: protodesc.ToFileDescriptorProto(fd)}
	for i := range fd.Imports().Len() {
		f.imports = append(f.imports, fd.Imports().Get(i).FileDescriptor)
	}
	return f
}

// encode returns the file and all that it imports, except for those in sent, to which it adds them.
func (f *file) encode(sent map[string]bool) ([][]byte, error) {
	b, err := marshal(f.content)
	if err != nil {
		return nil, err
	}
	encoded := [][]byte{b} // also if it was sent, because the client asks for it
	sent[f.path] = true
	for _, imported := range f.imports {
		if sent[imported.Path()] || imported.IsPlaceholder() {
			continue
		}
		more, err := fileOf(imported).encode(sent)
		if err != nil {
			return nil, err
		}
		encoded = append(encoded, more...)
	}
	return encoded, nil
}

// named returns the file with a path.
func (f *files) named(path string) (*file, *yodel.Error) {
	for _, registry := range []*protoregistry.Files{protoregistry.GlobalFiles, f.own} {
		if fd, err := registry.FindFileByPath(path); err == nil {
			return fileOf(fd), nil
		}
	}
	if service, ok := strings.CutPrefix(path, madePrefix); ok {
		if made := f.make(strings.TrimSuffix(service, madeSuffix)); made != nil && made.path == path {
			return made, nil
		}
	}
	return nil, yodel.Errorf(yodel.NotFound, "the server has no file %.200q", path)
}

// containing returns the file with a symbol, for example a service, a method or a message.
func (f *files) containing(symbol string) (*file, *yodel.Error) {
	name := protoreflect.FullName(symbol)
	for _, registry := range []*protoregistry.Files{protoregistry.GlobalFiles, f.own} {
		if d, err := registry.FindDescriptorByName(name); err == nil {
			return fileOf(d.ParentFile()), nil
		}
	}
	services := f.server.Services()
	for _, service := range []string{symbol, string(name.Parent())} {
		if !slices.Contains(services, service) {
			continue
		}
		if made := f.make(service); made != nil {
			return made, nil
		}
		return nil, yodel.Errorf(yodel.NotFound, "no method of %.200q takes and returns generated messages, so it has no description", service)
	}
	return nil, yodel.Errorf(yodel.NotFound, "the server knows no symbol %.200q", symbol)
}

// extending returns the file with an extension of a message.
func extending(message string, number int64) (*file, *yodel.Error) {
	x, err := protoregistry.GlobalTypes.FindExtensionByNumber(protoreflect.FullName(message), protoreflect.FieldNumber(number)) //nolint:gosec // it was an int32
	if err != nil {
		return nil, yodel.Errorf(yodel.NotFound, "the server knows no extension %d of %.200q", number, message)
	}
	return fileOf(x.TypeDescriptor().ParentFile()), nil
}

// listExtensions sets the numbers of the extensions of a message in reply.
func listExtensions(message string, reply protoreflect.Message) *yodel.Error {
	name := protoreflect.FullName(message)
	if d, err := protoregistry.GlobalFiles.FindDescriptorByName(name); err != nil {
		return yodel.Errorf(yodel.NotFound, "the server knows no message %.200q", message)
	} else if _, ok := d.(protoreflect.MessageDescriptor); !ok {
		return yodel.Errorf(yodel.InvalidArgument, "%.200q is not a message", message)
	}
	var numbers []int32
	protoregistry.GlobalTypes.RangeExtensionsByMessage(name, func(x protoreflect.ExtensionType) bool {
		numbers = append(numbers, int32(x.TypeDescriptor().Number()))
		return true
	})
	slices.Sort(numbers)
	set(reply, "base_type_name", message)
	list := listOf(reply, "extension_number")
	for _, n := range numbers {
		list.Append(protoreflect.ValueOfInt32(n))
	}
	return nil
}

// The name of a file that make returns is that of its service between these two.
const madePrefix, madeSuffix = "yodel/", ".proto"

// make returns the description of a service that has none, from the types of its methods. It
// returns nil if no method has types of Protocol Buffers, or if the names of the service are not
// those of Protocol Buffers.
func (f *files) make(service string) *file {
	name := protoreflect.FullName(service)
	if !name.IsValid() {
		return nil
	}
	path := madePrefix + service + madeSuffix
	made := &file{path: path, content: &descriptorpb.FileDescriptorProto{
		Name: &path, Syntax: new("proto3"),
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: new(string(name.Name()))}},
	}}
	if p := string(name.Parent()); p != "" {
		made.content.Package = &p
	}
	for _, m := range f.server.Info().Methods {
		for _, full := range append([]string{m.Name}, m.Aliases...) {
			short := full[strings.LastIndexAny(full, "./")+1:]
			if len(full) != len(service)+1+len(short) || !strings.HasPrefix(full, service) || !protoreflect.Name(short).IsValid() {
				continue
			}
			if in, out := f.typesOf(full); in != nil && out != nil {
				made.add(short, m.Kind, in, out)
			}
		}
	}
	if made.content.GetService()[0].Method == nil {
		return nil
	}
	return made
}

// typesOf returns the messages of a method, or nil for those that have no description.
func (f *files) typesOf(method string) (in, out protoreflect.MessageDescriptor) {
	ins, outs := f.server.Types(method)
	if len(ins) != 1 || len(outs) != 1 {
		return nil, nil
	}
	return descriptorOf(ins[0]), descriptorOf(outs[0])
}

// descriptorOf returns the description of a type, or nil if it is no generated message.
func descriptorOf(t reflect.Type) protoreflect.MessageDescriptor {
	m, ok := reflect.TypeAssert[proto.Message](reflect.New(t))
	if !ok {
		return nil
	}
	return m.ProtoReflect().Descriptor()
}

// add adds a method to the service, and imports the files of its messages.
func (f *file) add(name, kind string, in, out protoreflect.MessageDescriptor) {
	service := f.content.GetService()[0]
	same := func(m *descriptorpb.MethodDescriptorProto) bool { return m.GetName() == name }
	if slices.ContainsFunc(service.GetMethod(), same) { // it is registered with both separators
		return
	}
	service.Method = append(service.GetMethod(), &descriptorpb.MethodDescriptorProto{
		Name: &name, InputType: new("." + string(in.FullName())), OutputType: new("." + string(out.FullName())),
		ClientStreaming: new(kind == "upload" || kind == "duplex"), ServerStreaming: new(kind == "feed" || kind == "duplex"),
	})
	for _, d := range []protoreflect.MessageDescriptor{in, out} {
		if path := d.ParentFile().Path(); !slices.Contains(f.content.GetDependency(), path) {
			f.content.Dependency = append(f.content.GetDependency(), path)
			f.imports = append(f.imports, d.ParentFile())
		}
	}
}
