// SPDX-License-Identifier: Apache-2.0

// Command generate writes the folder gen of this module again. It needs no protoc: it compiles the
// files itself and runs the generators of fixed versions. Run it in the folder of the module:
//
//	GOWORK=off go run ./generate
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	"github.com/yodel-rpc/yodel/conformance/gateway/protos"
)

const module = "github.com/yodel-rpc/yodel/conformance/gateway"

// A generator is a plug-in of protoc. The versions of those that go.mod names are from there.
type generator struct {
	program string
	files   []string // for which it generates code
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	all, err := protos.Compile(ctx, ".")
	if err != nil {
		return err
	}
	if err := os.RemoveAll("gen"); err != nil {
		return err
	}
	services := slices.DeleteFunc(slices.Clone(protos.Files), func(f string) bool { return !hasServices(all, f) })
	for _, g := range []generator{
		{"google.golang.org/protobuf/cmd/protoc-gen-go", protos.Files},
		{"google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2", services},
		{protos.Gateway + "/protoc-gen-grpc-gateway@v2.33.0", services},
	} {
		if err := g.run(ctx, all); err != nil {
			return fmt.Errorf("%s: %w", g.program, err)
		}
	}
	return nil
}

func hasServices(all []*descriptorpb.FileDescriptorProto, path string) bool {
	i := slices.IndexFunc(all, func(f *descriptorpb.FileDescriptorProto) bool { return f.GetName() == path })
	return len(all[i].GetService()) > 0
}

// run runs a generator and writes its files.
func (g generator) run(ctx context.Context, all []*descriptorpb.FileDescriptorProto) error {
	options := "module=" + module
	for _, path := range protos.Files {
		options += ",M" + path + "=" + module + "/gen/" + filepath.Base(filepath.Dir(path))
	}
	request, err := proto.Marshal(&pluginpb.CodeGeneratorRequest{FileToGenerate: g.files, Parameter: &options, ProtoFile: all})
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, "go", "run", g.program)
	command.Stdin, command.Stderr = bytes.NewReader(request), os.Stderr
	out, err := command.Output()
	if err != nil {
		return err
	}
	response := new(pluginpb.CodeGeneratorResponse)
	if err := proto.Unmarshal(out, response); err != nil {
		return err
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, path := range protos.Files {
		if err := document(filepath.Join("gen", filepath.Base(filepath.Dir(path)))); err != nil {
			return err
		}
	}
	for _, file := range response.GetFile() {
		path := file.GetName()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(strings.TrimRight(file.GetContent(), "\n")+"\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// document writes the comment of a package.
func document(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	name := filepath.Base(folder)
	text := fmt.Sprintf("// SPDX-License-Identifier: Apache-2.0\n\n// Package %s is what generate writes.\npackage %s\n", name, name)
	return os.WriteFile(filepath.Join(folder, "doc.go"), []byte(text), 0o644)
}
