// SPDX-License-Identifier: Apache-2.0

// Package identity determines which calls are equal. Package cache finds replies by this identity,
// and package coalesce merges calls with the same identity.
package identity

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/yodel-rpc/yodel"
)

// Options says what distinguishes calls of a method, in addition to their arguments, codec and
// tenant.
type Options struct {
	// Vary lists the metadata keys that distinguish calls. Nil means all keys.
	Vary []string
	// Key returns any other text that distinguishes calls. Nil means that there is none.
	Key func(ctx context.Context, call *yodel.Call) string
}

// A Scratch is memory for the identity of a call.
type Scratch struct {
	Request yodel.Encoded
	Key     []byte
	names   []string
}

var scratches = sync.Pool{New: func() any { return new(Scratch) }}

// keepScratch is the size in bytes up to which a Scratch is reused.
const keepScratch = 64 << 10

// Of returns the identity of a call. Key is equal for equal calls, and Request has the encoded
// arguments. The caller of Of releases the Scratch. Of returns nil for a call that is never equal
// to another one: a one-way or ordered call, a stream, a call with an attachment or an idempotency
// key, a pinned call, or a call that cannot be encoded.
func Of(ctx context.Context, call *yodel.Call, o *Options) *Scratch {
	if call.OneWay || call.Ordered || call.Endpoint != nil || len(call.Attachment) > 0 || call.IdempotencyKey != "" || call.Streams() {
		return nil
	}
	s := scratches.Get().(*Scratch) //nolint:forcetypeassert // the pool holds nothing else
	if call.Request(&s.Request) != nil {
		s.Release()
		return nil // the call itself fails with the reason
	}
	s.Key = s.Key[:0]
	s.add(call.Method)
	s.add(call.Encoding().Name())
	s.add(call.Tenant)
	if o.Key != nil {
		s.add(o.Key(ctx, call))
	}
	s.addMetadata(call.Metadata, o.Vary)
	if s.Request.Several {
		s.Key = append(s.Key, 1)
	} else {
		s.Key = append(s.Key, 0)
	}
	s.Key = append(s.Key, s.Request.Body...)
	return s
}

// Release returns the memory to the pool.
func (s *Scratch) Release() {
	if cap(s.Key)+cap(s.Request.Body) <= keepScratch {
		scratches.Put(s)
	}
}

func (s *Scratch) add(text string) {
	s.Key = append(binary.AppendUvarint(s.Key, uint64(len(text))), text...)
}

func (s *Scratch) addMetadata(md yodel.Metadata, vary []string) {
	if vary != nil {
		for _, name := range vary {
			value, ok := md[name]
			if !ok { // a missing key differs from an empty value
				s.Key = append(s.Key, 0)
				continue
			}
			s.Key = append(s.Key, 1)
			s.add(value)
		}
		return
	}
	s.names = s.names[:0]
	for name := range md {
		if name != "user-agent" && name != ":authority" { // they say how a client reached this server
			s.names = append(s.names, name)
		}
	}
	slices.Sort(s.names)
	s.Key = binary.AppendUvarint(s.Key, uint64(len(s.names)))
	for _, name := range s.names {
		s.add(name)
		s.add(md[name])
	}
	clear(s.names)
}
