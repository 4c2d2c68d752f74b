// SPDX-License-Identifier: Apache-2.0

package actor_test

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/actor"
)

// A Load is a large message with its place in the order of its sender.
type Load struct {
	Sender string
	N      int
	Body   string
}

// A Store notes the messages that it handles. It handles none until it is free.
type Store struct {
	free <-chan struct{}
	mu   sync.Mutex
	got  map[string][]int // numbers by sender
}

func newStore(free <-chan struct{}) *Store { return &Store{free: free, got: make(map[string][]int)} }

func (a *Store) Load(_ context.Context, m *Load) error {
	<-a.free
	a.mu.Lock()
	defer a.mu.Unlock()
	a.got[m.Sender] = append(a.got[m.Sender], m.N)
	return nil
}

func (a *Store) Total(_ context.Context, m *Total) (*Sum, error) { return &Sum{}, nil }

var stores = actor.NewKind("Store", actor.On((*Store).Load), actor.Answer((*Store).Total))

// A Carrier sends its messages on to another actor.
type Carrier struct{ to actor.Ref }

func (a *Carrier) Load(ctx context.Context, m *Load) error {
	return actor.In(ctx).Send(ctx, a.to, m)
}

var carriers = actor.NewKind("Carrier", actor.On((*Carrier).Load))

// Senders flood many actors that do not handle their messages. The memory of all inboxes together
// remains below its bound, the senders wait, and other senders do not. When the actors are free,
// each message is handled once, in order.
func TestInboxesTakeBoundedMemory(t *testing.T) {
	const (
		maxMemory = 4 << 20
		actors    = 10   // of each sender
		flood     = 3000 // messages of each sender
		others    = 200  // messages that do not wait
	)
	body := strings.Repeat("x", 8<<10)
	lost := func(to actor.Ref, message string, err error) { t.Errorf("%s to %v is lost: %v", message, to, err) }
	host := system(t, true, &actor.Options{MaxMemory: maxMemory, OnLost: lost, Server: &yodel.ServerOptions{Limits: yodel.Limits{MaxMemory: 2 * maxMemory}}})
	far, other := system(t, false, &actor.Options{OnLost: lost}), system(t, false, &actor.Options{OnLost: lost})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	defer cancel()
	start := func(name string, a *Store) actor.Ref {
		ref, err := stores.Start(host, name, a, nil)
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	free, always := make(chan struct{}), make(chan struct{})
	close(always)
	var all []*Store
	var refs []actor.Ref
	for i := range 2 * actors {
		all = append(all, newStore(free))
		refs = append(refs, start("blocked-"+strconv.Itoa(i), all[i]))
	}
	reads := newStore(always)
	reader := start("reads", reads)
	carrier, err := carriers.Start(host, "carrier", &Carrier{reader}, nil)
	if err != nil {
		t.Fatal(err)
	}
	send := func(from *actor.System, sender string, to actor.Ref, i int) bool {
		err := from.Send(ctx, to, &Load{sender, i, body})
		if err != nil {
			t.Error(err)
		}
		return err == nil
	}
	for _, from := range []*actor.System{far, other} { // so that they are connected
		if _, err := actor.AskSync[Sum](ctx, from, reader, &Total{}); err != nil {
			t.Fatal(err)
		}
	}

	before := heap()
	var flooding sync.WaitGroup
	flooding.Go(func() {
		for i := range flood {
			if !send(far, "far", refs[actors+i%actors], i) {
				return
			}
		}
	})
	for a := range actors { // a sender in the process waits with its first message, so there is one for each actor
		flooding.Go(func() {
			for i := a; i < flood; i += actors {
				if !send(host, "here", refs[a], i) {
					return
				}
			}
		})
	}
	for host.List().Memory < maxMemory/2 {
		if ctx.Err() != nil {
			t.Fatal("the inboxes do not fill")
		}
		runtime.Gosched()
	}

	// Another connection, and an actor that sends to another one.
	for i := range others {
		if !send(other, "other", reader, i) {
			return
		}
	}
	if _, err := actor.AskSync[Sum](ctx, other, reader, &Total{}); err != nil {
		t.Fatal(err)
	}
	for i := range others {
		if !send(other, "carried", carrier, i) {
			return
		}
	}
	reads.await(t, "carried", others)
	if used := host.List().Memory; used > maxMemory {
		t.Errorf("the messages in the inboxes take %d bytes, the bound is %d", used, maxMemory)
	}
	// The message in each handler, the calls that wait on the connection, and what the sender has
	// not sent take memory too.
	grown := heap() - before
	if most := uint64(maxMemory + 2*maxMemory + 16<<20); grown > most {
		t.Errorf("%d MiB are in use, want at most %d", grown>>20, most>>20)
	}
	t.Logf("%d MiB are in use for %d MiB of messages", grown>>20, 2*flood*len(body)>>20)

	close(free)
	flooding.Wait()
	for a, store := range all {
		sender := "here"
		if a >= actors {
			sender = "far"
		}
		var want []int
		for i := a % actors; i < flood; i += actors {
			want = append(want, i)
		}
		store.await(t, sender, len(want))
		if got := store.numbers(sender); !slices.Equal(got, want) {
			t.Errorf("actor %d has handled %v of the sender %s", a, got, sender)
		}
	}
	for _, sender := range []string{"other", "carried"} {
		if got := reads.numbers(sender); len(got) != others || !slices.IsSorted(got) {
			t.Errorf("the actor that reads has handled %v of the sender %s", got, sender)
		}
	}
	if used := host.List().Memory; used != 0 {
		t.Errorf("empty inboxes take %d bytes", used)
	}
}

// numbers returns the numbers of the messages of a sender, as the actor has handled them.
func (a *Store) numbers(sender string) []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.got[sender])
}

// await waits until the actor has handled n messages of a sender.
func (a *Store) await(t *testing.T, sender string, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); len(a.numbers(sender)) < n; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("of %d messages of the sender %s, the actor has handled %d", n, sender, len(a.numbers(sender)))
		}
	}
}
