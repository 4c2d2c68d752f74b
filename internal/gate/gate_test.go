// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/leak"
)

// mainEnv makes this test binary the command gate.
const mainEnv = "GATE_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
		os.Exit(0)
	}
	leak.Verify(m)
}

// memory is code of the packages under test: it counts how often a test has run, and once fails
// only in the first run.
const memory = `package p

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func runs(t testing.TB) int {
	file := filepath.Join(os.Getenv("GATE_TEST_MEMORY"), strings.ReplaceAll(t.Name(), "/", "-"))
	before, _ := os.ReadFile(file)
	if err := os.WriteFile(file, append(before, '1'), 0o600); err != nil {
		t.Fatal(err)
	}
	return len(before) + 1
}

func once(t testing.TB) {
	if runs(t) == 1 {
		t.Error("the first output")
	}
}
`

// packages are the packages under test, by name: the code of their tests.
var packages = map[string]string{
	"green": `
func TestGreen(t *testing.T) { t.Run("sub", func(t *testing.T) {}) }
func TestSkipped(t *testing.T) { t.Skip("the reason") }`,
	"always": `
func TestAlways(t *testing.T) { runs(t); t.Run("sub", func(t *testing.T) { t.Errorf("always") }) }`,
	"once": `
func TestOnce(t *testing.T) {
	if !t.Run("sub", func(t *testing.T) { once(t) }) {
		t.FailNow()
	}
	t.Run("left out at first", func(t *testing.T) {})
}`,
	"twice": `
func TestOne(t *testing.T) { once(t) }
func TestTwo(t *testing.T) { once(t) }`,
	"thrice": `
func TestThree(t *testing.T) { once(t) }
func TestFour(t *testing.T) { once(t) }
func TestFive(t *testing.T) { once(t) }`,
	"skips": `
func TestSkips(t *testing.T) { if runs(t) == 1 { t.Error("the first output") } else { t.Skip() } }`,
	"marked": `
func TestMarked(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Attr("rerun", "never"); once(t) }) }
func TestOther(t *testing.T) { once(t) }`,
	"panics": `
func TestPanic(t *testing.T) { if runs(t) == 1 { panic("oh") } }
func TestAfter(t *testing.T) {}`,
	"seed": `
func FuzzSeed(f *testing.F) { runs(f); f.Add(1); f.Fuzz(func(t *testing.T, _ int) { t.Error("found") }) }`,
	"exits": `
func TestMain(m *testing.M) { m.Run(); println("not clean"); os.Exit(1) }
func TestFine(t *testing.T) { runs(t) }`,
	"undefined": `
func TestBuild(t *testing.T) { missing() }`,
	"vet": `
func TestVet(t *testing.T) { t.Errorf("%d", "x") }`,
	"leaks": `
func TestLeak(t *testing.T) { yodeltest.NoLeaks(t); if runs(t) == 1 { go func() { select {} }() } }`,
	"leaves": `
func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }
func TestLeaves(t *testing.T) { if runs(t) == 1 { go func() { select {} }() } }`,
	"hangs": `
func TestHangs(t *testing.T) { if runs(t) == 1 { select {} } }`,
	"races": `
func TestRaces(t *testing.T) {
	n, done := 0, make(chan bool)
	if runs(t) == 1 {
		go func() { n++; close(done) }()
		n++
		<-done
	}
}`,
}

// A trial is a module with some of the packages, in which gate runs.
type trial struct {
	t              *testing.T
	folder, memory string
}

func try(t *testing.T, names ...string) trial {
	t.Helper()
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	in := trial{t, t.TempDir(), t.TempDir()}
	in.write("go.mod", "module m\n\ngo 1.26\n\nrequire github.com/yodel-rpc/yodel v0.0.0\n\nreplace github.com/yodel-rpc/yodel => "+repository+"\n")
	for _, name := range names {
		in.write(name+"/memory_test.go", memory)
		code := packages[name]
		imports := []string{`import "testing"`}
		for path, used := range map[string]string{"os": "os.", "github.com/yodel-rpc/yodel/yodeltest": "yodeltest."} {
			if strings.Contains(code, used) {
				imports = append(imports, `import "`+path+`"`)
			}
		}
		in.write(name+"/p_test.go", "package p\n\n"+strings.Join(imports, "\n")+"\n"+code+"\n")
	}
	return in
}

