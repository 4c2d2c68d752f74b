// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/registry"
)

// A query is a question of which Consul tells when its answer changes. It is a yodel.Resolver.
type query struct {
	registry *Registry
	path     string
	values   url.Values
	// read decodes an answer. What cannot be used it says once.
	read func(answer *json.Decoder, said map[string]bool) ([]yodel.Instance, error)
}

// Service returns the passing services of a name.
func (r *Registry) Service(name string) yodel.Resolver {
	read := func(answer *json.Decoder, said map[string]bool) ([]yodel.Instance, error) {
		var entries []entry
		err := answer.Decode(&entries)
		return r.instances(escape(name), entries, said), err
	}
	return &query{r, path("v1", "health", "service", escape(name)), r.there(url.Values{"passing": {"1"}}), read}
}

// there adds to values where clients look.
func (r *Registry) there(values url.Values) url.Values {
	if r.opts.Datacenter != "" {
		values.Set("dc", r.opts.Datacenter)
	}
	return values
}

// RPCX returns the instances of a service that rpcx's servers keep in Consul's key-value store.
// Base is the BasePath of their plugin.
func (r *Registry) RPCX(base, service string) yodel.Resolver {
	return r.keys(base, service, registry.RPCX, r.there(url.Values{"recurse": {"1"}}))
}

// keys returns the instances whose records a layout reads in the key-value store.
func (r *Registry) keys(base, service string, layout registry.Layout, values url.Values) yodel.Resolver {
	prefix := strings.Trim(base, "/") + "/" + service + "/"
	read := func(answer *json.Decoder, said map[string]bool) ([]yodel.Instance, error) {
		var pairs []struct {
			Key   string `json:"Key"`
			Value []byte `json:"Value"`
		}
		err := answer.Decode(&pairs)
		var instances []yodel.Instance
		for _, pair := range pairs {
			name := strings.TrimPrefix(pair.Key, prefix)
			if name == "" {
				continue // the folder
			}
			in, err := layout.Instance(name, pair.Value)
			if err != nil {
				r.unusable(said, pair.Key, err)
			}
			if in.Addr == "" {
				continue
			}
			instances = append(instances, in)
		}
		return instances, err
	}
	parts := strings.Split(prefix, "/") // it ends with one that is empty
	return &query{r, path(append([]string{"v1", "kv"}, parts...)...), values, read}
}

// unusable says once that a record cannot be used.
func (r *Registry) unusable(said map[string]bool, what string, err error) {
	if !said[what] {
		said[what] = true
		r.opts.Logger.Warn("yodel: a record in the registry cannot be used", "id", what, "err", err)
	}
}

// pause is the least time between two questions, and blind the one when Consul does not say what
// state of its own it answered from.
const (
	pause = 20 * time.Millisecond
	blind = time.Second
)

// Watch implements yodel.Resolver.
func (q *query) Watch(ctx context.Context, update func([]yodel.Instance)) error {
	var last []yodel.Instance
	said := make(map[string]bool)
	index := uint64(0)
	for first := true; ctx.Err() == nil; first = false {
		answer, err := q.ask(ctx, index, said)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // it is the end that was asked for
		case err != nil:
			return err
		}
		// The index goes backwards in another life of Consul: what is there has to be asked anew.
		stale := answer.index > 0 && answer.index < index
		if !stale && (first || !reflect.DeepEqual(answer.instances, last)) {
			update(answer.instances)
			last = answer.instances
		}
		// The work grows with the size of the set: at most a fifth of a processor.
		wait := max(pause, 4*time.Since(answer.at))
		if index = answer.index; stale {
			index = 0
		} else if index == 0 {
			wait = max(wait, blind)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return nil
}

// An answer is one to a query.
type answer struct {
	instances []yodel.Instance
	index     uint64    // the state of Consul that it is from; 0 is unknown
	at        time.Time // when it began to arrive
}

// ask asks what there is, and if index is not 0 waits until Consul has something newer, or for a
// while.
func (q *query) ask(ctx context.Context, index uint64, said map[string]bool) (answer, error) {
	r := q.registry
	values, limit := maps.Clone(q.values), r.opts.Timeout
	if index == 0 {
		values.Set("consistent", "") // a leader that was just elected may not know everything yet
	} else {
		wait := r.opts.Reconcile
		values.Set("index", strconv.FormatUint(index, 10))
		values.Set("wait", strconv.FormatInt(wait.Milliseconds(), 10)+"ms")
		limit += wait + wait/16 // Consul adds up to that, so that not all clients ask at once
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	resp, err := r.send(ctx, http.MethodGet, q.path, values, nil)
	a := answer{at: time.Now()}
	var header http.Header
	var no *refusal
	switch {
	case err == nil:
		defer resp.Body.Close()
		header = resp.Header
		a.instances, err = q.read(json.NewDecoder(resp.Body), said)
	// of keys, when there are none
	case errors.As(err, &no) && no.code == http.StatusNotFound && no.header.Get(indexHeader) != "":
		header, err = no.header, nil
	}
	if err == nil && len(a.instances) == 0 && header.Get(filteredHeader) == "true" {
		err = errHidden
	}
	if err != nil {
		return answer{}, fmt.Errorf("consul: GET %s: %w", q.path, err)
	}
	a.index = indexOf(header.Get(indexHeader))
	slices.SortStableFunc(a.instances, func(x, y yodel.Instance) int { return cmp.Compare(x.Addr, y.Addr) })
	a.instances = slices.CompactFunc(a.instances, func(x, y yodel.Instance) bool { return x.Addr == y.Addr })
	return a, nil
}

const (
	// indexHeader says what state of Consul an answer is from.
	indexHeader = "X-Consul-Index"
	// filteredHeader says that the token may not see all of an answer.
	filteredHeader = "X-Consul-Results-Filtered-By-Acls"
)

// indexOf reads an index. One that cannot be read is as good as none: Watch then asks now and then.
func indexOf(text string) uint64 {
	index, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return index
}

var (
	errHidden    = errors.New("the token may not read what there is")
	errNoAddress = errors.New("it has neither a port nor an address")
)
