// SPDX-License-Identifier: Apache-2.0

package protocolfuzz_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/codec/raw"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/yodeltest"
)

var (
	lasts = flag.Duration("fuzz.for", 0, "how long the two tests take together; 30 s by default in CI, and 6 s elsewhere")
	seed  = flag.Uint64("fuzz.seed", 0, "run the laps of this seed once, instead of random ones")
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// TestAServerKeepsTheRulesWhateverComes has models talk to a real server.
func TestAServerKeepsTheRulesWhateverComes(t *testing.T) { laps(t, serverLap) }

// TestAClientKeepsTheRulesWhateverComes has a real client talk to models.
func TestAClientKeepsTheRulesWhateverComes(t *testing.T) { laps(t, clientLap) }

func laps(t *testing.T, lap func(seed uint64, rng *rand.Rand, steps int) []string) {
	t.Helper()
	conversations.Store(0)
	stepsTaken.Store(0)
	framesRead.Store(0)
	first := rand.Uint64() >> 16
	if *seed != 0 {
		first = *seed
	}
	t.Logf("the first seed is %d", first)
	var next atomic.Uint64
	var running sync.WaitGroup
	deadline := time.Now().Add(howLong() / 2)
	one := func() (again bool) {
		n := first + next.Add(1) - 1
		faults := lap(n, rand.New(rand.NewPCG(n, 1)), 400)
		for _, fault := range faults[:min(3, len(faults))] {
			t.Errorf("seed %d: %s", n, fault)
		}
		return *seed == 0 && !t.Failed() && time.Now().Before(deadline)
	}
	lanes := 4 // laps wait more than they compute
	if *seed != 0 {
		lanes = 1
	}
	for range lanes {
		running.Go(func() {
			for one() {
			}
		})
	}
	running.Wait()
	t.Logf("%d conversations, %d steps, %d frames of the real side", conversations.Load(), stepsTaken.Load(), framesRead.Load())
}

// howLong is how long the tests take. Everything that CI tests is tested with servers of other
// systems, which this variable asks for.
func howLong() time.Duration {
	switch {
	case *lasts != 0:
		return *lasts
	case os.Getenv("YODEL_REAL") != "":
		return 30 * time.Second
	}
	return 6 * time.Second
}

// A pipes is a listener whose connections are pipes.
type pipes struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (*pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (l *pipes) dial() (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// listen returns a listener, and a function that connects to it: through pipes, or through the
// loopback interface.
func listen(rng *rand.Rand) (net.Listener, func() (net.Conn, error)) {
	if rng.IntN(2) == 0 {
		if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
			return l, func() (net.Conn, error) { return net.Dial("tcp", l.Addr().String()) }
		}
	}
	l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	return l, l.dial
}

// serverLap has models talk to a server, which is shut down in the end or meanwhile. It returns
// what was against the rules.
func serverLap(seed uint64, rng *rand.Rand, steps int) []string {
	w := newWorld()
	l, dial := listen(rng)
	var workers sync.WaitGroup
	o := options(rng)
	o.Connect = func(_ context.Context, peer *yodel.Peer) error {
		w.workers.Add(1)
		workers.Go(func() { //nolint:contextcheck // the calls outlive the hook
			defer w.workers.Add(-1)
			w.work(rand.New(rand.NewPCG(seed, 2)), peer, 15, func() bool { return ended(peer.Done()) })
		})
		return nil
	}
	s := yodel.NewServer(o)
	w.serve(s)
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), l) }()
	var talks sync.WaitGroup
	for i := range uint64(1 + rng.IntN(3)) {
		talks.Go(func() { talk(seed<<2+i, steps, w, dial) })
	}
	drain := rng.IntN(3) == 0
	if drain {
		<-time.After(time.Duration(rng.IntN(20)) * time.Millisecond)
	} else {
		talks.Wait()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*finishPatience)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		w.faultf("Shutdown: %v", err)
	}
	talks.Wait()
	if err := <-served; !errors.Is(err, yodel.ErrServerClosed) && err != nil {
		w.faultf("Serve: %v", err)
	}
	workers.Wait()
	return w.judge()
}

