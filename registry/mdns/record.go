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

	"github.com/yodel-rpc/yodel/discovery"
)

// A record holds the DNS records of one announced instance.
type record struct {
	kind  string // the type of the instance: "_yodel._tcp.local."
	name  string // the name of the instance: "Arith 10\.0\.0\.1:8972._yodel._tcp.local."
	host  string // the name of the host in the SRV record
	ip    netip.Addr
	port  uint16
	text  []string
	until time.Time // when its time to live ends
}

// newRecord returns the record of an instance. Clients of yodel read its text. Other programs read
// its host and port.
func newRecord(kind, service string, in discovery.Instance) (*record, error) {
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

// label returns the first label of the name of an instance, which has at most 63 bytes. The label
// contains the address, or a hash with it if it is long. The address is unique, so no probing for
// conflicts is needed.
func label(service, addr string) string {
	full := service + " " + addr
	if len(full) <= 63 && !strings.Contains(addr, " ") {
		return full
	}
	hash := sha256.Sum256([]byte(service + "\x00" + addr)) // no two instances have one label
	short := full[:min(30, len(full))]
	for !utf8.ValidString(short) && len(short) > 20 {
		short = short[:len(short)-1]
	}
	return short + " " + hex.EncodeToString(hash[:16])
}

// The bit that classUnique adds says that the answer has all records of the name and type.
const (
	classShared = dns.ClassINET
	classUnique = dns.ClassINET | 1<<15
)

// answers returns the resource records with a time to live in seconds. With a ttl of 0 they are a
// goodbye.
func (r *record) answers(ttl uint32) []dns.RR {
	head := func(name string, kind, class uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: kind, Class: class, Ttl: ttl}
	}
	all := []dns.RR{
		&dns.PTR{Hdr: head(r.kind, dns.TypePTR, classShared), Ptr: r.name},
		&dns.SRV{Hdr: head(r.name, dns.TypeSRV, classUnique), Target: r.host, Port: r.port},
		&dns.TXT{Hdr: head(r.name, dns.TypeTXT, classUnique), Txt: r.text},
	}
	switch { // other instances may share the host, so a goodbye leaves it out
	case !r.ip.IsValid() || ttl == 0:
	case r.ip.Is4():
		all = append(all, &dns.A{Hdr: head(r.host, dns.TypeA, classUnique), A: r.ip.AsSlice()})
	default:
		all = append(all, &dns.AAAA{Hdr: head(r.host, dns.TypeAAAA, classUnique), AAAA: r.ip.AsSlice()})
	}
	return all
}

// answer returns a message with the resource records in answers.
func answer(answers []dns.RR) *dns.Msg {
	return &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Authoritative: true}, Compress: true, Answer: answers}
}
