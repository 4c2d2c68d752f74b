// SPDX-License-Identifier: Apache-2.0

package house

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/locks.md lists the locks and the order in which they are taken. TestThePageHasEveryLock
// finds the locks in the code. TestLocksAreTakenInTheOrderOfThePage runs tests of the product in a
// build whose mutexes record the order (testdata/lockorder), and compares.
const locksPage = "docs/locks.md"

var (
	recordLocks = flag.Bool("locks", false, "record in which order the tests of -locks.of take locks")
	recordOf    = flag.String("locks.of", ". ./internal/mux ./internal/session ./protocol/http ./rules ./console ./inspect/fleet", "packages whose tests -locks runs")
	recordRun   = flag.String("locks.run", ".", "the tests that -locks runs")
)

// A lock is a field of a struct that is a mutex.
type lock struct {
	folder, owner, field string
	file                 goFile
	at, end              int // the type's place in the file
	kind                 string
}

func (l lock) name() string { return l.owner + "." + l.field }

// hasPagedLocks reports whether the locks of a folder stand on the page.
func hasPagedLocks(folder string) bool {
	switch folder {
	case ".", "rules", "console", "inspect/fleet":
		return true
	case "internal/await", "internal/gate", "internal/house", "internal/realserver":
		return false // they are for tests
	}
	return strings.HasPrefix(folder, "internal/")
}

// locksOf returns the locks of the product that stand on the page.
func locksOf(all tree) (locks []lock) {
	for _, in := range all.folders {
		for _, file := range in.files {
			if !hasPagedLocks(in.path) || file.isTest() {
				continue
			}
			ast.Inspect(file.ast, func(node ast.Node) bool {
				spec, ok := node.(*ast.TypeSpec)
				if !ok {
					return true
				}
				if fields, ok := spec.Type.(*ast.StructType); ok {
					locks = append(locks, locksIn(in.path, file, spec.Name.Name, fields)...)
				}
				return true
			})
		}
	}
	return locks
}

// fieldsOf returns the fields of all structs of the product, with and without their folder.
func fieldsOf(all tree) map[string]bool {
	names := make(map[string]bool)
	for _, in := range all.folders {
		for _, file := range in.files {
			if file.isTest() {
				continue
			}
			for node := range ast.Preorder(file.ast) {
				spec, ok := node.(*ast.TypeSpec)
				if !ok {
					continue
				}
				of, _ := spec.Type.(*ast.StructType)
				for _, name := range fieldNames(of) {
					names[spec.Name.Name+"."+name], names[in.path+" "+spec.Name.Name+"."+name] = true, true
				}
			}
		}
	}
	return names
}

// fieldNames returns the names of the fields of a struct, which may be nil. An embedded type of
// another package is named as the type.
func fieldNames(of *ast.StructType) (names []string) {
	if of == nil {
		return nil
	}
	for _, field := range of.Fields.List {
		for _, name := range field.Names {
			names = append(names, name.Name)
		}
		if embedded, ok := field.Type.(*ast.SelectorExpr); ok && len(field.Names) == 0 {
			names = append(names, embedded.Sel.Name)
		}
	}
	return names
}

func locksIn(folder string, file goFile, owner string, fields *ast.StructType) (locks []lock) {
	for _, field := range fields.Fields.List {
		of, ok := field.Type.(*ast.SelectorExpr)
		if !ok || fmt.Sprint(of.X) != "sync" || of.Sel.Name != "Mutex" && of.Sel.Name != "RWMutex" {
			continue
		}
		start := int(file.ast.FileStart)
		l := lock{folder, owner, of.Sel.Name, file, int(of.Pos()) - start, int(of.End()) - start, of.Sel.Name}
		if len(field.Names) > 0 {
			l.field = field.Names[0].Name
		}
		locks = append(locks, l)
	}
	return locks
}

var (
	lockCode = regexp.MustCompile("`([A-Za-z]+\\.[A-Za-z]+)`")
	lockLink = regexp.MustCompile(`\]\(\.\./([a-z0-9/]+)\)`)
)

