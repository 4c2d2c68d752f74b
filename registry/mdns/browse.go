// SPDX-License-Identifier: Apache-2.0

package mdns

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
)

// Service returns the instances of a service.
func (r *Registry) Service(name string) discovery.Resolver { return &service{r, name} }

// A service is the resolver for one service of a registry.
type service struct {
	*Registry

	name string
}

const (
	// gathering is how long a Watch collects further answers before its first update: responders
	// wait up to 120 ms before they answer. If no instance has answered, the Watch asks a second
	// time before it reports that there are no instances.
	gathering = 300 * time.Millisecond
	// pause is the least time between two updates.
	pause = 20 * time.Millisecond
	// firstAsk is the pause after the first question. Each further pause is twice as long, up to
	// lastAsk.
	firstAsk, lastAsk = time.Second, time.Minute
	// maxQuestions is the number of questions in one packet. The packet has room for a few more.
	maxQuestions = 10
	// maxInstances and maxHosts limit what a Watch stores, because any host on the network can
	// answer.
	maxInstances, maxHosts = 10_000, 10_000
)

// Watch implements discovery.Resolver.
func (s *service) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	c, err := open(s.opts.Interfaces)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	messages, failed := c.follow(ctx)
	defer func() {
		cancel()
		c.close()
		<-failed //nolint:errcheck // it was closed
	}()
	b := newBrowser(s, time.Now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case m := <-messages:
			b.learn(m, time.Now())
		case <-timer.C:
		}
		now := time.Now()
		b.forget(now)
		if question := b.question(now); question != nil {
			if err := c.send(question); err != nil {
				return err
			}
		}
		if b.changed && !now.Before(b.tellAt()) {
			b.changed, b.told = false, true
			update(b.instances())
			b.rested = time.Now().Add(max(pause, 4*time.Since(now)))
		}
		timer.Reset(time.Until(b.next()))
	}
}

// A browser is the state of one Watch.
type browser struct {
	*service

	entries map[string]*entry     // by the name of the instance
	at      map[string]entrySet   // entries by the name of their host, in lower case
	hosts   map[string]netip.Addr // by the name of the host
	began   time.Time
	found   bool // whether an instance of the service was found
	changed bool
	told    bool          // whether update was called at least once
	rested  time.Time     // the earliest time of the next update
	askAt   time.Time     // when the next regular question is due
	asked   time.Time     // when the last question was sent
	between time.Duration // the pause after the next regular question
	full    bool          // whether an instance was left out for lack of room
}

// An entrySet is a set of entries that have the same host.
type entrySet map[*entry]struct{}

// An entry is one instance as the network describes it.
type entry struct {
	text     []string
	service  string             // the service that the TXT record names
	instance discovery.Instance // what the TXT record says of the instance
	broken   bool               // the TXT record cannot be parsed
	host     string
	port     uint16
	parts    [parts]life
	tries    int // how many questions have asked for its missing records
}

// An entry has three parts: its PTR record, its SRV record and its TXT record.
const (
	partName = iota
	partPlace
	partText
	parts
)

// A life says how long a record is valid.
type life struct {
	length  time.Duration
	end     time.Time // zero if there is no valid record
	refresh time.Time // when the browser asks for the record again
}

// enoughTries is the maximum number of extra questions for the missing records of an entry.
const enoughTries = 3

// newBrowser returns a browser whose first question is due at once. It has an update to report
// after the first answers, even if they name no instances.
func newBrowser(s *service, now time.Time) *browser {
	return &browser{
		service: s, entries: make(map[string]*entry), at: make(map[string]entrySet), hosts: make(map[string]netip.Addr),
		began: now, changed: true, askAt: now, between: firstAsk,
	}
}

// tellAt returns the earliest time of the next update.
func (b *browser) tellAt() time.Time {
	switch {
	case b.told:
		return b.rested
	case b.found:
		return b.began.Add(gathering)
	}
	return b.began.Add(firstAsk + gathering)
}

// learn reads the records of a response.
func (b *browser) learn(m *dns.Msg, now time.Time) {
	if !m.Response {
		return
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			b.learnOne(rr, now)
		}
	}
}

