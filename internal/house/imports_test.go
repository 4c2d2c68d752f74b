// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Imports point one way: programs → plug-ins → root → internal → standard library.
//
// What is third party is not restricted where it is allowed at all: the go.mod of the module lists
// it.
var layers = map[string]struct {
	may        []string // the layers that a package of this one may import
	thirdParty bool
	rule       string
}{
	"below":     {[]string{"internal"}, false, "packages below the root import only internal/* and the standard library"},
	"root":      {[]string{"internal", "below"}, false, "the root imports only internal/*, the packages below it and the standard library"},
	"internal":  {[]string{"internal", "below"}, false, "internal/* imports only internal/*, the packages below the root and the standard library"},
	"yodeltest": {[]string{"root", "below"}, false, "yodeltest imports only the root and the standard library"},
	"plug-in":   {[]string{"root", "below"}, true, "plug-ins import only the root"},
	"compound":  {[]string{"root", "below", "plug-in"}, false, "compounds of plug-ins import only plug-ins and the root"},
	"program":   {[]string{"root", "below", "plug-in", "compound", "yodeltest", "program"}, true, "programs import what users can"},
	"measure":   {[]string{"root", "below", "internal", "plug-in", "compound", "yodeltest", "measure"}, true, "nothing imports a program"},
}

// The layers of the folders at the top. A folder that is not listed is a plug-in or a family of
// them.
var layerOfFolder = map[string]string{
	".":           "root",
	"internal":    "internal",
	"yodeltest":   "yodeltest",
	"cmd":         "program",
	"console":     "program",
	"examples":    "program",
	"recommended": "compound",
	"rules":       "compound",
	"conformance": "measure", // may look into internal/*
	"bench":       "measure",
}

// These folders have types that the root shares with its plug-ins.
var belowRoot = []string{"codec/raw", "compress", "criticality", "discovery", "introspect"}

// Every folder in one of these is a plug-in of its own, except internal, which is what several of
// them share, as is the package of the family itself.
var families = []string{"accept", "codec", "compress", "middleware", "protocol", "registry", "transport"}

// These packages of internal may be imported by what the plug-ins of a family share, because they
// know nothing of calls: package registry and the internal folders of the families. A plug-in may
// not import them.
var forFamilies = []string{"internal/isolate", "internal/nearest", "internal/spares"}

// These packages of internal may be imported by any plug-in. Each reads an encoding that plug-ins
// of several families read, or is for all codecs: internal/nesting and internal/carries refuse
// values that would exhaust the stack or not arrive as they were sent, internal/room bounds the
// memory of decoding, internal/memory counts memory, and internal/panics carries panics of a
// message's own code. Internal/defaults bounds options. Internal/halt lets middleware cancel calls
// without a channel. Internal/grpcstatus, internal/badrequest and internal/protowire read errors.
// Internal/unread carries the records that registries cannot read. Internal/h2 serves the
// connections of protocol/http, which share a Watch of internal/inline.
var forPlugins = []string{"internal/badrequest", "internal/carries", "internal/defaults", "internal/gobwire", "internal/grpcstatus", "internal/h2", "internal/halt", "internal/hessian", "internal/inline", "internal/memory", "internal/nesting", "internal/panics", "internal/protowire", "internal/room", "internal/schema", "internal/thriftwire", "internal/unread"}

// These packages of internal may be imported by the parts of this repository that read what people
// write: the command and the compounds.
var forReaders = []string{"internal/nearest"}

// These packages of internal test servers and clients. The tests of the others import neither the
// root nor yodeltest, which would be compiled again for each of them.
var testsOfCalls = []string{"internal/samples", "internal/torture"}

func layerOf(folder string) string {
	if slices.Contains(belowRoot, folder) {
		return "below"
	}
	top, _, _ := strings.Cut(folder, "/")
	if layer, ok := layerOfFolder[top]; ok {
		return layer
	}
	return "plug-in"
}

// unitOf returns what folder is a part of. Packages of one unit may import each other.
func unitOf(folder string) string {
	top, rest, _ := strings.Cut(folder, "/")
	if !slices.Contains(families, top) || rest == "" {
		return top
	}
	second, _, _ := strings.Cut(rest, "/")
	return top + "/" + second
}

