// SPDX-License-Identifier: Apache-2.0

package foreign_test

import (
	"errors"
	"testing"

	"github.com/yodel-rpc/yodel/internal/foreign"
)

// A header is Messages of a protocol that can send a header before the first message.
type header struct {
	foreign.Messages
	err error
}

func (h header) SendHeader() error { return h.err }

func TestAHeaderIsSentIfTheProtocolCanDoSo(t *testing.T) {
	gone := errors.New("the stream has ended")
	for _, test := range []struct {
		messages foreign.Messages
		want     error
	}{{header{err: gone}, gone}, {header{}, nil}, {nil, nil}, {struct{ foreign.Messages }{}, nil}} {
		if got := (&foreign.Stream{Messages: test.messages}).SendHeader(); got != test.want {
			t.Errorf("%T: got %v, want %v", test.messages, got, test.want)
		}
	}
}
