// SPDX-License-Identifier: Apache-2.0

package serve_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/internal/serve"
)

// A work is a connection that was lent, or a pool. It logs what is done to it.
type work struct {
	name string
	log  *[]string
	done chan struct{} // closed when its requests have ended
}

func (w *work) did(what string) { *w.log = append(*w.log, what+" "+w.name) }

func (w *work) Refuse() <-chan struct{} {
	w.did("refuse")
	return w.done
}

func (w *work) Settled() <-chan struct{} {
	w.did("await")
	return w.done
}

func (w *work) CancelRequests() { w.did("cancel") }
func (w *work) Cancel()         { w.did("end") }

type lent = serve.Lent[*work, *work]

func TestConnectionsAreLentUntilTheyEnd(t *testing.T) {
	var l lent
	first, second, one, two := new(work), new(work), new(work), new(work)
	var firstOver, secondOver bool
	if len(l.Conns()) != 0 || len(l.Pools()) != 0 {
		t.Error("an empty one has connections or pools")
	}
	l.Add(first, &firstOver)
	l.Remove(second, &secondOver)
	l.Add(second, &secondOver) // its handshake was still running when it ended
	if got := l.Conns(); !slices.Equal(got, []*work{first}) {
		t.Errorf("got %v", got)
	}
	l.Remove(first, &firstOver)
	if got := l.Conns(); len(got) != 0 {
		t.Errorf("after the end: %v", got)
	}
	l.AddPool(one)
	l.AddPool(two)
	l.RemovePool(one)
	if got := l.Pools(); !slices.Equal(got, []*work{two}) {
		t.Errorf("the pools are %v", got)
	}
}

func TestADrainWaitsForAllRequests(t *testing.T) {
	why := errors.New("the server has no more time")
	for _, test := range []struct {
		open string // what does not end
		want error
		did  string
	}{
		{"", nil, "refuse conn, await pool, end pool"},
		{"server", why, "refuse conn, cancel conn, end pool"},
		{"conn", why, "refuse conn, cancel conn, end pool"},
		{"pool", why, "refuse conn, await pool, cancel conn, end pool"},
	} {
		var l lent
		var over bool
		var log []string
		named := func(name string) *work {
			w := &work{name: name, log: &log, done: make(chan struct{})}
			if name != test.open {
				close(w.done)
			}
			return w
		}
		l.Add(named("conn"), &over)
		l.AddPool(named("pool"))
		d := l.Drain(named("server").done)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		err := d.Wait(ctx)
		if err != nil {
			d.CancelRequests()
		}
		d.End()
		if did := strings.Join(log, ", "); !errors.Is(err, test.want) || did != test.did {
			t.Errorf("with open requests of %q: got %v, did %s; want %v, %s", test.open, err, did, test.want, test.did)
		}
	}
}