// lockNames returns the locks that a cell of the page names: with the folder in front, if the cell
// has a link to a package.
func lockNames(cell string) (names []string) {
	folder := ""
	if link := lockLink.FindStringSubmatch(cell); link != nil {
		folder = link[1] + " "
	}
	for _, code := range lockCode.FindAllStringSubmatch(cell, -1) {
		names = append(names, folder+code[1])
	}
	return names
}

// A lockPage is what the page says.
type lockPage struct {
	locks map[string]bool
	order map[[2]string]bool
}

// readLockPage reads the tables of the page. In a table of locks the first column has the names. In
// the table of the order, a lock of the first column is held while one of the second is taken.
func readLockPage(text string) lockPage {
	p := lockPage{make(map[string]bool), make(map[[2]string]bool)}
	columns := ""
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch {
		case !strings.HasPrefix(line, "|"):
			columns = ""
		case columns == "":
			columns = strings.TrimSpace(cells[0])
		case columns == "Lock" && len(cells) > 1:
			for _, name := range lockNames(cells[0]) {
				p.locks[name] = true
			}
		case columns == "Held" && len(cells) > 1:
			for _, held := range lockNames(cells[0]) {
				for _, taken := range lockNames(cells[1]) {
					p.order[[2]string{p.listed(held), p.listed(taken)}] = true
				}
			}
		}
	}
	p.chain()
	return p
}

// listed returns the name under which a lock is listed: with its folder, if only one package has a
// lock of this name.
func (p lockPage) listed(name string) string {
	if p.locks[name] {
		return name
	}
	for other := range p.locks {
		if strings.HasSuffix(other, " "+name) {
			return other
		}
	}
	return name
}

// chain adds the pairs that follow from others. If A may be held while B is taken, and B while C is
// taken, then A may be held while C is taken.
func (p lockPage) chain() {
	for grown := true; grown; {
		grown = false
		for a := range p.order {
			for b := range p.order {
				if pair := [2]string{a[0], b[1]}; a[1] == b[0] && !p.order[pair] {
					p.order[pair], grown = true, true
				}
			}
		}
	}
}

// idOf returns the name of a lock on the page. A lock of the root, of internal/mux, of rules, of
// the console or of a fleet may stand there without its folder.
func (p lockPage) idOf(l lock) (id string, listed bool) {
	if id = l.folder + " " + l.name(); p.locks[id] {
		return id, true
	}
	return l.name(), p.locks[l.name()] && (!strings.HasPrefix(l.folder, "internal/") || l.folder == "internal/mux")
}

// faults returns the locks that the page lacks, those that it lists and that are not among the
// fields of the code, and those that can be taken in a circle. A lock may be a channel.
func (p lockPage) faults(locks []lock, fields map[string]bool) (faults []string) {
	for pair := range p.order {
		if pair[0] == pair[1] {
			faults = append(faults, fmt.Sprintf("%s says that %s may be taken while it is held", locksPage, pair[0]))
		}
	}
	for _, l := range locks {
		if _, listed := p.idOf(l); !listed {
			faults = append(faults, fmt.Sprintf("%s does not list the lock %s of %s", locksPage, l.name(), l.folder))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.locks)) {
		if !fields[name] {
			faults = append(faults, fmt.Sprintf("%s lists %s, which is no field", locksPage, name))
		}
	}
	return faults
}

func readLocksPage(t *testing.T) lockPage {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, locksPage))
	if err != nil {
		t.Fatal(err)
	}
	return readLockPage(string(text))
}

func TestThePageHasEveryLock(t *testing.T) {
	all := readRepository(t)
	report(t, readLocksPage(t).faults(locksOf(all), fieldsOf(all)))
}

// orderFaults compares what a build has recorded with the page.
func (p lockPage) orderFaults(recorded string) (faults []string) {
	for line := range strings.Lines(recorded) {
		if words := strings.Split(strings.TrimSpace(line), "\t"); !p.order[[2]string{words[0], words[1]}] {
			faults = append(faults, fmt.Sprintf("%s: %s is taken while %s is held, which %s does not list", words[2], words[1], words[0], locksPage))
		}
	}
	slices.Sort(faults)
	return slices.Compact(faults)
}

