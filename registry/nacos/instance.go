// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
)

// These are the metadata keys for fields of discovery.Instance.
const (
	keyAddr      = "addr" // only for addresses other than host:port
	keyGroup     = "group"
	keyVersion   = "version"
	keyWeight    = "weight" // only for inactive instances
	keyZone      = "zone"
	keyLatitude  = "latitude"
	keyLongitude = "longitude"
	keyState     = "state"
	keyTags      = "tags" // a JSON list
	keyStarted   = "started"
	keyRun       = "incarnation"
	keyCallRate  = "callRate"
	keyInflight  = "inflight"
	keyProtocols = "protocols" // separated by commas
)

// preserved is the prefix of the metadata keys that Nacos itself uses.
const preserved = "preserved."

const inactive = "inactive"

// These are limits of Nacos, in characters of Java.
const (
	maxService  = 512
	maxIP       = 128
	maxMetadata = 1024 // all keys and values of an instance
)

// characters returns the length of a text in Java.
func characters(s string) int { return len(utf16.Encode([]rune(s))) }

// split returns the host and the port of an address, as Nacos expects them. ok is false if they do
// not represent the address completely. They identify it in any case.
func split(addr string) (ip, port string, ok bool) {
	ip, port, err := net.SplitHostPort(addr)
	n, bad := strconv.ParseUint(port, 10, 16)
	switch {
	case strings.ContainsFunc(addr, odd) || len(addr) > maxIP:
		hash := sha256.Sum256([]byte(addr))
		return "address-" + hex.EncodeToString(hash[:16]), "0", false
	case err != nil || bad != nil || ip == "" || n == 0 || net.JoinHostPort(ip, strconv.FormatUint(n, 10)) != addr:
		return addr, "0", false
	}
	return ip, port, true
}

// odd reports whether Nacos may not allow r in the IP of an instance.
func odd(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._:%@/?=&", r)
}

// fits returns an error if Nacos has no room for the name of a service, or for the metadata of its
// instance.
func fits(q url.Values, md map[string]string) error {
	service := q.Get("serviceName")
	if n := characters(service); n > maxService {
		if plain, err := url.PathUnescape(service); err == nil {
			service = plain
		}
		return registry.TooLong("nacos", "service", service, n, maxService, "characters")
	}
	total, longest := 0, ""
	for key, value := range md {
		if strings.TrimSpace(key) == "" || strings.TrimSpace(value) == "" {
			continue // Nacos does not count it
		}
		total += characters(key) + characters(value)
		if len(key)+len(value) > len(longest) {
			longest = key + "=" + value
		}
	}
	if total > maxMetadata {
		return registry.TooLong("nacos", "metadata, with", longest, total, maxMetadata, "characters")
	}
	return nil
}

// describe returns the parameters that register an instance.
func (r *Registry) describe(service string, in discovery.Instance, ttl time.Duration) (url.Values, error) {
	if in.Weight < 0 {
		return nil, fmt.Errorf("nacos: %s has the weight %d", in.Addr, in.Weight)
	}
	q := r.identify(service, in.Addr)
	md := maps.Clone(in.Metadata)
	if md == nil {
		md = make(yodel.Metadata)
	}
	set := func(key, value string, unknown bool) {
		if !unknown {
			md[key] = value
		}
	}
	weight := strconv.Itoa(max(in.Weight, 1))
	if in.State == inactive {
		set(keyWeight, weight, in.Weight == 0)
		weight = "0"
	}
	q.Set("weight", weight)
	_, _, plain := split(in.Addr)
	tags, err := json.Marshal(in.Tags)
	if err != nil {
		return nil, err
	}
	set(keyAddr, in.Addr, plain)
	set(keyGroup, in.Group, in.Group == "")
	set(keyVersion, in.Version, in.Version == "")
	set(keyZone, in.Zone, in.Zone == "")
	set(keyLatitude, number(in.Latitude), in.Latitude == 0 && in.Longitude == 0)
	set(keyLongitude, number(in.Longitude), in.Latitude == 0 && in.Longitude == 0)
	set(keyState, in.State, in.State == "" || in.State == inactive)
	set(keyTags, string(tags), len(in.Tags) == 0)
	set(keyStarted, in.Started.Format(time.RFC3339Nano), in.Started.IsZero())
	set(keyRun, in.Incarnation, in.Incarnation == "")
	set(keyCallRate, number(in.CallRate), in.CallRate == 0)
	set(keyInflight, strconv.Itoa(in.Inflight), in.Inflight == 0)
	set(keyProtocols, strings.Join(in.Protocols, ","), len(in.Protocols) == 0)
	return q, setMetadata(q, md, ttl)
}

