// SPDX-License-Identifier: Apache-2.0

// Package yodeltest tests plug-ins of yodel, and programs that use yodel. Its suites check a
// plug-in against the interface in yodel's plugin.go that it implements, and explain each rule that
// it breaks.
package yodeltest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
)

// CodecOptions adapts TestCodec to the messages of a codec.
type CodecOptions struct {
	// Equal reports whether two messages, both pointers, have the same content. Default
	// reflect.DeepEqual.
	Equal func(a, b any) bool
	// Changes says which values of the catalogue arrive as other values, and how, by their names:
	// "empty slice" may be "arrives as nil". The documentation of the codec should say so too.
	Changes map[string]string
	// Keeps reports whether Decode leaves what a variable of a message's type holds, where the
	// encoding has nothing. The documentation of the codec should say why. Default never.
	Keeps func(message any) bool
}

// TestCodec checks that c fulfills the contract of yodel.Codec. It runs concurrently, so that the
// race detector can find data races: use go test -race. Nil means the default CodecOptions.
//
// Samples are pointers to messages. They should differ in type and size, and use every kind of
// field that the codec supports. Encoding and decoding a sample must result in an equal message.
// For example, a sample must not have an empty slice if the codec decodes it as nil.
//
// TestCodec also sends a catalogue of values of its own through the codec: each kind of type, types
// that encode themselves, limits, nil and empty values. The codec carries each of them, or refuses
// it with an error.
func TestCodec(t *testing.T, c yodel.Codec, opts *CodecOptions, samples ...any) {
	t.Helper()
	if len(samples) == 0 {
		t.Fatal("TestCodec needs samples")
	}
	for _, sample := range samples {
		if v := reflect.ValueOf(sample); v.Kind() != reflect.Pointer || v.IsNil() {
			t.Fatalf("a sample is a pointer to a message, not %T", sample)
		}
	}
	runRules(t, codecRules(c, opts, samples))
}

// A rule is one rule of a contract.
type rule struct {
	name  string
	why   string       // explains the rule to the author of an implementation that breaks it
	check func() error // its error says how the rule is broken; a panic breaks it too
}

func runRules(t *testing.T, rules []rule) {
	t.Helper()
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			if err := r.broken(); err != nil {
				t.Errorf("%v\nThe rule: %s.", err, r.why)
			}
		})
	}
}

func (r rule) broken() (err error) {
	defer recoverTo(&err)
	return r.check()
}

// recoverTo stores a panic as an error in err. It must be deferred.
func recoverTo(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
	}
}

func codecRules(c yodel.Codec, opts *CodecOptions, samples []any) []rule {
	x := codecTrial{Codec: c, equal: reflect.DeepEqual, samples: samples}
	if opts != nil && opts.Equal != nil {
		x.equal = opts.Equal
	}
	if opts != nil {
		x.changes, x.keeps = opts.Changes, opts.Keeps
	}
	return []rule{
		{"the name is stable", "the name is how the other side finds the codec: it is not empty and never changes", x.checkName},
		{"messages round-trip", "what Append encodes, Decode restores", x.checkRoundTrip},
		{"values are taken like pointers", "Append may be called with a value: it gives an error, or what it gives for a pointer", x.checkValues},
		{"append extends dst", "Append writes behind what dst holds, whether or not dst has room, and changes nothing before it", x.checkPrefix},
		{"append keeps neither dst nor v", "the caller goes on to use dst and v: the codec must not write to them, read them or hand them out later", x.checkAppendKeepsNothing},
		{"decode does not keep src", "src is reused when Decode returns: what the message keeps of it must be copied", x.checkDecodeKeepsNothing},
		{"decode replaces what v held", "a caller may decode into a variable that it has used: what the variable held is not a part of the message", x.checkUsed},
		{"decode takes the whole of src", "bytes behind the message are an error, or a corrupt frame passes for a good one", x.checkWhole},
		{"wrong types are errors", "what a codec cannot encode or decode is an error that the caller is told, never a panic", x.checkWrongTypes},
		{"values arrive as they were sent", "a message arrives as it was sent, or is an error: what a codec cannot carry it refuses, by the type in CheckType or by the value in Append, and what it changes is declared in CodecOptions.Changes", x.checkCatalogue},
		{"types may contain themselves", "a type such as type Tree []Tree is encoded, or is an error: a recursion without an end would end the process", x.checkRecursiveTypes},
		{"cyclic and deep values are errors", "a value that contains itself, or has a great many levels, must not exhaust the stack, which ends the process (a fatal error \"stack overflow\" here is such a codec): count the levels while encoding, or before", x.checkDeep},
		{"the log is the program's", "what is wrong with a message is an error, never a line in the log of package log", x.checkSilent},
		{"hostile bytes are errors", "whatever src holds, Decode must not panic, and must not allocate for lengths that src only claims", x.checkHostile},
		{"an error leaves nothing behind", "after an error the codec works as before: a pooled coder that failed must not be used again", x.checkAfterErrors},
		{"use is concurrent", "one codec serves every connection: calls at the same time must not see each other", x.checkConcurrent},
	}
}

