// SPDX-License-Identifier: Apache-2.0

package consul

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/unread"
	"github.com/yodel-rpc/yodel/registry"
)

// A query is a discovery.Resolver for a blocking query of Consul.
type query struct {
	registry *Registry
	path     string
	values   url.Values
	// read decodes an answer. It logs each record that it cannot use once, and notes it in said.
	read func(answer *json.Decoder, said *unusable) ([]discovery.Instance, error)
}

// Service returns a resolver for the passing services of a name.
func (r *Registry) Service(name string) discovery.Resolver {
	read := func(answer *json.Decoder, said *unusable) ([]discovery.Instance, error) {
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
func (r *Registry) RPCX(base, service string) discovery.Resolver {
	return r.keys(base, service, registry.RPCX, r.there(url.Values{"recurse": {"1"}}))
}

// keys returns a resolver for the records of a service in the key-value store, in the given layout.
func (r *Registry) keys(base, service string, layout registry.Layout, values url.Values) discovery.Resolver {
	prefix := strings.Trim(base, "/") + "/" + service + "/"
	read := func(answer *json.Decoder, said *unusable) ([]discovery.Instance, error) {
		var pairs []struct {
			Key   string `json:"Key"`
			Value []byte `json:"Value"`
		}
		err := answer.Decode(&pairs)
		var instances []discovery.Instance
		for _, pair := range pairs {
			name := strings.TrimPrefix(pair.Key, prefix)
			if name == "" {
				continue // the key of the folder
			}
			in, err := layout.Instance(name, pair.Value)
			if err != nil {
				r.tell(said, unread.Record{Key: pair.Key, Problem: err.Error(), Instance: in.Addr}, err)
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

// unusable has the records of a Watch that cannot be used.
type unusable struct {
	logged map[string]bool // by name
	now    []unread.Record // of the last answer
}

// tell notes that a record, or a part of it, cannot be used, and logs it once.
func (r *Registry) tell(said *unusable, record unread.Record, err error) {
	said.now = append(said.now, record)
	if !said.logged[record.Key] {
		said.logged[record.Key] = true
		cmp.Or(r.opts.Logger, slog.Default()).Warn("yodel: a record in the registry cannot be used", "record", record.Key, "err", err)
	}
}

// pause is the least time between two queries. blind is the least time between two queries if
// Consul's answers have no index.
const (
	pause = 20 * time.Millisecond
	blind = time.Second
)

// These bound how many queries of a registry wait in Consul at once, each on its own connection. An
// agent takes 200 connections from a host (limits.http_max_conns_per_client), and refuses those of
// other processes too when a console follows all services. If there are more queries, they take
// turns, and each waits for a part of the time cycle. Queries that do not wait, but read, have
// connections of their own.
const (
	atOnce       = 40
	readAtOnce   = 16
	cycle        = 10 * time.Second
	shortestTurn = 200 * time.Millisecond
)

// waits returns how long a query waits for a change.
func (r *Registry) waits() time.Duration {
	if following := r.following.Load(); following > atOnce {
		return min(max(cycle*atOnce/time.Duration(following), shortestTurn), r.opts.Reconcile)
	}
	return r.opts.Reconcile
}

// Watch implements discovery.Resolver.
func (q *query) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	q.registry.following.Add(1)
	defer q.registry.following.Add(-1)
	var last []discovery.Instance
	said := &unusable{logged: make(map[string]bool)}
	index := uint64(0)
	for first := true; ctx.Err() == nil; first = false {
		said.now = nil
		answer, err := q.ask(ctx, index, said)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		// If Consul has lost its data, the index goes backwards. The query is then sent again
		// without an index.
		stale := answer.index > 0 && answer.index < index
		if !stale {
			unread.Set(ctx, q, said.now)
		}
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
	instances []discovery.Instance
	index     uint64    // Consul's index of the answer; 0 if unknown
	at        time.Time // when it began to arrive
}

// ask sends the query. If index is not 0, Consul answers when it has a newer state or after the
// time Reconcile.
func (q *query) ask(ctx context.Context, index uint64, said *unusable) (answer, error) {
	r := q.registry
	turns := r.turns
	if index == 0 {
		turns = r.reads
	}
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
	case <-ctx.Done():
		return answer{}, context.Cause(ctx)
	}
	values, limit := maps.Clone(q.values), r.opts.Timeout
	if index == 0 {
		values.Set("consistent", "") // a leader that was just elected may not have all data yet
	} else {
		wait := r.waits()
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
	if err == nil && len(a.instances) == 0 {
		err = hidden(header)
	}
	if err != nil {
		return answer{}, fmt.Errorf("consul: GET %s: %w", q.path, err)
	}
	a.index = indexOf(header.Get(indexHeader))
	slices.SortStableFunc(a.instances, func(x, y discovery.Instance) int { return cmp.Compare(x.Addr, y.Addr) })
	a.instances = registry.Distinct(a.instances)
	return a, nil
}

const (
	// indexHeader is the header with the index of the state that an answer describes.
	indexHeader = "X-Consul-Index"
	// filteredHeader is "true" if the answer omits data that the token may not read.
	filteredHeader = "X-Consul-Results-Filtered-By-Acls"
)

// hidden returns an error if the answer with this header omits data that the token may not read.
func hidden(header http.Header) error {
	if header.Get(filteredHeader) == "true" {
		return errHidden
	}
	return nil
}

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
