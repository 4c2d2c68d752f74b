// SPDX-License-Identifier: Apache-2.0

package mdns_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry/mdns"
	"github.com/yodel-rpc/yodel/yodeltest"
)

// serverOf is set for a process of its own, which TestProcesses starts: it serves, and is of this
// type.
const serverOf = "YODEL_MDNS_SERVER"

func TestMain(m *testing.M) {
	if kind := os.Getenv(serverOf); kind != "" {
		if err := serve(kind); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	yodeltest.VerifyNoLeaks(m)
}

// loopback returns the name of the interface that needs no network.
func loopback(t testing.TB) string {
	t.Helper()
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(interfaces, func(in net.Interface) bool { return in.Flags&net.FlagLoopback != 0 })
	if i < 0 {
		t.Fatal("there is no loopback interface")
	}
	return interfaces[i].Name
}

// join returns a registry on loopback, beside others of that type.
func join(t *testing.T, kind string) *mdns.Registry {
	t.Helper()
	r := mdns.New(&mdns.Options{Type: kind, Interfaces: []string{loopback(t)}})
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// There is no server to be in trouble, and what fits into the packets of a network are hundreds of
// instances, not thousands.
func TestRegistry(t *testing.T) {
	t.Parallel()
	client := join(t, "_yodel-suite._tcp")
	yodeltest.TestRegistry(t, yodeltest.Registry{
		Registrar: join(t, "_yodel-suite._tcp"), Another: join(t, "_yodel-suite._tcp"), Service: client.Service, Instances: 300,
	})
}

// A follower is a client of a registry.
type follower struct {
	said   chan []discovery.Instance
	cancel context.CancelFunc
	ended  chan error
}

func follow(t *testing.T, r discovery.Resolver) *follower {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{make(chan []discovery.Instance, 100), cancel, make(chan error, 1)}
	go func() { f.ended <- r.Watch(ctx, func(instances []discovery.Instance) { f.said <- instances }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-f.ended; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
	return f
}

// until waits for a set that is right, and returns how long that took.
func (f *follower) until(t *testing.T, want string, right func([]discovery.Instance) bool) time.Duration {
	t.Helper()
	began := time.Now()
	late := time.After(30 * time.Second)
	var last []discovery.Instance
	for {
		select {
		case last = <-f.said:
			if right(last) {
				return time.Since(began)
			}
		case <-late:
			t.Fatalf("the instances are %v, want %s", last, want)
		}
	}
}

func (f *follower) untilAt(t *testing.T, addrs ...string) time.Duration {
	t.Helper()
	slices.Sort(addrs)
	return f.until(t, fmt.Sprintf("%q", addrs), func(instances []discovery.Instance) bool {
		var got []string
		for _, in := range instances {
			got = append(got, in.Addr)
		}
		slices.Sort(got)
		return slices.Equal(got, addrs)
	})
}

// every is how often servers announce themselves in tests. They are forgotten after three times as
// long.
const every = time.Second

// serve is a server that lives until its standard input ends.
func serve(kind string) error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(interfaces, func(in net.Interface) bool { return in.Flags&net.FlagLoopback != 0 })
	r := mdns.New(&mdns.Options{Type: kind, Interfaces: []string{interfaces[i].Name}})
	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}, AnnounceEvery: every})
	yodel.Method[string, string]("Echo.Say").Handle(s, func(_ context.Context, text *string) (*string, error) { return text, nil })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until it ends, for whatever reason
		cancel()
	}()
	if err = s.Serve(ctx, l); err != nil {
		return err
	}
	return r.Close()
}

// startServer starts a server as a process of its own. It returns where it serves, and how to end
// it in two ways.
func startServer(t *testing.T, kind string) (addr string, kill, shutDown func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), serverOf+"="+kind), os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	lines := bufio.NewScanner(stdout)
	lines.Scan()
	go func() {
		_ = cmd.Wait() // it may have been killed
		close(ended)
	}()
	kill = func() { _ = cmd.Process.Kill(); <-ended } // it may have ended
	t.Cleanup(kill)
	return lines.Text(), kill, func() { _ = stdin.Close(); <-ended }
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	const kind = "_yodel-proc._tcp"
	a, killA, _ := startServer(t, kind)
	b, _, shutDownB := startServer(t, kind)
	f := follow(t, join(t, kind).Service("Echo"))
	f.untilAt(t, a, b)
	c, _, _ := startServer(t, kind)
	f.untilAt(t, a, b, c)
	shutDownB()
	if took := f.untilAt(t, a, c); took > every {
		t.Errorf("a goodbye took %v to be heard", took)
	}
	killA()
	if took := f.untilAt(t, c); took > 4*every+time.Second {
		t.Errorf("a server that was killed was known for %v", took)
	}
}

func TestAnInterfaceThatIsNotThere(t *testing.T) {
	t.Parallel()
	r := mdns.New(&mdns.Options{Interfaces: []string{"none7"}})
	if err := r.Announce(t.Context(), "Arith", discovery.Instance{Addr: "127.0.0.1:1"}, time.Second); err == nil {
		t.Error("Announce did not fail")
	}
	if err := r.Service("Arith").Watch(t.Context(), func([]discovery.Instance) {}); err == nil {
		t.Error("Watch did not fail")
	}
}

func TestWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	r := join(t, "_yodel-fit._tcp")
	long := string(make([]byte, 300))
	if err := r.Announce(t.Context(), "Arith", discovery.Instance{Addr: "127.0.0.1:1", Zone: long}, time.Second); err == nil {
		t.Error("Announce took a zone that has no room in a TXT record")
	}
	name := fmt.Sprintf("%0100d", 7) // a label has room for 63 bytes
	if err := r.Announce(t.Context(), name, discovery.Instance{Addr: "127.0.0.1:1"}, time.Minute); err != nil {
		t.Error(err)
	}
	follow(t, r.Service(name)).untilAt(t, "127.0.0.1:1")
}

func TestCloseSaysGoodbye(t *testing.T) {
	t.Parallel()
	const kind = "_yodel-close._tcp"
	f := follow(t, join(t, kind).Service("Arith"))
	r := join(t, kind)
	if err := r.Announce(t.Context(), "Arith", discovery.Instance{Addr: "127.0.0.1:1"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	f.untilAt(t, "127.0.0.1:1")
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	f.untilAt(t)
	if err := r.Announce(t.Context(), "Arith", discovery.Instance{Addr: "127.0.0.1:1"}, time.Hour); err == nil {
		t.Error("a registry that is closed announces")
	}
}
