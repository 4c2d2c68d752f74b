// SPDX-License-Identifier: Apache-2.0

package mdns

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/miekg/dns"

	"github.com/yodel-rpc/yodel"
)

// A record is what is announced of one instance of a service.
type record struct {
	kind  string // what it is an instance of, for DNS: "_yodel._tcp.local."
	name  string // its own: "Arith 10\.0\.0\.1:8972._yodel._tcp.local."
	host  string // where it is
	ip    netip.Addr
	port  uint16
	text  []string
	until time.Time // it is forgotten
}

// newRecord returns the record of an instance. Clients of yodel read its text; its host and port
// are for others.
func newRecord(kind, service string, in yodel.Instance) (*record, error) {
	text, err := textOf(service, in)
	if err != nil {
		return nil, err
	}
	for i := range text {
		text[i] = escape(text[i])
	}
	r := &record{kind: kind, name: escape(label(service, in.Addr)) + "." + kind, host: "unknown." + domain, text: text}
	host, portText, err := net.SplitHostPort(in.Addr)
	if n, bad := strconv.ParseUint(portText, 10, 16); err == nil && bad == nil {
		r.port = uint16(n)
		if ip, bad := netip.ParseAddr(host); bad == nil {
			r.ip = ip.WithZone("").Unmap()
			r.host = strings.Map(dashed, r.ip.String()) + "." + domain
		} else if _, ok := dns.IsDomainName(host); ok && host != "" {
			r.host = dns.Fqdn(host)
		}
	}
	return r, nil
}

func dashed(c rune) rune {
	if c == '.' || c == ':' {
		return '-'
	}
	return c
}

// label returns the part of an instance's name that is its own, which has room for 63 bytes. The
// address in it is nobody else's, so that there are no conflicts to be found by probing.
func label(service, addr string) string {
	full := service + " " + addr
	if len(full) <= 63 {
		return full
	}
	hash := sha256.Sum256([]byte(full))
	short := full[:50]
	for !utf8.ValidString(short) && len(short) > 40 {
		short = short[:len(short)-1]
	}
	return short + " " + hex.EncodeToString(hash[:6])
}

// Classes with the bit that says: this is all there is of that name.
const (
	classShared = dns.ClassINET
	classUnique = dns.ClassINET | 1<<15
)

// answers returns the resource records, with a time to live in seconds. 0 is a goodbye.
func (r *record) answers(ttl uint32) []dns.RR {
	head := func(name string, kind, class uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: kind, Class: class, Ttl: ttl}
	}
	all := []dns.RR{
		&dns.PTR{Hdr: head(r.kind, dns.TypePTR, classShared), Ptr: r.name},
		&dns.SRV{Hdr: head(r.name, dns.TypeSRV, classUnique), Target: r.host, Port: r.port},
		&dns.TXT{Hdr: head(r.name, dns.TypeTXT, classUnique), Txt: r.text},
	}
	switch { // which may be that of other instances too, so that it says no goodbye
	case !r.ip.IsValid() || ttl == 0:
	case r.ip.Is4():
		all = append(all, &dns.A{Hdr: head(r.host, dns.TypeA, classUnique), A: r.ip.AsSlice()})
	default:
		all = append(all, &dns.AAAA{Hdr: head(r.host, dns.TypeAAAA, classUnique), AAAA: r.ip.AsSlice()})
	}
	return all
}

// answer returns a message with these answers.
func answer(answers []dns.RR) *dns.Msg {
	return &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Authoritative: true}, Compress: true, Answer: answers}
}
