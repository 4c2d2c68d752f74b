// SPDX-License-Identifier: Apache-2.0

package httplink

import (
	"bytes"
	"io"
	"runtime"
	"testing"

	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// A message arrives behind its prefix. Sending a large one does not copy it, because the client
// does not count the memory of a copy.
func TestSend(t *testing.T) {
	for _, size := range []int{0, 1, maxCopied, maxCopied + 1, 4 << 20} {
		in, out := io.Pipe()
		v := &conversation{out: out}
		message := bytes.Repeat([]byte("m"), size)
		got := make([]byte, httpwire.PrefixSize+size)
		received := make(chan error, 1)
		go func() {
			_, err := io.ReadFull(in, got)
			received <- err
		}()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := v.Send(t.Context(), message, true)
		runtime.ReadMemStats(&after)
		if readErr := <-received; err != nil || readErr != nil {
			t.Fatalf("%d bytes: %v, %v", size, err, readErr)
		}
		prefix := httpwire.Prefix(httpwire.FlagCompressed, size)
		if !bytes.Equal(got, append(prefix[:], message...)) {
			t.Errorf("%d bytes: they do not arrive as they were sent", size)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 512<<10 && !raceEnabled {
			t.Errorf("sending %d bytes has allocated %d bytes", size, n)
		}
	}
}
