// SPDX-License-Identifier: Apache-2.0

package mdns_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/realserver"
)

// A peer is a program in Python, with a library that has nothing to do with this one.
type peer struct {
	stdin io.WriteCloser
	seen  chan sighting
	kill  func()
}

// A sighting is what the peer saw of an instance.
type sighting struct {
	Event, Name string
	Port        int
	Addresses   []string
	Text        map[string]string
}

// An order is what the peer is to do.
type order struct {
	Do   string            `json:"do"`
	Name string            `json:"name"`
	Port int               `json:"port"`
	TTL  int               `json:"ttl"`
	Text map[string]string `json:"text"`
}

func startPeer(t *testing.T, kind string) *peer {
	t.Helper()
	python, packages := realserver.Python(t, "zeroconf==0.154.0", "ifaddr==0.2.0")
	cmd := exec.Command(python, "testdata/peer.py", kind+".local.")
	cmd.Env, cmd.Stderr = append(os.Environ(), "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1"), os.Stderr
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
	// it may have ended
	p := &peer{stdin: stdin, seen: make(chan sighting, 100), kill: func() { _ = cmd.Process.Kill(); <-ended }}
	t.Cleanup(p.kill)
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			var s sighting
			if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
				t.Errorf("the peer said %q: %v", lines.Text(), err)
			}
			p.seen <- s
		}
		_ = cmd.Wait() // it was killed
	}()
	p.until(t, "ready", func(s sighting) bool { return s.Event == "ready" })
	return p
}

func (p *peer) until(t *testing.T, want string, right func(sighting) bool) {
	t.Helper()
	late := time.After(30 * time.Second)
	var last sighting
	for {
		select {
		case last = <-p.seen:
			if right(last) {
				return
			}
		case <-late:
			t.Fatalf("the peer saw %+v last, want %s", last, want)
		}
	}
}

func (p *peer) tell(t *testing.T, o order) {
	t.Helper()
	if err := json.NewEncoder(p.stdin).Encode(o); err != nil {
		t.Fatal(err)
	}
}

func TestPeerSeesUs(t *testing.T) {
	t.Parallel()
	const kind = "_yodel-us._tcp"
	r := join(t, kind)
	announce := func(in discovery.Instance) {
		t.Helper()
		if err := r.Announce(t.Context(), "Arith", in, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	announce(discovery.Instance{Addr: "10.1.2.3:8972"}) // before it begins to look
	p := startPeer(t, kind)
	p.until(t, "what was there before", func(s sighting) bool {
		return s.Event == "added" && s.Name == "Arith 10.1.2.3:8972."+kind+".local." && s.Port == 8972 && slices.Equal(s.Addresses, []string{"10.1.2.3"})
	})
	announce(discovery.Instance{Addr: "10.1.2.4:8972", Weight: 3, Zone: "Zürich", Metadata: yodel.Metadata{"a=b": `"\`}})
	p.until(t, "what came later", func(s sighting) bool {
		return s.Event == "added" && s.Text["service"] == "Arith" && s.Text["weight"] == "3" && s.Text["zone"] == "Zürich" && s.Text["md-a%3Db"] == `"\`
	})
	announce(discovery.Instance{Addr: "10.1.2.4:8972", Weight: 5})
	p.until(t, "a change", func(s sighting) bool { return s.Event == "updated" && s.Text["weight"] == "5" && s.Text["zone"] == "" })
	if err := r.Withdraw(t.Context(), "Arith", "10.1.2.4:8972"); err != nil {
		t.Fatal(err)
	}
	p.until(t, "a goodbye", func(s sighting) bool {
		return s.Event == "removed" && s.Name == "Arith 10.1.2.4:8972."+kind+".local."
	})
}

func TestWeSeePeer(t *testing.T) {
	t.Parallel()
	const kind = "_yodel-peer._tcp"
	p := startPeer(t, kind)
	f := follow(t, join(t, kind).Service("Arith"))
	p.tell(t, order{Do: "announce", Name: "one", Port: 4001, TTL: 60, Text: map[string]string{"service": "Arith", "weight": "2"}})
	f.untilAt(t, "127.0.0.1:4001")
	p.tell(t, order{Do: "announce", Name: "two", Port: 4002, TTL: 8, Text: map[string]string{"service": "Arith"}})
	p.tell(t, order{Do: "announce", Name: "other", Port: 4003, TTL: 60, Text: map[string]string{"service": "Others"}})
	f.untilAt(t, "127.0.0.1:4001", "127.0.0.1:4002")
	p.tell(t, order{Do: "announce", Name: "one", Port: 4001, TTL: 60, Text: map[string]string{"service": "Arith", "weight": "7"}})
	f.until(t, "another weight", func(instances []discovery.Instance) bool { return len(instances) == 2 && instances[0].Weight == 7 })
	<-time.After(9 * time.Second) // the second one would be forgotten, were it not asked for again
	later := follow(t, join(t, kind).Service("Arith"))
	later.untilAt(t, "127.0.0.1:4001", "127.0.0.1:4002")
	p.tell(t, order{Do: "withdraw", Name: "one"})
	f.untilAt(t, "127.0.0.1:4002")
	p.kill()
	f.untilAt(t)
}
