// SPDX-License-Identifier: Apache-2.0

// Package redis keeps what several servers have to know together in Redis, 5 or later, or in what
// speaks its protocol and knows scripts: the counts of rate limits, and the outcomes of calls with
// idempotency keys.
//
//	store := redis.New("10.0.0.1:6379", nil)
//	rate.With(&rate.Limit{PerSecond: 1000, Store: store})
//	once.With(&once.Options{Store: store})
//
// Each question is one script about one key, and so one round trip, and one step in Redis; Redis
// Cluster and Sentinel will do, with a client of your own. Times are those of Redis. All keys but
// one expire.
//
//	yodel:rate:KEY   when the bucket will be full again, in microseconds; as in package rate. It expires when the bucket is full
//	yodel:once:identity   the name of this memory, which servers tell their clients: see yodel.KeyMemory
//	yodel:once:KEY   a hash: v, the value; o, its owner; until there is an outcome e, when the lease ends, and k, how long to keep it, in milliseconds
//
// What Redis forgets may be executed twice. It must not evict keys before their time
// (maxmemory-policy noeviction: it then refuses new ones), and a restart, or a fail-over to a
// replica, loses the last moment: how much is a matter of appendfsync and of WAIT, which this
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

// Options changes how Redis is reached. The zero value is good.
type Options struct {
	// Prefix is what all keys begin with. Default "yodel".
	Prefix string
	// Username and Password are for Redis's authentication. Default none.
	Username, Password string
	// DB is the number of the database.
	DB int
	// TLS is how to connect. Default: without TLS.
	TLS *tls.Config
	// Timeout is how long Redis may take to answer, if who asks does not give up earlier. Default 1
	// s.
	Timeout time.Duration
	// Client is used instead of a new one, for Redis Sentinel and Cluster for example. It stays
	// open.
	Client redis.UniversalClient
}

// A Store is a rate.Store and a once.Store.
type Store struct {
	client redis.UniversalClient
	prefix string
	close  func() error
}

// New returns a store in the Redis server at addr. It does not wait for a connection, and connects
// again whenever it was lost.
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
			MaxRetries: -1, DialerRetries: 1, // who asks knows what to do without an answer
		})
		s.client, s.close = client, client.Close
	}
	return s
}

// Close closes the connections to Redis. What was kept stays.
func (s *Store) Close() error { return s.close() }

// The scripts. In all of them, now is the time of Redis.
var (
	// take takes the microseconds between two calls, the burst, and how many calls are wanted. It
	// returns how many there are, and the microseconds until there is one. A clock that was set
	// back does not make it wait for longer than an empty bucket does.
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
	// claim takes the owner, the value, and the milliseconds of the lease and the time to keep. It
	// returns nothing, or the value that is there, and whether its owner is alive. The owner
	// himself may ask again.
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
	// renew takes the owner and the milliseconds of the lease. The time to keep the key begins
	// afresh.
	renew = redis.NewScript(`
		local found = redis.call('HMGET', KEYS[1], 'o', 'e', 'k')
		if found[1] ~= ARGV[1] or not found[2] then return 0 end
		local time = redis.call('TIME')
		redis.call('HSET', KEYS[1], 'e', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]))
		redis.call('PEXPIRE', KEYS[1], found[3])
		return 1`)
	// put takes the owner, the value, and the milliseconds to keep it.
	put = redis.NewScript(`
		local found = redis.call('HMGET', KEYS[1], 'o', 'e')
		if found[1] ~= ARGV[1] or not found[2] then return 0 end
		redis.call('HSET', KEYS[1], 'v', ARGV[2])
		redis.call('HDEL', KEYS[1], 'e', 'k')
		redis.call('PEXPIRE', KEYS[1], ARGV[3])
		return 1`)
	// identify takes a name for the memory, and returns the one that it has.
	identify = redis.NewScript(`
		redis.call('SET', KEYS[1], ARGV[1], 'NX')
		return redis.call('GET', KEYS[1])`)
	// drop takes the owner.
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

// Identity returns a random name that is kept in Redis beside the keys of idempotent calls: the
// same for all servers that use the same database with the same Prefix, whatever address they know
// it by. It is another one when Redis has lost its data.
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

// keys returns the one key of a script. One that is long, because a caller made it so, is there by
// its hash.
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

// failed says what could not be done, and that there is no room when that is why.
func failed(what string, err error) error {
	if err == nil {
		return nil
	}
	if full, ok := errors.AsType[redis.Error](err); ok && strings.Contains(full.Error(), "OOM ") {
		return yodel.Errorf(yodel.ResourceExhausted, "redis: %s: %w", what, err)
	}
	return fmt.Errorf("redis: %s: %w", what, err)
}
