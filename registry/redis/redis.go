// SPDX-License-Identifier: Apache-2.0

// Package redis is a registry in Redis, 5 or later, or in what speaks its protocol and knows
// scripts: Valkey, KeyDB.
//
//	r := redis.New("10.0.0.1:6379", nil)
//	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []yodel.Registrar{r}})
//	c := yodel.NewClient(r.Service("Arith"), nil)
//
// The record of an instance is a string that expires, at yodel/SERVICE/ADDRESS. The addresses of a
// service are the sorted set yodel/SERVICE, each with the time of its end in milliseconds, because
// Redis can find keys by their beginning only by looking at all of its keys. Changes are published
// on a channel of the same name; the keyspace events of Redis are off by default. Messages may be
// lost, and nothing is published when a record expires: so clients ask once a second for what has
// expired, and read everything again when their connection was lost, and now and then.
//
//	redis-cli get yodel/Arith/10.0.0.7:8972
//	redis-cli zrange yodel/Arith 0 -1 withscores
//	redis-cli subscribe yodel/Arith
//
// With registry.RPCX as the layout, records are as rpcx's Redis plugin keeps them: the prefix is
// its BasePath, and there is no sorted set, which rpcx does not keep. Clients then look at all keys
// of Redis every time, with SCAN: give it a Redis, or a database, of its own.
//
// Redis Cluster is not supported: what belongs together is not in one slot.
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
	// Username and Password are for Redis's authentication. Default none.
	Username, Password string
	// DB is the number of the database.
	DB int
	// TLS is how to connect. Default: without TLS.
	TLS *tls.Config
	// Timeout is how long Redis may take to answer. Default 5 s.
	Timeout time.Duration
	// Every is how often clients ask for what has expired, about, and in the layout of rpcx for
	// everything. Default 1 s.
	Every time.Duration
	// Client is used instead of a new one, for Redis Sentinel for example. It stays open.
	Client *redis.Client
}

// A Registry is a registry in Redis.
type Registry struct {
	*registry.Registry
	close func() error
}

// New returns a registry in the Redis server at addr. It does not wait for a connection, and
// connects again whenever it was lost.
func New(addr string, o *Options) *Registry {
	if o == nil {
		o = &Options{}
	}
	prefix := "yodel" // as registry.New has it
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
	s.every = min(s.every, 365*24*time.Hour) // a multiple of it must not overflow
	shut := func() error { return nil }
	if s.client == nil {
		s.client = redis.NewClient(&redis.Options{
			Addr: addr, Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLS, ContextTimeoutEnabled: true,
			DialTimeout: s.timeout, ReadTimeout: s.timeout, WriteTimeout: s.timeout,
			MaxRetries: -1, DialerRetries: 1, // whoever announces or watches tries again
		})
		shut = s.client.Close
	}
	return &Registry{registry.New(s, &o.Options), shut}
}

// Close closes the connections to Redis. What was announced stays until it expires.
func (r *Registry) Close() error { return r.close() }

// A store is a registry.Store.
type store struct {
	client         *redis.Client
	timeout, every time.Duration
	rpcx           bool
	parts          int // of a key: those of the prefix, the service, and the rest

	mu       sync.Mutex
	changing map[string]chan struct{} // the records that a command changes now; closed when it has ended
}

// The scripts make one step of what belongs together, by the clock of Redis. Their keys are a
// record and the set of its service. What has ended stays in a set for a minute, so that clients
// learn of it, and a set ends a minute after its last record.
var (
	// put takes the value, the ttl in milliseconds, which is 0 for ever, and whether there is a
	// set.
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
	// remove takes whether there is a set.
	remove = redis.NewScript(`
		local known = redis.call('DEL', KEYS[1])
		if ARGV[1] == '1' then
			redis.call('ZREM', KEYS[2], KEYS[1])
		end
		if known == 1 then
			redis.call('PUBLISH', KEYS[2], KEYS[1])
		end
		return 1`)
	// expired takes a set, and returns what in it has ended.
	expired = redis.NewScript(`
		local time = redis.call('TIME')
		return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', time[1] * 1000 + math.floor(time[2] / 1000))`)
)

// atOnce is how many records are read at once: Redis does nothing else meanwhile.
const atOnce = 1000

// place returns the key that Redis has for one of ours, and the name of the set of its service.
// Rpcx's library begins every key with a slash, in addition to one that may be there.
func (s *store) place(key string) (record, service string) {
	parts := strings.SplitN(key, "/", s.parts)
	service = strings.Join(parts[:s.parts-1], "/")
	if s.rpcx {
		return "/" + key, "/" + service
	}
	return key, service
}

// A pair is how rpcx's library writes a value.
type pair struct {
	Key       string `json:"Key"`
	Value     []byte `json:"Value"`
	LastIndex uint64 `json:"LastIndex"`
}

// ask carries out a command within the timeout. It does not wait for the client, which does not
// notice that ctx was canceled.
func ask[T any](ctx context.Context, s *store, what string, command func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
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

// milliseconds rounds a ttl up to the least that Redis knows, but for 0, which is for ever.
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

// write carries out a command that changes a record. It returns when ctx ends, although the client
// may go on waiting for the answer. Commands that change one record run one after the other,
// because they could overtake each other on different connections: a Delete waits for a Put that
// was canceled.
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

// turn waits until no other command changes the record, and reserves it until end is called.
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

// indexed tells a script whether services have sets.
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
		// It waits for messages, whatever its context does, and does not when it is closed.
		context.AfterFunc(ctx, func() { _ = sub.Close() })
		_, err := sub.ReceiveTimeout(one, s.timeout)
		return sub, err
	})
	if err != nil { // from now on, no change is missed
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
				pause = min(max(pause, 10*time.Since(began)), 10*pause) // less often where there are many keys
			} else {
				err = s.forget(ctx, prefix, view)
			}
			due = time.After(pause - rand.N(pause/8+1)) // not all clients at once
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

// list tells view of all records.
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

// records returns which records there are. Some may have ended.
func (s *store) records(ctx context.Context, prefix string) ([]string, error) {
	first, service := s.place(prefix)
	if !s.rpcx {
		return ask(ctx, s, "list "+service, func(ctx context.Context) ([]string, error) {
			return s.client.ZRange(ctx, service, 0, -1).Result()
		})
	}
	type page struct {
		records []string
		next    uint64
	}
	var records []string
	for cursor := uint64(0); ; {
		one, err := ask(ctx, s, "scan "+first, func(ctx context.Context) (one page, err error) {
			one.records, one.next, err = s.client.Scan(ctx, cursor, literal(first)+"*", atOnce).Result()
			return one, err
		})
		if err != nil {
			return nil, err
		}
		records, cursor = append(records, one.records...), one.next
		if cursor == 0 { // Redis promises that it comes
			return records, nil
		}
	}
}

// literal returns a pattern of Redis that only a text itself matches.
func literal(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(text)
}

// learn tells view of the records that a message names, and the ones behind it. A subscription that
// was made again may have missed some.
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

// forget tells view of the records that have expired.
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

// key returns our key for the one that Redis has.
func (s *store) key(record string) string {
	if s.rpcx {
		return strings.TrimPrefix(record, "/")
	}
	return record
}

// values returns the values of those records that are there, by key.
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
			continue // it is gone, or none of ours
		}
		value := []byte(text)
		if s.rpcx {
			var p pair
			if err := json.Unmarshal(value, &p); err == nil && p.Key != "" {
				value = p.Value
			} // else somebody wrote it by hand
		}
		values[s.key(records[i])] = value
	}
	return values, nil
}
