// SPDX-License-Identifier: Apache-2.0

package house

import (
	"regexp"
	"testing"
)

// keptDefault matches code that keeps the logger of slog.Default in a field.
var keptDefault = regexp.MustCompile(`\.[lL]ogger\s*=\s.*slog\.Default\(\)`)

// A program may call slog.SetDefault after it has made its servers, clients and middleware. So each
// line asks for the default logger when it is logged: cmp.Or(o.Logger, slog.Default()).Warn(…).
func TestTheDefaultLoggerIsAskedForWhenALineIsLogged(t *testing.T) {
	for _, kept := range []string{"\t\topts.Logger = slog.Default()", "\tl.logger = cmp.Or(l.logger, slog.Default())"} {
		if !keptDefault.MatchString(kept) {
			t.Errorf("%q is not found", kept)
		}
	}
	for _, in := range readRepository(t).folders {
		for _, file := range in.files {
			if line := keptDefault.FindString(file.text); line != "" && !file.isTest() && isReleased(in.path) {
				t.Errorf("%s keeps the default logger: %s", in.path, line)
			}
		}
	}
}
