// SPDX-License-Identifier: Apache-2.0

package reflectcall_test

import (
	"errors"
	"testing"

	"github.com/yodel-rpc/yodel/internal/reflectcall"
)

func TestTheOutcomeOfATypedFunction(t *testing.T) {
	seven, failed := 7, errors.New("it failed")
	if reply, err := reflectcall.Outcome(&seven, nil); reply != any(&seven) || err != nil {
		t.Errorf("a reply: got %v, %v", reply, err)
	}
	if reply, err := reflectcall.Outcome(&seven, failed); reply != any(&seven) || err != failed {
		t.Errorf("a reply and an error: got %v, %v", reply, err)
	}
	if _, err := reflectcall.Outcome[int](nil, nil); err != reflectcall.ErrNoReply {
		t.Errorf("nothing: got %v", err)
	}
	if _, err := reflectcall.Outcome[int](nil, failed); err != failed {
		t.Errorf("an error: got %v", err)
	}
	if reply, err := reflectcall.Outcome[struct{}](nil, nil); err != nil || reply.(*struct{}) == nil {
		t.Errorf("nothing in place of nothing: got %v, %v", reply, err)
	}
}
