// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/introspect"
)

func TestOutcomesOfAllCodes(t *testing.T) {
	special := map[yodel.Code]introspect.Outcome{
		yodel.Unavailable: introspect.Failed, yodel.DeadlineExceeded: introspect.Failed, yodel.Internal: introspect.Failed,
		yodel.DataLoss: introspect.Failed, yodel.Unknown: introspect.Failed,
		yodel.ResourceExhausted: introspect.Limited, yodel.Canceled: introspect.Canceled,
	}
	for code := range yodel.Unauthenticated + 1 {
		if got := introspect.OutcomeOf(code.String()); got != special[code] {
			t.Errorf("%v: got %d, want %d", code, got, special[code])
		}
	}
	if got := introspect.OutcomeOf(""); got != introspect.Answered {
		t.Errorf("success: got %d", got)
	}
}
