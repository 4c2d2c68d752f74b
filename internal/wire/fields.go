// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
)

// A field is a tag byte and a value. If the tag is even, the value is an unsigned varint. If the
// tag is odd, the value is a varint length and that many bytes. A parser skips fields with unknown
// tags. If a tag is repeated, the last field counts.

const fieldsLenSize = 2

// MaxFields bounds a block of fields: its length has 16 bits.
const MaxFields = 1<<16 - 1

// The tags of the fields of Request, Reply and Data.
const (
	tagTimeout     = 1 << 1
	tagSize        = 2 << 1
	tagMetadata    = 3<<1 | 1
	tagAttempt     = 4 << 1
	tagBudget      = 5 << 1
	tagIdempotency = 6<<1 | 1
	tagCriticality = 7 << 1
	tagTenant      = 8<<1 | 1
	tagTrace       = 9<<1 | 1
	tagKey         = 10<<1 | 1
	tagEpoch       = 11 << 1
	tagExplain     = 12 << 1
	tagMessage     = 13<<1 | 1
	tagErrorID     = 14<<1 | 1
	tagDetails     = 15<<1 | 1
	tagRetryAfter  = 16 << 1
	tagLoad        = 17 << 1
	tagServerTime  = 18 << 1
	tagParent      = 19 << 1
	tagServerWait  = 20 << 1
	tagKeyBegan    = 21 << 1
	tagHeader      = 22<<1 | 1
)

// Fields are the values that travel with a message. Zero values are not sent.
type Fields struct {
	Size     uint64 // bytes of the message when it takes more than one frame
	Metadata []byte // pairs, see AppendPair

	// Of requests.
	Timeout        uint64 // microseconds that the call may still take
	Attempt        uint64 // how often it was sent before
	Budget         uint64 // how many attempts the call tree may still make, including this one; 0 is unlimited
	IdempotencyKey []byte
	Criticality    uint64 // zigzag: 0 is normal, 2 critical, 1 sheddable, 3 batch
	Tenant         []byte
	Trace          []byte // trace context
	Key            []byte // order key
	Epoch          uint64 // of the order key
	Explain        uint64 // 1: the reply should say where the time went
	Parent         uint64 // id of the receiver's own call that this one serves
	// zigzag: when a request with this key was first sent, in microseconds after the settings came
	KeyBegan uint64

	// Of replies.
	Message    []byte // of an error
	ErrorID    []byte
	Details    []byte
	RetryAfter uint64 // microseconds
	Load       uint64 // calls in flight on the server
	ServerTime uint64 // microseconds that the call took on the server
	ServerWait uint64 // the part of ServerTime before the method began
	Header     []byte // metadata that comes before the reply; pairs, see AppendPair
}

// AppendFields appends the block of fields, including its length. The block must not be larger than
// MaxFields. FieldsSize returns an upper bound of its size.
func AppendFields(dst []byte, f *Fields) []byte {
	start := len(dst)
	dst = append(dst, 0, 0)
	dst = appendNumber(dst, tagTimeout, f.Timeout)
	dst = appendNumber(dst, tagSize, f.Size)
	dst = appendBytes(dst, tagMetadata, f.Metadata)
	dst = appendNumber(dst, tagAttempt, f.Attempt)
	dst = appendNumber(dst, tagBudget, f.Budget)
	dst = appendBytes(dst, tagIdempotency, f.IdempotencyKey)
	dst = appendNumber(dst, tagCriticality, f.Criticality)
	dst = appendBytes(dst, tagTenant, f.Tenant)
	dst = appendBytes(dst, tagTrace, f.Trace)
	dst = appendBytes(dst, tagKey, f.Key)
	dst = appendNumber(dst, tagEpoch, f.Epoch)
	dst = appendNumber(dst, tagExplain, f.Explain)
	dst = appendBytes(dst, tagMessage, f.Message)
	dst = appendBytes(dst, tagErrorID, f.ErrorID)
	dst = appendBytes(dst, tagDetails, f.Details)
	dst = appendNumber(dst, tagRetryAfter, f.RetryAfter)
	dst = appendNumber(dst, tagLoad, f.Load)
	dst = appendNumber(dst, tagServerTime, f.ServerTime)
	dst = appendNumber(dst, tagParent, f.Parent)
	dst = appendNumber(dst, tagServerWait, f.ServerWait)
	dst = appendNumber(dst, tagKeyBegan, f.KeyBegan)
	dst = appendBytes(dst, tagHeader, f.Header)
	binary.LittleEndian.PutUint16(dst[start:], uint16(len(dst)-start-fieldsLenSize)) //nolint:gosec // bounded by the caller
	return dst
}

// AppendUsualFields is AppendFields for the fields of ordinary requests: the time that the call may
// take, the metadata, and the number of attempts that are left. It does not check the other fields,
// and needs only a small stack frame.
func AppendUsualFields(dst []byte, timeout uint64, metadata []byte, budget uint64) []byte {
	start := len(dst)
	dst = append(dst, 0, 0)
	dst = appendNumber(dst, tagTimeout, timeout)
	dst = appendBytes(dst, tagMetadata, metadata)
	dst = appendNumber(dst, tagBudget, budget)
	binary.LittleEndian.PutUint16(dst[start:], uint16(len(dst)-start-fieldsLenSize)) //nolint:gosec // bounded by the caller
	return dst
}

// UsualFieldsSize is an upper bound of the bytes that AppendUsualFields appends.
func UsualFieldsSize(metadata []byte) int {
	return fieldsLenSize + 3*(1+binary.MaxVarintLen64) + len(metadata)
}

