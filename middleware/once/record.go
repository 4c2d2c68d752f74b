// SPDX-License-Identifier: Apache-2.0

package once

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
)

// A record is the value in a store: a kind, a fingerprint, and for some kinds the outcome. Numbers
// are varints. Texts begin with their length.
//
//	reply   several, body, attachment, trailer, header
//	failed  code, retry after in nanoseconds, ID, message, details, attachment, trailer, header
//
// A record without a header ends behind the trailer.
const (
	claimed = 'c' // the call is being executed
	reply   = 'r'
	failed  = 'e'
	unkept  = 'x' // the call succeeded, and its reply was not kept
	lost    = 'u' // the outcome is unknown
)

// A fingerprint distinguishes requests.
type fingerprint [sha256.Size]byte

// headSize is the size of the kind and the fingerprint.
const headSize = 1 + sha256.Size

func appendRecord(dst []byte, kind byte, p fingerprint) []byte {
	return append(append(dst, kind), p[:]...)
}

func kindOf(record []byte) byte {
	if len(record) < headSize {
		return 0
	}
	return record[0]
}

func printOf(record []byte) (p fingerprint) {
	if len(record) >= headSize {
		copy(p[:], record[1:])
	}
	return p
}

func appendText[T string | []byte](dst []byte, text T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(text))), text...)
}

// appendBeside appends the attachment, the trailer and the header.
func appendBeside(dst []byte, call *yodel.Call) []byte {
	dst = appendMetadata(appendText(dst, call.ReplyAttachment), call.Trailer)
	if md := call.Header(); len(md) > 0 {
		dst = appendMetadata(dst, md)
	}
	return dst
}

func appendMetadata(dst []byte, md yodel.Metadata) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(md)))
	for _, name := range slices.Sorted(maps.Keys(md)) {
		dst = appendText(appendText(dst, name), md[name])
	}
	return dst
}

func appendReply(p fingerprint, call *yodel.Call, e *yodel.Encoded, limit int) []byte {
	size := len(e.Body) + len(call.ReplyAttachment)
	if size > limit {
		return appendRecord(nil, unkept, p)
	}
	record := appendRecord(make([]byte, 0, headSize+size+16), reply, p)
	several := byte(0)
	if e.Several {
		several = 1
	}
	record = appendText(append(record, several), e.Body)
	if record = appendBeside(record, call); len(record) > headSize+16+limit {
		return appendRecord(nil, unkept, p)
	}
	return record
}

// appendError records an error. It omits the parts that make the record larger than limit.
func appendError(p fingerprint, call *yodel.Call, err error, limit int) []byte {
	e, ok := errors.AsType[*yodel.Error](err)
	if !ok {
		e = &yodel.Error{Code: yodel.CodeOf(err), Message: err.Error()}
	}
	// The record has no reports of other calls, because they are not sent over the network. It also
	// omits NotProcessed, which would refer to a call that the method made.
	record := appendFailure(appendRecord(nil, failed, p), e)
	if record = appendBeside(record, call); len(record) > headSize+16+limit {
		return shortFailure(p, e)
	}
	return record
}

func appendFailure(dst []byte, e *yodel.Error) []byte {
	dst = binary.AppendUvarint(dst, uint64(e.Code))
	dst = binary.AppendUvarint(dst, uint64(max(e.RetryAfter, 0)))
	dst = appendText(appendText(dst, e.ID), e.Message)
	dst = binary.AppendUvarint(dst, uint64(len(e.Details)))
	for _, d := range e.Details {
		dst = appendText(appendText(dst, d.Type), d.Value)
	}
	return dst
}

// shortFailure returns the record of an error with little more than its code.
func shortFailure(p fingerprint, e *yodel.Error) []byte {
	const most = 200
	short := &yodel.Error{Code: e.Code, ID: e.ID, RetryAfter: e.RetryAfter, Message: e.Message[:min(len(e.Message), most)]}
	return appendBeside(appendFailure(appendRecord(nil, failed, p), short), &yodel.Call{})
}

// shortened returns the record that remains when there is no room for the whole record.
func shortened(record []byte) []byte {
	switch kindOf(record) {
	case reply:
		return appendRecord(nil, unkept, printOf(record))
	case failed:
		if o, err := readOutcome(record); err == nil {
			return shortFailure(printOf(record), o.err)
		}
	}
	return slices.Clone(record[:min(len(record), headSize)])
}

// An outcome is the outcome in a record.
type outcome struct {
	reply      *yodel.Encoded
	err        *yodel.Error
	attachment []byte
	trailer    yodel.Metadata
	header     yodel.Metadata
}