// setMetadata sets the metadata of an instance. It adds the time to live.
func setMetadata(q url.Values, md map[string]string, ttl time.Duration) error {
	lease := strconv.FormatInt(max(ttl.Milliseconds(), 1), 10)
	md[preserved+"heart.beat.interval"] = strconv.FormatInt(max(ttl.Milliseconds()/3, 1), 10)
	md[preserved+"heart.beat.timeout"], md[preserved+"ip.delete.timeout"] = lease, lease
	text, err := json.Marshal(md)
	if err == nil {
		err = fits(q, md)
	}
	q.Set("metadata", string(text))
	return err
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// A host is an instance as Nacos lists it.
type host struct {
	IP       string            `json:"ip"`
	Port     int               `json:"port"`
	Weight   float64           `json:"weight"`
	Healthy  bool              `json:"healthy"`
	Enabled  bool              `json:"enabled"`
	Metadata map[string]string `json:"metadata"`
}

// instances returns the healthy and enabled instances of a list, including those with weight 0,
// which are inactive.
func instances(hosts []host) []discovery.Instance {
	all := make([]discovery.Instance, 0, len(hosts))
	for _, h := range hosts {
		if h.Healthy && h.Enabled { // an instance without heartbeats is not healthy
			all = append(all, h.instance())
		}
	}
	slices.SortFunc(all, func(a, b discovery.Instance) int { return strings.Compare(a.Addr, b.Addr) })
	return all
}

// instance converts a host to an instance. An entry of the metadata with one of the registry's keys
// but an invalid value stays in the metadata.
func (h host) instance() discovery.Instance {
	in := discovery.Instance{Addr: h.addr()}
	if h.Weight <= 0 {
		in.State = inactive
		take(h.Metadata, keyWeight, &in.Weight, strconv.Atoi)
	} else if h.Weight != 1 { // yodel's weight 0 also means 1
		in.Weight = int(math.Ceil(min(h.Weight, math.MaxInt32)))
	}
	asIs := func(s string) (string, error) { return s, nil }
	take(h.Metadata, keyAddr, &in.Addr, asIs)
	take(h.Metadata, keyGroup, &in.Group, asIs)
	take(h.Metadata, keyVersion, &in.Version, asIs)
	take(h.Metadata, keyZone, &in.Zone, asIs)
	take(h.Metadata, keyState, &in.State, asIs)
	take(h.Metadata, keyRun, &in.Incarnation, asIs)
	take(h.Metadata, keyLatitude, &in.Latitude, float)
	take(h.Metadata, keyLongitude, &in.Longitude, float)
	take(h.Metadata, keyCallRate, &in.CallRate, float)
	take(h.Metadata, keyInflight, &in.Inflight, strconv.Atoi)
	take(h.Metadata, keyStarted, &in.Started, func(s string) (time.Time, error) { return time.Parse(time.RFC3339Nano, s) })
	take(h.Metadata, keyProtocols, &in.Protocols, func(s string) ([]string, error) { return strings.Split(s, ","), nil })
	take(h.Metadata, keyTags, &in.Tags, func(s string) (tags []string, err error) {
		err = json.Unmarshal([]byte(s), &tags)
		return tags, err
	})
	maps.DeleteFunc(h.Metadata, func(key, _ string) bool { return strings.HasPrefix(key, preserved) })
	if len(h.Metadata) > 0 {
		in.Metadata = h.Metadata
	}
	return in
}

// take moves the value of a key from the metadata to a field. An invalid value stays in the
// metadata.
func take[T any](md map[string]string, key string, field *T, read func(string) (T, error)) {
	text, ok := md[key]
	if !ok {
		return
	}
	if value, err := read(text); err == nil {
		*field = value
		delete(md, key)
	}
}

func float(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err == nil && (math.IsNaN(f) || math.IsInf(f, 0)) {
		err = strconv.ErrRange
	}
	return f, err
}
