// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel/registry"
)

// ours is the prefix of yodel's labels and annotations.
const ours = "yodel-rpc.github.io/"

// managedBy is the label by which Kubernetes names the owner of a slice.
const managedBy = "endpointslice.kubernetes.io/managed-by"

const (
	labelKeys       = ours + "keys"    // the prefix of the record's key, as name returns it
	annotationKey   = ours + "key"     // the key of the record
	annotationValue = ours + "value"   // the value of the record
	annotationTTL   = ours + "ttl"     // the time to live of the record
	annotationTime  = ours + "renewed" // when the record was written, for people
)

// A Registry is a registry in Kubernetes for servers without a Service: servers outside of the
// cluster, or with several ports. If there is a Service, use the function Service instead.
//
// Each record is its own EndpointSlice without the label of a Service, so Kubernetes sends no
// traffic to it. Kubernetes has no leases for EndpointSlices. Therefore a server writes each of its
// records three times within the time to live. Each write costs a write to etcd and an event for
// every client of the service. The registry suits hundreds of servers, but not thousands. A client
// that has seen no change of a record for its time to live asks the API server once more, and then
// drops the record. For this, it uses only its own clock. Some time later the client deletes the
// record, if it has the permission. When a client sees a record for the first time, it waits for
// the record's whole time to live.
//
// Servers need the permission to patch, create, delete, get, list and watch endpointslices, because
// they also read the settings of operators. Clients need the permission to list, watch and get
// them. Clients also need the permission to delete them: otherwise records that are no longer
// renewed stay forever.
type Registry struct {
	*registry.Registry
	store *store
}

// New returns a registry in the API server of o. It does not wait for a connection.
func New(o *Options) *Registry {
	s := &store{seen: make(map[string]sighting)}
	s.api, s.err = connect(o)
	options := &registry.Options{}
	if s.err == nil {
		options = &s.api.Options.Options
	}
	s.base = strings.TrimSuffix(cmp.Or(options.Prefix, "yodel"), "/") + "/"
	return &Registry{registry.New(s, options), s}
}

// Close closes the connections to the API server. Announced records stay until their time to live
// has passed.
func (r *Registry) Close() error {
	if r.store.err == nil {
		r.store.api.close()
	}
	return r.store.err
}

// A store is a registry.Store.
type store struct {
	api  *api
	err  error  // why there is no API server; nil if there is one
	base string // the prefix of all keys

	mu   sync.Mutex
	seen map[string]sighting // by the names of the slices
}

// A sighting is the time at which this process first saw a version of a slice.
type sighting struct {
	keys, version string
	at            time.Time
}

// prefix returns the part of a key that ends with the name of its service and a slash.
func (s *store) prefix(key string) string {
	rest := strings.TrimPrefix(key, s.base)
	service, _, _ := strings.Cut(rest, "/")
	return s.base + service + "/"
}

// name returns a name that Kubernetes accepts. It consists of the readable part of the argument and
// a hash.
func name(of string, limit int) string {
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(of))
	hash := sha256.Sum256([]byte(of))
	readable = strings.Trim(readable[:min(len(readable), limit)], "-")
	return strings.TrimPrefix(readable+"-"+hex.EncodeToString(hash[:16]), "-")
}

// keys returns the label value of the records whose keys begin with prefix. It has at most 63
// bytes.
func keys(prefix string) string { return name(prefix, 30) }

// record returns the name of the slice for a key.
func record(key string) string { return name(key, 200) }

// maxAnnotations is the size of the annotations that Kubernetes takes for an object, and aside is
// for those beside the key and the value.
const maxAnnotations, aside = 256 << 10, 1 << 10

// Put writes the record with the current time, so that the slice gets a new version.
func (s *store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	if s.err != nil {
		return s.err
	}
	if !utf8.Valid(value) {
		return fmt.Errorf("kubernetes: the record %s is no text", key)
	}
	if size := len(key) + len(value) + aside; size > maxAnnotations {
		return registry.TooLong("kubernetes", "record", key, size, maxAnnotations, "bytes for annotations")
	}
	one := slice{
		APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice", AddressType: "IPv4", Endpoints: []endpoint{}, Ports: []port{},
		Metadata: metadata{
			Name:   record(key),
			Labels: map[string]string{managedBy: "yodel", labelKeys: keys(s.prefix(key))},
			Annotations: map[string]string{
				annotationKey: key, annotationValue: string(value), annotationTTL: lifetime(ttl),
				annotationTime: time.Now().UTC().Format(time.RFC3339Nano),
			},
		},
	}
	show(&one, strings.TrimPrefix(key, s.prefix(key)))
	return s.api.do(ctx, request{
		method: http.MethodPatch, path: path(s.api.Namespace, one.Metadata.Name), body: one,
		kind:  "application/apply-patch+yaml", // JSON is YAML; the patch creates the slice if it does not exist
		query: url.Values{"fieldManager": {"yodel"}, "force": {"true"}},
	}, nil)
}

