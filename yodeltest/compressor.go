// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/compress"
)

// TestCompressor checks that c fulfills the contract of compress.Compressor. It runs concurrently,
// so that the race detector can find data races: use go test -race.
func TestCompressor(t *testing.T, c compress.Compressor) {
	t.Helper()
	runRules(t, compressorRules(c))
}

func compressorRules(c compress.Compressor) []rule {
	x := compressorTrial{c, plaintexts()}
	return []rule{
		{"the name is stable", "the name is how the other side finds the compressor: it is not empty and never changes", x.checkName},
		{"bytes round-trip", "what Append compresses, Decompress restores, up to and including limit bytes", x.checkRoundTrip},
		{"results go behind dst", "both directions write behind what dst holds, whether or not dst has room, and change nothing before it", x.checkPrefix},
		{"nothing is kept", "the caller goes on to use dst and src: the compressor must not write to src or hand either out later", x.checkKeepsNothing},
		{"the limit is exact", "more than limit bytes is an error that matches compress.ErrTooLarge; what dst held before does not count", x.checkLimit},
		{"a bomb costs no more than the limit", "a few bytes can decompress to gigabytes: Decompress stops at the limit and never allocates for what lies behind it", x.checkBomb},
		{"damage is an error", "bytes that end early or go on too long are an error, or a corrupt frame passes for a good one", x.checkDamage},
		{"hostile bytes are errors", "whatever src holds, Decompress must not panic, exceed the limit, or allocate for much more than the limit", x.checkHostile},
		{"an error leaves nothing behind", "after an error the compressor works as before: a pooled coder that failed must be reset", x.checkAfterErrors},
		{"use is concurrent", "one compressor serves every connection: calls at the same time must not see each other", x.checkConcurrent},
	}
}

// A compressorTrial is a test of one compressor with its sample bytes.
type compressorTrial struct {
	compress.Compressor
	plaintexts []plaintext
}

type plaintext struct {
	name  string
	bytes []byte
}

const shortText = "Mary had a little lamb, its fleece was white as snow, and everywhere that Mary went the lamb was sure to go."

func plaintexts() []plaintext {
	rng := rand.New(rand.NewPCG(3, 4))
	noise := make([]byte, 64<<10)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	const size = 5 << 18 // more than the blocks and the windows of the usual formats
	long := make([]byte, 0, size)
	for len(long) < size {
		long = append(long, strings.Repeat(shortText, 1+rng.IntN(40))...)
		long = append(long, noise[:rng.IntN(2000)]...)
	}
	return []plaintext{
		{"nothing", nil}, {"a byte", []byte("y")}, {"a sentence", []byte(shortText)},
		{"zeros", make([]byte, 100_000)}, {"noise", noise}, {"1.25 MiB", long[:size]},
	}
}

// compress returns src compressed, in newly allocated memory.
func (x compressorTrial) compress(src []byte) ([]byte, error) {
	b, err := x.Append(nil, src)
	if err != nil {
		return nil, fmt.Errorf("Append: %w", err)
	}
	return bytes.Clone(b), nil
}

func (x compressorTrial) checkName() error {
	before := x.Name()
	_, err := x.compress([]byte(shortText))
	if after := x.Name(); err == nil && (before == "" || before != after) {
		return fmt.Errorf("Name is %q, then %q", before, after)
	}
	return err
}

