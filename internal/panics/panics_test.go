// SPDX-License-Identifier: Apache-2.0

package panics_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/leak"
	"github.com/yodel-rpc/yodel/internal/panics"
)

func TestMain(m *testing.M) { leak.Verify(m) }

// decode is a codec in which f panics.
func decode(f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("decode: %w", panics.Recovered(p))
		}
	}()
	f()
	return nil
}

func tells() { panic("a secret") }

// The value of a panic in a codec is not in its error, and is in the panic that goes on, with the
// place of the first one.
func TestAPanicInACodecGoesOn(t *testing.T) {
	t.Parallel()
	err := decode(tells)
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("the error is %v, want one without the value of the panic", err)
	}
	defer func() {
		value := recover()
		said, frames := panics.Describe(value)
		if said != "a secret" || !strings.Contains(frames, "panics_test.go") || !strings.Contains(frames, "tells") {
			t.Errorf("the panic is %q at %q, want the first one", said, frames)
		}
		if text := fmt.Sprint(value); !strings.Contains(text, "a secret") {
			t.Errorf("the panic prints %q, want its value", text)
		}
	}()
	panics.Resume(err)
	t.Error("the panic did not go on")
}

// What generated code does with a damaged message is an error of the message.
func TestAnErrorOfTheRuntimeStays(t *testing.T) {
	t.Parallel()
	err := decode(func() { _ = []int{}[len(t.Name())] })
	if err == nil || !strings.Contains(err.Error(), "index out of range") {
		t.Errorf("the error is %v, want that of the runtime", err)
	}
	panics.Resume(err)
	panics.Resume(nil)
}
