// SPDX-License-Identifier: Apache-2.0

package mdns

import (
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/yodel-rpc/yodel"
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

func TestWhatFallsSilentIsAskedForAndForgotten(t *testing.T) {
	s := newSilence()
	rec, err := newRecord(s.kind, "Arith", yodel.Instance{Addr: "10.0.0.1:8972", Weight: 3})
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

func FuzzText(f *testing.F) {
	f.Add("Arith", "10.0.0.1:8972", `a "b" \ c`, "k=v")
	f.Fuzz(func(t *testing.T, service, addr, value, key string) {
		in := yodel.Instance{Addr: addr, Zone: value, Tags: []string{key + "x", ","}, Metadata: yodel.Metadata{key: value}}
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