func ended(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// talk is one conversation with a server.
func talk(seed uint64, steps int, w *world, dial func() (net.Conn, error)) {
	nc, err := dial()
	if err != nil {
		return // the server has been shut down
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	converse(newConversation(seed, rng, nc, w), rng.IntN(10), steps)
}

// converse carries on a conversation to its end.
func converse(c *conversation, end int, steps int) {
	c.begin()
	c.steps(steps)
	switch end {
	case 0:
		c.breakRules()
	case 1:
		c.end() // in the middle
	case 2:
		c.drain()
		c.finish()
	default:
		c.finish()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, fault := range c.faults {
		c.world.faultf("conversation %d: %s", c.seed, fault)
	}
}

// drain says that the model takes no more calls.
func (c *conversation) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drained = true
	c.sendLocked(wire.AppendGoAway(nil, 0, &wire.Drain{Count: c.answered.total}))
}

// A dialer connects a client to models, which listen nowhere.
type dialer struct {
	mu    sync.Mutex
	rng   *rand.Rand
	w     *world
	steps int
	talks sync.WaitGroup
	made  uint64
	base  uint64

	closed bool
}

func (d *dialer) Dial(context.Context, string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, net.ErrClosed
	}
	near, far := net.Pipe()
	d.made++
	seed := d.base<<4 + d.made
	rng := rand.New(rand.NewPCG(seed, 4))
	end := 9
	if d.made < 3 { // later ones last until the client has finished
		end = rng.IntN(10)
	}
	c := newConversation(seed, rng, far, d.w)
	c.second = true
	d.talks.Go(func() { converse(c, end, d.steps) })
	return near, nil
}

func (*dialer) Listen(string) (net.Listener, error) { return nil, errors.ErrUnsupported }

// clientLap has a client talk to models. It returns what was against the rules.
func clientLap(seed uint64, rng *rand.Rand, steps int) []string {
	w := newWorld()
	d := &dialer{rng: rng, w: w, steps: steps, base: seed}
	s := yodel.NewServer(options(rng))
	w.serve(s)
	o := options(rng)
	c := yodel.NewClient(discovery.Static("model"), &yodel.ClientOptions{
		Codec: raw.Codec, Transport: d, Server: s, Checksum: rng.IntN(3) == 0, Limits: o.Limits, Logger: o.Logger,
	})
	var workers sync.WaitGroup
	for i := range uint64(1 + rng.IntN(4)) {
		w.workers.Add(1)
		workers.Go(func() {
			defer w.workers.Add(-1)
			w.work(rand.New(rand.NewPCG(seed, 5+i)), c, 15, func() bool { return false })
		})
	}
	workers.Wait()
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.talks.Wait()
	c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), finishPatience)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		w.faultf("Shutdown: %v", err)
	}
	return w.judge()
}

// FuzzConversation lets the fuzzing engine choose what the model does.
func FuzzConversation(f *testing.F) {
	f.Add([]byte("frames"))
	f.Add(make([]byte, 400))
	f.Fuzz(func(t *testing.T, choices []byte) {
		w := newWorld()
		l, dial := listen(rand.New(&bytesSource{rest: make([]byte, 8), then: rand.NewPCG(0, 0)}))
		s := yodel.NewServer(options(rand.New(rand.NewPCG(0, 0))))
		w.serve(s)
		served := make(chan error, 1)
		go func() { served <- s.Serve(context.Background(), l) }()
		nc, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		h := fnv.New64a()
		_, _ = h.Write(choices) // it does not fail
		rng := rand.New(&bytesSource{rest: choices, then: rand.NewPCG(h.Sum64(), 6)})
		converse(newConversation(1, rng, nc, w), 9, min(10+len(choices)/4, 200))
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		<-served
		for _, fault := range w.judge() {
			t.Error(fault)
		}
	})
}

// A bytesSource takes random numbers from bytes, and then from another source.
type bytesSource struct {
	rest []byte
	then rand.Source
}

func (s *bytesSource) Uint64() uint64 {
	if len(s.rest) < 2 {
		return s.then.Uint64()
	}
	n := binary.LittleEndian.Uint16(s.rest)
	s.rest = s.rest[2:]
	return uint64(n) * 0x0001_0001_0001_0001
}
