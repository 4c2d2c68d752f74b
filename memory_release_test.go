// SPDX-License-Identifier: Apache-2.0

package yodel_test

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"weak"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/flate"
)

// A text is a message that may be large.
type text struct{ Text string }

// An idle connection must not keep the messages of calls that have ended.
func TestEndedCallsKeepNoMessages(t *testing.T) {
	var requests, replies [4]weak.Pointer[text]
	var n atomic.Int32
	s := newServer(t, &yodel.ServerOptions{Compressors: []compress.Compressor{flate.Compressor}})
	method := yodel.Method[text, text]("Text.Repeat")
	method.Handle(s, func(_ context.Context, in *text) (*text, error) {
		out := &text{in.Text}
		i := n.Add(1) - 1
		requests[i], replies[i] = weak.Make(in), weak.Make(out)
		return out, nil
	})
	s.MarkConcurrent(string(method)) // so that it has a goroutine of its own
	c := connect(t, s, nil)
	for i := range requests {
		call := &yodel.Call{}
		if i%2 == 1 {
			call.Compressor = flate.Compressor
		}
		_, err := method.Do(t.Context(), c, call, &text{strings.Repeat("much ", 1000)})
		must(t, err)
	}
	until(t, "nothing is kept", func() bool {
		runtime.GC()
		for i := range requests {
			if requests[i].Value() != nil || replies[i].Value() != nil {
				return false
			}
		}
		return true
	})
}
