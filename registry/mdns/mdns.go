// SPDX-License-Identifier: Apache-2.0

// Package mdns is a registry without a server. The processes on a local network announce their
// services to each other by DNS-SD (RFC 6763) over multicast DNS (RFC 6762). It suits an office, a
// workshop or a laptop, with hundreds of instances but not thousands.
//
// An instance has the type _yodel._tcp in the domain local and a name like "Arith 10.0.0.1:8972".
// It has an SRV record, and a TXT record with the fields of discovery.Instance, for example
// "service=Arith", "addr=10.0.0.1:8972", "weight=3". Tools that speak DNS-SD show it. Clients also
// find instances that other programs announce if their TXT record names the service. If it has no
// "addr", the client takes the address from the SRV record.
//
// Any host on the network can announce an instance, and clients believe it. A server has to prove
// its identity in another way, for example by TLS.
//
// The package sends and receives over IPv4 only, but instances may have addresses of all kinds. The
// name of an instance contains its address, which is unique, so the registry does not probe for
// conflicts.
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

	"github.com/yodel-rpc/yodel/discovery"
)

// domain is the domain of multicast DNS.
const domain = "local."

// Options changes how the registry works. The zero value is good.
type Options struct {
	// Type is the DNS-SD service type of the instances (RFC 6763). Default "_yodel._tcp".
	Type string
	// Interfaces are the names of the network interfaces to use, for example "eth0", or "lo" for
	// one machine. Default: all interfaces that are up and support multicast.
	Interfaces []string
	// Logger logs records that cannot be read. Default slog.Default().
	Logger *slog.Logger
}

// A Registry announces instances on the network and finds the instances that others announce. It
// may be used concurrently.
type Registry struct {
	opts Options
	kind string // the type of the instances, as a DNS name

	mu      sync.Mutex
	closed  bool
	conn    *conn // nil before the first announcement
	done    chan struct{}
	records map[string]*record // by name
	asked   map[string]bool    // records to send in the next reply; true if not known
	listing bool               // the next reply names the type of the instances
	soon    *time.Timer        // sends the next reply; nil when no reply is due
}

// New returns a registry. The registry opens no socket before it is used.
func New(o *Options) *Registry {
	if o == nil {
		o = &Options{}
	}
	r := &Registry{opts: *o, records: make(map[string]*record), asked: make(map[string]bool)}
	if r.opts.Type == "" {
		r.opts.Type = "_yodel._tcp"
	}
	r.kind = strings.TrimSuffix(r.opts.Type, ".") + "." + domain
	return r
}

// Announce implements discovery.Registrar. It sends the record to the network, and answers
// questions about it until ttl has passed.
func (r *Registry) Announce(ctx context.Context, service string, in discovery.Instance, ttl time.Duration) error {
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

// Withdraw implements discovery.Registrar. It sends a goodbye for the instance.
func (r *Registry) Withdraw(ctx context.Context, service, addr string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	rec, err := newRecord(r.kind, service, discovery.Instance{Addr: addr})
	if err != nil {
		return nil // Announce does not announce it either
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err = r.openLocked(); err != nil {
		return err
	}
	delete(r.records, rec.name)
	return r.conn.send(answer(rec.answers(0)))
}

// Close sends a goodbye for every announced instance, and leaves the multicast group. Clients that
// watch a service are not affected.
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
	r.mu.Unlock() // the reader may be waiting for the lock
	<-done
	r.mu.Lock()
	return err
}

// openLocked opens the conn if there is none, and starts the goroutine that reads it.
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
		_ = c.read(r.hear) // it was closed or has failed; the next Announce opens another one
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.conn == c {
			c.close()
			r.conn = nil
		}
	}()
	return nil
}

// enumeration is the name that lists all types of instances.
const enumeration = "_services._dns-sd._udp." + domain

// hear checks whether a message asks for an announced record, or says goodbye for it. The latter is
// from another process that had announced itself at the same address. The reply waits for a moment,
// as RFC 6762 requires, because many hosts may answer. Questions that arrive meanwhile share that
// reply.
func (r *Registry) hear(m *dns.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.Response {
		for _, rr := range m.Answer {
			if head := rr.Header(); head.Ttl == 0 && r.records[head.Name] != nil {
				r.asked[head.Name] = true
			}
		}
	} else {
		r.hearQuestionsLocked(m)
	}
	if r.soon == nil && r.conn != nil && (r.listing || len(r.asked) > 0) {
		r.soon = time.AfterFunc(20*time.Millisecond+rand.N(100*time.Millisecond), r.reply)
	}
}

// hearQuestionsLocked notes the records for which a message asks.
func (r *Registry) hearQuestionsLocked(m *dns.Msg) {
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
}

// isKnown reports whether the question lists the record with at least half of its remaining time to
// live.
func (r *record) isKnown(question *dns.Msg, now time.Time) bool {
	for _, rr := range question.Answer {
		if ptr, ok := rr.(*dns.PTR); ok && strings.EqualFold(ptr.Ptr, r.name) && ptr.Hdr.Ttl >= seconds(r.until.Sub(now))/2 {
			return true
		}
	}
	return false
}

// packetSize is the size of a packet that most networks transport. One large record may exceed it.
const packetSize = 1400

// reply sends the records for which hear has seen questions.
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
		case !now.Before(rec.until): // it was not announced again within its ttl
			delete(r.records, name)
			continue
		}
		all := rec.answers(seconds(rec.until.Sub(now)))
		if more := answer(slices.Concat(out.Answer, all)); len(out.Answer) == 0 || more.Len() <= packetSize {
			out = more
			continue
		}
		_ = r.conn.send(out) // a client that does not receive it asks again
		out = answer(all)
	}
	if len(out.Answer) > 0 {
		_ = r.conn.send(out)
	}
	clear(r.asked)
	r.listing = false
}