// never is the annotation of a record that does not expire.
const never = "never"

// lifetime returns the annotation for a ttl.
func lifetime(ttl time.Duration) string {
	if ttl == 0 {
		return never
	}
	return ttl.String()
}

// Get implements registry.Store.
func (s *store) Get(ctx context.Context, key string) ([]byte, error) {
	if s.err != nil {
		return nil, s.err
	}
	var one slice
	err := s.api.do(ctx, request{method: http.MethodGet, path: path(s.api.Namespace, record(key))}, &one)
	if is(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return one.value(), nil
}

// listed is how many slices the API server returns in an answer to List.
const listed = 500

// List implements registry.Lister. It reads all records of the registry in the namespace.
func (s *store) List(ctx context.Context, prefix string) ([]string, error) {
	if s.err != nil {
		return nil, s.err
	}
	found := make(map[string]bool)
	q := url.Values{"labelSelector": {managedBy + "=yodel"}, "limit": {strconv.Itoa(listed)}}
	for {
		var page list
		if err := s.api.do(ctx, request{method: http.MethodGet, path: path(s.api.Namespace, ""), query: q}, &page); err != nil {
			return slices.Sorted(maps.Keys(found)), err
		}
		for _, one := range page.Items {
			rest, ours := strings.CutPrefix(one.key(), prefix)
			if folder, _, ok := strings.Cut(rest, "/"); ours && ok {
				found[folder] = true
			}
		}
		if page.Metadata.Continue == "" {
			return slices.Sorted(maps.Keys(found)), nil
		}
		q.Set("continue", page.Metadata.Continue)
	}
}

// show sets the address and port of the slice to those in the name of the record, if Kubernetes
// accepts them. Only people use them.
func show(one *slice, name string) {
	addr, err := url.PathUnescape(name)
	at, bad := netip.ParseAddrPort(addr[strings.LastIndexByte(addr, '@')+1:])
	ip := at.Addr()
	if err != nil || bad != nil || at.Port() == 0 || ip.Zone() != "" || ip.Is4In6() || !ip.IsGlobalUnicast() {
		return
	}
	if ip.Is6() {
		one.AddressType = "IPv6"
	}
	one.Endpoints, one.Ports = []endpoint{{Addresses: []string{ip.String()}}}, []port{{Port: int(at.Port())}}
}

// Delete implements registry.Store.
func (s *store) Delete(ctx context.Context, key string) error {
	if s.err != nil {
		return s.err
	}
	err := s.api.do(ctx, request{method: http.MethodDelete, path: path(s.api.Namespace, record(key))}, nil)
	if is(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// Watch implements registry.Store.
func (s *store) Watch(ctx context.Context, prefix string, v *registry.View) error {
	if s.err != nil {
		return s.err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	r := &records{store: s, keys: keys(prefix), view: v, known: make(map[string]slice), dead: make(map[string]time.Time)}
	wg.Go(func() { r.bury(ctx) })
	err := s.api.follow(ctx, s.api.Namespace, labelKeys+"="+r.keys, r)
	if err != nil {
		s.forget(r.keys) // while the watch fails, records do not age
	}
	return err
}

// see records a version of a slice, and returns when it was first seen.
func (s *store) see(of slice, keys string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := of.Metadata
	if s.seen[m.Name].version != m.ResourceVersion {
		s.seen[m.Name] = sighting{keys, m.ResourceVersion, time.Now()}
	}
	return s.seen[m.Name].at
}

// forget deletes the sightings of the records with a label, so that their time to live begins
// again.
func (s *store) forget(keys string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, sighting := range s.seen {
		if sighting.keys == keys {
			delete(s.seen, name)
		}
	}
}

// A records is the state of one Watch: the records with a label.
type records struct {
	store *store
	keys  string
	view  *registry.View

	mu    sync.Mutex
	known map[string]slice     // by name
	dead  map[string]time.Time // when to delete the known records that have expired
}

// longest is the longest accepted time to live. Any program with the permission can write a record,
// and sums of times to live must not overflow.
const longest = 365 * 24 * time.Hour

func (s slice) ttl() time.Duration {
	if s.Metadata.Annotations[annotationTTL] == never {
		return 100 * longest
	}
	ttl, _ := time.ParseDuration(s.Metadata.Annotations[annotationTTL]) // a record without a valid ttl has expired
	return min(max(ttl, 0), longest)
}

func (s slice) key() string   { return s.Metadata.Annotations[annotationKey] }
func (s slice) value() []byte { return []byte(s.Metadata.Annotations[annotationValue]) }

func (r *records) replace(all []slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.known)
	values := make(map[string][]byte, len(all))
	for _, one := range all {
		r.known[one.Metadata.Name] = one
		if time.Since(r.store.see(one, r.keys)) <= one.ttl() {
			delete(r.dead, one.Metadata.Name)
			values[one.key()] = one.value()
		} else if r.dead[one.Metadata.Name].IsZero() {
			r.dead[one.Metadata.Name] = later(one)
		}
	}
	maps.DeleteFunc(r.dead, func(name string, _ time.Time) bool { _, ok := r.known[name]; return !ok })
	r.store.keep(r.keys, r.known)
	r.view.Replace(values)
}

// keep deletes the sightings of slices with a label that no longer exist.
func (s *store) keep(keys string, known map[string]slice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, sighting := range s.seen {
		if _, ok := known[name]; !ok && sighting.keys == keys {
			delete(s.seen, name)
		}
	}
}

func (r *records) change(one slice, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.dead, one.Metadata.Name)
	if gone {
		delete(r.known, one.Metadata.Name)
		r.view.Delete(one.key())
		return
	}
	r.store.see(one, r.keys)
	r.known[one.Metadata.Name] = one
	r.view.Put(one.key(), one.value())
}

// later returns when to delete an expired record. The time is random, so that not all clients
// delete it at once.
func later(one slice) time.Time { return time.Now().Add(one.ttl() + rand.N(one.ttl()+time.Second)) }

// lookEvery is the pause between two checks of the records.
const lookEvery = 250 * time.Millisecond

// bury drops and deletes records that are no longer renewed, until ctx ends.
func (r *records) bury(ctx context.Context) {
	for {
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return
		}
		silent, dead := r.late()
		for _, one := range silent {
			if err := r.confirm(ctx, one); err != nil {
				r.store.forget(r.keys) // without the server, no renewal can be seen
				break
			}
		}
		for _, one := range dead {
			if err := r.remove(ctx, one); err != nil && ctx.Err() == nil {
				cmp.Or(r.store.api.Logger, slog.Default()).Debug("yodel: a dead record could not be deleted", "record", one.Metadata.Name, "err", err)
				break
			}
		}
	}
}

// late returns the records that were not renewed in time, and those that are due to be deleted.
func (r *records) late() (silent, dead []slice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, one := range r.known {
		if remove, ok := r.dead[name]; ok {
			if time.Now().After(remove) {
				dead = append(dead, one)
			}
		} else if time.Since(r.store.see(one, r.keys)) > one.ttl() {
			silent = append(silent, one)
		}
	}
	return silent, dead
}

// confirm asks the API server whether a record really was not renewed, because the watch may be
// late or broken. If it was not, confirm drops the record.
func (r *records) confirm(ctx context.Context, one slice) error {
	ctx, cancel := context.WithTimeout(ctx, max(one.ttl(), time.Second))
	defer cancel()
	var now slice
	err := r.store.api.do(ctx, request{method: http.MethodGet, path: path(r.store.api.Namespace, one.Metadata.Name)}, &now)
	if err != nil && !is(err, http.StatusNotFound) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known[one.Metadata.Name].Metadata.ResourceVersion != one.Metadata.ResourceVersion {
		return nil // it has just been renewed
	}
	if err == nil && now.Metadata.ResourceVersion != one.Metadata.ResourceVersion {
		r.known[one.Metadata.Name] = now
		r.store.see(now, r.keys)
		r.view.Put(now.key(), now.value())
		return nil
	}
	r.dead[one.Metadata.Name] = later(one)
	r.view.Delete(one.key())
	return nil
}

// remove deletes an expired record, unless it has changed.
func (r *records) remove(ctx context.Context, one slice) error {
	err := r.store.api.do(ctx, request{
		method: http.MethodDelete, path: path(r.store.api.Namespace, one.Metadata.Name), kind: "application/json",
		body: map[string]any{"preconditions": map[string]string{"resourceVersion": one.Metadata.ResourceVersion}},
	}, nil)
	if is(err, http.StatusNotFound) || is(err, http.StatusConflict) {
		err = nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.dead[one.Metadata.Name]; ok {
		r.dead[one.Metadata.Name] = later(one) // if it is not deleted, try again later
	}
	return err
}
