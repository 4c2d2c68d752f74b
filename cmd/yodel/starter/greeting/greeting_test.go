// SPDX-License-Identifier: Apache-2.0

package greeting_test

import (
	"errors"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/cmd/yodel/starter/greeting"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// The tests fail if one of them leaves a goroutine behind.
func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// A real client calls a real server through memory.
func TestGreet(t *testing.T) {
	s := yodeltest.NewServer(t, nil)
	greeting.Register(s.Server)
	c := yodeltest.NewClient(t, nil, s)

	reply, err := greeting.Greet.Call(t.Context(), c, &greeting.Request{Name: "Ann"})
	if err != nil || reply.Text != "hello Ann" {
		t.Errorf("got %v, %v, want hello Ann", reply, err)
	}
	if _, err := greeting.Greet.Call(t.Context(), c, &greeting.Request{}); !errors.Is(err, yodel.InvalidArgument) {
		t.Errorf("without a name: got %v, want invalid_argument", err)
	}
}
