// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/unread"
	"github.com/yodel-rpc/yodel/registry"
)

// A definition is the body of the request that registers a service.
type definition struct {
	ID      string            `json:"ID"`
	Name    string            `json:"Name"`
	Address string            `json:"Address"`
	Port    int               `json:"Port"`
	Tags    []string          `json:"Tags"`
	Meta    map[string]string `json:"Meta"`
	Weights weights           `json:"Weights"`
	Check   check             `json:"Check"`
}

type weights struct {
	Passing int `json:"Passing"`
	Warning int `json:"Warning"`
}

type check struct {
	Name   string `json:"Name"`
	TTL    string `json:"TTL"`
	Status string `json:"Status"`
	Remove string `json:"DeregisterCriticalServiceAfter"`
}

// An entry is a service as Consul lists it.
type entry struct {
	Node struct {
		Address string `json:"Address"`
	} `json:"Node"`
	Service struct {
		ID          string            `json:"ID"`
		Service     string            `json:"Service"`
		Address     string            `json:"Address"`
		Port        int               `json:"Port"`
		Tags        []string          `json:"Tags"`
		Meta        map[string]string `json:"Meta"`
		Weights     weights           `json:"Weights"`
		ModifyIndex uint64            `json:"ModifyIndex"`
	} `json:"Service"`
}

// These are the entries of Meta that hold fields of discovery.Instance.
const (
	metaGroup     = "group"
	metaVersion   = "version"
	metaWeight    = "weight" // only weights that Consul's own field cannot represent
	metaZone      = "zone"
	metaLatitude  = "latitude"
	metaLongitude = "longitude"
	metaState     = "state"
	metaStarted   = "started"
	metaRun       = "incarnation"
	metaCallRate  = "callRate"
	metaInflight  = "inflight"
	metaProtocols = "protocols" // separated by commas
	metaRest      = "metadata"  // metadata whose keys Consul does not allow
)

var ours = []string{
	metaGroup, metaVersion, metaWeight, metaZone, metaLatitude, metaLongitude, metaState, metaStarted, metaRun, metaCallRate, metaInflight, metaProtocols, metaRest,
}

// These are limits of Consul.
const (
	heaviest   = 65535
	longestKey = 128
	longest    = 512         // bytes of a value in Meta
	leastGrace = time.Minute // the shortest time after which Consul removes a critical service
)