// A codecTrial is a test of one codec with its sample messages.
type codecTrial struct {
	yodel.Codec
	equal   func(a, b any) bool
	samples []any
	changes map[string]string
	keeps   func(message any) bool
}

// encode returns the encoding of sample, in newly allocated memory.
func (x codecTrial) encode(sample any) ([]byte, error) {
	b, err := x.Append(nil, sample)
	if err != nil {
		return nil, fmt.Errorf("Append of %T: %w", sample, err)
	}
	return bytes.Clone(b), nil
}

// matches returns an error unless b decodes to a message equal to sample.
func (x codecTrial) matches(b []byte, sample any) error {
	got := fresh(sample)
	if err := x.Decode(b, got); err != nil {
		return fmt.Errorf("Decode into %T: %w", got, err)
	}
	if !x.equal(got, sample) {
		return fmt.Errorf("decoded %T differs\n%s", got, difference(got, sample))
	}
	return nil
}

// difference returns the text of two messages, beginning a little before their first difference.
func difference(got, want any) string {
	a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want)
	same := 0
	for same < min(len(a), len(b)) && a[same] == b[same] {
		same++
	}
	from := max(0, same-100)
	return fmt.Sprintf(" got: %.300s\nwant: %.300s", a[from:], b[from:])
}

// fresh returns a pointer to a zero message of sample's type.
func fresh(sample any) any { return reflect.New(reflect.TypeOf(sample).Elem()).Interface() }

func (x codecTrial) checkName() error {
	before := x.Name()
	for _, sample := range x.samples {
		if _, err := x.encode(sample); err != nil {
			return err
		}
	}
	if after := x.Name(); before == "" || before != after {
		return fmt.Errorf("Name is %q, then %q", before, after)
	}
	return nil
}

