// SPDX-License-Identifier: Apache-2.0

// Package protos compiles the .proto files whose services the tests call: those of the examples of
// grpc-gateway, from its own module, and shapes.proto, which has what they lack.
package protos

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	_ "github.com/grpc-ecosystem/grpc-gateway/v2/protoc-gen-openapiv2/options" // for imports
	_ "google.golang.org/genproto/googleapis/api/httpbody"                     // for imports
	_ "google.golang.org/genproto/googleapis/rpc/status"                       // for imports
)

// Gateway is the module of grpc-gateway.
const Gateway = "github.com/grpc-ecosystem/grpc-gateway/v2"

// examples is the folder of the examples in the module.
const examples = "examples/internal/proto/"

// Files are the paths of all files. Examples that serve only for documents of OpenAPI, and the one
// for the opaque API of Go, are not among them.
var Files = []string{
	examples + "oneofenum/oneof_enum.proto",
	examples + "pathenum/path_enum.proto",
	examples + "sub/camel_case_message.proto",
	examples + "sub/message.proto",
	examples + "sub2/message.proto",
	examples + "examplepb/a_bit_of_everything.proto",
	examples + "examplepb/camel_case_service.proto",
	examples + "examplepb/echo_service.proto",
	examples + "examplepb/enum_with_single_value.proto",
	examples + "examplepb/excess_body.proto",
	examples + "examplepb/flow_combination.proto",
	examples + "examplepb/non_standard_names.proto",
	examples + "examplepb/proto3_field_semantics.proto",
	examples + "examplepb/response_body_service.proto",
	examples + "examplepb/stream.proto",
	examples + "examplepb/wrappers.proto",
	"shapes/shapes.proto",
}

// Compile returns the files and all that they import, each after what it imports. Options for tools
// are left out: of the extensions of options, google.api.http alone remains. Folder is that of this
// module.
func Compile(ctx context.Context, folder string) ([]*descriptorpb.FileDescriptorProto, error) {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", Gateway)
	list.Dir, list.Env = folder, append(os.Environ(), "GOWORK=off")
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("find the module %s: %w", Gateway, err)
	}
	sources := &protocompile.SourceResolver{ImportPaths: []string{strings.TrimSpace(string(out)), filepath.Join(folder, "protos")}}
	compiler := protocompile.Compiler{
		Resolver: protocompile.WithStandardImports(protocompile.CompositeResolver{sources, protocompile.ResolverFunc(registered)}),
	}
	compiled, err := compiler.Compile(ctx, Files...)
	if err != nil {
		return nil, err
	}
	var all []*descriptorpb.FileDescriptorProto
	done := make(map[string]bool)
	var add func(file protoreflect.FileDescriptor) error
	add = func(file protoreflect.FileDescriptor) error {
		if done[file.Path()] {
			return nil
		}
		done[file.Path()] = true
		described, err := stripped(file)
		if err != nil {
			return err
		}
		for i := range file.Imports().Len() {
			if in := file.Imports().Get(i); slices.Contains(described.GetDependency(), in.Path()) {
				if err := add(in.FileDescriptor); err != nil {
					return err
				}
			}
		}
		all = append(all, described)
		return nil
	}
	for _, file := range compiled {
		if err := add(file); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// registered finds a file that is linked into this program.
func registered(path string) (protocompile.SearchResult, error) {
	file, err := protoregistry.GlobalFiles.FindFileByPath(path)
	if err != nil {
		return protocompile.SearchResult{}, err
	}
	return protocompile.SearchResult{Desc: file}, nil
}

// stripped returns a file without the options for tools, and without the imports that only they
// need. Files of other projects remain as they are.
func stripped(file protoreflect.FileDescriptor) (*descriptorpb.FileDescriptorProto, error) {
	// The options of a compiled file are dynamic messages.
	b, err := proto.Marshal(protodesc.ToFileDescriptorProto(file))
	if err != nil {
		return nil, err
	}
	described := new(descriptorpb.FileDescriptorProto)
	if err := proto.Unmarshal(b, described); err != nil {
		return nil, err
	}
	if !slices.Contains(Files, file.Path()) {
		return described, nil
	}
	strip(described.ProtoReflect())
	described.Dependency = slices.DeleteFunc(described.Dependency, func(path string) bool {
		switch path {
		case "google/api/field_behavior.proto", "google/api/client.proto", "protoc-gen-openapiv2/options/annotations.proto":
			return true
		}
		return false
	})
	return described, nil
}

// strip removes the extensions of all options but google.api.http.
func strip(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsExtension() && f.FullName() != annotations.E_Http.TypeDescriptor().FullName() && f.ParentFile().Package() != "pb":
			m.Clear(f)
		case f.Message() != nil && f.IsList():
			for i := range v.List().Len() {
				strip(v.List().Get(i).Message())
			}
		case f.Message() != nil && !f.IsMap():
			strip(v.Message())
		}
		return true
	})
}
