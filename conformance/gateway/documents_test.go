// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/yodel-rpc/yodel/conformance/gateway/protos"
)

const repository = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repository, filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The table in the document has the differences that the test of both servers allows, and no
// others.
func TestDocumentHasTheDifferences(t *testing.T) {
	const heading = "\n## What differs from grpc-gateway\n"
	_, section, found := strings.Cut(read(t, "docs/migrate/grpc.md"), heading)
	if !found {
		t.Fatalf("there is no section %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var rows [][4]string
	for line := range strings.SplitSeq(section, "\n") {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if !strings.HasPrefix(line, "|") || len(cells) != 4 {
			continue
		}
		var row [4]string
		for i, cell := range cells {
			row[i] = strings.TrimSpace(cell)
		}
		rows = append(rows, row)
	}
	if len(rows) < 2 {
		t.Fatalf("the table has the rows %q", rows)
	}
	rows = rows[2:] // without the head
	for _, d := range differences {
		if !slices.Contains(rows, d.row) {
			t.Errorf("the document lacks the row:\n| %s |", strings.Join(d.row[:], " | "))
		}
	}
	for _, row := range rows {
		if !slices.ContainsFunc(differences, func(d difference) bool { return d.row == row }) {
			t.Errorf("the test does not allow the difference: | %s |", strings.Join(row[:], " | "))
		}
	}
}

// A difference that no generated request shows has a test elsewhere.
func TestOtherDifferencesHaveTests(t *testing.T) {
	for _, d := range differences {
		if d.is != nil {
			continue
		}
		path, name, _ := strings.Cut(d.test, " ")
		if path == "" || !strings.Contains(read(t, path), "\nfunc "+name+"(t *testing.T)") {
			t.Errorf("%s: there is no test %q", d.row[0], d.test)
		}
	}
}

// The generated code is that of the .proto files in the module of grpc-gateway.
func TestGeneratedCodeHasTheFilesOfTheModule(t *testing.T) {
	all, err := protos.Compile(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, want := range all {
		if !slices.Contains(protos.Files, want.GetName()) {
			continue
		}
		compared++
		linked, err := protoregistry.GlobalFiles.FindFileByPath(want.GetName())
		if err != nil {
			t.Error(err)
			continue
		}
		got := protodesc.ToFileDescriptorProto(linked)
		want.SourceCodeInfo = nil
		if !proto.Equal(got, want) {
			t.Errorf("%s: generate the code again: go run ./generate", want.GetName())
		}
	}
	if compared != len(protos.Files) {
		t.Errorf("compared %d of %d files", compared, len(protos.Files))
	}
}
