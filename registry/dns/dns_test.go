// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/registry"
	"github.com/yodel-rpc/yodel/registry/dns"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) { yodeltest.VerifyNoLeaks(m) }

// What DNS has numbers for.
const (
	typeA, typeAAAA, typeSRV  = 1, 28, 33
	noError, servFail, noName = 0, 2, 3
	isAnswer, isAuthority     = 0x8000, 0x0400
	silence                   = -1 // not of DNS: no answer
)

// A zone is a DNS server, and what it knows.
type zone struct {
	mu      sync.Mutex
	hosts   map[string][]string // addresses
	records map[string][]net.SRV
	codes   map[uint16]int // by type of question; silence
	asked   int

	addr string
}

func newZone(t *testing.T) *zone {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	z := &zone{hosts: map[string][]string{}, records: map[string][]net.SRV{}, codes: map[uint16]int{}, addr: conn.LocalAddr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if answer := z.answer(buffer[:n]); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	})
	t.Cleanup(func() { conn.Close(); wg.Wait() })
	return z
}

func (z *zone) set(f func(z *zone)) {
	z.mu.Lock()
	defer z.mu.Unlock()
	f(z)
}

func (z *zone) options() *dns.Options {
	return &dns.Options{
		Every: 50 * time.Millisecond, Timeout: 300 * time.Millisecond,
		Resolver: &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "udp", z.addr)
		}},
	}
}

// answer answers a question: a header of 12 bytes, the name in labels, type and class, and what may
// follow.
func (z *zone) answer(question []byte) []byte {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked++
	end := 12
	var labels []string
	for question[end] != 0 {
		n := int(question[end])
		labels = append(labels, string(question[end+1:end+1+n]))
		end += n + 1
	}
	name, kind := strings.Join(labels, "."), binary.BigEndian.Uint16(question[end+1:])
	end += 5
	code := z.codes[kind]
	if code == silence {
		return nil
	}
	var records [][]byte
	_, isHost := z.hosts[name]
	_, isService := z.records[name]
	switch {
	case code != noError:
	case !isHost && !isService:
		code = noName
	default:
		records = z.recordsOf(name, kind)
	}
	out := slices.Clone(question[:2])
	out = binary.BigEndian.AppendUint16(out, isAnswer|isAuthority|uint16(code))
	out = binary.BigEndian.AppendUint16(out, 1)
	out = binary.BigEndian.AppendUint16(out, uint16(len(records)))
	out = append(out, 0, 0, 0, 0)
	out = append(out, question[12:end]...)
	for _, record := range records {
		out = append(out, 0xc0, 12) // the name of the question
		out = binary.BigEndian.AppendUint16(out, kind)
		out = append(out, 0, 1, 0, 0, 0, 1) // class, time to live
		out = binary.BigEndian.AppendUint16(out, uint16(len(record)))
		out = append(out, record...)
	}
	return out
}

func (z *zone) recordsOf(name string, kind uint16) (records [][]byte) {
	for _, text := range z.hosts[name] {
		addr := netip.MustParseAddr(text)
		if addr.Is4() == (kind == typeA) && kind != typeSRV {
			records = append(records, addr.AsSlice())
		}
	}
	if kind == typeSRV {
		for _, srv := range z.records[name] {
			var record []byte
			for _, n := range []uint16{srv.Priority, srv.Weight, srv.Port} {
				record = binary.BigEndian.AppendUint16(record, n)
			}
			for label := range strings.SplitSeq(strings.TrimSuffix(srv.Target, "."), ".") {
				if label != "" {
					record = append(append(record, byte(len(label))), label...)
				}
			}
			records = append(records, append(record, 0))
		}
	}
	return records
}

// servicesAre makes a service have instances, each of which has a port of its own and the address
// of one host.
func (z *zone) servicesAre(name string) func([]discovery.Instance) {
	return func(instances []discovery.Instance) {
		z.set(func(z *zone) {
			z.hosts["host.example"], z.records[name] = []string{"127.0.0.1"}, nil
			for _, in := range instances {
				at := netip.MustParseAddrPort(in.Addr)
				z.records[name] = append(z.records[name], net.SRV{Target: "host.example.", Port: at.Port()})
			}
		})
	}
}

func srv(target string, port, priority, weight uint16) net.SRV {
	return net.SRV{Target: target, Port: port, Priority: priority, Weight: weight}
}

