// SPDX-License-Identifier: Apache-2.0

// Package redis is a registry in Redis, 5 or later, or in a server that speaks its protocol and
// supports scripts, such as Valkey and KeyDB.
//
//	r := redis.New("10.0.0.1:6379", nil)
//	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{r}})
//	c := yodel.NewClient(r.Service("Arith"), nil)
//
// The record of an instance is a string with an expiry time, at yodel/SERVICE/ADDRESS. The
// addresses of a service are in the sorted set yodel/SERVICE, with the expiry time in milliseconds
// as the score. The set exists because Redis has to scan all its keys to find those with a common
// prefix. Changes are published on a channel with the same name as the set, because the keyspace
// events of Redis are off by default. Messages may be lost, and Redis publishes nothing when a
// record expires. Therefore clients ask once a second for expired records. They read all records
// again after the connection was lost, and from time to time.
//
//	redis-cli get yodel/Arith/10.0.0.7:8972
//	redis-cli zrange yodel/Arith 0 -1 withscores
//	redis-cli subscribe yodel/Arith
//
// With the layout registry.RPCX, the records have the format of rpcx's Redis plugin, and the prefix
// is the plugin's BasePath. There is no sorted set, because rpcx does not maintain one. Clients
// then scan all keys of Redis each time, so the registry should have its own Redis server or
// database.
//
// Redis Cluster is not supported, because the keys of a service are not in one slot.
package redis

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/yodel-rpc/yodel/registry"
)

// Options changes how the registry works. The zero value is good.
type Options struct {
	registry.Options
	// Username and Password are for Redis's authentication. Default: no authentication.
	Username, Password string
	// DB is the number of the database.
	DB int
	// TLS is the configuration for TLS. Default: no TLS.
	TLS *tls.Config
	// Timeout limits how long a command waits for Redis. Default 5 s.
	Timeout time.Duration
	// Every is the approximate interval at which clients ask for expired records. With the layout
	// of rpcx, they read all records at this interval. Default 1 s.
	Every time.Duration
	// Client is used instead of a new client, for example for Redis Sentinel. Close does not close
	// it.
	Client *redis.Client
}

// A Registry is a registry in Redis.
type Registry struct {
	*registry.Registry
	close func() error
}

// New returns a registry in the Redis server at addr. It does not wait for a connection. The
// registry connects again each time that the connection is lost.
func New(addr string, o *Options) *Registry {
	if o == nil {
		o = &Options{}
	}
	prefix := "yodel" // the default of registry.New
	if o.Prefix != "" {
		prefix = strings.TrimSuffix(o.Prefix, "/")
	}
	s := &store{
		client: o.Client, timeout: o.Timeout, every: o.Every, rpcx: o.Layout == registry.RPCX,
		parts: strings.Count(prefix, "/") + 3, changing: make(map[string]chan struct{}),
	}
	if s.timeout <= 0 {
		s.timeout = 5 * time.Second
	}
	if s.every <= 0 {
		s.every = time.Second
	}
	s.every = min(s.every, 365*24*time.Hour) // so that a multiple of it does not overflow
	shut := func() error { return nil }
	if s.client == nil {
		addr, s.wrong = endpoint(addr)
		s.client = redis.NewClient(&redis.Options{
			Addr: addr, Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLS, ContextTimeoutEnabled: true,
			DialTimeout: s.timeout, ReadTimeout: s.timeout, WriteTimeout: s.timeout,
			MaxRetries: -1, DialerRetries: 1, // the callers of Announce and Watch try again
		})
		shut = s.client.Close
	}
	return &Registry{registry.New(s, &o.Options), shut}
}

// endpoint returns the address of the server.
func endpoint(addr string) (string, error) {
	if strings.HasPrefix(addr, "/") { // a Unix socket
		return addr, nil
	}
	all, err := registry.Endpoints(addr)
	switch {
	case err != nil:
		return strings.TrimSpace(addr), err
	case len(all) > 1:
		return addr, errors.New("it takes one address; Options.Client is for Redis Sentinel")
	}
	return all[0], nil
}