func TestLockRulesCatchViolations(t *testing.T) {
	page := readLockPage("| Lock | What |\n|---|---|\n| `A.mu`, `B.mu` | both |\n| `C.mu` ([internal/c](../internal/c)) | one |\n\n" +
		"| Held | Taken meanwhile | Where |\n|---|---|---|\n| `A.mu` | `B.mu` | f |\n| `B.mu` | `C.mu` ([internal/c](../internal/c)) | g |\n")
	code := folderOf(t, "internal/c", map[string]string{"c.go": "package c\nimport \"sync\"\ntype C struct{ mu sync.Mutex }\ntype D struct{ n int; sync.RWMutex }\n"})
	all := tree{folders: []folder{code}}
	want := []string{
		"docs/locks.md does not list the lock D.RWMutex of internal/c", "docs/locks.md lists A.mu, which is no field", "docs/locks.md lists B.mu, which is no field",
	}
	if got := page.faults(locksOf(all), fieldsOf(all)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := page.orderFaults("A.mu\tinternal/c C.mu\tc.go:1\nA.mu\tB.mu\ta.go:1\nB.mu\tA.mu\ta.go:2\n"); len(got) != 1 || !strings.Contains(got[0], "a.go:2: A.mu is taken while B.mu is held") {
		t.Errorf("got %q", got)
	}
	page.order[[2]string{"B.mu", "A.mu"}] = true
	if page.chain(); len(page.faults(nil, map[string]bool{"A.mu": true, "B.mu": true, "internal/c C.mu": true})) == 0 {
		t.Error("a circle was not found")
	}
}

func TestLocksAreTakenInTheOrderOfThePage(t *testing.T) {
	if !*recordLocks {
		t.Skip("needs -locks, see make locks")
	}
	page, dir := readLocksPage(t), t.TempDir()
	overlay := overlayOf(t, page, locksOf(readRepository(t)), dir)
	order := filepath.Join(dir, "order")
	args := append([]string{"test", "-vet=off", "-count=1", "-timeout=30m", "-overlay=" + overlay, "-run=" + *recordRun}, strings.Fields(*recordOf)...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = repository, append(os.Environ(), "YODEL_LOCK_ORDER="+order)
	if out, err := cmd.CombinedOutput(); err != nil {
		// some of these tests judge time and memory, which the recording takes
		t.Logf("go %s: %v\n%s", strings.Join(args, " "), err, out[max(0, len(out)-4000):])
	}
	recorded, err := os.ReadFile(order)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("recorded:\n%s", recorded)
	report(t, page.orderFaults(string(recorded)))
}

// overlayOf makes copies of the files with locks, whose locks record, and returns the overlay for
// the go command. A copy has its lines where the original has them.
func overlayOf(t *testing.T, page lockPage, locks []lock, dir string) string {
	t.Helper()
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	recorder, err := filepath.Abs("testdata/lockorder/lockorder.go")
	if err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{filepath.Join(root, "internal/lockorder/lockorder.go"): recorder}
	files := make(map[string][]lock)
	for _, l := range locks {
		files[l.file.path] = append(files[l.file.path], l)
	}
	for name, in := range files {
		copied := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(copied, []byte(page.recording(in)), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, filepath.FromSlash(name))] = copied
	}
	encoded, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// recording returns the text of a file whose locks record.
func (p lockPage) recording(locks []lock) string {
	text := locks[0].file.text
	var names strings.Builder
	for _, l := range slices.Backward(locks) {
		id, _ := p.idOf(l)
		marker := "lockName_" + l.owner + "_" + l.field
		text = text[:l.at] + "lockorder." + l.kind + "[" + marker + "]" + text[l.end:]
		fmt.Fprintf(&names, "\ntype %s struct{}\n\nfunc (%s) LockName() string { return %q }\n", marker, marker, id)
	}
	imported := "lockorder " + fmt.Sprintf("%q", path.Join(module, "internal/lockorder"))
	if strings.Contains(text, "\nimport (\n") {
		text = strings.Replace(text, "\nimport (\n", "\nimport ("+imported+"\n", 1)
	} else {
		text = strings.Replace(text, "\nimport ", "\nimport "+imported+"; import ", 1)
	}
	return text + "\nvar _ sync.Mutex\n" + names.String()
}
