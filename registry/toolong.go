// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"fmt"
	"unicode/utf8"
)

// TooLong returns the error of a registry for a name that it has no room for. A registry never cuts
// a name, because two names could become one. Of is the registry, and what says what name is, for
// example "service". Size is what the name needs as the registry writes it, in the unit of limit.
func TooLong(of, what, name string, size, limit int, unit string) error {
	const shown = 200 // an error is read by people
	more := ""
	if utf8.RuneCountInString(name) > shown {
		more = "…"
	}
	return fmt.Errorf("%s: the %s %.*q%s needs %d %s, and there is a limit of %d %s", of, what, shown, name, more, size, unit, limit, unit)
}
