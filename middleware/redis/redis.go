// SPDX-License-Identifier: Apache-2.0

// Package redis stores the shared state of several servers in Redis: the counts of rate limits, and
// the outcomes of calls with idempotency keys. It works with Redis, 5 or later, and with servers
// that speak its protocol and support scripts.
//
//	store := redis.New("10.0.0.1:6379", nil)
//	rate.With(&rate.Limit{PerSecond: 1000, Store: store})
//	once.With(&once.Options{Store: store})
//
// Each request is one script for one key. So it takes one round trip and is atomic in Redis. To use
// Redis Cluster or Sentinel, pass your own client. Times are read from the clock of Redis. All keys
// except yodel:once:identity expire.
//
//	yodel:rate:KEY   when the bucket will be full again, in microseconds; as in package rate. It expires when the bucket is full
//	yodel:once:identity   the name of this memory, which servers tell their clients: see yodel.KeyMemory
//	yodel:once:KEY   a hash: v, the value; o, its owner; until there is an outcome e, when the lease ends, and k, how long to keep it, in milliseconds
//
// If Redis loses a key, the call may be executed twice. Redis must not evict keys early. Set
// maxmemory-policy noeviction, with which Redis refuses new keys instead. A restart, or a fail-over
// to a replica, loses the latest changes. How many depends on appendfsync, and on WAIT, which this
// package does not use.
package redis

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/yodel-rpc/yodel"
)

// Options changes how the store connects to Redis. The zero value has sensible defaults.
type Options struct {
	// Prefix is the prefix of all keys. Default "yodel".
	Prefix string
	// Username and Password are for Redis's authentication. Default: no authentication.
	Username, Password string
	// DB is the number of the database.
	DB int
	// TLS is the configuration for TLS. Default: no TLS.
	TLS *tls.Config
	// Timeout limits how long a request waits for Redis, unless its context ends earlier. Default 1
	// s.
	Timeout time.Duration
	// Client is used instead of a new client, for example for Redis Sentinel or Cluster. Close does
	// not close it.
	Client redis.UniversalClient
}

// A Store is a rate.Store and a once.Store.
type Store struct {
	client redis.UniversalClient
	prefix string
	close  func() error
}

// New returns a store in the Redis server at addr. It does not wait for a connection. The store
// connects again each time that the connection is lost.
func New(addr string, o *Options) *Store {
	if o == nil {
		o = &Options{}
	}
	s := &Store{client: o.Client, prefix: o.Prefix, close: func() error { return nil }}
	if s.prefix == "" {
		s.prefix = "yodel"
	}
	timeout := o.Timeout
	if timeout <= 0 {
		timeout = time.Second
	}
	if s.client == nil {
		client := redis.NewClient(&redis.Options{
			Addr: addr, Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLS, ContextTimeoutEnabled: true,
			DialTimeout: timeout, ReadTimeout: timeout, WriteTimeout: timeout,
			MaxRetries: -1, DialerRetries: 1, // the callers of the store handle errors
		})
		s.client, s.close = client, client.Close
	}
	return s
}

// Close closes the connections to Redis. The stored data stays.
func (s *Store) Close() error { return s.close() }

// These are the scripts. In each script, now is the time of Redis.
var (
	// The arguments of take are the microseconds between two calls, the burst, and the number of
	// calls wanted. It returns how many calls are allowed, and the microseconds until one is
	// allowed. If the clock was set back, a call waits no longer than for an empty bucket.
	take = redis.NewScript(`
		local time = redis.call('TIME')
		local now = time[1] * 1000000 + time[2]
		local interval, burst, n = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
		local full = tonumber(redis.call('GET', KEYS[1]) or now)
		full = math.min(math.max(full, now), now + math.ceil(burst * interval))
		local some = math.min(n, math.floor((burst * interval - (full - now)) / interval + 0.000001))
		if some < 1 then
			return {0, math.max(math.ceil((full - now) + interval - burst * interval), 1)}
		end
		full = math.ceil(full + some * interval)
		redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', string.format('%.0f', math.ceil((full - now) / 1000) + 1))
		return {some, 0}`)
	// The arguments of claim are the owner, the value, and the milliseconds of the lease and of the
	// time to keep the key. It returns nothing, or the stored value and whether its owner is alive.
	// The owner may claim the key again.
	claim = redis.NewScript(`
		local time = redis.call('TIME')
		local now = time[1] * 1000 + math.floor(time[2] / 1000)
		local found = redis.call('HMGET', KEYS[1], 'v', 'e', 'o')
		if found[1] and (not found[2] or found[3] ~= ARGV[1]) then
			if found[2] and tonumber(found[2]) <= now then return {found[1], 0} end
			return {found[1], 1}
		end
		redis.call('HSET', KEYS[1], 'v', ARGV[2], 'o', ARGV[1], 'e', string.format('%.0f', now + ARGV[3]), 'k', ARGV[4])
		redis.call('PEXPIRE', KEYS[1], ARGV[4])
		return {}`)
	// The arguments of renew are the owner and the milliseconds of the lease. The time to keep the
	// key begins again.
	renew = redis.NewScript(`
		local found = redis.call('HMGET', KEYS[1], 'o', 'e', 'k')
		if found[1] ~= ARGV[1] or not found[2] then return 0 end
		local time = redis.call('TIME')
		redis.call('HSET', KEYS[1], 'e', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]))
		redis.call('PEXPIRE', KEYS[1], found[3])
		return 1`)
	// The arguments of put are the owner, the value, and the milliseconds to keep it.
	put = redis.NewScript(`
		local found = redis.call('HMGET', KEYS[1], 'o', 'e')
		if found[1] ~= ARGV[1] or not found[2] then return 0 end
		redis.call('HSET', KEYS[1], 'v', ARGV[2])
		redis.call('HDEL', KEYS[1], 'e', 'k')
		redis.call('PEXPIRE', KEYS[1], ARGV[3])
		return 1`)
	// The argument of identify is a name for the store. It returns the name that the store already
	// has, or else the new one.
	identify = redis.NewScript(`
		redis.call('SET', KEYS[1], ARGV[1], 'NX')
		return redis.call('GET', KEYS[1])`)
	// The argument of drop is the owner.
	drop = redis.NewScript(`
		local found = redis.call('HMGET', KEYS[1], 'o', 'e')
		if found[1] ~= ARGV[1] or not found[2] then return 0 end
		return redis.call('DEL', KEYS[1])`)
)