// follow watches until an update is as wanted, or Watch fails. It returns what was said last.
func follow(t *testing.T, r *dns.Resolver, want ...discovery.Instance) ([]discovery.Instance, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var last []discovery.Instance
	err := r.Watch(ctx, func(instances []discovery.Instance) {
		last = instances
		if slices.EqualFunc(instances, want, func(a, b discovery.Instance) bool { return a.Addr == b.Addr && a.Weight == b.Weight }) {
			cancel()
		}
	})
	if err == nil && context.Cause(ctx) == context.DeadlineExceeded {
		t.Errorf("got %v, want %v", last, want)
	}
	return last, err
}

func TestHostFollowsAddresses(t *testing.T) {
	z := newZone(t)
	r := dns.Host("arith.example.:8972", z.options())
	must := func(want ...discovery.Instance) {
		t.Helper()
		if _, err := follow(t, r, want...); err != nil {
			t.Errorf("%v", err)
		}
	}
	must() // NXDOMAIN
	z.set(func(z *zone) { z.hosts["arith.example"] = []string{"10.0.0.2", "10.0.0.1", "fd00::1"} })
	must(discovery.Instance{Addr: "10.0.0.1:8972"}, discovery.Instance{Addr: "10.0.0.2:8972"}, discovery.Instance{Addr: "[fd00::1]:8972"})
	z.set(func(z *zone) { z.hosts["arith.example"] = nil }) // the name is there, and has no records
	must()
}