func (x codecTrial) checkRoundTrip() error {
	for _, sample := range x.samples {
		for range 3 { // a reused coder must behave like a new one
			b, err := x.encode(sample)
			if err != nil {
				return err
			}
			if err := x.matches(b, sample); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x codecTrial) checkValues() error {
	for _, sample := range x.samples {
		b, err := x.encode(reflect.ValueOf(sample).Elem().Interface())
		if err != nil {
			continue
		}
		if err := x.matches(b, sample); err != nil {
			return fmt.Errorf("encoded from a value: %w", err)
		}
	}
	return nil
}

func (x codecTrial) checkPrefix() error {
	const prefix = "what was there before"
	for _, sample := range x.samples {
		for _, room := range []int{0, 7, 1 << 16} {
			dst := append(make([]byte, 0, len(prefix)+room), prefix...)
			poison(dst[len(dst):cap(dst)])
			b, err := x.Append(dst, sample)
			if err != nil {
				return fmt.Errorf("Append of %T behind a prefix: %w", sample, err)
			}
			if string(dst) != prefix || !bytes.HasPrefix(b, dst) {
				return fmt.Errorf("Append of %T to %q gave %.40q", sample, prefix, b)
			}
			if err := x.matches(b[len(prefix):], sample); err != nil {
				return fmt.Errorf("encoded behind a prefix, with room for %d bytes: %w", room, err)
			}
		}
	}
	return nil
}

func (x codecTrial) checkAppendKeepsNothing() error {
	for _, sample := range x.samples {
		b, err := x.Append(make([]byte, 0, 1<<16), sample)
		if err != nil {
			return fmt.Errorf("Append of %T: %w", sample, err)
		}
		before := bytes.Clone(b)
		for _, other := range x.samples {
			if _, err := x.encode(other); err != nil {
				return err
			}
		}
		if !bytes.Equal(b, before) {
			return fmt.Errorf("a later Append changed the encoding of %T that an earlier one had returned", sample)
		}
		alone, err := x.Append(nil, sample)
		if err != nil {
			return fmt.Errorf("Append of %T: %w", sample, err)
		}
		poison(b)
		poison(alone)
		again, err := x.encode(sample)
		if err != nil {
			return err
		}
		if err := x.matches(again, sample); err != nil {
			return fmt.Errorf("after the caller had overwritten the encoding: %w", err)
		}
		// The sample itself could have changed, so compare it with its earlier encoding.
		if err := x.matches(before, sample); err != nil {
			return fmt.Errorf("overwriting the encoding changed the message: %w", err)
		}
	}
	return nil
}

func (x codecTrial) checkDecodeKeepsNothing() error {
	for _, sample := range x.samples {
		src, err := x.encode(sample)
		if err != nil {
			return err
		}
		before := bytes.Clone(src)
		got := fresh(sample)
		if err := x.Decode(src, got); err != nil {
			return fmt.Errorf("Decode into %T: %w", got, err)
		}
		if !bytes.Equal(src, before) {
			return fmt.Errorf("Decode into %T changed src", got)
		}
		poison(src)
		if !x.equal(got, sample) {
			return fmt.Errorf("the decoded %T changed with src\n%s", got, difference(got, sample))
		}
	}
	return nil
}

func (x codecTrial) checkWhole() error {
	for _, sample := range x.samples {
		src, err := x.encode(sample)
		if err != nil {
			return err
		}
		for _, junk := range []string{"\x00", "\xff\xff\xff"} {
			if x.matches(append(bytes.Clone(src), junk...), sample) == nil {
				return fmt.Errorf("Decode into %T ignored %q behind the message", sample, junk)
			}
		}
	}
	return nil
}

func (x codecTrial) checkWrongTypes() error {
	for _, v := range []any{make(chan int), func() {}} {
		if _, err := x.Append(nil, v); err == nil {
			return fmt.Errorf("Append of a %T gave no error", v)
		}
	}
	_, _ = x.Append(nil, nil) // an error is allowed, a panic is not
	for _, sample := range x.samples {
		src, err := x.encode(sample)
		if err != nil {
			return err
		}
		null := reflect.Zero(reflect.TypeOf(sample)).Interface()
		_, _ = x.Append(nil, null)
		targets := []any{nil, null, new(chan int), new(func())}
		if value := reflect.ValueOf(sample).Elem(); value.Kind() != reflect.Pointer {
			targets = append(targets, value.Interface())
		}
		for _, target := range targets {
			if x.Decode(src, target) == nil {
				return fmt.Errorf("Decode of a %T into a %T (nil, or not a pointer, or not a message) gave no error", sample, target)
			}
		}
	}
	return nil
}

// Types that contain themselves.
type (
	recursiveList   []recursiveList
	recursiveMap    map[string]recursiveMap
	recursiveStruct struct {
		Next   *recursiveStruct
		Others []recursiveStruct
		ByName map[string]*recursiveStruct
		Mutual recursiveMutual
	}
	recursiveMutual map[string][]*recursiveStruct
)

// checkRecursiveTypes checks that the codec encodes such types, or returns an error.
func (x codecTrial) checkRecursiveTypes() error {
	for _, v := range []any{
		&recursiveList{}, &recursiveList{{}, {{}}}, &recursiveMap{}, &recursiveMap{"a": {"b": nil}}, &recursiveMutual{"a": {{}}},
		&recursiveStruct{}, &recursiveStruct{Next: &recursiveStruct{}, Others: []recursiveStruct{{}}, Mutual: recursiveMutual{"a": {{}}}},
	} {
		b, err := x.Append(nil, v)
		if err != nil {
			_ = x.Decode([]byte("x"), fresh(v)) // an error is allowed, but Decode must return
			continue
		}
		if err := x.Decode(bytes.Clone(b), fresh(v)); err != nil {
			return fmt.Errorf("Append encodes a %T, and Decode fails: %w", v, err)
		}
	}
	return nil
}

func (x codecTrial) checkHostile() error {
	for _, sample := range x.samples {
		valid, err := x.encode(sample)
		if err != nil {
			return err
		}
		for src := range hostile(valid) {
			if err := x.survives(src, sample); err != nil {
				return fmt.Errorf("Decode of %.200x into a %T: %w", src, sample, err)
			}
		}
	}
	return nil
}

func (x codecTrial) survives(src []byte, sample any) (err error) {
	defer recoverTo(&err)
	return allocatesAtMost(1<<20+256*len(src), func() {
		_ = x.Decode(bytes.Clone(src), fresh(sample)) // an error is allowed, but Decode must return
	})
}

func (x codecTrial) checkAfterErrors() error {
	for _, sample := range x.samples {
		valid, err := x.encode(sample)
		if err != nil {
			return err
		}
		for cut := range valid {
			if cut > 64 {
				break
			}
			_ = x.Decode(bytes.Clone(valid[:len(valid)-1-cut]), fresh(sample))
			_, _ = x.Append(nil, make(chan int))
			if err := x.matches(valid, sample); err != nil {
				return fmt.Errorf("after an error: %w", err)
			}
			again, err := x.encode(sample)
			if err != nil {
				return fmt.Errorf("after an error: %w", err)
			}
			if err := x.matches(again, sample); err != nil {
				return fmt.Errorf("after an error: %w", err)
			}
		}
	}
	return nil
}

func (x codecTrial) checkConcurrent() error {
	// The zero messages ensure that even a single sample has another message to be confused with.
	messages := x.samples
	for _, sample := range x.samples {
		if zero := fresh(sample); x.roundTrips(zero) == nil {
			messages = append(slices.Clip(messages), zero)
		}
	}
	return concurrently(func(i int) error { return x.roundTrips(messages[i%len(messages)]) })
}

// roundTrips encodes a copy of sample, overwrites the copy and decodes the encoding.
func (x codecTrial) roundTrips(sample any) error {
	b, err := x.encode(sample)
	if err != nil {
		return err
	}
	twin := fresh(sample)
	if err := x.Decode(b, twin); err != nil {
		return fmt.Errorf("Decode into %T: %w", twin, err)
	}
	poison(b)
	if b, err = x.Append(b[:0], twin); err != nil {
		return fmt.Errorf("Append of %T: %w", twin, err)
	}
	reflect.ValueOf(twin).Elem().SetZero()
	return x.matches(b, sample)
}

// concurrently calls f with different numbers on several goroutines, and returns one of the errors.
func concurrently(f func(i int) error) error {
	const goroutines, rounds = 8, 64
	failed := make(chan error, goroutines)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			<-start
			failed <- func() (err error) {
				defer recoverTo(&err)
				for round := 0; err == nil && round < rounds; round++ {
					err = f(g + round)
				}
				return err
			}()
		})
	}
	close(start)
	wg.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

