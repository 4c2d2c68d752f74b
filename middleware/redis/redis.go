// SPDX-License-Identifier: Apache-2.0

// Package redis stores the shared state of several servers in Redis: the counts of rate limits, and
// the outcomes of calls with idempotency keys. It works with Redis, 5 or later, and with servers
// that speak its protocol and support scripts.
//
//	store := redis.New("10.0.0.1:6379", nil)
//	rate.With(&rate.Limit{PerSecond: 1000, Store: store})
//	once.With(&once.Options{Store: store})
//
// Each request is one script for keys in one slot. So it takes one round trip and is atomic in
// Redis. To use Redis Cluster or Sentinel, pass your own client. Times are read from the clock of
// Redis. All keys except those of memories expire. There are 16 memories, numbered with N from 0,
// so that Redis Cluster can divide the keys.
//
//	yodel:rate:KEY   when the bucket will be full again, in microseconds; as in package rate. It expires when the bucket is full
//	yodel:memory:{N}   a hash: name, which servers tell their clients (see once.KeyMemory); run, the run of Redis, and since, when it began to store keys
//	yodel:once:{N}:KEY   a hash: v, the value; o, its owner; until there is an outcome e, when the lease ends, and k, how long to keep it, in milliseconds
//
// A restart, a fail-over to a replica, or FLUSHALL loses keys. Retries and hedges of calls that
// were sent before then fail with YDL3402. But if the program itself repeats such a call with the
// same key, it is executed again. Redis must not evict keys early. Set maxmemory-policy noeviction,
// with which Redis refuses new keys instead.
package redis

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
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

// memory is a function for scripts: remembered returns for how many microseconds the memory in key
// has lost nothing. It begins again when the memory is gone, when another run of Redis may have
// loaded an older state, and when the clock was set back. A Redis whose INFO cannot be read notices
// only the first.
const memory = `
	local function remembered(key, name)
		local info, time = redis.pcall('INFO', 'server'), redis.call('TIME')
		local run, now = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or '', time[1] * 1000000 + time[2]
		local known = redis.call('HMGET', key, 'name', 'run', 'since')
		if known[1] and known[2] == run and tonumber(known[3]) <= now then return math.max(now - known[3], 1) end
		redis.call('HSET', key, 'name', known[1] or 'redis:' .. name, 'run', run, 'since', string.format('%.0f', now))
		return 1
	end`

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
	// time to keep the key. It returns for how long the memory has lost nothing, or the stored
	// value and whether its owner is alive. The owner may claim the key again.
	claim = redis.NewScript(memory + `
		local time = redis.call('TIME')
		local now = time[1] * 1000 + math.floor(time[2] / 1000)
		local found = redis.call('HMGET', KEYS[1], 'v', 'e', 'o')
		if found[1] and (not found[2] or found[3] ~= ARGV[1]) then
			if found[2] and tonumber(found[2]) <= now then return {found[1], 0} end
			return {found[1], 1}
		end
		redis.call('HSET', KEYS[1], 'v', ARGV[2], 'o', ARGV[1], 'e', string.format('%.0f', now + ARGV[3]), 'k', ARGV[4])
		redis.call('PEXPIRE', KEYS[1], ARGV[4])
		return {remembered(KEYS[2], ARGV[1])}`)
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
	// The argument of identify is a name for the memory. It returns the name that the memory
	// already has, or else the new one.
	identify = redis.NewScript(memory + `
		remembered(KEYS[2], ARGV[1])
		return redis.call('HGET', KEYS[2], 'name')`)
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
	answer, err := take.Run(ctx, s.client, []string{s.prefix + ":rate:" + short(key)}, strconv.FormatFloat(interval, 'g', -1, 64), burst, n).Int64Slice()
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
func (s *Store) Identity(ctx context.Context) (name string, err error) {
	for n := memories - 1; n >= 0 && err == nil; n-- { // the name is that of memory 0
		name, err = identify.Run(ctx, s.client, s.keys(n, ""), rand.Text()).Text()
	}
	return name, failed("name the memory of idempotency keys", err)
}

// Claim implements once.Store.
func (s *Store) Claim(ctx context.Context, key, owner string, value []byte, lease, keep time.Duration) (found []byte, alive bool, whole time.Duration, err error) {
	answer, err := claim.Run(ctx, s.client, s.onceKeys(key), owner, value, milliseconds(lease), milliseconds(keep)).Slice()
	if err != nil {
		return nil, false, 0, failed("claim an idempotency key", err)
	}
	if len(answer) == 1 {
		if micros, ok := answer[0].(int64); ok {
			return nil, false, time.Duration(micros) * time.Microsecond, nil
		}
	}
	if len(answer) == 2 {
		if text, ok := answer[0].(string); ok {
			return []byte(text), answer[1] == int64(1), 0, nil
		}
	}
	return nil, false, 0, fmt.Errorf("redis: claim an idempotency key: the answer is %v", answer)
}

// Renew implements once.Store.
func (s *Store) Renew(ctx context.Context, key, owner string, lease time.Duration) error {
	return failed("renew an idempotency key", renew.Run(ctx, s.client, s.onceKeys(key), owner, milliseconds(lease)).Err())
}

// Put implements once.Store.
func (s *Store) Put(ctx context.Context, key, owner string, value []byte, keep time.Duration) error {
	return failed("record an outcome", put.Run(ctx, s.client, s.onceKeys(key), owner, value, milliseconds(keep)).Err())
}

// Drop implements once.Store.
func (s *Store) Drop(ctx context.Context, key, owner string) error {
	return failed("free an idempotency key", drop.Run(ctx, s.client, s.onceKeys(key), owner).Err())
}

// memories is the number of parts into which Redis Cluster may divide the idempotency keys.
const memories = 16

// onceKeys returns the keys of a script for an idempotency key: its own, and that of its memory.
func (s *Store) onceKeys(key string) []string {
	key = short(key)
	return s.keys(int(crc32.ChecksumIEEE([]byte(key))%memories), key)
}

func (s *Store) keys(n int, key string) []string {
	return []string{fmt.Sprintf("%s:once:{%d}:%s", s.prefix, n, key), fmt.Sprintf("%s:memory:{%d}", s.prefix, n)}
}

// short replaces a long key, which a caller may choose, by its hash.
func short(key string) string {
	const long = 200
	if len(key) <= long {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
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
