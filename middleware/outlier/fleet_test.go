// SPDX-License-Identifier: Apache-2.0

package outlier_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/balance"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/middleware/outlier"
	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

const work yodel.Method[struct{}, struct{}] = "Test.Work"

// A behaviour is how a server treats a call: n counts them.
type behaviour func(ctx context.Context, n int64) error

func slower(d time.Duration) behaviour {
	return func(context.Context, int64) error {
		time.Sleep(d)
		return nil
	}
}

func hanging(ctx context.Context, _ int64) error {
	<-ctx.Done()
	return ctx.Err()
}

func failing(every int64, err error) behaviour {
	return func(_ context.Context, n int64) error {
		if n%every == 0 {
			return err
		}
		return nil
	}
}

// A fleet is servers whose method takes 20 ms, and a client of them.
type fleet struct {
	*testing.T
	client  *yodel.Client
	servers []*server
	log     []string // what OnEject was told
}

type server struct {
	behaviour atomic.Pointer[behaviour]
	calls     atomic.Int64 // of work
}

func (s *server) becomes(b behaviour) { s.behaviour.Store(&b) }

func newFleet(t *testing.T, n int, o *outlier.Options, c *yodel.ClientOptions) *fleet {
	t.Helper()
	f := &fleet{T: t}
	network := mem.New()
	addrs := make([]string, n)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("server-%d", i)
		s := &server{}
		f.servers = append(f.servers, s)
		srv := yodel.NewServer(&yodel.ServerOptions{Middleware: []yodel.Middleware{func(next yodel.Handler) yodel.Handler {
			return func(ctx context.Context, call *yodel.Call) error { // of the built-in methods too
				n := s.calls.Load()
				if call.Method == string(work) {
					n = s.calls.Add(1)
				}
				if b := s.behaviour.Load(); b != nil && *b != nil {
					if err := (*b)(ctx, n); err != nil {
						return err
					}
				}
				return next(ctx, call)
			}
		}}})
		work.Handle(srv, func(context.Context, *struct{}) (*struct{}, error) {
			time.Sleep(20 * time.Millisecond)
			return &struct{}{}, nil
		})
		l, err := network.Listen(addrs[i])
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() { served <- srv.Serve(ctx, l) }()
		t.Cleanup(func() {
			cancel()
			if err := <-served; err != nil {
				t.Errorf("Serve: %v", err)
			}
		})
	}
	opts := yodel.ClientOptions{Timeout: time.Second}
	if c != nil {
		opts = *c
	}
	p := outlier.Options{}
	if o != nil {
		p = *o
	}
	began := time.Now()
	p.OnEject = func(ep *yodel.Endpoint, why string, d time.Duration) {
		f.log = append(f.log, fmt.Sprintf("%6.2fs %s %v: %s", time.Since(began).Seconds(), ep.Addr(), d.Round(time.Millisecond), why))
		ejected := 0
		for _, ep := range f.client.Endpoints() {
			if !ep.Ready() {
				ejected++
			}
		}
		if most := max(n*3/10, 1); o == nil && ejected > most {
			t.Errorf("%d of %d are ejected, want at most %d", ejected, n, most)
		}
	}
	opts.Transport = network
	opts.EndpointMiddleware = append(opts.EndpointMiddleware, outlier.Eject(&p))
	f.client = yodel.NewClient(discovery.Static(addrs...), &opts)
	t.Cleanup(f.client.Close)
	return f
}

// load makes calls at a rate for a time, and returns how many of each server's were begun
// meanwhile. It waits for none to end.
func (f *fleet) load(rate int, d time.Duration) (shares []float64) {
	before := make([]int64, len(f.servers))
	for i, s := range f.servers {
		before[i] = s.calls.Load()
	}
	end := time.Now().Add(d)
	for time.Now().Before(end) {
		go work.Call(context.Background(), f.client, &struct{}{})
		time.Sleep(time.Second / time.Duration(rate))
	}
	total := 0.0
	for i, s := range f.servers {
		n := float64(s.calls.Load() - before[i])
		shares = append(shares, n)
		total += n
	}
	for i := range shares {
		shares[i] /= total
	}
	return shares
}

func (f *fleet) ready() (n int) {
	for _, ep := range f.client.Endpoints() {
		if ep.Ready() {
			n++
		}
	}
	return n
}

func (f *fleet) explain() {
	f.Helper()
	for _, line := range f.log {
		f.Log(line)
	}
}

// givesUp cancels attempts that take twice as long as usual, as a hedge does whose second attempt
// has won.
func givesUp(next yodel.Handler) yodel.Handler {
	return func(ctx context.Context, call *yodel.Call) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		timer := time.AfterFunc(40*time.Millisecond, cancel)
		defer timer.Stop()
		return next(ctx, call)
	}
}

// One of ten becomes bad: two seconds later, or as soon as it had the calls that are its tenth of
// two seconds, it has less than a hundredth of the calls. When it is well again it has its tenth.
func TestOneOfTenIsBad(t *testing.T) {
	t.Parallel()
	balancers := map[string]yodel.Balancer{"round robin": yodel.RoundRobin, "random": balance.Random, "P2C": balance.P2C}
	for _, rate := range []int{100, 300, 1000} {
		for name, bad := range map[string]behaviour{
			"slow":                 slower(200 * time.Millisecond),
			"black hole":           hanging,
			"half fails":           failing(2, yodel.Errorf(yodel.Unavailable, "x")),
			"half fails, uncoded":  failing(2, errors.New("x")),
			"half is refused":      failing(2, &yodel.Error{Code: yodel.ResourceExhausted, NotProcessed: true}),
			"all fails":            failing(1, yodel.Errorf(yodel.Internal, "x")),
			"slow, behind a hedge": slower(200 * time.Millisecond),
		} {
			for balancer, b := range balancers {
				if brief() && (balancer != "random" || rate != 300 || strings.HasPrefix(name, "half")) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d a second/%s", name, rate, balancer), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						o := &yodel.ClientOptions{Timeout: time.Second, Balancer: b}
						if name == "slow, behind a hedge" {
							o.Middleware = []yodel.Middleware{givesUp}
						}
						f := newFleet(t, 10, nil, o)
						f.load(rate, 3*time.Second)
						f.servers[3].becomes(bad)
						turns := f.servers[3].calls.Load() + int64(2*rate/10)
						f.load(rate, 2*time.Second)
						for f.ready() == 10 && f.servers[3].calls.Load() < turns { // chance has given it fewer
							f.load(rate, 100*time.Millisecond)
						}
						if share := f.load(rate, 5*time.Second)[3]; share > 0.01 {
							t.Errorf("after 2 s it has %.1f%% of the calls, want less than 1%%", 100*share)
						}
						f.servers[3].becomes(nil)
						f.load(rate, 12*time.Second)
						// a tenth, and what chance does to 500 calls
						if share := f.load(rate, 5*time.Second)[3]; f.ready() != 10 || share < 0.05 {
							t.Errorf("well again, it has %.1f%% of the calls, and %d of 10 are ready", 100*share, f.ready())
						}
						if t.Failed() || testing.Verbose() {
							f.explain()
						}
					})
				})
			}
		}
	}
}
