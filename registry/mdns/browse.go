// SPDX-License-Identifier: Apache-2.0

package mdns

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/yodel-rpc/yodel"
)

// Service returns the instances of a service.
func (r *Registry) Service(name string) yodel.Resolver { return &service{r, name} }

// A service is one of a registry, as a resolver.
type service struct {
	*Registry

	name string
}

const (
	// gathering is how long the rest of the answers is waited for: they come after up to 120 ms.
	// When there is none, the question is asked once more, and only then there are no instances.
	gathering = 300 * time.Millisecond
	// pause is the least time between two updates.
	pause = 20 * time.Millisecond
	// The pauses between questions double from the first to the last.
	firstAsk, lastAsk = time.Second, time.Minute
	// maxQuestions is how many fit into a packet, with some room.
	maxQuestions = 10
	// maxInstances and maxHosts are how much of what strangers say is kept.
	maxInstances, maxHosts = 10_000, 10_000
)

// Watch implements yodel.Resolver.
func (s *service) Watch(ctx context.Context, update func([]yodel.Instance)) error {
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

// A browser is what one Watch knows.
type browser struct {
	*service

	entries map[string]*entry     // by name
	at      map[string]entrySet   // entries by their host, in lower case
	hosts   map[string]netip.Addr // by name
	began   time.Time
	found   bool // an instance
	changed bool
	told    bool          // at least once
	rested  time.Time     // from the last update
	askAt   time.Time     // by the clock
	asked   time.Time     // the last time
	between time.Duration // questions
}

// An entrySet is entries that have something in common.
type entrySet map[*entry]struct{}

// An entry is one instance as the network describes it.
type entry struct {
	text     []string
	service  string         // that it is of, by its text
	instance yodel.Instance // by its text
	broken   bool           // the text says nothing that can be understood
	host     string
	port     uint16
	parts    [parts]life
	tries    int // how often more of it was asked for
}

// The parts of an entry: its name in the list of instances, where it is, what it says of itself.
const (
	partName = iota
	partPlace
	partText
	parts
)

// A life is how long something is known.
type life struct {
	length  time.Duration
	end     time.Time // zero if it is not known
	refresh time.Time // it is to be asked for again
}

// enoughTries is how often what is missing of an entry is asked for out of turn.
const enoughTries = 3

// newBrowser asks at once, and has something to tell when the first answers are there: at least
// that there are none.
func newBrowser(s *service, now time.Time) *browser {
	return &browser{
		service: s, entries: make(map[string]*entry), at: make(map[string]entrySet), hosts: make(map[string]netip.Addr),
		began: now, changed: true, askAt: now, between: firstAsk,
	}
}

// tellAt is the earliest time of the next update.
func (b *browser) tellAt() time.Time {
	switch {
	case b.told:
		return b.rested
	case b.found:
		return b.began.Add(gathering)
	}
	return b.began.Add(firstAsk + gathering)
}

// learn takes in what somebody says.
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
			b.news(e) // perhaps it was of this service, and is no more
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

// entry returns what is known of a name, or nil if it is none of an instance, or one that says
// goodbye.
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
	}
	return e
}

// news marks that the set has changed, if e is of it.
func (b *browser) news(e *entry) {
	if e.whole() && e.service == b.name {
		b.changed, b.found = true, true
	}
}

// live notes how long a part of an entry is known. It is asked for again when four fifths of the
// time have passed.
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

// whole reports whether it is known where an entry is and what it says of itself.
func (e *entry) whole() bool {
	return !e.parts[partPlace].end.IsZero() && !e.parts[partText].end.IsZero()
}

// read takes in a text. One that cannot be read is as good as none, and said once.
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
		b.opts.Logger.Warn("yodel: a record on the network cannot be read", "name", name, "err", err)
	}
}

// place notes the address of a host, the last one if it has several, and IPv4 if it has both.
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

// joinHost and leaveHost keep the index of entries by host, without which each address in a packet
// would cost a look at all entries.
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

// remove forgets an entry.
func (b *browser) remove(name string, e *entry) {
	b.news(e)
	b.leaveHost(e)
	delete(b.entries, name)
}

// forget removes what is known no longer.
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

// question returns what is to be asked now, or nil. Instances that are known are not listed in it:
// their owners would leave out what has changed then.
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
				part.refresh = now.Add(part.length / 20) // once more, if nobody answers
			}
		}
		missing := b.missing(name, e)
		if missing != "" && len(ask.Question) < maxQuestions { // the rest next time
			e.tries++
			ask.Question = append(ask.Question, dns.Question{Name: missing, Qtype: dns.TypeANY, Qclass: dns.ClassINET})
		}
	}
	return ask
}

// missing returns the name whose records are needed to make something of an entry, or "".
func (b *browser) missing(name string, e *entry) string {
	switch {
	case !e.whole():
		return name
	case e.service == b.name && e.instance.Addr == "" && !b.hosts[strings.ToLower(e.host)].IsValid():
		return e.host
	}
	return ""
}

// nextAsk is when something is to be asked: by the clock, or sooner because something of this
// service is about to be forgotten, or not whole; but not twice within a second.
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

// next is when there is something to do.
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

// instances returns the set.
func (b *browser) instances() []yodel.Instance {
	instances := make([]yodel.Instance, 0, len(b.entries))
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
	return instances
}
