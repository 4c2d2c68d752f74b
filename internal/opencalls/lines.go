// SPDX-License-Identifier: Apache-2.0

package opencalls

import (
	"context"
	"fmt"
	"time"
)

// CutOff describes what a server has cut off at the end of its shutdown: these calls, or else
// connections without calls. It returns "" if there was nothing to cut off.
func CutOff(open []Call, conns int) string {
	switch {
	case len(open) > 0:
		return count(len(open), "call") + ": " + List(open)
	case conns > 0:
		return count(conns, "connection") + " without calls"
	}
	return ""
}

// count returns n and the noun, in the plural unless n is 1.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Draining returns the attributes of the log line of a server that begins to shut down with these
// open calls. It waits for them until ctx ends.
func Draining(ctx context.Context, open []Call) []any {
	attrs := []any{"calls", len(open)}
	if len(open) > 0 {
		attrs = append(attrs, "open", List(open))
	}
	if end, ok := ctx.Deadline(); ok {
		attrs = append(attrs, "forAtMost", max(time.Until(end), 0).Round(time.Millisecond))
	}
	return attrs
}

// Stopped returns the attributes of the log line of a server that has shut down. CutOff is the
// result of the function CutOff.
func Stopped(took time.Duration, cutOff string) []any {
	attrs := []any{"took", took.Round(time.Millisecond)}
	if cutOff != "" {
		attrs = append(attrs, "cutOff", cutOff)
	}
	return attrs
}
