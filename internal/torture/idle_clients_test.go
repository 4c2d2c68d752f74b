// SPDX-License-Identifier: Apache-2.0

package torture_test

import (
	"runtime"
	"testing"

	"github.com/yodel-rpc/yodel"
)

// TestIdleClients measures what yodel's own connections cost the server when they are idle: each
// has exchanged settings and carried a call, so that its tables and buffers have been in use.
func TestIdleClients(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	if raceEnabled {
		t.Skip("it judges memory, which make test-timing does")
	}
	const warm, count = 100, 2000
	server := start(t, littleGarbage)
	open := func(n int) {
		for range n {
			c := yodel.Dial(server.addr)
			t.Cleanup(c.Close)
			if _, err := once.Call(t.Context(), c, &Job{0}); err != nil {
				t.Fatal(err)
			}
		}
	}
	open(warm) // what the server needs once
	before := resident(t, server.cmd.Process.Pid)
	open(count)
	each := (resident(t, server.cmd.Process.Pid) - before) / count
	t.Logf("an idle client costs the server %d bytes", each)
	if limit := 16 << 10; each > limit {
		t.Errorf("an idle client costs the server %d bytes, more than %d", each, limit)
	}
}
