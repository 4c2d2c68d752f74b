// SPDX-License-Identifier: Apache-2.0

package registered

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/yodel-rpc/yodel/internal/catalogue"
	"github.com/yodel-rpc/yodel/internal/fault"
	"github.com/yodel-rpc/yodel/internal/kinds"
	"github.com/yodel-rpc/yodel/internal/monotime"
	"github.com/yodel-rpc/yodel/internal/text"
	"github.com/yodel-rpc/yodel/internal/wire"
)

// A Bound is the name of a method as one connection calls it. Its exported fields are set before
// the first call. It may be used concurrently.
type Bound struct {
	In         *Methods
	Name       string
	Kind       uint64 // the kind of method that the caller expects, or AnyKind
	Positional bool   // bodies are Values
	Wrong      Wrong
	Absent     string        // the codec or the compressor that the server lacks
	Told       atomic.Uint32 // the traits that the caller knows

	method  atomic.Pointer[Method] // nil if there is no method of this name
	fits    atomic.Pointer[Method] // the method, once it is known that calls of it can succeed
	similar atomic.Pointer[string] // the most similar method name, once it was looked up
}

// SetCalled sets what a caller in yodel's own protocol has said of the name, before it is used.
// Late says that it comes after the server was shut down. Codec and compressor say that the server
// has those that the caller has named.
func (b *Bound) SetCalled(in *Methods, said *wire.Binding, late, codec, compressor bool) {
	b.In, b.Name = in, text.Line(string(said.Name))
	b.Positional, b.Kind = said.Positional != 0, said.Kind
	switch {
	case late:
		b.Wrong = wrongTime
	case !codec:
		b.Wrong, b.Absent = WrongCodec, string(said.Codec)
	case !compressor && len(said.Compressor) > 0:
		b.Wrong, b.Absent = wrongCompressor, string(said.Compressor)
	case b.Name != string(said.Name):
		b.Wrong = WrongName
	}
}

// AnyKind is the kind of a Bound of a protocol that does not name the kind.
const AnyKind = math.MaxUint64

// A Wrong is the reason why no call of a Bound can succeed, whatever the method is.
type Wrong uint8

// The reasons. The zero value means that there is none.
const (
	wrongTime       Wrong = iota + 1 // the server has been shut down
	WrongCodec                       // the server lacks the codec
	wrongCompressor                  // the server lacks the compressor
	WrongName                        // no method can have the name: see Methods.Reserve
)

// Find returns the method, or nil if the server has no such method. The method may have been
// registered or unregistered since the connection first used the name.
func (b *Bound) Find() *Method {
	m := b.method.Load()
	if m == nil || m.Unnamed.Load() { // this name may have been unregistered
		now := b.In.Get(b.Name)
		if now != m {
			b.method.Store(now)
		}
		return now
	}
	return m
}

// SetMeant makes b the name that a caller of any kind of method asks for: see Methods.Meant. It
// reports whether such a method exists.
func (b *Bound) SetMeant(in *Methods, asked string) bool {
	meant := in.Meant(asked)
	b.In, b.Name, b.Kind = in, text.Clip(meant, wire.MaxName), AnyKind
	if b.Name != meant {
		b.Wrong = WrongName
		return false
	}
	return b.Find() != nil
}

// Last returns what the last Find returned.
func (b *Bound) Last() *Method { return b.method.Load() }

// Inline reports where the next call runs, and whether it is timed: see mux.Target.
func (b *Bound) Inline() (inline, timed bool) {
	m := b.Last()
	if m == nil || !m.Inline() {
		return false, true
	}
	return true, m.Stats.TimeNext()
}

// Expects returns the size of a reply to expect, in bytes: see mux.Target.
func (b *Bound) Expects() int {
	if m := b.Last(); m != nil {
		return m.Replies.Expected()
	}
	return 0
}

// Fits reports whether it is known that calls of m, the result of Find, can succeed. Otherwise the
// caller asks Check.
func (b *Bound) Fits(m *Method) bool { return m != nil && b.fits.Load() == m }

// Check returns why a call of m, the result of Find, cannot succeed, whatever its body is. Codec
// returns the name of the codec. Check formats the text for each call: if a connection stored a
// text for each method number, it would hold several times the bytes that its peer has sent.
func (b *Bound) Check(m *Method, codec func() string) *fault.Fault {
	switch {
	case b.Wrong != 0:
		return b.refusal()
	case m == nil:
		return b.In.Unknown(b.Name, b.suggestion())
	case m.Kind != b.Kind && b.Kind != AnyKind:
		return b.Mismatch(m, b.Kind)
	case m.Positional != b.Positional && m.Dynamic == nil:
		return fault.Of(catalogue.WrongShape, b.Name, "the method is %s", m.Signature()).ByCodec(nil).NotProcessed()
	}
	name := codec()
	if why := m.Uncarried[name]; why != nil {
		return fault.Of(catalogue.NoCodec, b.Name, "the method is %s: %v (codec %s)", m.Signature(), why, name).ByCodec(nil).NotProcessed()
	}
	b.fits.Store(m)
	return nil
}

// Mismatch returns the fault of a call of m for another kind of method.
func (b *Bound) Mismatch(m *Method, kind uint64) *fault.Fault {
	f := fault.Of(catalogue.WrongKind, b.Name, "the method is %s of %s; the call is for %s", kinds.OneOf(m.Kind), m.Types(), kinds.OneOf(kind))
	f.Public = "the method is " + kinds.OneOf(m.Kind)
	return f.NotProcessed()
}

// refusal returns the fault for b.Wrong.
func (b *Bound) refusal() *fault.Fault {
	id, method, said := catalogue.ShuttingDown, b.Name, "the server has been shut down"
	switch b.Wrong { //nolint:exhaustive // there is something wrong
	case WrongCodec:
		id, said = catalogue.NoCodec, fmt.Sprintf("this server does not have the codec %q; it has %s", b.Absent, b.In.Codecs)
	case WrongName:
		id, said = catalogue.NoService, fmt.Sprintf("a method's name is UTF-8 of at most %d bytes, without control characters", wire.MaxName)
		method = fmt.Sprintf("%.40s…", b.Name)
	case wrongCompressor:
		id, said = catalogue.NoCompressor, fmt.Sprintf("this server does not have the compressor %q; it has %s", b.Absent, b.In.Compressors)
	}
	return fault.Of(id, method, "%s", said).NotProcessed()
}

// suggestion returns the method name that is most similar to b.Name, or "". It is called if there
// is no method of that name. It searches once per method number of a connection.
func (b *Bound) suggestion() string {
	if known := b.similar.Load(); known != nil && (*known == "" || b.In.Get(*known) != nil) {
		return *known
	}
	if !b.In.AdmitSearch(monotime.Now()) {
		return ""
	}
	found := b.In.Similar(b.Name)
	b.similar.Store(&found)
	return found
}