func (b *browser) learnOne(rr dns.RR, now time.Time) {
	head := rr.Header()
	switch rr := rr.(type) {
	case *dns.PTR:
		if strings.EqualFold(head.Name, b.kind) {
			b.live(b.entry(rr.Ptr, head.Ttl), partName, head.Ttl, now)
		}
	case *dns.SRV:
		e := b.entry(head.Name, head.Ttl)
		if e != nil && (e.host != rr.Target || e.port != rr.Port) {
			b.leaveHost(e)
			e.host, e.port = rr.Target, rr.Port
			b.joinHost(e)
			b.news(e)
		}
		b.live(e, partPlace, head.Ttl, now)
	case *dns.TXT:
		e := b.entry(head.Name, head.Ttl)
		if e != nil && (e.text == nil || !slices.Equal(e.text, rr.Txt)) {
			b.news(e) // the old text may name this service and the new one may not
			b.read(head.Name, e, rr.Txt)
			b.news(e)
		}
		b.live(e, partText, head.Ttl, now)
	case *dns.A:
		b.place(head, rr.A)
	case *dns.AAAA:
		b.place(head, rr.AAAA)
	}
}

// entry returns the entry for a name, and creates it if it does not exist. It returns nil if the
// name is not the name of an instance. A record with a ttl of 0 is a goodbye: entry then removes
// the entry and returns nil.
func (b *browser) entry(name string, ttl uint32) *entry {
	e := b.entries[name]
	at := len(name) - len(b.kind)
	if at <= 1 || name[at-1] != '.' || !strings.EqualFold(name[at:], b.kind) {
		return nil
	}
	switch {
	case ttl == 0 && e != nil:
		b.remove(name, e)
		return nil
	case ttl == 0:
		return nil
	case e == nil && len(b.entries) < maxInstances:
		e = new(entry)
		b.entries[name] = e
	case e == nil && !b.full:
		b.full = true
		cmp.Or(b.opts.Logger, slog.Default()).Warn("yodel: more instances answer than there is room for, so some are not used", "instances", maxInstances)
	}
	return e
}

// news marks the set of instances as changed if e belongs to it.
func (b *browser) news(e *entry) {
	if e.whole() && e.service == b.name {
		b.changed, b.found = true, true
	}
}

// live notes the time to live of a part of an entry. The browser asks for the part again when four
// fifths of that time have passed.
func (b *browser) live(e *entry, part int, ttl uint32, now time.Time) {
	if e == nil {
		return
	}
	was := e.whole()
	length := time.Duration(ttl) * time.Second
	e.parts[part] = life{length, now.Add(length), now.Add(length / 5 * 4)}
	if !was {
		b.news(e)
	}
}

// whole reports whether the SRV record and the TXT record of an entry are known.
func (e *entry) whole() bool {
	return !e.parts[partPlace].end.IsZero() && !e.parts[partText].end.IsZero()
}

// read stores the TXT record of an entry. If the record cannot be parsed, read logs it once and the
// entry is not reported as an instance.
func (b *browser) read(name string, e *entry, text []string) {
	e.text = slices.Clone(text)
	plain := make([]string, len(text))
	for i := range text {
		plain[i] = unescape(text[i])
	}
	var err error
	e.service, e.instance, err = instanceOf(plain)
	e.broken = err != nil
	if e.broken && e.service == b.name {
		cmp.Or(b.opts.Logger, slog.Default()).Warn("yodel: a record on the network cannot be read", "record", name, "err", err)
	}
}

// place stores the address of a host. A later address replaces an earlier one, but an IPv6 address
// does not replace an IPv4 address.
func (b *browser) place(head *dns.RR_Header, ip net.IP) {
	name := strings.ToLower(head.Name)
	addr, ok := netip.AddrFromSlice(ip)
	addr = addr.Unmap()
	old, known := b.hosts[name]
	if !ok || head.Ttl == 0 || old == addr || old.Is4() && !addr.Is4() || !known && len(b.hosts) >= maxHosts {
		return
	}
	b.hosts[name] = addr
	for e := range b.at[name] {
		if e.instance.Addr == "" {
			b.news(e)
		}
	}
}

