// SPDX-License-Identifier: Apache-2.0

package mdns

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// A silence is a network on which nobody answers, in fake time.
type silence struct {
	*browser

	now, began time.Time
}

func newSilence() *silence {
	now := time.Unix(1e9, 0)
	return &silence{newBrowser(&service{New(nil), "Arith"}, now), now, now}
}

// until lets time pass, and returns how many questions were asked.
func (s *silence) until(t *testing.T, end time.Duration) (questions int) {
	t.Helper()
	for steps := 0; ; steps++ {
		if steps == 1000 {
			t.Fatalf("after %v there is something to do all the time", s.now.Sub(s.began))
		}
		s.forget(s.now)
		if s.question(s.now) != nil {
			questions++
		}
		if s.changed && !s.now.Before(s.tellAt()) {
			s.changed, s.told, s.rested = false, true, s.now.Add(pause)
		}
		next := s.next()
		if next.After(s.began.Add(end)) {
			s.now = s.began.Add(end)
			return questions
		}
		s.now = next
	}
}

func TestNobodyAnswers(t *testing.T) {
	s := newSilence()
	if n := s.until(t, time.Second); n != 2 || s.told {
		t.Errorf("%d questions in the first second, and it has given up: %t", n, s.told)
	}
	if s.until(t, 2*time.Second); !s.told {
		t.Error("two questions had no answer, and it does not say that nobody is there")
	}
	if n := s.until(t, 10*time.Minute); n > 20 {
		t.Errorf("%d questions in 10 minutes", n)
	}
}

func TestANameAloneIsAskedForAFewTimes(t *testing.T) {
	s := newSilence()
	alone := s.until(t, 10*time.Minute)
	s = newSilence()
	s.learn(answer([]dns.RR{&dns.PTR{
		Hdr: dns.RR_Header{Name: s.kind, Rrtype: dns.TypePTR, Class: dns.ClassINET, Ttl: 4500}, Ptr: "x." + s.kind,
	}}), s.now)
	if n := s.until(t, 10*time.Minute); n < alone || n > alone+enoughTries {
		t.Errorf("%d questions in 10 minutes, and %d without the name", n, alone)
	}
	if len(s.instances()) > 0 {
		t.Error("a name is an instance")
	}
	if s.until(t, 75*time.Minute); len(s.entries) > 0 {
		t.Error("the name outlived its time")
	}
}

// A list without the records of an instance says so.
func TestAListThatIsNotCompleteSaysSo(t *testing.T) {
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(interfaces, func(in net.Interface) bool { return in.Flags&net.FlagLoopback != 0 })
	if i < 0 {
		t.Fatal("there is no loopback interface")
	}
	r := New(&Options{Type: "_yodel-part._tcp", Interfaces: []string{interfaces[i].Name}})
	whole, err := newRecord(r.kind, "Cart", discovery.Instance{Addr: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	part, err := newRecord(r.kind, "Pay", discovery.Instance{Addr: "127.0.0.1:2"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := open(r.opts.Interfaces)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	messages, failed := c.follow(ctx)
	answers := append(whole.answers(120), part.answers(120)[:1]...) // all but the name was lost
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ctx.Done():
				return
			case m := <-messages:
				if !m.Response && c.send(answer(answers)) != nil {
					return
				}
			}
		}
	}()
	defer func() {
		cancel()
		c.close()
		<-failed
		<-ended
	}()
	names, err := r.Services(ctx)
	if err == nil || !strings.Contains(err.Error(), "the records of 1 of 2 instances have not arrived") || !slices.Equal(names, []string{"Cart"}) {
		t.Errorf("got the services %q, %v", names, err)
	}
}

// A browser has room for 10,000 instances. With more, it logs once that some are left out, and a
// list says so.
func TestMoreInstancesThanThereIsRoomFor(t *testing.T) {
	s := newSilence()
	var log bytes.Buffer
	s.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
	name := func(i int) []dns.RR {
		return []dns.RR{&dns.PTR{
			Hdr: dns.RR_Header{Name: s.kind, Rrtype: dns.TypePTR, Class: dns.ClassINET, Ttl: 4500}, Ptr: fmt.Sprintf("x%d.%s", i, s.kind),
		}}
	}
	for i := range maxInstances {
		s.learn(answer(name(i)), s.now)
	}
	if log.Len() > 0 || s.lacks() == nil || strings.Contains(s.lacks().Error(), "more than") {
		t.Errorf("with %d instances: %v %s", maxInstances, s.lacks(), &log)
	}
	for i := range 3 {
		s.learn(answer(name(maxInstances+i)), s.now)
	}
	if err := s.lacks(); err == nil || err.Error() != "mdns: more than 10000 instances have answered" || strings.Count(log.String(), "instances=10000") != 1 {
		t.Errorf("with three more: %v %s", err, &log)
	}
}

func TestWhatFallsSilentIsAskedForAndForgotten(t *testing.T) {
	s := newSilence()
	rec, err := newRecord(s.kind, "Arith", discovery.Instance{Addr: "10.0.0.1:8972", Weight: 3})
	if err != nil {
		t.Fatal(err)
	}
	s.learn(answer(rec.answers(4500)), s.now)
	s.until(t, 59*time.Minute)
	if n := s.until(t, 75*time.Minute-time.Second); n < 18 || n > 22 { // every minute, and four times because of it
		t.Errorf("%d questions in the last 16 of 75 minutes", n)
	}
	if got := s.instances(); len(got) != 1 || got[0].Weight != 3 {
		t.Errorf("the instances are %v before their time has passed", got)
	}
	if s.until(t, 75*time.Minute); len(s.instances()) > 0 {
		t.Errorf("the instances are %v after their time has passed", s.instances())
	}
	s.learn(answer(rec.answers(4500)), s.now)
	s.learn(answer(rec.answers(0)), s.now)
	if len(s.instances()) > 0 {
		t.Error("a goodbye was not heard")
	}
}

func TestStrangersAreOfNoUse(t *testing.T) {
	s := newSilence()
	head := func(name string, kind uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: 120}
	}
	s.learn(answer([]dns.RR{
		&dns.PTR{Hdr: head("_ipp._tcp.local.", dns.TypePTR), Ptr: "printer._ipp._tcp.local."},
		&dns.SRV{Hdr: head("printer._ipp._tcp.local.", dns.TypeSRV), Target: "p.local.", Port: 631},
		&dns.TXT{Hdr: head("printer._ipp._tcp.local.", dns.TypeTXT), Txt: []string{"service=Arith"}},
		&dns.TXT{Hdr: head(s.kind, dns.TypeTXT), Txt: []string{"service=Arith"}},
		&dns.SRV{Hdr: head("a."+s.kind, dns.TypeSRV), Target: "a.local.", Port: 1},
		&dns.TXT{Hdr: head("a."+s.kind, dns.TypeTXT), Txt: []string{"service=Arith", "weight=heavy"}},
		&dns.SRV{Hdr: head("b."+s.kind, dns.TypeSRV), Target: "b.local.", Port: 1},
		&dns.TXT{Hdr: head("b."+s.kind, dns.TypeTXT), Txt: []string{""}},
	}), s.now)
	if len(s.entries) != 2 || len(s.instances()) > 0 {
		t.Errorf("%d entries and %v came of them", len(s.entries), s.instances())
	}
}

