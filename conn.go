// SPDX-License-Identifier: Apache-2.0

package yodel

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/wire"
	"github.com/yodel-rpc/yodel/introspect"
)

// A ConnEvent is something that happened to a connection or a listener.
type ConnEvent struct {
	// Kind is the kind of event. Package introspect has the kinds.
	Kind introspect.ConnEventKind
	// Addr is the address of the peer, or of the listener.
	Addr string
	// Err is the reason, for the kinds that have one.
	Err error
}

// ending returns the event for a connection that ended with err.
func ending(addr string, err error) ConnEvent {
	e := ConnEvent{Addr: addr, Err: err}
	op, _ := errors.AsType[*mux.IOError](err)
	switch {
	case errors.Is(err, mux.ErrClosed), errors.Is(err, mux.ErrRetired), errors.Is(err, mux.ErrAged):
		e.Kind, e.Err = introspect.Closed, nil
	case errors.Is(err, mux.ErrDrained), op != nil && op.Op == mux.EndOfStream:
		e.Kind, e.Err = introspect.Disconnected, nil
	case op != nil && op.Op == mux.Write:
		e.Kind = introspect.WriteFailed
	default:
		e.Kind = introspect.ReadFailed
	}
	return e
}

// parseMetadata makes a map of metadata that a peer has sent. It checks the limits before it
// allocates.
func parseMetadata(l *Limits, b []byte) (Metadata, error) {
	if len(b) == 0 {
		return nil, nil //nolint:nilnil // no metadata is a valid value
	}
	n, err := wire.CountPairs(b, l.MaxPairs)
	if err == nil {
		err = metadataFits(l, n, len(b))
	}
	if err != nil {
		return nil, err
	}
	md := make(Metadata, n)
	err = wire.EachPair(b, func(key, value []byte) { md[string(key)] = string(value) })
	return md, err
}

// metadataCost returns about how many bytes a map of metadata takes.
func metadataCost(l *Limits, b []byte) int {
	const entry = 96                       // of a map of strings
	n, _ := wire.CountPairs(b, l.MaxPairs) // of malformed metadata, only the valid beginning counts
	return len(b) + n*entry
}

// A metadataError says that metadata exceeds a limit.
type metadataError string

func (e metadataError) Error() string { return string(e) }

// metadataFits returns nil if metadata with so many pairs and bytes is within the limits, and a
// metadataError otherwise.
func metadataFits(l *Limits, pairs, bytes int) error {
	switch {
	case bytes > l.MaxMetadata:
		return metadataError(fmt.Sprintf("has %d bytes, the limit is %d", bytes, l.MaxMetadata))
	case pairs > l.MaxPairs:
		return metadataError(fmt.Sprintf("has more than %d pairs, which is the limit", l.MaxPairs))
	}
	return nil
}

// tooMuch returns the text of err if err is a metadataError, and "" otherwise.
func tooMuch(err error) string {
	e, _ := err.(metadataError) //nolint:errorlint // it is returned bare
	return string(e)
}

// A repeatedMetadata is metadata that many calls have in common, such as a token. It never changes,
// so all processors can keep it in their caches.
type repeatedMetadata struct {
	raw   []byte // encoded
	pairs []pair
}

func newRepeatedMetadata(raw []byte, md Metadata) *repeatedMetadata {
	r := &repeatedMetadata{raw: bytes.Clone(raw)}
	for key, value := range md {
		r.pairs = append(r.pairs, pair{key, value})
	}
	return r
}

type pair struct{ key, value string }

// is reports whether md is equal to r. It looks up each key in md, which takes a quarter of the
// time of an iteration over md.
func (r *repeatedMetadata) is(md Metadata) bool {
	for i := range r.pairs {
		if value, ok := md[r.pairs[i].key]; !ok || value != r.pairs[i].value {
			return false
		}
	}
	return len(md) == len(r.pairs)
}

// decode returns r as a map.
func (r *repeatedMetadata) decode() Metadata {
	md := make(Metadata, len(r.pairs))
	for _, p := range r.pairs {
		md[p.key] = p.value
	}
	return md
}

// Limits on repeatedMetadata, for each served connection and each client. Metadata larger than
// maxRepeatedMetadata is not remembered. Of the calls whose metadata differs from the remembered
// metadata, only every metadataMisses-th call has its metadata remembered in its place.
const (
	maxRepeatedMetadata = 1 << 10
	metadataMisses      = 16
)

// readMetadata sets call.Metadata from b. Parsing allocates a map, and a string for each key and
// value, which takes a tenth of the time of a short call. Metadata that equals the metadata of an
// earlier call is therefore not parsed but copied from it. A reused call keeps its map if its user
// has not changed the map.
func (in *incoming) readMetadata(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	sc := in.target.conn
	r := sc.repeated.Load()
	if r == nil || !bytes.Equal(b, r.raw) {
		if len(b) > maxRepeatedMetadata/4 { // smaller metadata is part of the fixed cost of a request
			cost := metadataCost(&sc.server.limits, b)
			if !in.Take(cost) {
				return mux.ErrMemory
			}
			in.counted += cost
		}
		md, err := parseMetadata(&sc.server.limits, b)
		if err == nil && len(b) <= maxRepeatedMetadata && sc.unlike.Add(1)%metadataMisses == 1 {
			sc.repeated.Store(newRepeatedMetadata(b, md))
		}
		in.call.Metadata = md
		return err
	}
	if in.repeated != r || !r.is(in.metadata) {
		in.metadata, in.repeated = r.decode(), r
	}
	in.call.Metadata = in.metadata
	return nil
}

// encodeMetadata encodes md into dst, or returns the remembered encoding.
func (q *requester) encodeMetadata(dst []byte, md Metadata) (encoded, memory []byte) {
	if r := q.repeated.Load(); r != nil && r.is(md) {
		return r.raw, dst
	}
	dst = appendMetadata(dst, md)
	if len(dst) <= maxRepeatedMetadata && q.unlike.Add(1)%metadataMisses == 1 {
		q.repeated.Store(newRepeatedMetadata(dst, md))
	}
	return dst, dst
}

func appendMetadata(dst []byte, md Metadata) []byte {
	for key, value := range md {
		dst = wire.AppendPair(dst, key, value)
	}
	return dst
}
