// SPDX-License-Identifier: Apache-2.0

package body

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/mux"
	"github.com/yodel-rpc/yodel/internal/reflectcall"
	"github.com/yodel-rpc/yodel/internal/reply"
	"github.com/yodel-rpc/yodel/internal/unpack"
)

// A Side is the client or the server that encodes and decodes bodies. It decides how a body that
// fails is reported: the fault of a request says that the method was not executed.
type Side struct {
	Name       string // for messages: "this client", "this server", or "the server"
	Serves     bool   // it receives requests and sends replies; a side that calls does the opposite
	MaxMessage int    // bytes of a body to be sent, together with its attachment
}

// serves reports whether s sends replies.
func (s *Side) serves() bool { return s != nil && s.Serves }

// sent returns the fault of a body to be sent.
func (s *Side) sent(request, reply, method, format string, args ...any) *fault.Fault {
	if s.serves() {
		return fault.Of(reply, method, format, args...)
	}
	return fault.Of(request, method, format, args...).NotProcessed()
}

// Encode returns the body of a message that is to be sent. It writes the body into the memory of
// scratch, and replaces scratch if that is too small. If the message is already encoded, Encode
// returns its body without a copy, unless own is set.
func (f *Format[V, E]) Encode(scratch *[]byte, method string, message any, own bool) ([]byte, *fault.Fault) {
	if !own {
		if body, ok := f.shared(message); ok {
			return body, nil
		}
	}
	body, err := f.Append((*scratch)[:0], message)
	if err != nil {
		return nil, f.Unencodable(method, err)
	}
	*scratch = body
	return body, nil
}

// Unencodable returns the fault of a message that the codec refused with err.
func (f *Format[V, E]) Unencodable(method string, err error) *fault.Fault {
	return f.Side.sent(catalogue.Unencodable, catalogue.ReplyUnencodable, method, "%v (codec %s)", err, f.Codec.Name()).ByCodec(err)
}

// Packs reports whether Compress may compress a body.
func (f *Format[V, E]) Packs(body []byte) bool {
	return f.Pack.Compressor != nil && len(body) >= f.Pack.Above
}

// Compress returns a body in the form in which it is sent, and reports whether it has compressed
// the body. A compressed body is in the memory of scratch. Compress leaves a body as it is if
// compression would make it larger. If always is set, as for other protocols, it compresses such a
// body too, and also an empty body if the program compresses bodies of all sizes.
func (f *Format[V, E]) Compress(scratch *[]byte, method string, body []byte, always bool) (packed []byte, compressed bool, _ *fault.Fault) {
	if f.Pack.Compressor == nil {
		return body, false, nil
	}
	var err error
	if always {
		packed, compressed, err = f.packAlways((*scratch)[:0], body)
	} else {
		packed, compressed, err = f.Pack.Pack(*scratch, body)
	}
	if err != nil {
		return nil, false, f.Side.sent(catalogue.Unencodable, catalogue.ReplyUnencodable, method, "%v", err).ByCodec(err)
	}
	if *scratch = packed; !compressed {
		return body, false, nil
	}
	return packed, true, nil
}

// AppendForeign appends a message to dst in the form in which it is sent in another protocol, and
// reports whether it has compressed the message: see Compress.
func (f *Format[V, E]) AppendForeign(dst []byte, method string, message any) (_ []byte, compressed bool, _ *fault.Fault) {
	var scratch, packed []byte
	body, fail := f.Encode(&scratch, method, message, false)
	if fail == nil {
		body, compressed, fail = f.Compress(&packed, method, body, true)
	}
	if fail == nil {
		fail = f.Side.Check(method, len(body))
	}
	if fail != nil {
		return dst, false, fail
	}
	return append(dst, body...), compressed, nil
}

// packAlways is Packer.Pack for clients of other protocols.
func (f *Format[V, E]) packAlways(scratch, body []byte) (packed []byte, ok bool, err error) {
	p := &f.Pack
	if len(body) < p.Above && p.Above != 1 {
		return scratch, false, nil
	}
	if packed, err = p.Append(scratch, body); err != nil {
		return scratch, false, fmt.Errorf("compress with %s: %w", p.Name(), err)
	}
	return packed, p.Fits(body, packed), nil
}

// Check returns the fault of a body that has n bytes together with its attachment, if that is more
// than the side may send.
func (s *Side) Check(method string, n int) *fault.Fault {
	if n <= s.MaxMessage {
		return nil
	}
	what := "request"
	if s.Serves {
		what = "reply"
	}
	return s.sent(catalogue.RequestTooLarge, catalogue.ReplyTooLarge, method, "the %s has %d bytes, %s's limit is %d", what, n, s.Name, s.MaxMessage)
}

// Unfit returns the fault of a received body that cannot be decoded because of err. What names the
// body, and into the type of the message.
func (f *Format[V, E]) Unfit(method, what, into string, err error) *fault.Fault {
	if f.Side.serves() {
		return fault.Of(catalogue.RequestUnfit, method, "%s does not fit %s: %v (codec %s)", what, into, err, f.Codec.Name()).ByCodec(err).NotProcessed()
	}
	return fault.Of(catalogue.ReplyUnfit, method, "%s does not fit %s: %v (codec %s)", what, into, err, f.Codec.Name()).Because(err)
}

// Torn returns the error of a received body that Pack.Unpack refused with err. What names the body.
// It is a *fault.Fault, or a *mux.BrokenError for a reply that breaks the protocol.
func (f *Format[V, E]) Torn(err error, method, what string, body []byte) error {
	if found := f.Pack.Fault(err, method, what, f.Side.Name, body); found != nil {
		if f.Side.Serves {
			return found.NotProcessed()
		}
		return found
	}
	unagreed := errors.Is(err, unpack.ErrUnagreed)
	switch {
	case unagreed && f.Side.Serves:
		return fault.Of(catalogue.RequestUnfit, method, "%s is compressed, and the compressor was not named", what).NotProcessed()
	case unagreed:
		return &mux.BrokenError{Cause: errUnagreed}
	case f.Side.Serves:
		return fault.Of(catalogue.RequestUnfit, method, "%s cannot be decompressed: %v (%s)", what, err, f.Pack.Name()).NotProcessed()
	}
	return &mux.BrokenError{Cause: fmt.Errorf("decompress with %s: %w", f.Pack.Name(), err)}
}

var errUnagreed = errors.New("it is compressed, which was not agreed")

// CheckRequest returns the fault of a request that is a nil pointer to a type with content. The
// server would receive it as zero values.
func (f *Format[V, E]) CheckRequest(method string, request any) *fault.Fault {
	v := reflect.ValueOf(request)
	if v.Kind() != reflect.Pointer || !v.IsNil() || reflectcall.HasNoContent(v.Type().Elem()) {
		return nil
	}
	return fault.Of(catalogue.Unencodable, method, "the request is a nil %T", request).NotProcessed()
}

// CheckReply returns the fault of a message into which the codec cannot decode a reply. The caller
// would learn that only after the method has been executed.
func (f *Format[V, E]) CheckReply(method string, into any) *fault.Fault {
	all, named := into.(V)
	if !named && into != nil {
		all = V{into}
	}
	return reply.Check(method, f.Codec, all, named, func(to any) bool {
		_, encoded := to.(*E)
		return encoded
	})
}