// A packet of addresses costs the same whether the browser knows 10,000 instances or 10.
func TestAddressesCostTheSameHoweverManyInstancesAreKnown(t *testing.T) {
	head := func(name string, kind uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: 120}
	}
	var addresses []dns.RR
	for i := range 2000 {
		addresses = append(addresses, &dns.A{Hdr: head(fmt.Sprintf("h%d.local.", i), dns.TypeA), A: net.IPv4(10, 0, byte(i>>8), byte(i))})
	}
	cost := func(instances int) time.Duration {
		s := newSilence()
		for i := range instances {
			name := fmt.Sprintf("invented%d.%s", i, s.kind)
			s.learn(answer([]dns.RR{&dns.SRV{Hdr: head(name, dns.TypeSRV), Target: fmt.Sprintf("H%d.local.", i), Port: 1}}), s.now)
		}
		if len(s.entries) != instances || len(s.at) != instances {
			t.Fatalf("got %d entries on %d hosts, want %d", len(s.entries), len(s.at), instances)
		}
		began := time.Now()
		s.learn(answer(addresses), s.now)
		took := time.Since(began)
		s.forget(s.now.Add(time.Hour))
		if len(s.entries) != 0 || len(s.at) != 0 {
			t.Errorf("%d entries on %d hosts are known after an hour", len(s.entries), len(s.at))
		}
		return took
	}
	few, many := time.Hour, time.Hour
	for range 5 { // the least of several measurements is that without disturbance
		few, many = min(few, cost(10)), min(many, cost(maxInstances))
	}
	if many > 20*few {
		t.Errorf("a packet costs %v with %d instances, and %v with 10", many, maxInstances, few)
	}
}

func FuzzText(f *testing.F) {
	f.Add("Arith", "10.0.0.1:8972", `a "b" \ c`, "k=v")
	f.Fuzz(func(t *testing.T, service, addr, value, key string) {
		in := discovery.Instance{Addr: addr, Zone: value, Tags: []string{key + "x", ","}, Metadata: yodel.Metadata{key: value}}
		text, err := textOf(service, in)
		if err != nil {
			t.Skip("it does not fit")
		}
		for i := range text {
			text[i] = unescape(escape(text[i]))
		}
		name, got, err := instanceOf(text)
		if err != nil || name != service || got.Addr != addr || got.Zone != value || got.Tags[0] != key+"x" || got.Metadata[key] != value {
			t.Errorf("%q %+v became %q %+v, %v", service, in, name, got, err)
		}
	})
}