// Close closes the connections to Redis. Announced records stay until they expire.
func (r *Registry) Close() error { return r.close() }

// A store is a registry.Store.
type store struct {
	client         *redis.Client
	wrong          error // why the address cannot be used; nil if it can
	timeout, every time.Duration
	rpcx           bool
	parts          int // number of parts of a key: the prefix's parts, the service and the rest

	mu       sync.Mutex
	changing map[string]chan struct{} // by record; closed when the command that changes it has ended
}

// Each script changes a record and the set of its service atomically, by the clock of Redis. The
// keys of a script are the record and the set. An expired address stays in the set for a minute, so
// that clients learn that it has expired. A set expires a minute after its last record.
var (
	// The arguments of put are the value, the ttl in milliseconds (0 for no expiry), and whether
	// there is a set.
	//nolint:dupword // Lua
	put = redis.NewScript(`
		local old = redis.call('GET', KEYS[1])
		local forever = ARGV[2] == '0'
		if forever then
			redis.call('SET', KEYS[1], ARGV[1])
		else
			redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
		end
		if ARGV[3] == '1' then
			local time = redis.call('TIME')
			local now = time[1] * 1000 + math.floor(time[2] / 1000)
			local last = ARGV[2] + 60000
			if forever then
				redis.call('ZADD', KEYS[2], '+inf', KEYS[1])
				redis.call('PERSIST', KEYS[2])
			else
				local left = redis.call('PTTL', KEYS[2])
				redis.call('ZADD', KEYS[2], now + ARGV[2], KEYS[1])
				if left ~= -1 and left < last then redis.call('PEXPIRE', KEYS[2], last) end
			end
			redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 60000)
		end
		if old ~= ARGV[1] then
			redis.call('PUBLISH', KEYS[2], KEYS[1])
		end
		return 1`)
	// The argument of remove is whether there is a set.
	remove = redis.NewScript(`
		local known = redis.call('DEL', KEYS[1])
		if ARGV[1] == '1' then
			redis.call('ZREM', KEYS[2], KEYS[1])
		end
		if known == 1 then
			redis.call('PUBLISH', KEYS[2], KEYS[1])
		end
		return 1`)
	// expired returns the members of a set that have expired.
	expired = redis.NewScript(`
		local time = redis.call('TIME')
		return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', time[1] * 1000 + math.floor(time[2] / 1000))`)
)

// atOnce is the maximum number of records that one command reads: Redis executes nothing else
// meanwhile.
const atOnce = 1000

// place returns the Redis key for a key of the registry, and the name of the set of its service.
// rpcx's library adds a slash before every key, even if the key already begins with one.
func (s *store) place(key string) (record, service string) {
	parts := strings.SplitN(key, "/", s.parts)
	service = strings.Join(parts[:s.parts-1], "/")
	if s.rpcx {
		return "/" + key, "/" + service
	}
	return key, service
}

// A pair is the form in which rpcx's library writes a value.
type pair struct {
	Key       string `json:"Key"`
	Value     []byte `json:"Value"`
	LastIndex uint64 `json:"LastIndex"`
}