// Take implements rate.Store.
func (s *Store) Take(ctx context.Context, key string, n int, perSecond float64, burst int) (got int, after time.Duration, err error) {
	const shortest, longest = 1e-3, 3.6e13 // a nanosecond, a year
	interval := min(max(1e6/perSecond, shortest), longest)
	answer, err := take.Run(ctx, s.client, s.keys("rate", key), strconv.FormatFloat(interval, 'g', -1, 64), burst, n).Int64Slice()
	if err != nil {
		return 0, 0, failed("take from a rate limit", err)
	}
	if len(answer) != 2 {
		return 0, 0, fmt.Errorf("redis: take from a rate limit: the answer is %v", answer)
	}
	return int(answer[0]), time.Duration(answer[1]) * time.Microsecond, nil
}

// Identity returns a random name that is stored in Redis next to the idempotency keys. All servers
// that use the same database with the same Prefix get the same name, whatever address they use. If
// Redis loses its data, the name changes.
func (s *Store) Identity(ctx context.Context) (string, error) {
	name, err := identify.Run(ctx, s.client, s.keys("once", "identity"), "redis:"+rand.Text()).Text()
	return name, failed("name the memory of idempotency keys", err)
}

// Claim implements once.Store.
func (s *Store) Claim(ctx context.Context, key, owner string, value []byte, lease, keep time.Duration) (found []byte, alive bool, err error) {
	answer, err := claim.Run(ctx, s.client, s.keys("once", key), owner, value, milliseconds(lease), milliseconds(keep)).Slice()
	if err != nil {
		return nil, false, failed("claim an idempotency key", err)
	}
	if len(answer) == 0 {
		return nil, false, nil
	}
	text, ok := answer[0].(string)
	if !ok || len(answer) != 2 {
		return nil, false, fmt.Errorf("redis: claim an idempotency key: the answer is %v", answer)
	}
	return []byte(text), answer[1] == int64(1), nil
}

// Renew implements once.Store.
func (s *Store) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	return failed("renew an idempotency key", renew.Run(ctx, s.client, s.keys("once", key), owner, milliseconds(lease)).Err())
}

// Put implements once.Store.
func (s *Store) Put(ctx context.Context, key, owner string, value []byte, keep time.Duration) error {
	return failed("record an outcome", put.Run(ctx, s.client, s.keys("once", key), owner, value, milliseconds(keep)).Err())
}

// Drop implements once.Store.
func (s *Store) Drop(ctx context.Context, key, owner string) error {
	return failed("free an idempotency key", drop.Run(ctx, s.client, s.keys("once", key), owner).Err())
}

// keys returns the only key of a script. A long key, which a caller may choose, is replaced by its
// hash.
func (s *Store) keys(kind, key string) []string {
	const long = 200
	if len(key) > long {
		sum := sha256.Sum256([]byte(key))
		key = "sha256:" + hex.EncodeToString(sum[:])
	}
	return []string{s.prefix + ":" + kind + ":" + key}
}

func milliseconds(d time.Duration) int64 {
	return max(int64((d+time.Millisecond-1)/time.Millisecond), 1)
}

// failed adds the operation to an error. If Redis has no memory left, the error has the code
// ResourceExhausted.
func failed(what string, err error) error {
	if err == nil {
		return nil
	}
	if full, ok := errors.AsType[redis.Error](err); ok && strings.Contains(full.Error(), "OOM ") {
		return yodel.Errorf(yodel.ResourceExhausted, "redis: %s: %w", what, err)
	}
	return fmt.Errorf("redis: %s: %w", what, err)
}