// escape returns name as a single element of a path, even after Consul has decoded it.
func escape(name string) string {
	if strings.Trim(name, ".") == "" {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// identity returns the ID of an instance. The first @ in it is before the address.
func identity(service, addr string) string {
	return strings.ReplaceAll(escape(service), "@", "%40") + "@" + escape(addr)
}

// define returns the definition of an instance.
func define(service string, in discovery.Instance, ttl time.Duration) (definition, error) {
	host, port := split(in.Addr)
	meta, err := metaOf(in)
	return definition{
		ID: identity(service, in.Addr), Name: escape(service), Address: host, Port: port, Tags: in.Tags, Meta: meta,
		Weights: weights{Passing: min(max(in.Weight, 1), heaviest), Warning: 1},
		Check: check{
			Name: "yodel", TTL: ttl.String(), Status: "passing",
			Remove: max(leastGrace, 10*ttl).String(),
		},
	}, err
}

// split returns the parts of HOST:PORT. Any other form of address is a host without a port.
func split(addr string) (host string, port int) {
	host, text, err := net.SplitHostPort(addr)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err != nil || port <= 0 || port > 65535 || host == "" || net.JoinHostPort(host, strconv.Itoa(port)) != addr {
		return addr, 0
	}
	return host, port
}

func metaOf(in discovery.Instance) (map[string]string, error) {
	meta, rest := make(map[string]string), make(map[string]string)
	for key, value := range in.Metadata {
		if allowed(key) {
			meta[key] = value
		} else {
			rest[key] = value
		}
	}
	set := func(key, value string, known bool) {
		if known {
			meta[key] = value
		}
	}
	somewhere := in.Latitude != 0 || in.Longitude != 0
	set(metaGroup, in.Group, in.Group != "")
	set(metaVersion, in.Version, in.Version != "")
	set(metaWeight, strconv.Itoa(in.Weight), in.Weight == 1 || in.Weight < 0 || in.Weight > heaviest)
	set(metaZone, in.Zone, in.Zone != "")
	set(metaLatitude, float(in.Latitude), somewhere)
	set(metaLongitude, float(in.Longitude), somewhere)
	set(metaState, in.State, in.State != "")
	set(metaStarted, in.Started.Format(time.RFC3339Nano), !in.Started.IsZero())
	set(metaRun, in.Incarnation, in.Incarnation != "")
	set(metaCallRate, float(in.CallRate), in.CallRate != 0)
	set(metaInflight, strconv.Itoa(in.Inflight), in.Inflight != 0)
	set(metaProtocols, strings.Join(in.Protocols, ","), len(in.Protocols) > 0)
	text, err := json.Marshal(rest)
	set(metaRest, string(text), len(rest) > 0)
	for key, value := range meta {
		if len(value) > longest {
			err = registry.TooLong("consul", key, value, len(value), longest, "bytes")
		}
	}
	return meta, err
}

func float(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// allowed reports whether Consul allows a key in Meta and the key does not hold a field of
// discovery.Instance.
func allowed(key string) bool {
	for _, c := range key {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return key != "" && len(key) <= longestKey && !slices.Contains(ours, key)
}

// instances returns the instances of the services with this name. It skips and logs services
// without an address. The service that was changed last comes first. Consul also lists services
// whose names differ in case, and instances skips them.
func (r *Registry) instances(name string, entries []entry, said *unusable) []discovery.Instance {
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(b.Service.ModifyIndex, a.Service.ModifyIndex) })
	instances := make([]discovery.Instance, 0, len(entries))
	for _, one := range entries {
		if one.Service.Service != name {
			continue
		}
		in := one.instance()
		if in.Addr == "" {
			r.tell(said, unread.Record{Key: one.Service.ID, Problem: errNoAddress.Error()}, errNoAddress)
			continue
		}
		instances = append(instances, in)
	}
	return instances
}

// instance reads a service that define, or another program, described. An entry of Meta with one of
// the registry's keys but an invalid value is metadata.
func (e *entry) instance() discovery.Instance {
	s := &e.Service
	in := discovery.Instance{Addr: s.Address}
	if s.Port != 0 {
		in.Addr = net.JoinHostPort(cmp.Or(s.Address, e.Node.Address), strconv.Itoa(s.Port))
	}
	if len(s.Tags) > 0 {
		in.Tags = s.Tags
	}
	if s.Weights.Passing > 1 {
		in.Weight = s.Weights.Passing
	}
	for key, value := range s.Meta {
		if take(&in, key, value) != nil {
			with(&in, key, value)
		}
	}
	return in
}

var errNotOurs = errors.New("another one's")

// take sets the field of in that belongs to an entry of Meta. It returns an error if there is none,
// or if the value is invalid.
func take(in *discovery.Instance, key, value string) (err error) {
	switch key {
	case metaGroup:
		in.Group = value
	case metaVersion:
		in.Version = value
	case metaZone:
		in.Zone = value
	case metaState:
		in.State = value
	case metaRun:
		in.Incarnation = value
	case metaProtocols:
		in.Protocols = strings.Split(value, ",")
	case metaWeight:
		err = whole(value, &in.Weight)
	case metaInflight:
		err = whole(value, &in.Inflight)
	case metaLatitude:
		err = number(value, &in.Latitude)
	case metaLongitude:
		err = number(value, &in.Longitude)
	case metaCallRate:
		err = number(value, &in.CallRate)
	case metaStarted:
		var started time.Time
		if started, err = time.Parse(time.RFC3339Nano, value); err == nil {
			in.Started = started
		}
	case metaRest:
		var rest map[string]string
		if err = json.Unmarshal([]byte(value), &rest); err == nil {
			for key, value := range rest {
				with(in, key, value)
			}
		}
	default:
		err = errNotOurs
	}
	return err
}

func whole(text string, to *int) error {
	n, err := strconv.Atoi(text)
	if err == nil {
		*to = n
	}
	return err
}

func number(text string, to *float64) error {
	n, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		return err
	case math.IsNaN(n) || math.IsInf(n, 0):
		return strconv.ErrRange
	}
	*to = n
	return nil
}

func with(in *discovery.Instance, key, value string) {
	if in.Metadata == nil {
		in.Metadata = make(yodel.Metadata)
	}
	in.Metadata[key] = value
}