// readOutcome reads a record of the kind reply or failed. The outcome shares its memory.
func readOutcome(record []byte) (*outcome, error) {
	if len(record) < headSize {
		return nil, errBroken
	}
	r, o := &reader{rest: record[headSize:]}, &outcome{}
	switch record[0] {
	case reply:
		o.reply = &yodel.Encoded{Several: r.number() == 1, Body: r.text()}
	case failed:
		o.err = &yodel.Error{Code: yodel.Code(r.number())} //nolint:gosec // it was a Code
		o.err.RetryAfter = time.Duration(r.number())       //nolint:gosec // it was a Duration
		o.err.ID, o.err.Message = string(r.text()), string(r.text())
		for n := r.number(); n > 0 && !r.broken; n-- {
			o.err.Details = append(o.err.Details, yodel.Detail{Type: string(r.text()), Value: r.text()})
		}
	default:
		return nil, errBroken
	}
	o.attachment, o.trailer = r.text(), r.metadata()
	if len(r.rest) > 0 {
		o.header = r.metadata()
	}
	if r.broken || len(r.rest) > 0 {
		return nil, errBroken
	}
	return o, nil
}

var errBroken = errors.New("a broken record")

// A reader reads the rest of a record. If the record is invalid, the reader returns empty values.
type reader struct {
	rest   []byte
	broken bool
}

func (r *reader) number() uint64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.rest, r.broken = nil, true
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *reader) text() []byte {
	n := r.number()
	if n > uint64(len(r.rest)) {
		r.rest, r.broken = nil, true
	}
	if n == 0 || r.broken {
		return nil
	}
	text := r.rest[:n:n]
	r.rest = r.rest[n:]
	return text
}

func (r *reader) metadata() (md yodel.Metadata) {
	for n := r.number(); n > 0 && !r.broken; n-- {
		if md == nil {
			md = make(yodel.Metadata)
		}
		name := string(r.text())
		md[name] = string(r.text())
	}
	return md
}

// keyOf returns the key of a call in the store. All these keys have the same length.
func (g *guard) keyOf(ctx context.Context, call *yodel.Call) string {
	caller := ""
	if g.Caller != nil {
		caller = g.Caller(ctx, call)
	}
	var scratch [256]byte
	parts := scratch[:0]
	for _, part := range [...]string{call.Tenant, caller, call.Method, call.IdempotencyKey} {
		parts = appendText(parts, part)
	}
	sum := sha256.Sum256(parts)
	return base64.RawURLEncoding.EncodeToString(sum[:24])
}

var hashes = sync.Pool{New: func() any { return sha256.New() }}

// fingerprintOf returns the fingerprint of a call, which must be the same for all calls with the
// same key.
func (g *guard) fingerprintOf(call *yodel.Call) (p fingerprint, err error) {
	body, err := call.Body()
	if err != nil {
		return p, err
	}
	h := hashes.Get().(hash.Hash) //nolint:forcetypeassert // nothing else is in it
	defer hashes.Put(h)
	h.Reset()
	head := make([]byte, 0, 128)
	if g.Caller == nil {
		head = appendCredentials(head, call)
	}
	if g.AnyRequest {
		_, _ = h.Write(head) // a hash takes everything
	} else {
		head = appendText(head, call.Codec.Name())
		head = binary.AppendUvarint(head, uint64(len(body)))
		_, _ = h.Write(head)
		_, _ = h.Write(body)
		_, _ = h.Write(call.Attachment)
	}
	h.Sum(p[:0])
	return p, nil
}

// appendCredentials appends what identifies the caller.
func appendCredentials(dst []byte, call *yodel.Call) []byte {
	const token = "authorization" // as in package auth
	peer := call.Peer()
	dst = appendText(appendText(dst, call.Metadata[token]), peer.Metadata[token])
	tls := peer.TLS()
	switch {
	case tls == nil || len(tls.PeerCertificates) == 0:
	case len(tls.VerifiedChains) == 0: // an unverified certificate does not identify the caller
		dst = appendText(dst, tls.PeerCertificates[0].RawSubjectPublicKeyInfo)
	default: // not the whole certificate, which may be renewed
		leaf := tls.PeerCertificates[0]
		dst = appendText(appendText(dst, leaf.RawIssuer), leaf.RawSubject)
		for _, name := range leaf.DNSNames {
			dst = appendText(dst, name)
		}
		for _, uri := range leaf.URIs {
			dst = appendText(dst, uri.String())
		}
	}
	return dst
}
