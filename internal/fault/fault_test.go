// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"errors"
	"testing"

	"github.com/yodel-rpc/yodel/internal/fault"
)

func TestAFaultSaysWhatItKnows(t *testing.T) {
	cause := errors.New("the cause")
	f := fault.Of("ID", "A.B", "it has %d bytes", 3)
	if f.Error() != "A.B: it has 3 bytes" || f.ID != "ID" || f.Misfit || f.Unprocessed || errors.Unwrap(f) != nil {
		t.Errorf("got %+v", f)
	}
	if f.Because(cause); !errors.Is(f, cause) || f.Misfit {
		t.Errorf("with a cause: got %+v", f)
	}
	if f.ByCodec(cause).NotProcessed(); !f.Misfit || !f.Unprocessed {
		t.Errorf("by a codec: got %+v", f)
	}
}