// ask runs a command with the store's timeout. It returns when ctx ends, although the Redis client
// does not notice that.
func ask[T any](ctx context.Context, s *store, what string, command func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	if s.wrong != nil {
		return *new(T), s.failed(what, s.wrong)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	done := make(chan answer, 1)
	go func() {
		value, err := command(ctx)
		done <- answer{value, err}
	}()
	var a answer
	select {
	case a = <-done:
	case <-ctx.Done():
		a.err = context.Cause(ctx)
	}
	if a.err != nil {
		a.err = s.failed(what, a.err)
	}
	return a.value, a.err
}

// Put implements registry.Store.
func (s *store) Put(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	record, service := s.place(key)
	if s.rpcx {
		var err error
		if value, err = json.Marshal(pair{Key: key, Value: value}); err != nil {
			return err
		}
	}
	return s.write(ctx, "put", record, func(ctx context.Context) error {
		return put.Run(ctx, s.client, []string{record, service}, value, milliseconds(ttl), s.indexed()).Err()
	})
}

// milliseconds returns a ttl in milliseconds, and at least 1 unless the ttl is 0. A ttl of 0 means
// no expiry.
func milliseconds(ttl time.Duration) int64 {
	if ttl == 0 {
		return 0
	}
	return max(ttl.Milliseconds(), 1)
}

// Get implements registry.Store.
func (s *store) Get(ctx context.Context, key string) ([]byte, error) {
	record, _ := s.place(key)
	value, err := ask(ctx, s, "get "+record, func(ctx context.Context) ([]byte, error) {
		value, err := s.client.Get(ctx, record).Bytes()
		if errors.Is(err, redis.Nil) {
			return nil, nil
		}
		return value, err
	})
	if err != nil || value == nil || !s.rpcx {
		return value, err
	}
	var p pair
	if err := json.Unmarshal(value, &p); err != nil {
		return nil, fmt.Errorf("redis: get %s: %w", record, err)
	}
	return p.Value, nil
}

// Delete implements registry.Store.
func (s *store) Delete(ctx context.Context, key string) error {
	record, service := s.place(key)
	return s.write(ctx, "delete", record, func(ctx context.Context) error {
		return remove.Run(ctx, s.client, []string{record, service}, s.indexed()).Err()
	})
}

// write runs a command that changes a record. It returns when ctx ends, although the client may
// continue to wait for the answer. Commands that change one record run one after the other, because
// they could overtake each other on different connections. For example, a Delete waits for a
// canceled Put to end.
func (s *store) write(ctx context.Context, what, record string, command func(context.Context) error) error {
	end, err := s.turn(ctx, record)
	if err != nil {
		return s.failed(what+" "+record, fmt.Errorf("an earlier change has not ended: %w", err))
	}
	_, err = ask(ctx, s, what+" "+record, func(ctx context.Context) (struct{}, error) {
		defer end()
		return struct{}{}, command(ctx)
	})
	return err
}

// turn waits until no other command is changing the record, and reserves the record until the
// caller calls end.
func (s *store) turn(ctx context.Context, record string) (end func(), err error) {
	turn := make(chan struct{})
	for {
		s.mu.Lock()
		before := s.changing[record]
		if before == nil {
			s.changing[record] = turn
			s.mu.Unlock()
			break
		}
		s.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return func() {
		s.mu.Lock()
		delete(s.changing, record)
		s.mu.Unlock()
		close(turn)
	}, nil
}

// indexed returns the argument that tells a script whether services have sets.
func (s *store) indexed() string {
	if s.rpcx {
		return "0"
	}
	return "1"
}

// Watch implements registry.Store.
func (s *store) Watch(ctx context.Context, prefix string, view *registry.View) error {
	_, service := s.place(prefix)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sub, err := ask(ctx, s, "subscribe to "+service, func(one context.Context) (*redis.PubSub, error) {
		sub := s.client.Subscribe(one, service)
		// The subscription does not end with its context, but it ends when it is closed.
		context.AfterFunc(ctx, func() { _ = sub.Close() })
		_, err := sub.ReceiveTimeout(one, s.timeout)
		return sub, err
	})
	if err != nil { // if err is nil, no later change is missed
		return err
	}
	if err := s.list(ctx, prefix, view); err != nil {
		return err
	}
	news := sub.ChannelWithSubscriptions()
	due := time.After(s.every)
	for {
		var err error
		select {
		case one, ok := <-news:
			if !ok && ctx.Err() == nil {
				return s.failed("subscribe to "+service, errors.New("the subscription ended"))
			}
			err = s.learn(ctx, prefix, view, one, news)
		case <-due:
			began, pause := time.Now(), s.every
			if s.rpcx {
				err = s.list(ctx, prefix, view)
				pause = min(max(pause, 10*time.Since(began)), 10*pause) // less often if there are many keys
			} else {
				err = s.forget(ctx, prefix, view)
			}
			due = time.After(pause - rand.N(pause/8+1)) // spreads the commands of many clients
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// list passes all records to view.
func (s *store) list(ctx context.Context, prefix string, view *registry.View) error {
	records, err := s.records(ctx, prefix)
	if err != nil {
		return err
	}
	all := make(map[string][]byte, len(records))
	for some := range slices.Chunk(records, atOnce) {
		values, err := s.values(ctx, some)
		if err != nil {
			return err
		}
		maps.Copy(all, values)
	}
	view.Replace(all)
	return nil
}

// records returns the Redis keys of the records. Some records may have expired.
func (s *store) records(ctx context.Context, prefix string) ([]string, error) {
	first, service := s.place(prefix)
	if !s.rpcx {
		return ask(ctx, s, "list "+service, func(ctx context.Context) ([]string, error) {
			return s.client.ZRange(ctx, service, 0, -1).Result()
		})
	}
	var records []string
	err := s.scan(ctx, first, "string", func(keys []string) { records = append(records, keys...) })
	return records, err
}

// literal returns a pattern for Redis that matches only text.
func literal(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(text)
}

// learn passes to view the records that the message one and the messages in more name. If the
// client has subscribed again, it may have missed messages, so learn reads all records.
func (s *store) learn(ctx context.Context, prefix string, view *registry.View, one any, more <-chan any) error {
	first, _ := s.place(prefix)
	var records []string
	for len(records) < atOnce && one != nil {
		switch one := one.(type) {
		case *redis.Subscription:
			return s.list(ctx, prefix, view)
		case *redis.Message:
			if strings.HasPrefix(one.Payload, first) {
				records = append(records, one.Payload)
			}
		}
		select {
		case one = <-more:
		default:
			one = nil
		}
	}
	values, err := s.values(ctx, records)
	if err != nil {
		return err
	}
	for _, record := range records {
		key := s.key(record)
		if value, ok := values[key]; ok {
			view.Put(key, value)
		} else {
			view.Delete(key)
		}
	}
	return nil
}

// forget removes the expired records from view.
func (s *store) forget(ctx context.Context, prefix string, view *registry.View) error {
	_, service := s.place(prefix)
	records, err := ask(ctx, s, "look for what has expired in "+service, func(ctx context.Context) ([]string, error) {
		return expired.Run(ctx, s.client, []string{service}).StringSlice()
	})
	for _, record := range records {
		view.Delete(s.key(record))
	}
	return err
}

// key returns the registry's key for a Redis key.
func (s *store) key(record string) string {
	if s.rpcx {
		return strings.TrimPrefix(record, "/")
	}
	return record
}

// values returns the values of the records that exist, by key.
func (s *store) values(ctx context.Context, records []string) (map[string][]byte, error) {
	values := make(map[string][]byte, len(records))
	if len(records) == 0 {
		return values, nil
	}
	found, err := ask(ctx, s, fmt.Sprintf("read %d records", len(records)), func(ctx context.Context) ([]any, error) {
		return s.client.MGet(ctx, records...).Result()
	})
	if err != nil {
		return nil, err
	}
	for i, one := range found {
		text, ok := one.(string)
		if !ok {
			continue // the record does not exist, or the key holds another type
		}
		value := []byte(text)
		if s.rpcx {
			var p pair
			if err := json.Unmarshal(value, &p); err == nil && p.Key != "" {
				value = p.Value
			} // otherwise the value was not written by rpcx's library
		}
		values[s.key(records[i])] = value
	}
	return values, nil
}
