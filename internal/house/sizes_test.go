// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"go/ast"
	"path"
	"strings"
	"testing"
)

// A size is a number that must not grow without a decision. The list is the only place where a
// bound can change.
type size struct {
	of    string
	most  int     // the bound; lower it when the size has become smaller
	grown []grown // later bounds, each with its reason; the last one counts
	count func(t tree) int
}

// grown is a bound that was raised.
type grown struct {
	most int
	why  string // what is worth the growth, and why it cannot be elsewhere
}

// sizes are the bounds of today's sizes. To raise one, add to grown. When a size has become
// smaller, lower most and drop grown.
var sizes = []size{
	{of: "lines of the root, without tests", most: 9500, count: linesOf(".")},
	{of: "lines of internal/mux, without tests", most: 7998, count: linesOf("internal/mux")},
	{of: "Go files in the folder of the root, with tests", most: 66, count: filesOf(".")},
	{of: "files of the root that reach into Call.out or another field of this name", most: 8, count: filesWith(".", "out")},
	{of: "methods of Call", most: 49, count: methodsOf(".", "Call")},
	{of: "methods of Server", most: 58, count: methodsOf(".", "Server")},
	{of: "exported names of the root", most: 50, count: namesOf(".")},
}

// maxInternalNames is how many names a package in a folder internal may export without a bound of
// its own. Those in internalNames have one.
const maxInternalNames = 5

// internalNames are the bounds of packages with more exported names.
var internalNames = []size{
	internal("internal/announcer", 8),
	// the identifiers of errors; those of packages reason, pipe, reply, ordered, body and
	// registered came out of the root, where they need no name, as did those of metadata, source
	// and keyscope; one is the trait of errors whose texts name types of the program
	internal("internal/catalogue", 71), // the last one, Waited, is a trait that the client decides by: decision 0104
	internal("internal/diagnose", 16),  // one function for each form of introspect, its bounds, and the names of codes; with the counters of an endpoint, the list of connections and the name of the program, which the root had
	internal("internal/endpoints", 6),
	internal("internal/fields", 6),
	internal("internal/firstbytes", 6), // with the choice of a protocol that the root had
	internal("internal/gobwire", 24),   // the types of an encoding
	internal("internal/h2", 14),        // one connection, its handler, the forms of its fields, and the error that tells a dropped reply from a client that has gone
	internal("internal/hessian", 14),
	internal("internal/keyscope", 8), // with the decision whether a call may be sent again, and its error, which the root had
	internal("internal/live", 12),
	internal("internal/memory", 8), // an account, a share without one, and what is kept of an account for the next requests
	internal("internal/metadata", 6),
	internal("internal/methods", 6),  // with the bindings that the root had
	internal("internal/monotime", 6), // with the conversion to wall-clock time that the root had
	internal("internal/mux", 48),     // a connection, with its memory and its quota
	internal("internal/nesting", 8),
	internal("internal/opencalls", 7),   // a call, the calls of a connection, and the log lines of a shutdown
	internal("internal/pipe", 9),        // a stream of messages, its caller's side, and what a program checks of each message
	internal("internal/realserver", 35), // one function for each server of the tests
	internal("internal/reason", 12),     // with what a call says about itself, the ends of connections, and the streams of a server, which the root had
	internal("internal/readstate", 8),   // the states of a reading
	internal("internal/record", 9),      // with the progress of a call and its last attempt, which the root had
	internal("internal/reflectcall", 8),
	internal("internal/registered", 10), // a method, its name on a connection, the reasons why the name is wrong, and functions that become methods
	internal("internal/reuse", 6),       // with the groups of contexts that the root had
	internal("internal/samples", 9),     // with what a trace context says, and the samplers that keep a record, which the root had
	internal("internal/session", 6),     // with a call and its terms, which the root had
	internal("internal/socket", 10),     // what systems do differently, which no caller should know; with the reads of internal/h2
	internal("internal/serve", 6),       // with the name of a transport for the log, which the root had
	internal("internal/source", 6),      // with the wait for the first instances, which the root had
	internal("internal/stats", 9),       // the last one says which durations are latencies, for package live too
	internal("internal/thriftwire", 39), // the types of an encoding
	internal("internal/unpack", 8),
	internal("internal/values", 6),
	internal("internal/wire", 84),              // the frames of the native protocol
	internal("protocol/internal/framebody", 9), // reading, skipping, refusing and freeing a body, which eight protocols share
	internal("protocol/internal/httpwire", 42), // the headers and statuses of four protocols
	internal("protocol/internal/jsonrpc", 12),
	internal("protocol/internal/linkerror", 10), // one function for each error of a Link
	internal("protocol/internal/rpcxwire", 16),  // the frames of a protocol
	internal("registry/internal/dubborecord", 13),
}

// bound returns the bound of a size, and what is wrong with its entry in the list.
func (s size) bound() (most int, faults []string) {
	most = s.most
	for _, g := range s.grown {
		if g.most <= most {
			faults = append(faults, fmt.Sprintf("%s: grown to %d is not above %d: lower most instead", s.of, g.most, most))
		}
		if len(strings.Fields(g.why)) < 4 {
			faults = append(faults, fmt.Sprintf("%s: the bound %d has no reason: say what is worth the growth", s.of, g.most))
		}
		most = g.most
	}
	return most, faults
}

