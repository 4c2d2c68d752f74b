// SPDX-License-Identifier: Apache-2.0

package isolate_test

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/isolate"
)

var errTest = errors.New("it fails")

func panics() error { panic("no") }

func exits() error {
	runtime.Goexit()
	return nil
}

func TestCallOutlivesWhatItCalls(t *testing.T) {
	failed := func(value any) error { return fmt.Errorf("failed with %v", value) }
	tests := []struct {
		f    func() error
		want string
	}{
		{func() error { return nil }, "<nil>"},
		{func() error { return errTest }, "it fails"},
		{panics, "failed with no"},
		{exits, "failed with <nil>"},
		{func() error { panic(nil) }, "failed with panic called with nil argument"},
	}
	for _, test := range tests {
		if got := fmt.Sprint(isolate.Call(test.f, failed)); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

func TestFailedSeesTheStackOfThePanic(t *testing.T) {
	stack := ""
	err := isolate.Call(panics, func(any) error {
		stack = string(debug.Stack())
		return errTest
	})
	if !errors.Is(err, errTest) || !strings.Contains(stack, "isolate_test.panics") {
		t.Errorf("got %v, stack %s", err, stack)
	}
}

func TestUntilStopsWaiting(t *testing.T) {
	release, blocked, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	f := func() error {
		defer close(ended)
		close(release)
		<-blocked
		return errTest
	}
	if ended, err := isolate.Until(release, f, nil); ended || err != nil {
		t.Errorf("got %v, %v, though the function is running", ended, err)
	}
	close(blocked)
	<-ended
	if ended, err := isolate.Until(nil, func() error { return errTest }, nil); !ended || !errors.Is(err, errTest) {
		t.Errorf("got %v, %v of a function that ends", ended, err)
	}
}
