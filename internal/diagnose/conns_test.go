// SPDX-License-Identifier: Apache-2.0

package diagnose_test

import (
	"slices"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/diagnose"
	"github.com/yodel-rpc/yodel/introspect"
)

func TestAnAnswerHasTheFirstConnectionsInTheirOrder(t *testing.T) {
	var none diagnose.Conns
	if out := none.Answer(); out.Conns == nil || len(out.Conns) != 0 || out.Left != 0 {
		t.Errorf("without connections: got %+v", out)
	}
	var conns diagnose.Conns
	for i := range 1003 {
		if conns.Room() {
			conns.Add(introspect.ConnInfo{Side: "server", Addr: "b", Since: time.Unix(int64(2000-i), 0)})
		}
	}
	out := conns.Answer()
	if len(out.Conns) != 1000 || out.Left != 3 {
		t.Errorf("got %d connections and %d left out, want 1000 and 3", len(out.Conns), out.Left)
	}
	if first, last := out.Conns[0].Since, out.Conns[999].Since; !first.Before(last) {
		t.Errorf("the connections are not in the order of their ages: %v, %v", first, last)
	}
	var mixed diagnose.Conns
	for _, c := range []introspect.ConnInfo{{Side: "server", Addr: "a"}, {Side: "client", Addr: "b"}, {Side: "client", Addr: "a"}} {
		mixed.Add(c)
	}
	var got []string
	for _, c := range mixed.Answer().Conns {
		got = append(got, c.Side+" "+c.Addr)
	}
	if want := []string{"client a", "client b", "server a"}; !slices.Equal(got, want) {
		t.Errorf("the order is %q, want %q", got, want)
	}
}