// ParseUsualFields is ParseFields for a block that AppendUsualFields made. It returns false for any
// other block, including a broken block.
func ParseUsualFields(b []byte) (timeout uint64, metadata []byte, budget uint64, ok bool) {
	var err error
	if len(b) > 0 && b[0] == tagTimeout {
		timeout, b, err = cutNumber(b[1:])
	}
	if err == nil && len(b) > 0 && b[0] == tagMetadata {
		metadata, b, err = cutBytes(b[1:])
	}
	if err == nil && len(b) > 0 && b[0] == tagBudget {
		budget, b, err = cutNumber(b[1:])
	}
	return timeout, metadata, budget, err == nil && len(b) == 0
}

// FieldsSize is an upper bound of the bytes that AppendFields appends for f.
func FieldsSize(f *Fields) int {
	const numbers = 13 // fields of Fields that are numbers
	const slices = 9
	return fieldsLenSize + (numbers+slices)*(1+binary.MaxVarintLen64) + len(f.Metadata) + len(f.IdempotencyKey) + len(f.Tenant) +
		len(f.Trace) + len(f.Key) + len(f.Message) + len(f.ErrorID) + len(f.Details) + len(f.Header)
}

// ParseFields reads a block of fields without its length, as SplitFields returns it.
func ParseFields(b []byte, f *Fields) error {
	*f = Fields{}
	return eachField(b, func(tag byte, n uint64, value []byte) {
		switch tag {
		case tagTimeout:
			f.Timeout = n
		case tagSize:
			f.Size = n
		case tagMetadata:
			f.Metadata = value
		case tagAttempt:
			f.Attempt = n
		case tagBudget:
			f.Budget = n
		case tagIdempotency:
			f.IdempotencyKey = value
		case tagCriticality:
			f.Criticality = n
		case tagTenant:
			f.Tenant = value
		case tagTrace:
			f.Trace = value
		case tagKey:
			f.Key = value
		case tagEpoch:
			f.Epoch = n
		case tagExplain:
			f.Explain = n
		case tagMessage:
			f.Message = value
		case tagErrorID:
			f.ErrorID = value
		case tagDetails:
			f.Details = value
		case tagRetryAfter:
			f.RetryAfter = n
		case tagLoad:
			f.Load = n
		case tagServerTime:
			f.ServerTime = n
		case tagParent:
			f.Parent = n
		case tagServerWait:
			f.ServerWait = n
		case tagKeyBegan:
			f.KeyBegan = n
		case tagHeader:
			f.Header = value
		}
	})
}

// OnlyUsual reports whether no field but Timeout, Metadata and Budget is set.
func (f *Fields) OnlyUsual() bool {
	return f.Size|f.Attempt|f.Criticality|f.Epoch|f.Explain|f.RetryAfter|f.Load|f.ServerTime|f.Parent|f.ServerWait|f.KeyBegan == 0 &&
		len(f.IdempotencyKey)+len(f.Tenant)+len(f.Trace)+len(f.Key)+len(f.Message)+len(f.ErrorID)+len(f.Details)+len(f.Header) == 0
}

// AppendPair appends one key and value of a metadata block.
func AppendPair(dst []byte, key, value string) []byte { return appendPair(dst, key, value) }

// AppendDetail appends a detail of an error, which is a pair of a type and a value.
func AppendDetail(dst []byte, name string, value []byte) []byte { return appendPair(dst, name, value) }

func appendPair[V string | []byte](dst []byte, key string, value V) []byte {
	dst = append(binary.AppendUvarint(dst, uint64(len(key))), key...)
	return append(binary.AppendUvarint(dst, uint64(len(value))), value...)
}

// CountPairs returns how many pairs a metadata block has. It stops counting when the number exceeds
// limit, so that limit bounds its work.
func CountPairs(b []byte, limit int) (n int, err error) {
	for ; len(b) > 0 && n <= limit; n++ {
		for range 2 { // a key and its value
			if _, b, err = cutBytes(b); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// EachPair calls f for each pair of a metadata block, in order.
func EachPair(b []byte, f func(key, value []byte)) error {
	for len(b) > 0 {
		key, rest, err := cutBytes(b)
		if err != nil {
			return err
		}
		value, rest, err := cutBytes(rest)
		if err != nil {
			return err
		}
		f(key, value)
		b = rest
	}
	return nil
}

func appendNumber(dst []byte, tag byte, n uint64) []byte {
	if n == 0 {
		return dst
	}
	return binary.AppendUvarint(append(dst, tag), n)
}

func appendBytes(dst []byte, tag byte, b []byte) []byte {
	if len(b) == 0 {
		return dst
	}
	return append(binary.AppendUvarint(append(dst, tag), uint64(len(b))), b...)
}

func eachField(b []byte, f func(tag byte, n uint64, value []byte)) error {
	for len(b) > 0 {
		tag := b[0]
		if tag&1 == 0 {
			n, rest, err := cutNumber(b[1:])
			if err != nil {
				return err
			}
			f(tag, n, nil)
			b = rest
			continue
		}
		value, rest, err := cutBytes(b[1:])
		if err != nil {
			return err
		}
		f(tag, 0, value)
		b = rest
	}
	return nil
}

func cutNumber(b []byte) (n uint64, rest []byte, err error) {
	n, size := binary.Uvarint(b)
	switch {
	case size == 0:
		return 0, nil, ErrTruncated
	case size < 0:
		return 0, nil, ErrVarint
	}
	return n, b[size:], nil
}

func cutBytes(b []byte) (value, rest []byte, err error) {
	n, b, err := cutNumber(b)
	if err != nil {
		return nil, nil, err
	}
	if n > uint64(len(b)) {
		return nil, nil, ErrTruncated
	}
	return b[:n:n], b[n:], nil
}