func TestAWatchSeesChanges(t *testing.T) {
	z := newZone(t)
	r := dns.Host("arith.example.:1", z.options())
	said := make(chan []discovery.Instance, 10)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Watch(ctx, func(instances []discovery.Instance) { said <- instances }) }()
	for _, addrs := range [][]string{nil, {"10.0.0.1"}, {"10.0.0.1", "10.0.0.2"}, {"10.0.0.2"}, nil} {
		z.set(func(z *zone) { z.hosts["arith.example"] = addrs })
		for {
			if got := <-said; len(got) == len(addrs) { // what was said before the change may come first
				break
			}
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestServiceTakesTheFirstPriority(t *testing.T) {
	const name = "_arith._tcp.example"
	z := newZone(t)
	r := dns.Service(name+".", z.options())
	z.set(func(z *zone) {
		z.hosts["a.example"] = []string{"10.0.0.1", "10.0.0.2"}
		z.hosts["b.example"] = []string{"10.0.0.3"}
		z.hosts["far.example"] = []string{"10.9.9.9"}
	})
	for _, test := range []struct {
		records []net.SRV
		want    []discovery.Instance
	}{
		{nil, nil},
		{
			[]net.SRV{srv("far.example.", 1, 20, 1), srv("a.example.", 8972, 10, 7), srv("b.example.", 8973, 10, 0)},
			[]discovery.Instance{{Addr: "10.0.0.1:8972", Weight: 7}, {Addr: "10.0.0.2:8972", Weight: 7}, {Addr: "10.0.0.3:8973"}},
		},
		{
			[]net.SRV{srv("gone.example.", 1, 10, 1), srv("far.example.", 1, 20, 3)},
			[]discovery.Instance{{Addr: "10.9.9.9:1", Weight: 3}},
		},
		{[]net.SRV{srv(".", 0, 0, 0)}, nil},
	} {
		z.set(func(z *zone) { z.records[name] = test.records })
		if _, err := follow(t, r, test.want...); err != nil {
			t.Errorf("%v: %v", test.records, err)
		}
	}
}

func TestFailuresAreErrors(t *testing.T) {
	for what, codes := range map[string]map[uint16]int{
		"SERVFAIL":          {typeA: servFail, typeAAAA: servFail},
		"SERVFAIL for one":  {typeAAAA: servFail},
		"no answer":         {typeA: silence, typeAAAA: silence},
		"no answer for one": {typeA: silence},
	} {
		t.Run(what, func(t *testing.T) {
			z := newZone(t)
			z.set(func(z *zone) { z.hosts["arith.example"], z.codes = []string{"10.0.0.1", "fd00::1"}, codes })
			err := dns.Host("arith.example.:1", z.options()).Watch(t.Context(), func(got []discovery.Instance) { t.Errorf("it said %v", got) })
			if err == nil {
				t.Error("want an error")
			}
		})
	}
	t.Run("a target", func(t *testing.T) {
		z := newZone(t)
		z.set(func(z *zone) {
			z.records["_arith._tcp.example"] = []net.SRV{{Target: "a.example.", Port: 1}}
			z.codes = map[uint16]int{typeA: servFail, typeAAAA: servFail}
		})
		err := dns.Service("_arith._tcp.example.", z.options()).Watch(t.Context(), func(got []discovery.Instance) { t.Errorf("it said %v", got) })
		if err == nil {
			t.Error("want an error")
		}
	})
	t.Run("an address", func(t *testing.T) {
		if err := dns.Host("no port", nil).Watch(t.Context(), func([]discovery.Instance) {}); err == nil {
			t.Error("want an error")
		}
	})
}

func TestRefreshAsksAgain(t *testing.T) {
	z := newZone(t)
	o := z.options()
	o.Every = time.Hour
	r := dns.Host("arith.example.:1", o)
	said := make(chan int, 10)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Watch(ctx, func(instances []discovery.Instance) { said <- len(instances) }) }()
	first := <-said
	z.set(func(z *zone) { z.hosts["arith.example"] = []string{"10.0.0.1"} })
	r.Refresh()
	r.Refresh()
	if second := <-said; first != 0 || second != 1 {
		t.Errorf("got %d, then %d instances, want none and then one", first, second)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestARealServer asks one that others have written, also for more than a packet holds.
func TestARealServer(t *testing.T) {
	hosts := filepath.Join(t.TempDir(), "hosts")
	are := func(n int) (want []discovery.Instance) {
		var text strings.Builder
		for i := range n {
			addr := netip.AddrFrom4([4]byte{10, 0, byte(i / 200), byte(1 + i%200)})
			fmt.Fprintln(&text, addr, "many.example")
			want = append(want, discovery.Instance{Addr: netip.AddrPortFrom(addr, 8972).String(), Weight: 7})
		}
		if err := os.WriteFile(hosts, []byte(text.String()+"10.9.9.9 far.example\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(want, func(a, b discovery.Instance) int { return strings.Compare(a.Addr, b.Addr) })
		return want
	}
	want := are(1000) // 16 KB
	s := realserver.Dnsmasq(t, hosts, "srv-host=_arith._tcp.example,many.example,8972,10,7", "srv-host=_arith._tcp.example,far.example,1,20,1")
	o := &dns.Options{Every: 50 * time.Millisecond, Timeout: 5 * time.Second, Resolver: &net.Resolver{
		PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, s.Addr)
		},
	}}
	see := func(r *dns.Resolver, want ...discovery.Instance) {
		t.Helper()
		if _, err := follow(t, r, want...); err != nil {
			t.Error(err)
		}
	}
	see(dns.Service("_arith._tcp.example.", o), want...)
	see(dns.Host("far.example.:80", o), discovery.Instance{Addr: "10.9.9.9:80"})
	see(dns.Host("nobody.example.:80", o))
	s.Kill()
	if last, err := follow(t, dns.Host("far.example.:80", o)); err == nil {
		t.Errorf("got %v without a server, want an error", last)
	}
	want = are(2)
	s.Restart()
	see(dns.Service("_arith._tcp.example.", o), want...)
}

// A client whose server has moved asks DNS at once, not when it is time.
func TestAClientAsksAgainWhenItsServerIsGone(t *testing.T) {
	const name = "_arith._tcp.example"
	z := newZone(t)
	o := z.options()
	o.Every = time.Hour
	serve := func() (stop func()) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := yodel.NewServer(nil)
		if err = s.Handle("Arith.Where", func() string { return l.Addr().String() }); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan struct{})
		go func() { defer close(served); _ = s.Serve(ctx, l) }()
		z.servicesAre(name)([]discovery.Instance{{Addr: l.Addr().String()}})
		return func() { cancel(); <-served }
	}
	stop := serve()
	c := yodel.NewClient(registry.Merge(registry.Prefer(dns.Service(name+".", o))), nil) // they hand it on
	defer c.Close()
	var first, second string
	if err := c.Call(t.Context(), "Arith.Where", yodel.Values{}, yodel.Values{&first}); err != nil {
		t.Fatal(err)
	}
	stop()
	defer serve()()
	for late := time.After(20 * time.Second); second == "" || second == first; {
		err := c.Call(t.Context(), "Arith.Where", yodel.Values{}, yodel.Values{&second})
		select {
		case <-time.After(20 * time.Millisecond):
		case <-late:
			t.Fatalf("the server that has moved is not found: %v", err)
		}
	}
}

func TestServiceKeepsTheContract(t *testing.T) {
	const name = "_arith._tcp.example"
	z := newZone(t)
	fail := func() { z.set(func(z *zone) { z.codes = map[uint16]int{typeSRV: servFail} }) }
	yodeltest.TestResolver(t, dns.Service(name+".", z.options()), z.servicesAre(name), fail)
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	z := newZone(t)
	z.set(func(z *zone) { z.hosts["arith.example"] = []string{"10.0.0.1"} })
	o := z.options()
	o.Every, o.Timeout = -time.Second, -time.Second
	if _, err := follow(t, dns.Host("arith.example.:1", o), discovery.Instance{Addr: "10.0.0.1:1"}); err != nil {
		t.Error(err)
	}
}
