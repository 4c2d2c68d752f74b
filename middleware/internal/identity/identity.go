// SPDX-License-Identifier: Apache-2.0

// Package identity tells which calls are for the same: what a cache finds replies by, and what
// makes one call of several.
package identity

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/yodel-rpc/yodel"
)

// Options says what tells calls of a method apart, besides their arguments, codec and tenant.
type Options struct {
	// Vary is the keys of metadata that do. Nil is all of them.
	Vary []string
	// Key returns what else does; nil is nothing.
	Key func(ctx context.Context, call *yodel.Call) string
}

// A Scratch is memory for the identity of a call.
type Scratch struct {
	Request yodel.Encoded
	Key     []byte
	names   []string
}

var scratches = sync.Pool{New: func() any { return new(Scratch) }}

// keepScratch is the largest memory that is kept, in bytes.
const keepScratch = 64 << 10

// Of returns what calls that are for the same as call have in common, in Key, and its arguments,
// encoded, in Request. The caller releases it. It is nil for a call that is like no other: one that
// is one-way, is ordered, has a stream, an attachment or an idempotency key, goes to an endpoint of
// its caller's choice, or cannot be encoded.
func Of(ctx context.Context, call *yodel.Call, o *Options) *Scratch {
	if call.OneWay || call.Ordered || call.Endpoint != nil || len(call.Attachment) > 0 || call.IdempotencyKey != "" || call.Streams() {
		return nil
	}
	s := scratches.Get().(*Scratch) //nolint:forcetypeassert // the pool holds nothing else
	if call.Request(&s.Request) != nil {
		s.Release()
		return nil // whoever carries it out says why
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

// Release gives the memory back.
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
			if !ok { // which is not the same as an empty value
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
		s.names = append(s.names, name)
	}
	slices.Sort(s.names)
	s.Key = binary.AppendUvarint(s.Key, uint64(len(s.names)))
	for _, name := range s.names {
		s.add(name)
		s.add(md[name])
	}
	clear(s.names)
}