// faults holds a size to its bound. A bound may be 2 % above the size, so that not each change has
// to lower it.
func (s size) faults(t tree) []string {
	most, faults := s.bound()
	n := s.count(t)
	switch {
	case n > most:
		faults = append(faults, fmt.Sprintf("%s: %d, the bound is %d: make it smaller, or raise the bound in sizes_test.go and say why", s.of, n, most))
	case most > n+n/50:
		faults = append(faults, fmt.Sprintf("%s: %d, the bound is %d: lower the bound to %d", s.of, n, most, n))
	}
	return faults
}

func TestSizesKeepTheirBounds(t *testing.T) {
	all := readRepository(t)
	for _, s := range append(sizes, internalNames...) {
		report(t, s.faults(all))
	}
	report(t, internalFaults(all))
}

// internalFaults holds the packages in folders internal that have no bound of their own to
// maxInternalNames. Generated code for tests, and what peers need, has none.
func internalFaults(t tree) (faults []string) {
	for _, in := range t.folders {
		own := strings.Contains("/"+in.path, "/internal/") && isReleased(in.path) && !strings.HasPrefix(path.Base(in.path), "test")
		for _, s := range internalNames {
			own = own && s.of != namesIn(in.path)
		}
		if n := len(exportedNames(in)); own && n > maxInternalNames {
			faults = append(faults, fmt.Sprintf("%s exports %d names, the limit is %d", in.path, n, maxInternalNames))
		}
	}
	return faults
}

func namesIn(path string) string { return "exported names of " + path }

// internal returns the bound of a package with many names.
func internal(path string, most int) size {
	return size{of: namesIn(path), most: most, count: namesOf(path)}
}

// sum returns a function that adds up what count returns for the files of a folder.
func sum(path string, count func(goFile) int) func(tree) int {
	return func(t tree) (n int) {
		for _, in := range t.folders {
			if in.path != path {
				continue
			}
			for _, file := range in.files {
				n += count(file)
			}
		}
		return n
	}
}

func product(count func(goFile) int) func(goFile) int {
	return func(f goFile) int {
		if f.isTest() {
			return 0
		}
		return count(f)
	}
}

func linesOf(folder string) func(tree) int {
	return sum(folder, product(func(f goFile) int { return strings.Count(f.text, "\n") }))
}

func filesOf(path string) func(tree) int { return sum(path, func(goFile) int { return 1 }) }

// filesWith counts the files that select a field.
func filesWith(path, field string) func(tree) int {
	return sum(path, product(func(f goFile) (n int) {
		ast.Inspect(f.ast, func(node ast.Node) bool {
			if s, ok := node.(*ast.SelectorExpr); ok && s.Sel.Name == field {
				n = 1
			}
			return n == 0
		})
		return n
	}))
}

func methodsOf(path, receiver string) func(tree) int {
	return sum(path, product(func(f goFile) (n int) {
		for _, decl := range f.ast.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv != nil && receiverOf(fn) == receiver {
				n++
			}
		}
		return n
	}))
}

// receiverOf returns the name of the type that has a method.
func receiverOf(fn *ast.FuncDecl) string {
	of := fn.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	name, _ := of.(*ast.Ident)
	if name == nil {
		return "" // a generic type
	}
	return name.Name
}

func namesOf(path string) func(tree) int {
	return func(t tree) int {
		for _, in := range t.folders {
			if in.path == path {
				return len(exportedNames(in))
			}
		}
		return 0
	}
}

func TestSizesCatchGrowth(t *testing.T) {
	counting := func(n int) func(tree) int { return func(tree) int { return n } }
	reason := "a new registry has to be told of it"
	for _, test := range []struct {
		size size
		want string
	}{
		{size{most: 1000, count: counting(1000)}, "[]"},
		{size{most: 1000, count: counting(981)}, "[]"},
		{size{most: 1000, count: counting(1001)}, "[: 1001, the bound is 1000: make it smaller, or raise the bound in sizes_test.go and say why]"},
		{size{most: 1000, count: counting(900)}, "[: 900, the bound is 1000: lower the bound to 900]"},
		{size{most: 10, count: counting(9)}, "[: 9, the bound is 10: lower the bound to 9]"},
		{size{most: 1000, grown: []grown{{1050, reason}}, count: counting(1050)}, "[]"},
		{size{most: 1000, grown: []grown{{1050, ""}}, count: counting(1050)}, "[: the bound 1050 has no reason: say what is worth the growth]"},
		{size{most: 1000, grown: []grown{{990, reason}}, count: counting(990)}, "[: grown to 990 is not above 1000: lower most instead]"},
	} {
		if got := fmt.Sprint(test.size.faults(tree{})); got != test.want {
			t.Errorf("%+v:\n got %s\nwant %s", test.size.grown, got, test.want)
		}
	}
	in := tree{folders: []folder{folderOf(t, ".", map[string]string{
		"a.go":      "package a\n\ntype Call struct{ out int }\n\nfunc (c *Call) A() int { return c.out }\n",
		"b.go":      "package a\n\nfunc (c Call) b() {}\n\nfunc (t *T[int]) c() {}\n",
		"b_test.go": "package a\n\nfunc (c Call) Test() int { return c.out }\n",
	})}}
	for name, got := range map[string][2]int{
		"lines": {linesOf(".")(in), 10}, "files": {filesOf(".")(in), 3}, "files with a field": {filesWith(".", "out")(in), 1},
		"methods": {methodsOf(".", "Call")(in), 2}, "names": {namesOf(".")(in), 1},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: got %d, want %d", name, got[0], got[1])
		}
	}
}