func (x compressorTrial) checkRoundTrip() error {
	for _, p := range x.plaintexts {
		for _, limit := range []int{len(p.bytes), len(p.bytes) + 1, math.MaxInt} {
			if err := x.roundTrips(p.bytes, limit); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return nil
}

func (x compressorTrial) roundTrips(plain []byte, limit int) error {
	small, err := x.compress(plain)
	if err != nil {
		return err
	}
	got, err := x.Decompress(nil, small, limit)
	if err != nil {
		return fmt.Errorf("Decompress with limit %d: %w", limit, err)
	}
	if !bytes.Equal(got, plain) {
		return fmt.Errorf("%d bytes came back as %d others: %.40q, not %.40q", len(plain), len(got), got, plain)
	}
	return nil
}

func (x compressorTrial) checkPrefix() error {
	const prefix = "what was there before"
	for _, p := range x.plaintexts {
		for _, room := range []int{0, 7, 1 << 16} {
			dst := append(make([]byte, 0, len(prefix)+room), prefix...)
			poison(dst[len(dst):cap(dst)])
			small, err := x.Append(dst, p.bytes)
			if err != nil {
				return fmt.Errorf("%s: Append: %w", p.name, err)
			}
			if string(dst) != prefix || !bytes.HasPrefix(small, dst) {
				return fmt.Errorf("%s: Append to %q gave %.40q", p.name, prefix, small)
			}
			small = bytes.Clone(small[len(prefix):])
			got, err := x.Decompress(dst, small, len(p.bytes))
			if err != nil {
				return fmt.Errorf("%s: Decompress: %w", p.name, err)
			}
			if string(dst) != prefix || !bytes.HasPrefix(got, dst) || !bytes.Equal(got[len(prefix):], p.bytes) {
				return fmt.Errorf("%s: Decompress to %q, with room for %d bytes, gave %.60q", p.name, prefix, room, got)
			}
		}
	}
	return nil
}

func (x compressorTrial) checkKeepsNothing() error {
	for _, p := range x.plaintexts {
		src := bytes.Clone(p.bytes)
		small, err := x.Append(nil, src)
		if err != nil {
			return fmt.Errorf("%s: Append: %w", p.name, err)
		}
		if !bytes.Equal(src, p.bytes) {
			return fmt.Errorf("%s: Append changed src", p.name)
		}
		poison(src)
		before := bytes.Clone(small)
		got, err := x.Decompress(nil, small, len(p.bytes))
		if err != nil {
			return fmt.Errorf("%s: Decompress: %w", p.name, err)
		}
		if !bytes.Equal(small, before) {
			return fmt.Errorf("%s: Decompress changed src", p.name)
		}
		poison(small)
		if err := x.roundTrips([]byte(shortText), 1<<20); err != nil {
			return err
		}
		if !bytes.Equal(got, p.bytes) {
			return fmt.Errorf("%s: what Decompress had returned changed later", p.name)
		}
	}
	return nil
}

func (x compressorTrial) checkLimit() error {
	for _, p := range x.plaintexts {
		small, err := x.compress(p.bytes)
		if err != nil {
			return err
		}
		dst := make([]byte, 1000, 1<<17)
		if got, err := x.Decompress(dst, small, len(p.bytes)); err != nil || len(got) != 1000+len(p.bytes) {
			return fmt.Errorf("%s: %d bytes behind 1000 others, limit %[2]d: got %d bytes and error %v", p.name, len(p.bytes), len(got), err)
		}
		for _, limit := range []int{0, len(p.bytes) / 2, len(p.bytes) - 1} {
			if limit < 0 || limit >= len(p.bytes) {
				continue
			}
			if got, err := x.Decompress(dst, small, limit); !errors.Is(err, compress.ErrTooLarge) {
				return fmt.Errorf("%s: %d bytes with limit %d: got %d bytes and error %v", p.name, len(p.bytes), limit, len(got)-len(dst), err)
			}
		}
	}
	return nil
}

func (x compressorTrial) checkBomb() error {
	const limit = 1 << 20
	bomb, err := x.compress(make([]byte, 16<<20))
	if err != nil {
		return err
	}
	var got error
	err = allocatesAtMost(3*limit, func() { _, got = x.Decompress(nil, bomb, limit) })
	if err == nil && !errors.Is(got, compress.ErrTooLarge) {
		err = fmt.Errorf("16 MiB of zeros with a limit of 1 MiB: got error %v", got)
	}
	return err
}

func (x compressorTrial) checkDamage() error {
	for _, p := range x.plaintexts {
		small, err := x.compress(p.bytes)
		if err != nil {
			return err
		}
		for i := 0; i < len(small) && len(p.bytes) > 0; i += 1 + len(small)/25 {
			if got, err := x.Decompress(nil, small[:i:i], len(p.bytes)); err == nil {
				return fmt.Errorf("%s: the first %d of %d bytes gave %d bytes and no error", p.name, i, len(small), len(got))
			}
		}
		for _, junk := range []string{"\x00", "\xff\xff\xff", "junk"} {
			if _, err := x.Decompress(nil, slices.Concat(small, []byte(junk)), 1<<30); err == nil {
				return fmt.Errorf("%s: %q behind the end gave no error", p.name, junk)
			}
		}
	}
	return nil
}

func (x compressorTrial) checkHostile() error {
	plain := []byte(strings.Repeat(shortText, 10) + shortText[:17])
	small, err := x.compress(plain)
	if err != nil {
		return err
	}
	for src := range hostile(small) {
		if err := x.survives(src); err != nil {
			return fmt.Errorf("Decompress of %.200x: %w", src, err)
		}
	}
	return nil
}

func (x compressorTrial) survives(src []byte) (err error) {
	const limit = 1 << 16
	defer recoverTo(&err)
	var got []byte
	err = allocatesAtMost(1<<20, func() {
		if b, err := x.Decompress(nil, bytes.Clone(src), limit); err == nil {
			got = b
		}
	})
	if err == nil && len(got) > limit {
		err = fmt.Errorf("gave %d bytes with a limit of %d", len(got), limit)
	}
	return err
}

func (x compressorTrial) checkAfterErrors() error {
	small, err := x.compress([]byte(shortText))
	if err != nil {
		return err
	}
	for i := range small {
		_, _ = x.Decompress(nil, small[:i:i], 1<<20)
		_, _ = x.Decompress(nil, small, i%len(shortText))
		if err := x.roundTrips([]byte(shortText), 1<<20); err != nil {
			return fmt.Errorf("after an error: %w", err)
		}
	}
	return nil
}

func (x compressorTrial) checkConcurrent() error {
	long := []byte(strings.Repeat(shortText, 50))
	return concurrently(func(i int) error { return x.roundTrips(long[i*50%len(long):], len(long)) })
}
