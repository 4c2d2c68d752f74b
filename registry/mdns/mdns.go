// SPDX-License-Identifier: Apache-2.0

// Package mdns is a registry without a server: processes on one network tell each other who serves
// what, by DNS-SD (RFC 6763) over multicast DNS (RFC 6762). It is for an office, a workshop, a
// laptop; what it has room for is hundreds of instances, not thousands.
//
// An instance is one of the type _yodel._tcp in the domain local, with a name like "Arith
// 10.0.0.1:8972", an SRV record and a TXT record with what it says of itself, for example
// "service=Arith", "addr=10.0.0.1:8972", "weight=3". Tools that speak DNS-SD show it. What others
// announce is found if its TXT record says which service it is; without an "addr" in there, its
// address is that of its SRV record.
//
// Whoever is on the network can announce, and be believed: a server has to prove who it is in
// another way, for example by TLS.
//
// It speaks IPv4 multicast, about addresses of all kinds. Names hold an address, which nobody else
// has, so it does not probe for conflicts.
package mdns

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/yodel-rpc/yodel"
)

// domain is the one of multicast DNS.
const domain = "local."

// Options changes how the registry works. The zero value is good.
type Options struct {
	// Type is what instances are of, by RFC 6763. Default "_yodel._tcp".
	Type string
	// Interfaces are the names of the network interfaces to use, for example "eth0", or "lo" for
	// one machine. Default: all that are up and know multicast.
	Interfaces []string
	// Logger is told of records that cannot be read. Default slog.Default().
	Logger *slog.Logger
}

// A Registry announces instances on the network, and follows those of others. It may be used
// concurrently.
type Registry struct {
	opts Options
	kind string // of instances, as a name

	mu      sync.Mutex
	closed  bool
	conn    *conn // nil while nothing was announced
	done    chan struct{}
	records map[string]*record // by name
	asked   map[string]bool    // names of records that somebody waits for
	listing bool               // somebody waits for the type
	soon    *time.Timer        // answers them; nil when nobody waits
}

// New returns a registry. It does nothing until it is used.
func New(o *Options) *Registry {
	if o == nil {
		o = &Options{}
	}
	r := &Registry{opts: *o, records: make(map[string]*record), asked: make(map[string]bool)}
	if r.opts.Type == "" {
		r.opts.Type = "_yodel._tcp"
	}
	if r.opts.Logger == nil {
		r.opts.Logger = slog.Default()
	}
	r.kind = strings.TrimSuffix(r.opts.Type, ".") + "." + domain
	return r
}

// Announce implements yodel.Registrar. It tells the network, and whoever asks until ttl has passed.
func (r *Registry) Announce(ctx context.Context, service string, in yodel.Instance, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rec, err := newRecord(r.kind, service, in)
	if err != nil {
		return err
	}
	rec.until = time.Now().Add(ttl)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err = r.openLocked(); err != nil {
		return err
	}
	r.records[rec.name] = rec
	return r.conn.send(answer(rec.answers(seconds(ttl))))
}

// Withdraw implements yodel.Registrar. It says goodbye.
func (r *Registry) Withdraw(ctx context.Context, service, addr string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rec, err := newRecord(r.kind, service, yodel.Instance{Addr: addr})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err = r.openLocked(); err != nil {
		return err
	}
	delete(r.records, rec.name)
	return r.conn.send(answer(rec.answers(0)))
}

// Close says goodbye for everything that is still announced, and leaves the network. Who follows a
// service goes on.
func (r *Registry) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.conn == nil {
		return nil
	}
	var err error
	for _, rec := range r.records {
		err = errors.Join(err, r.conn.send(answer(rec.answers(0))))
	}
	clear(r.records)
	if r.soon != nil {
		r.soon.Stop()
	}
	c, done := r.conn, r.done
	r.conn = nil
	c.close()
	r.mu.Unlock() // the reader may wait for it
	<-done
	r.mu.Lock()
	return err
}

// openLocked makes sure that there is a conn, and somebody who reads it.
func (r *Registry) openLocked() error {
	if r.closed {
		return errors.New("mdns: the registry is closed")
	}
	if r.conn != nil {
		return nil
	}
	c, err := open(r.opts.Interfaces)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	r.conn, r.done = c, done
	go func() {
		defer close(done)
		_ = c.read(r.hear) // it was closed, or the next Announce opens another one
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.conn == c {
			c.close()
			r.conn = nil
		}
	}()
	return nil
}

// enumeration is the name by which all types are asked for.
const enumeration = "_services._dns-sd._udp." + domain

// hear looks whether a message asks for something that is announced here. The answer waits for a
// moment, as RFC 6762 wants it, because many may have one; who asks meanwhile gets the same.
func (r *Registry) hear(m *dns.Msg) {
	if m.Response {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, q := range m.Question {
		r.listing = r.listing || strings.EqualFold(q.Name, enumeration) && len(r.records) > 0
		for name, rec := range r.records {
			switch {
			case strings.EqualFold(q.Name, r.kind) && (q.Qtype == dns.TypePTR || q.Qtype == dns.TypeANY):
				r.asked[name] = r.asked[name] || !rec.isKnown(m, now)
			case strings.EqualFold(q.Name, name), strings.EqualFold(q.Name, rec.host) && rec.ip.IsValid():
				r.asked[name] = true
			}
		}
	}
	if r.soon == nil && r.conn != nil && (r.listing || len(r.asked) > 0) {
		r.soon = time.AfterFunc(20*time.Millisecond+rand.N(100*time.Millisecond), r.reply)
	}
}

// isKnown reports whether who asks knows the record for long enough.
func (r *record) isKnown(question *dns.Msg, now time.Time) bool {
	for _, rr := range question.Answer {
		if ptr, ok := rr.(*dns.PTR); ok && strings.EqualFold(ptr.Ptr, r.name) && ptr.Hdr.Ttl >= seconds(r.until.Sub(now))/2 {
			return true
		}
	}
	return false
}

// packetSize is what fits into a packet on most networks. One record may need more.
const packetSize = 1400

// reply answers what was asked lately.
func (r *Registry) reply() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.soon = nil
	if r.conn == nil {
		return
	}
	now := time.Now()
	out := answer(nil)
	if r.listing {
		head := dns.RR_Header{Name: enumeration, Rrtype: dns.TypePTR, Class: classShared, Ttl: 60}
		out.Answer = append(out.Answer, &dns.PTR{Hdr: head, Ptr: r.kind})
	}
	for name, wanted := range r.asked {
		rec := r.records[name]
		switch {
		case rec == nil || !wanted:
			continue
		case !now.Before(rec.until): // nobody announced it again
			delete(r.records, name)
			continue
		}
		all := rec.answers(seconds(rec.until.Sub(now)))
		if more := answer(slices.Concat(out.Answer, all)); len(out.Answer) == 0 || more.Len() <= packetSize {
			out = more
			continue
		}
		_ = r.conn.send(out) // who does not get it asks again
		out = answer(all)
	}
	if len(out.Answer) > 0 {
		_ = r.conn.send(out)
	}
	clear(r.asked)
	r.listing = false
}