// sharedBy reports whether folder is a part of the family of plug-ins that another folder is in,
// and no plug-in itself.
func sharedBy(folder, plugin string) bool {
	top, _, _ := strings.Cut(plugin, "/")
	return slices.Contains(families, top) && (folder == top || unitOf(folder) == top+"/internal")
}

// isShared reports whether folder is a part of a family of plug-ins, and no plug-in itself.
func isShared(folder string) bool {
	top, _, _ := strings.Cut(folder, "/")
	return sharedBy(folder, top)
}

// importFault says what is wrong with the package in a folder importing a path; "" is nothing.
func importFault(folder, imported string) string {
	layer := layers[layerOf(folder)]
	to, ours := folderOfImport(imported)
	switch {
	case ours && (unitOf(folder) == unitOf(to) || sharedBy(to, folder) || slices.Contains(layer.may, layerOf(to))):
		return ""
	case layerOf(folder) == "plug-in" && slices.Contains(forPlugins, to):
		return ""
	case (unitOf(folder) == "cmd" || layerOf(folder) == "compound") && slices.Contains(forReaders, to):
		return ""
	case isShared(folder) && slices.Contains(forFamilies, to):
		return ""
	case layerOf(folder) == "yodeltest" && to == "internal/leak": // which the tests of internal/* use without yodeltest
		return ""
	case !ours && (layer.thirdParty || isStandard(imported)):
		return ""
	}
	return fmt.Sprintf("%s imports %s: %s", called(folder), called(to), layer.rule)
}

func called(folder string) string {
	if folder == "." {
		return "the root"
	}
	return folder
}

// folderOfImport returns the folder that an import path names, or the path itself when it is not
// ours.
func folderOfImport(imported string) (folder string, ours bool) {
	if imported == module {
		return ".", true
	}
	folder, ours = strings.CutPrefix(imported, module+"/")
	return folder, ours
}

func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// importFaults holds a package to the direction of imports. The tests of a package above internal/*
// may import anything.
func importFaults(in folder) []string {
	var faults []string
	for _, file := range in.files {
		if file.isTest() {
			above := imports(file, module) || imports(file, module+"/yodeltest")
			if above && layerOf(in.path) == "internal" && !slices.Contains(testsOfCalls, in.path) {
				faults = append(faults, file.path+" imports the root: the tests of internal/* import what is below the root")
			}
			continue
		}
		for _, spec := range file.ast.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				faults = append(faults, fmt.Sprintf("%s: import path %s: %v", file.path, spec.Path.Value, err))
			} else if fault := importFault(in.path, imported); fault != "" {
				faults = append(faults, fault)
			}
		}
	}
	return faults
}

func TestImportsPointOneWay(t *testing.T) {
	for _, in := range readRepository(t).folders {
		report(t, importFaults(in))
	}
}

