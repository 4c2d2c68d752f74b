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

// A query is a yodel.Resolver for a blocking query of Consul.
type query struct {
	registry *Registry
	path     string
	values   url.Values
	// read decodes an answer. It logs each record that it cannot use once, and notes it in said.
	read func(answer *json.Decoder, said map[string]bool) ([]yodel.Instance, error)
}

// Service returns a resolver for the passing services of a name.
func (r *Registry) Service(name string) yodel.Resolver {
	read := func(answer *json.Decoder, said map[string]bool) ([]yodel.Instance, error) {
		var entries []entry
		err := answer.Decode(&entries)
		return r.instances(escape(name), entries, said), err
	}
	return &query{r, path("v1", "health", "service", escape(name)), r.there(url.Values{"passing": {"1"}}), read}
}

// there adds the data center in which clients look to values.
func (r *Registry) there(values url.Values) url.Values {
	if r.opts.Datacenter != "" {
		values.Set("dc", r.opts.Datacenter)
	}
	return values
}

// RPCX returns a resolver for the instances of a service that rpcx's servers keep in Consul's
// key-value store. Base is the BasePath of their plugin.
func (r *Registry) RPCX(base, service string) yodel.Resolver {
	return r.keys(base, service, registry.RPCX, r.there(url.Values{"recurse": {"1"}}))
}

// keys returns a resolver for the records of a service in the key-value store, in the given layout.
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
				continue // the key of the folder
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
	parts := strings.Split(prefix, "/") // the last part is empty, because prefix ends with a slash
	return &query{r, path(append([]string{"v1", "kv"}, parts...)...), values, read}
}

// unusable logs that a record cannot be used, unless said lists it already.
func (r *Registry) unusable(said map[string]bool, what string, err error) {
	if !said[what] {
		said[what] = true
		r.opts.Logger.Warn("yodel: a record in the registry cannot be used", "id", what, "err", err)
	}
}

// pause is the least time between two queries. blind is the least time between two queries if
// Consul's answers have no index.
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
		// If Consul has lost its data, the index goes backwards. The query is then sent again
		// without an index.
		stale := answer.index > 0 && answer.index < index
		if !stale && (first || !reflect.DeepEqual(answer.instances, last)) {
			update(answer.instances)
			last = answer.instances
		}
		// The work grows with the size of the set. The pause limits it to at most a fifth of a
		// processor.
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

// An answer is the answer to a query.
type answer struct {
	instances []yodel.Instance
	index     uint64    // Consul's index of the answer; 0 if unknown
	at        time.Time // when it began to arrive
}

// ask sends the query. If index is not 0, Consul answers when it has a newer state or after the
// time Reconcile.
func (q *query) ask(ctx context.Context, index uint64, said map[string]bool) (answer, error) {
	r := q.registry
	values, limit := maps.Clone(q.values), r.opts.Timeout
	if index == 0 {
		values.Set("consistent", "") // a leader that was just elected may not have all data yet
	} else {
		wait := r.opts.Reconcile
		values.Set("index", strconv.FormatUint(index, 10))
		values.Set("wait", strconv.FormatInt(wait.Milliseconds(), 10)+"ms")
		limit += wait + wait/16 // Consul adds up to a 16th of wait, to spread the queries of many clients
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
	// The key-value store answers with this status if there are no keys.
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
	// indexHeader is the header with the index of the state that an answer describes.
	indexHeader = "X-Consul-Index"
	// filteredHeader is "true" if the answer omits data that the token may not read.
	filteredHeader = "X-Consul-Results-Filtered-By-Acls"
)

// indexOf parses an index. It returns 0 if the index is invalid. Watch then polls.
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