// joinHost and leaveHost maintain the index of entries by host. Without the index, each address in
// a packet would require a scan of all entries.
func (b *browser) joinHost(e *entry) {
	host := strings.ToLower(e.host)
	if b.at[host] == nil {
		b.at[host] = make(entrySet)
	}
	b.at[host][e] = struct{}{}
}

func (b *browser) leaveHost(e *entry) {
	host := strings.ToLower(e.host)
	if delete(b.at[host], e); len(b.at[host]) == 0 {
		delete(b.at, host)
	}
}

// remove deletes an entry.
func (b *browser) remove(name string, e *entry) {
	b.news(e)
	b.leaveHost(e)
	delete(b.entries, name)
}

// forget deletes the entries with a record whose time to live has passed.
func (b *browser) forget(now time.Time) {
	for name, e := range b.entries {
		for _, part := range e.parts {
			if !part.end.IsZero() && !now.Before(part.end) {
				b.remove(name, e)
				break
			}
		}
	}
}

// question returns the next question, or nil if no question is due. It does not list the known
// instances: their responders would then not answer, even if their SRV or TXT record has changed.
func (b *browser) question(now time.Time) *dns.Msg {
	if now.Before(b.nextAsk()) {
		return nil
	}
	if !now.Before(b.askAt) {
		b.askAt = now.Add(b.between)
		b.between = min(2*b.between, lastAsk)
	}
	b.asked = now
	ask := &dns.Msg{Question: []dns.Question{{Name: b.kind, Qtype: dns.TypePTR, Qclass: dns.ClassINET}}}
	for name, e := range b.entries {
		for i := range e.parts {
			if part := &e.parts[i]; !part.end.IsZero() && !now.Before(part.refresh) {
				part.refresh = now.Add(part.length / 20) // the browser asks once more if there is no answer
			}
		}
		missing := b.missing(name, e)
		if missing != "" && len(ask.Question) < maxQuestions { // the next question asks for the others
			e.tries++
			ask.Question = append(ask.Question, dns.Question{Name: missing, Qtype: dns.TypeANY, Qclass: dns.ClassINET})
		}
	}
	return ask
}

// missing returns the name whose records are missing to make an instance of an entry, or "".
func (b *browser) missing(name string, e *entry) string {
	switch {
	case !e.whole():
		return name
	case e.service == b.name && e.instance.Addr == "" && !b.hosts[strings.ToLower(e.host)].IsValid():
		return e.host
	}
	return ""
}

// nextAsk returns when the next question is due. That is the time of the next regular question, or
// earlier if a record of this service is about to expire or an entry is incomplete. Two questions
// are at least a second apart.
func (b *browser) nextAsk() time.Time {
	at := b.askAt
	for name, e := range b.entries {
		if e.tries < enoughTries && b.missing(name, e) != "" {
			at = b.asked
			break
		}
		for _, part := range e.parts {
			if e.service == b.name && !part.end.IsZero() && part.refresh.Before(at) {
				at = part.refresh
			}
		}
	}
	if soonest := b.asked.Add(firstAsk); !b.asked.IsZero() && at.Before(soonest) {
		at = soonest
	}
	return at
}

// next returns when the browser has to do something next.
func (b *browser) next() time.Time {
	at := b.nextAsk()
	if tellAt := b.tellAt(); b.changed && tellAt.Before(at) {
		at = tellAt
	}
	for _, e := range b.entries {
		for _, part := range e.parts {
			if !part.end.IsZero() && part.end.Before(at) {
				at = part.end
			}
		}
	}
	return at
}

// instances returns the instances of the service.
func (b *browser) instances() []discovery.Instance {
	instances := make([]discovery.Instance, 0, len(b.entries))
	for _, name := range slices.Sorted(maps.Keys(b.entries)) {
		e := b.entries[name]
		if e.service != b.name || e.broken || !e.whole() {
			continue
		}
		in := e.instance
		if in.Addr == "" {
			ip := b.hosts[strings.ToLower(e.host)]
			if !ip.IsValid() {
				continue
			}
			in.Addr = net.JoinHostPort(ip.String(), strconv.Itoa(int(e.port)))
		}
		instances = append(instances, in)
	}
	return registry.Distinct(instances)
}
