// SPDX-License-Identifier: Apache-2.0

// Package spec_test checks that every rule of the specification is shown by a test.
package spec_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

func TestEveryRuleNamesItsTests(t *testing.T) {
	tests := make(map[string]bool)
	for _, folder := range []string{"../internal/wire", "../internal/mux", "..", "../conformance/keys", "../middleware/once", "../recommended"} {
		files, err := filepath.Glob(folder + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t `).FindAllStringSubmatch(string(text), -1) {
				tests[m[1]] = true
			}
		}
	}
	text, err := os.ReadFile("wire.md")
	if err != nil {
		t.Fatal(err)
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		strong := strings.Contains(line, "MUST")
		rule := regexp.MustCompile(`^- \*\*(W\d+)\*\*`).FindStringSubmatch(line)
		if rule == nil {
			if strong {
				t.Errorf("a MUST without a number: %s", line)
			}
			continue
		}
		number++
		if want := fmt.Sprintf("W%d", number); rule[1] != want {
			t.Errorf("got rule %s, want %s", rule[1], want)
		}
		named := regexp.MustCompile(`\bTest\w+`).FindAllString(line, -1)
		if len(named) == 0 {
			t.Errorf("%s names no test", rule[1])
		}
		for _, name := range named {
			if !tests[name] {
				t.Errorf("%s names %s, which does not exist", rule[1], name)
			}
		}
	}
	if number < 20 {
		t.Errorf("only %d rules were found", number)
	}
}