// hostile yields the bytes that an attacker might send: prefixes of valid, and random changes of
// it. The changes are the same each time.
func hostile(valid []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for i := 0; i < len(valid); i += 1 + len(valid)/500 {
			if !yield(valid[:i]) {
				return
			}
		}
		rng := rand.New(rand.NewPCG(1, 2))
		for range 2000 {
			if !yield(mutate(rng, valid)) {
				return
			}
		}
	}
}

// mutate returns a changed copy of b.
func mutate(rng *rand.Rand, b []byte) []byte {
	b = bytes.Clone(b)
	for range 1 + rng.IntN(4) {
		i := rng.IntN(len(b) + 1)
		tail := b[i:]
		switch rng.IntN(5) {
		case 0: // one bit
			if len(tail) > 0 {
				tail[0] ^= 1 << rng.IntN(8)
			}
		case 1: // one byte
			if len(tail) > 0 {
				tail[0] = byte(rng.Uint32())
			}
		case 2: // a large length
			for j := range min(1+rng.IntN(9), len(tail)) {
				tail[j] = 0xff >> rng.IntN(2)
			}
		case 3: // more bytes
			b = append(b[:i:i], append([]byte{byte(rng.Uint32())}, tail...)...)
		case 4: // fewer bytes
			b = append(b[:i:i], tail[min(1+rng.IntN(4), len(tail)):]...)
		}
	}
	return b
}

// allocatesAtMost runs f and returns an error if it allocates more than limit bytes in total. Other
// goroutines allocate too, so the lowest of three runs counts.
func allocatesAtMost(limit int, f func()) error {
	var least uint64
	for range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		if least = after.TotalAlloc - before.TotalAlloc; least <= uint64(limit) {
			return nil
		}
	}
	return fmt.Errorf("allocated %d bytes, where %d are enough", least, limit)
}

// poison overwrites b with bytes that change any message.
func poison(b []byte) {
	for i := range b {
		b[i] = 0xdb
	}
}