func TestImportRuleCatchesViolations(t *testing.T) {
	tests := []struct{ from, imported, want string }{
		{".", module + "/internal/mux", ""},
		{".", "net/http", ""},
		{".", module + "/codec/json", "the root imports codec/json: the root imports only internal/*, the packages below it and the standard library"},
		{".", "golang.org/x/net/http2", "the root imports golang.org/x/net/http2: the root imports only internal/*, the packages below it and the standard library"},
		{"internal/mux", module + "/internal/wire", ""},
		{"internal/mux", module, "internal/mux imports the root: internal/* imports only internal/*, the packages below the root and the standard library"},
		{"internal/mux", "golang.org/x/sys/unix", "internal/mux imports golang.org/x/sys/unix: internal/* imports only internal/*, the packages below the root and the standard library"},
		{"internal/schema", module + "/introspect", ""},
		{"introspect", module, "introspect imports the root: packages below the root import only internal/* and the standard library"},
		{"middleware/retry", module, ""},
		{"middleware/retry", "math/rand/v2", ""},
		{"middleware/retry", module + "/middleware/timeout", "middleware/retry imports middleware/timeout: plug-ins import only the root"},
		{"middleware/retry", module + "/internal/wire", "middleware/retry imports internal/wire: plug-ins import only the root"},
		{"middleware/retry", module + "/yodeltest", "middleware/retry imports yodeltest: plug-ins import only the root"},
		{"protocol/grpc", module + "/protocol/grpc/internal/hpack", ""},
		{"protocol/grpc", module + "/protocol/grpcweb", "protocol/grpc imports protocol/grpcweb: plug-ins import only the root"},
		{"compress/gzip", module + "/compress/internal/flating", ""},
		{"compress/internal/flating", module, ""},
		{"compress/internal/flating", module + "/compress/gzip", "compress/internal/flating imports compress/gzip: plug-ins import only the root"},
		{"codec/gob", module + "/compress/internal/flating", "codec/gob imports compress/internal/flating: plug-ins import only the root"},
		{"registry/etcd", module + "/registry", ""},
		{"registry", module + "/registry/etcd", "registry imports registry/etcd: plug-ins import only the root"},
		{"registry", module + "/internal/isolate", ""},
		{"registry", module + "/internal/mux", "registry imports internal/mux: plug-ins import only the root"},
		{"registry/etcd", module + "/internal/isolate", "registry/etcd imports internal/isolate: plug-ins import only the root"},
		{"middleware/internal/aside", module + "/internal/isolate", ""},
		{"middleware/retry", module + "/internal/isolate", "middleware/retry imports internal/isolate: plug-ins import only the root"},
		{"codec/gob", module + "/internal/gobwire", ""},
		{"protocol/netrpc", module + "/internal/gobwire", ""},
		{"examples/hello", module + "/internal/gobwire", "examples/hello imports internal/gobwire: programs import what users can"},
		{"balance", module + "/internal/isolate", "balance imports internal/isolate: plug-ins import only the root"},
		{"codec/protobuf", "google.golang.org/protobuf/proto", ""},
		{"balance", module + "/balance/internal/ring", ""},
		{"balance", module + "/registry/memory", "balance imports registry/memory: plug-ins import only the root"},
		{"actor", module + "/examples/hello", "actor imports examples/hello: plug-ins import only the root"},
		{"yodeltest", module, ""},
		{"yodeltest", module + "/transport/mem", "yodeltest imports transport/mem: yodeltest imports only the root and the standard library"},
		{"yodeltest", "github.com/google/go-cmp/cmp", "yodeltest imports github.com/google/go-cmp/cmp: yodeltest imports only the root and the standard library"},
		{"examples/hello/server", module + "/examples/hello", ""},
		{"examples/hello/server", module + "/middleware/retry", ""},
		{"examples/hello/server", module + "/internal/wire", "examples/hello/server imports internal/wire: programs import what users can"},
		{"cmd/yodel", module + "/console", ""},
		{"cmd/yodel", module + "/rules", ""},
		{"cmd/yodel", module + "/internal/nearest", ""},
		{"cmd/yodel", module + "/internal/wire", "cmd/yodel imports internal/wire: programs import what users can"},
		{"rules", module + "/middleware/retry", ""},
		{"rules", module + "/internal/nearest", ""},
		{"examples/hello", module + "/internal/nearest", "examples/hello imports internal/nearest: programs import what users can"},
		{"middleware/retry", module + "/rules", "middleware/retry imports rules: plug-ins import only the root"},
		{"conformance/runner", module + "/internal/wire", ""},
	}
	for _, test := range tests {
		if got := importFault(test.from, test.imported); got != test.want {
			t.Errorf("importFault(%q, %q)\n got %q\nwant %q", test.from, test.imported, got, test.want)
		}
	}
}

func TestImportRuleLeavesTestsFree(t *testing.T) {
	retry := `import "` + module + `/middleware/timeout"`
	in := folderOf(t, "middleware/retry", map[string]string{
		"retry.go":      "package retry\n" + retry,
		"retry_test.go": "package retry_test\n" + retry,
	})
	if got := importFaults(in); len(got) != 1 {
		t.Errorf("got faults %q, want one, for retry.go", got)
	}
	below := folderOf(t, "internal/wire", map[string]string{"wire_test.go": "package wire_test\nimport \"" + module + "/yodeltest\""})
	if got := importFaults(below); len(got) != 1 {
		t.Errorf("got faults %q, want one, for the test of internal/wire", got)
	}
}