func (in trial) write(name, text string) {
	in.t.Helper()
	file := filepath.Join(in.folder, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		in.t.Fatal(err)
	}
}

func (in trial) env() []string {
	return []string{"GOWORK=off", "GOFLAGS=-mod=mod -trimpath", "GATE_TEST_MEMORY=" + in.memory, outcomesEnv + "="}
}

// runs returns how often a test has run.
func (in trial) runs(name string) int {
	if name == "" {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(in.memory, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		in.t.Fatal(err)
	}
	return len(text)
}

// gate runs the command gate, and returns its output and its exit code.
func (in trial) gate(env []string, args ...string) (output string, code int) {
	in.t.Helper()
	cmd := exec.CommandContext(in.t.Context(), os.Args[0], args...)
	cmd.Dir, cmd.Env = in.folder, slices.Concat(os.Environ(), in.env(), []string{mainEnv + "=1"}, env)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		in.t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

func (in trial) wantLastLine(output, want string) {
	in.t.Helper()
	if lines := strings.Split(strings.TrimSpace(output), "\n"); lines[len(lines)-1] != want {
		in.t.Errorf("the last line is %q, want %q, in:\n%s", lines[len(lines)-1], want, output)
	}
}

func (in trial) wantTexts(output string, texts ...string) {
	in.t.Helper()
	for _, want := range texts {
		if !strings.Contains(output, want) {
			in.t.Errorf("%q is missing in:\n%s", want, output)
		}
	}
}

func TestFailuresAreFinalOrRunOnceMore(t *testing.T) { //nolint:tparallel // its parts run beside each other, and not beside other tests
	const outside, twice = "it failed outside of a test", "it did not pass when it ran once more, alone"
	for name, want := range map[string]struct {
		outcome
		test string // the file that counts how often a test has run
		runs int
	}{
		"green":     {outcome{Test: "TestGreen", Action: pass}, "", 0},
		"always":    {outcome{Test: "TestAlways", Action: fail, Reason: twice, Output: "always"}, "TestAlways", 2},
		"once":      {outcome{Test: "TestOnce", Action: unsteady, Output: "the first output"}, "TestOnce-sub", 2},
		"skips":     {outcome{Test: "TestSkips", Action: fail, Reason: twice, Output: "the first output"}, "TestSkips", 2},
		"marked":    {outcome{Test: "TestMarked", Action: fail, Reason: `the test is marked: t.Attr("rerun", "never")`}, "TestMarked-sub", 1},
		"panics":    {outcome{Test: "TestPanic", Action: fail, Reason: "a panic", Output: "panic: oh"}, "TestPanic", 1},
		"seed":      {outcome{Test: "FuzzSeed", Action: fail, Reason: "a finding of a fuzz target"}, "FuzzSeed", 1},
		"exits":     {outcome{Action: fail, Reason: outside, Output: "not clean"}, "TestFine", 1},
		"undefined": {outcome{Action: fail, Reason: outside, Output: "undefined: missing"}, "", 0},
		"vet":       {outcome{Action: fail, Reason: outside, Output: "wrong type string"}, "", 0},
		"leaks":     {outcome{Test: "TestLeak", Action: fail, Reason: "a leak of goroutines"}, "TestLeak", 1},
		"leaves":    {outcome{Action: fail, Reason: outside, Output: "goroutines outlive the tests"}, "TestLeaves", 1},
		"hangs":     {outcome{Action: fail, Reason: outside, Output: "test timed out after 10s"}, "TestHangs", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := try(t, name)
			r := runner{out: io.Discard, dir: in.folder, env: in.env(), flags: []string{"-vet=all", "-timeout=10s"}}
			outcomes, err := r.run(t.Context(), []string{"./..."})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(outcomes, func(o outcome) bool { return o.Test == want.Test })
			if i < 0 {
				t.Fatalf("%q is not in %+v", want.Test, outcomes)
			}
			got := outcomes[i]
			if got.Action != want.Action || got.Reason != want.Reason || !strings.Contains(got.Output, want.Output) {
				t.Errorf("got %+v, want %+v", got, want)
			}
			if ran := in.runs(want.test); ran != want.runs {
				t.Errorf("%s ran %d times, want %d", want.test, ran, want.runs)
			}
			if passes := judge(outcomes) == nil; passes != (want.Action != fail) {
				t.Errorf("the run passes: %v, though the test has the outcome %s", passes, want.Action)
			}
		})
	}
}

func TestTestsLeftOutByAFailureCount(t *testing.T) {
	in := try(t, "once")
	output, code := in.gate(nil, "test", "./...")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	in.wantTexts(output, "== unsteady", "m/once TestOnce\n", "the first output")
	in.wantLastLine(output, "3 passed, 0 failed, 0 skipped")
}

func TestArgumentsReachTheTests(t *testing.T) {
	in := try(t)
	in.write("p/p_test.go", "package p\n\nimport (\"flag\"; \"testing\")\n\nvar long = flag.Bool(\"long\", false, \"\")\n\nfunc TestLong(t *testing.T) { if !*long { t.Error() } }\n")
	output, code := in.gate(nil, "test", "-count=1", "./p", "-args", "-long")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	in.wantLastLine(output, "1 passed, 0 failed, 0 skipped")
}

func TestARaceIsFinal(t *testing.T) {
	in := try(t, "races")
	output, code := in.gate(nil, "test", "-race", "./...")
	if code != 1 || in.runs("TestRaces") != 1 {
		t.Errorf("exit code %d after %d runs", code, in.runs("TestRaces"))
	}
	in.wantTexts(output, "== failed\nm/races TestRaces (a data race)\n")
	in.wantLastLine(output, "0 passed, 1 failed, 0 skipped")
}

func TestThreeUnsteadyTestsFailARun(t *testing.T) {
	in := try(t, "twice", "thrice", "green")
	output, code := in.gate(nil, "test", "./twice", "./green")
	if code != 0 {
		t.Errorf("exit code %d with two unsteady tests", code)
	}
	in.wantLastLine(output, "4 passed, 0 failed, 1 skipped")
	output, code = in.gate(nil, "test", "./thrice", "./green")
	if code != 1 {
		t.Errorf("exit code %d with three unsteady tests", code)
	}
	in.wantTexts(output, "3 tests are unsteady, 2 may be: they count as failed")
	in.wantLastLine(output, "2 passed, 3 failed, 1 skipped")
}

func TestStepsJoinTheirOutcomes(t *testing.T) {
	in := try(t, "green", "always")
	// Only the second run executes what the first one skips.
	in.write("mixed/p_test.go", "package p\n\nimport (\"os\"; \"testing\")\n\nfunc TestMixed(t *testing.T) { if os.Getenv(\"SECOND\") == \"\" { t.Skip() } }\n")
	in.write("steps", "# a comment\n\nfirst 60 $GATE test ./green ./mixed\nsecond 60 SECOND=1 $GATE test ./mixed\n")
	env := []string{"GATE=" + os.Args[0]}
	output, code := in.gate(env, "steps", "steps")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	in.wantTexts(output, "== skipped, and executed in no step\nm/green TestSkipped: p_test.go:6: the reason\n")
	if strings.Contains(output, "m/mixed TestMixed:") {
		t.Error("a test that was executed counts as skipped")
	}
	in.wantLastLine(output, "3 passed, 0 failed, 1 skipped")

	in.write("steps", "first 60 $GATE test ./always\nsecond 60 exit 3\nthird 60 echo third\n")
	output, code = in.gate(env, "steps", "steps")
	if code != 1 {
		t.Errorf("exit code %d of steps that fail", code)
	}
	in.wantTexts(output, "\nthird\n", "failed: exit status 3", "== failed\nm/always TestAlways (it did not pass when it ran once more, alone)\n")
	in.wantLastLine(output, "0 passed, 2 failed, 0 skipped")
}

func TestStepsHaveBounds(t *testing.T) {
	in := try(t)
	const hangs = " 1 exec 3<>wait; read line <&3 & read line <&3\n"
	in.write("steps", "late 1 sleep 3.6\nhangs"+hangs+"quick 1 true\n")
	if err := exec.CommandContext(t.Context(), "mkfifo", filepath.Join(in.folder, "wait")).Run(); err != nil {
		t.Skipf("mkfifo: %v", err)
	}
	began := time.Now()
	output, code := in.gate(nil, "steps", "steps")
	if took := time.Since(began); code != 1 || took > 30*time.Second {
		t.Errorf("exit code %d after %v", code, took)
	}
	in.wantTexts(output, "failed: it did not end within 3 seconds", "1  slow\n", "1  ok\n") // of 7.5 s, 3.6 s are used, and the last step needs 1 s

	in.write("steps", "hangs"+hangs+"quick 9 true\n")
	if output, code = in.gate(nil, "steps", "steps"); code != 1 {
		t.Errorf("exit code %d of a step that hangs", code)
	}
	in.wantTexts(output, "failed: it did not end within 4 seconds", "9  ok\n")

	in.write("steps", "left 10 until [ -e right ]; do sleep 0.1; done; echo LEFT\n+right 20 touch right; echo RIGHT\n")
	if output, code = in.gate(nil, "steps", "steps"); code != 0 {
		t.Errorf("exit code %d of steps beside each other", code)
	}
	in.wantTexts(output, "\n== left\nLEFT\n", "\n== right\nRIGHT\n", "20  ok, beside the one above\n", "     20  ok\n")

	for _, bad := range []string{"name", "name x true", "name 0 true", "name 10"} {
		in.write("steps", bad+"\n")
		if output, code = in.gate(nil, "steps", "steps"); code != 1 || !strings.Contains(output, "is not a name, a bound in seconds and a command") {
			t.Errorf("%q: exit code %d, %s", bad, code, output)
		}
	}
}

func TestMeasuredTestsMentionTheRaceDetector(t *testing.T) {
	in := try(t)
	in.write("go.mod", "module m\n\ngo 1.26\n")
	in.write("go.work", "go 1.26\n\nuse .\n")
	in.write("a/race_test.go", "//go:build race\n\npackage a\n\nconst detected = true\n")
	in.write("a/norace_test.go", "//go:build !race && unix\n\npackage a\n\nimport \"testing\"\n\nconst detected = false\n\nfunc TestApart(t *testing.T) {}\n")
	in.write("a/a_test.go", `package a

import "testing"

type box struct{}

func (box) strict() bool { return !detected }

func judge(t *testing.T) { t.Log(box{}.strict()) }

func TestJudges(t *testing.T)  { judge(t) }
func TestAnother(t *testing.T) {}
`)
	in.write("a/b/b.go", "package b\n\nimport \"testing\"\n\nfunc Run(t *testing.T) { t.Log(quick) }\n")
	in.write("a/b/race.go", "//go:build race\n\npackage b\n\nconst quick = false\n")
	in.write("a/b/norace.go", "//go:build !race\n\npackage b\n\nconst quick = true\n")
	in.write("c/c_test.go", "package c_test\n\nimport (\"testing\"; \"m/a/b\")\n\nfunc TestFar(t *testing.T) { b.Run(t) }\n\nfunc TestSub(t *testing.T) { t.Run(\"x\", func(*testing.T) {}) }\n")
	in.write("d/d.go", "package d\n\nfunc D() {}\n")
	in.write("d/d_test.go", "package d\n\nimport \"testing\"\n\nfunc TestD(t *testing.T) { D() }\n")
	output, code := in.gate([]string{"GOWORK=", "GOFLAGS="}, "measured")
	if want := "-run=^(TestApart|TestFar|TestJudges)$\nm/a\nm/c\n"; code != 0 || output != want {
		t.Errorf("exit code %d, %q, want %q", code, output, want)
	}
}
