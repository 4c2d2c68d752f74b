// SPDX-License-Identifier: Apache-2.0

// Package fields has what requests and answers of yodel's own protocol say about a call beside its
// body: encoded for the other side, and read from it within limits.
package fields

import (
	"iter"
	"math"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/internal/details"
	"github.com/yodel-rpc/yodel/internal/metadata"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Request is what a request says about its call, except what most requests have.
type Request struct {
	Attempt        int // how often it was sent before
	Criticality    int
	Explain        bool
	Ordered        bool // set by the connection, which numbers ordered calls
	IdempotencyKey string
	Key            string
	Tenant         string
	Trace          string
	// KeyBegan is when a request with this idempotency key was first sent, counted from when the
	// settings of the server came. KnowsKey says that the request has it. Encode leaves both out.
	KeyBegan time.Duration
	KnowsKey bool
}

// Encode sets the fields of r in f.
func (r *Request) Encode(f *wire.Fields) {
	f.Attempt = uint64(r.Attempt)
	f.Criticality = criticality(r.Criticality)
	f.Explain, f.KeyBegan = 0, 0
	if r.Explain {
		f.Explain = 1
	}
	f.Tenant, f.Trace = bytes(r.Tenant), bytes(r.Trace)
	f.IdempotencyKey, f.Key = bytes(r.IdempotencyKey), bytes(r.Key)
}

// bytes returns s, or nil for the empty string.
func bytes(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

// ReadRequest returns what the fields of a request say. It limits the numbers of the client.
func ReadRequest(f *wire.Fields) Request {
	r := Request{
		Attempt: int(min(f.Attempt, 1<<30)), Criticality: criticalityOf(f.Criticality), Explain: f.Explain != 0, Ordered: f.Epoch > 0,
		IdempotencyKey: string(f.IdempotencyKey), Key: string(f.Key), Tenant: string(f.Tenant), Trace: string(f.Trace),
	}
	if n := f.KeyBegan; n != 0 {
		r.KeyBegan, r.KnowsKey = time.Duration(int64(n>>1)^-int64(n&1))*time.Microsecond, true
	}
	return r
}

// Size returns how many bytes of a request count as metadata: those of its metadata, and of the
// texts that its fields have. F may be nil.
func Size(md []byte, f *wire.Fields) int {
	n := len(md)
	if f != nil {
		n += len(f.IdempotencyKey) + len(f.Key) + len(f.Tenant) + len(f.Trace)
	}
	return n
}

// On the wire a criticality is a number whose lowest bit is the sign.
func criticalityOf(n uint64) int {
	n = min(n, math.MaxInt16)
	return int(n>>1) ^ -int(n&1)
}

func criticality(c int) uint64 {
	c = min(max(c, math.MinInt8), math.MaxInt8)
	return uint64(c<<1 ^ c>>8)
}

// An Answer is what an answer says about its call.
type Answer struct {
	wire.Fields
	Trailer map[string]string
	Head    map[string]string // the metadata that came before the reply; nil for none
	Excess  string            // how metadata exceeds the limits, and is left out; "" if it does not
}

// Read parses the fields of an answer. It returns an error if they are malformed.
func (a *Answer) Read(b []byte, l metadata.Limits) error {
	err := wire.ParseFields(b, &a.Fields)
	if err == nil {
		a.Trailer, err = a.parse(a.Metadata, l)
	}
	if err == nil && len(a.Header) > 0 {
		a.Head, err = a.parse(a.Header, l)
	}
	return err
}

// parse is Limits.Parse, and notes metadata that exceeds the limits.
func (a *Answer) parse(b []byte, l metadata.Limits) (map[string]string, error) {
	md, err := l.Parse(b)
	if what := metadata.Excess(err); what != "" {
		if a.Excess == "" {
			a.Excess = what
		}
		return nil, nil //nolint:nilnil // the caller gets Excess
	}
	return md, err
}

// A Failure is what an answer says about the error of its call, beside its code.
type Failure struct {
	Message, ID string
	RetryAfter  time.Duration
}

const (
	// MaxText is the largest text of an error that is sent or accepted, in bytes.
	MaxText = 4 << 10
	// maxRetryAfter is the largest Failure.RetryAfter that is accepted, in microseconds: a day.
	maxRetryAfter = 24 * 3600 * 1e6
)

// Failure returns the error of a call of a method that a server at where has answered. If it has an
// ID, its message gets the method and the address. Failure limits and cleans the server's values.
// It calls add for each detail.
func (a *Answer) Failure(method string, where func() string, add func(name string, value []byte)) Failure {
	f := Failure{
		Message: text.Clip(string(a.Message), MaxText), ID: text.ID(string(a.ErrorID)),
		RetryAfter: time.Duration(min(a.RetryAfter, maxRetryAfter)) * time.Microsecond,
	}
	details.Parse(a.Details, add)
	if f.ID != "" {
		f.Message = method + ": " + where() + ": " + strings.TrimPrefix(f.Message, method+": ")
	}
	return f
}

// Encode sets the fields of f and the details of the error in to.
func (f *Failure) Encode(to *wire.Fields, all iter.Seq2[string, []byte]) {
	to.Message, to.ErrorID, to.Details = []byte(f.Message), []byte(f.ID), details.Encode(all)
	if f.RetryAfter > 0 {
		to.RetryAfter = uint64((f.RetryAfter + time.Microsecond - 1) / time.Microsecond)
	}
}
