// SPDX-License-Identifier: Apache-2.0

package house

import (
	"fmt"
	"go/ast"
	"go/types"
	"regexp"
	"testing"
)

// wrapped are the types of the fields that make a Resolver or a Registrar a wrapper.
var wrapped = regexp.MustCompile(`^(\[\])?(discovery\.)?(Resolver|Registrar)$`)

// unseen are the wrappers that no client and no server gets.
var unseen = map[string]bool{
	"guardedRegistrar": true, // between a server and its Registrar, which the server asks itself
	"follower":         true, // a suite of tests
}

// hidingFaults returns the wrappers of Resolvers and Registrars whose method Describe is missing,
// or does not pass on what the inner one describes.
func hidingFaults(in folder) (faults []string) {
	holds, acts, describes := make(map[string]string), make(map[string]bool), make(map[string]bool)
	for _, f := range in.files {
		if f.isTest() {
			continue
		}
		ast.Inspect(f.ast, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.TypeSpec:
				if s, ok := node.Type.(*ast.StructType); ok && holdsWrapped(s) {
					holds[node.Name.Name] = f.path
				}
			case *ast.FuncDecl:
				if node.Recv == nil {
					break
				}
				switch node.Name.Name {
				case "Watch", "Announce":
					acts[receiverOf(node)] = true
				case "Describe":
					describes[receiverOf(node)] = callsOver(node)
				}
			}
			return true
		})
	}
	for name, path := range holds {
		if acts[name] && !describes[name] && !unseen[name] {
			faults = append(faults, fmt.Sprintf("%s: %s wraps another one and hides what it can do: add a method Describe that returns Description{}.Over(inner)", path, name))
		}
	}
	return faults
}

func holdsWrapped(s *ast.StructType) bool {
	for _, field := range s.Fields.List {
		if wrapped.MatchString(types.ExprString(field.Type)) {
			return true
		}
	}
	return false
}

func callsOver(fn *ast.FuncDecl) (calls bool) {
	ast.Inspect(fn, func(node ast.Node) bool {
		if s, ok := node.(*ast.SelectorExpr); ok && s.Sel.Name == "Over" {
			calls = true
		}
		return !calls
	})
	return calls
}

func TestWrappersOfResolversHideNothing(t *testing.T) {
	for _, in := range readRepository(t).folders {
		report(t, hidingFaults(in))
	}
}

func TestWrappersThatHideAreFound(t *testing.T) {
	const watch = "\nfunc (w w) Watch() {}\n"
	for name, test := range map[string]struct {
		text   string
		faults int
	}{
		"embedded":              {"package a\n\ntype w struct{ discovery.Resolver }\n" + watch, 1},
		"several":               {"package a\n\ntype w struct{ of []discovery.Resolver }\n" + watch, 1},
		"without Over":          {"package a\n\ntype w struct{ of discovery.Resolver }\n" + watch + "\nfunc (w *w) Describe() {}\n", 1},
		"with Over":             {"package a\n\ntype w struct{ of discovery.Resolver }\n" + watch + "\nfunc (w *w) Describe() { D.Over(w.of) }\n", 0},
		"a registrar":           {"package a\n\ntype w struct{ of Registrar }\n\nfunc (w w) Announce() {}\n", 1},
		"a holder that is none": {"package a\n\ntype w struct{ of discovery.Resolver }\n", 0},
		"a resolver of its own": {"package a\n\ntype w struct{ of *Registry }\n" + watch, 0},
	} {
		if got := hidingFaults(folderOf(t, "a", map[string]string{"a.go": test.text})); len(got) != test.faults {
			t.Errorf("%s: got %q, want %d faults", name, got, test.faults)
		}
	}
}
