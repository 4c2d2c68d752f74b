// SPDX-License-Identifier: Apache-2.0

// Package thrift connects yodel with programs that use Apache Thrift. Protocol lets unchanged
// Thrift clients call a yodel server, on the port on which it serves yodel's own clients. Wire lets
// a yodel client call unchanged Thrift servers.
//
//	server := yodel.NewServer(&yodel.ServerOptions{
//		Codecs:    []yodel.Codec{thriftcodec.Codec, thriftcodec.Compact}, // of package codec/thrift
//		Protocols: []yodel.Protocol{thrift.New(&thrift.Options{Service: "Arith"})},
//	})
//
// The server recognizes the binary and the compact protocol, with and without frames
// (TFramedTransport, TBufferedTransport), and answers each client as it asks. The header transport
// (THeader), the JSON protocol and HTTP are not served. The log names the first two.
//
// # Methods
//
// The method mul of Thrift calls the method Arith.mul, or Arith.Mul if there is no Arith.mul. Arith
// is Options.Service. A client with TMultiplexedProtocol names the service itself.
//
// The arguments of a method of Thrift are a struct. If the yodel method takes several arguments, as
// func(ctx context.Context, a, b int32) (int32, error) does, field n of that struct is argument n.
// A missing field is the zero value. The only argument of a yodel method is field 1, unless it is a
// struct. A struct is field 1 if field 1 is the only field and a struct too. Otherwise it is the
// struct of the arguments itself. The tag args of package codec/thrift makes sure of that for a
// type whose first field is a struct.
//
// The reply of a method is field 0 of its result. A method without results is void. A method with
// several results cannot be called, because Thrift has only one. A oneway call is executed as a
// yodel.Call with OneWay. Nothing is sent back, not even an error. List such methods in
// Options.OneWay, because some clients do not say that a call is oneway.
//
// Services with generated code know all this themselves: see Register of package
// codec/apachethrift. Their methods have the names of Thrift.
//
// # Errors
//
// A handler's error that Options.Throws lists for the method is thrown as this exception. So is an
// error with a detail of the type "thrift.exception.N", where N is the number of the field: that of
// a generated service, or one that a Wire has received. Any other
// error becomes a TApplicationException. For a handler's error without a code, the client gets the
// unchanged text. For any other error, it gets the code, the text and the ID. The type of the
// exception is UNKNOWN_METHOD if the method does not exist, PROTOCOL_ERROR for arguments that could
// not be decoded, and otherwise INTERNAL_ERROR.
//
// # Limits
//
// The protocol has no metadata, no deadlines and no streams: authorize by the address or the TLS
// certificate of the Peer, and bound the time of calls with middleware/timeout on the server. A
// connection carries one call at a time, unless Options.Concurrent is set. A client that sends
// further requests gets their replies in the same order. When the connection of a client ends, the
// contexts of its calls end. Those of oneway calls end 30 s later.
package thrift

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/thriftwire"
	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
	"github.com/yodel-rpc/yodel/protocol/internal/methodname"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// Options adapts the protocol of a server.
type Options struct {
	// Service is the service of methods that a client names without a service. Default "": these
	// names are the whole names of methods.
	Service string
	// Concurrent executes the requests of one connection at the same time, and answers each when it
	// is done. It is for clients that assign replies to requests by their sequence numbers. Most
	// Thrift clients do not.
	Concurrent bool
	// OneWay has the names of yodel methods that are oneway in Thrift's language. Some clients,
	// such as Apache's for Go, send oneway calls like any other, and still expect no reply. List
	// all such methods: such a client takes an unexpected reply as that of its next call.
	OneWay []string
	// Throws has the declared exceptions of methods. They are sent also with
	// yodel.ServerOptions.HideErrors.
	Throws Throws
}

// Throws has the declared exceptions of methods: for the name of a yodel method, and the number of
// a field in the method's throws clause, an error of the exception's type, usually a nil pointer.
// The type is one that package codec/thrift can encode. A server throws the first of these that
// errors.As finds in the error of the handler. A client decodes an exception into a new value,
// which errors.As finds in the error of the call. If the type has a method Unwrap that returns a
// yodel.Code, the error has this code on both sides.
//
//	thrift.Throws{"Arith.div": {1: (*DivisionByZero)(nil)}}
type Throws map[string]map[int16]error

// Protocol serves Thrift clients with the default Options. The server needs the codec "thrift" for
// the binary protocol, and "thrift-compact" for the compact protocol.
var Protocol = New(nil)

// New returns a Protocol with options. Nil means the default Options.
func New(o *Options) yodel.Protocol {
	if o == nil {
		o = &Options{}
	}
	return &protocol{*o}
}

type protocol struct{ Options }

// Name implements yodel.Protocol.
func (*protocol) Name() string { return "thrift" }

// Codecs names the codecs of which the protocol needs one: see yodel.Protocol.
func (*protocol) Codecs() []string { return codecNames[:] }

// Match implements yodel.Protocol.
func (*protocol) Match(first []byte) (ok, more bool) {
	kind, more := kindOf(first)
	return kind != unknown, more
}

// A kind is how the messages of a connection are sent.
type kind int

const (
	unknown    kind = iota
	unframed        // one message after another
	framed          // each message after its length
	header          // THeader
	textual         // JSON
	compressed      // zlib
)

// sniffLength is how many bytes kindOf needs.
const sniffLength = 6

// kindOf returns the kind of a connection. A message begins with
//
//	80 01         binary
//	82 x1         compact
//	00 00 ? ?     binary in its old form: the length of a name, which begins with a letter
//	78 ?          compressed by zlib
//
// A frame begins with its length in 4 bytes. Lengths of 128 MiB and more are not recognized.
func kindOf(first []byte) (k kind, more bool) {
	switch n := len(first); {
	case n == 0:
		return unknown, true
	case first[0] == 0x80 || first[0] == 0x82:
		if n == 1 {
			return unknown, true
		}
		if isMessage(first) {
			return unframed, false
		}
		return unknown, false
	case first[0] == '[':
		const message = `[1,"`
		if k := min(n, len(message)); string(first[:k]) != message[:k] {
			return unknown, false
		}
		if n < len(message) {
			return unknown, true
		}
		return textual, false
	case first[0] == 'x':
		if n == 1 {
			return unknown, true
		}
		if isZlib(first) {
			return compressed, false
		}
		return unknown, false
	case first[0] > 7:
		return unknown, false
	case n < sniffLength:
		return unknown, true
	}
	switch after := first[4:]; {
	case isMessage(after), after[0] == 0 && after[1] == 0: // a frame; the old form in a frame
		return framed, false
	case after[0] == 0x0f && after[1] == 0xff:
		return header, false
	case isZlib(after):
		return compressed, false
	case first[0] == 0 && first[1] == 0 && isLetter(after[0]):
		return unframed, false
	}
	return unknown, false
}

// isMessage reports whether two bytes begin a message, but not one in the old form.
func isMessage(b []byte) bool { return b[0] == 0x80 && b[1] == 1 || b[0] == 0x82 && b[1]&0x1f == 1 }

// isZlib reports whether two bytes begin zlib data with a window of 32 KiB, as zlib writes them.
func isZlib(b []byte) bool { return b[0] == 'x' && (int(b[0])<<8|int(b[1]))%31 == 0 }

func isLetter(b byte) bool { return b == '_' || b|0x20 >= 'a' && b|0x20 <= 'z' }

// maxName is the largest length of the name of a method.
const maxName = 4 << 10

// codecNames has the names of the codecs for thriftwire.Binary and thriftwire.Compact.
var codecNames = [...]string{"thrift", "thrift-compact"}

// Serve implements yodel.Protocol.
func (p *protocol) Serve(_ context.Context, s *yodel.Session) error {
	if err := s.Next(); err != nil {
		return err
	}
	first, err := s.Reader.Peek(sniffLength)
	kind, _ := kindOf(first)
	switch kind {
	case framed, unframed:
	case header:
		return errors.New("the client uses THeader, which is not served: use TFramedTransport or TBufferedTransport")
	case textual:
		return errors.New("the client uses TJSONProtocol, which is not served: use TBinaryProtocol or TCompactProtocol")
	case compressed:
		return errors.New("the client uses TZlibTransport, which is not served: use TFramedTransport or TBufferedTransport")
	default:
		return framebody.Unexpected(err)
	}
	c := &conn{
		Session: s, options: &p.Options, limits: s.Limits(), replies: pipelined.NewReplies(s), framed: kind == framed,
		methods: methodname.NewFinder(s), last: make(chan struct{}),
	}
	close(c.last)
	for i, name := range codecNames {
		c.codecs[i] = s.Codec(name)
	}
	return s.Loop(c.next, c.replies.Flush)
}

// A conn is a connection. Its fields belong to the goroutine that reads.
type conn struct {
	*yodel.Session
	options *Options
	limits  yodel.Limits
	replies *pipelined.Replies
	framed  bool
	codecs  [2]yodel.Codec
	methods *methodname.Finder
	last    chan struct{} // closed when the last request is answered
}

// next reads a request and starts its execution.
func (c *conn) next() error {
	if c.framed {
		return c.nextFrame()
	}
	if done, err := c.nextBuffered(); done {
		return err
	}
	source := thriftwire.Source{From: c.Reader, Limit: c.limits.MaxMessage + maxName, Reserve: c.Reserve}
	var r thriftwire.Reader
	source.Attach(&r)
	defer func() { c.Release(source.Reserved()) }()
	head, err := r.Header(maxName)
	if err != nil {
		return framebody.Unexpected(err)
	}
	args := r.At
	r.Format = head.Format
	call, err := c.begin(head)
	if err != nil {
		return err
	}
	if err = r.Skip(thriftwire.Struct, 0); err != nil {
		call.End()
		return framebody.Unexpected(err)
	}
	size := r.At - args
	switch fault := source.Fault(); {
	case errors.Is(fault, thriftwire.ErrTooLarge):
		size = c.limits.MaxMessage + 1 // Admit refuses it
	case fault != nil:
		call.refuse(framebody.NoMemory(call.Call().Method))
		return nil
	}
	if e := call.Admit(size, true); e != nil {
		call.refuse(e)
		return nil
	}
	call.Body = r.Bytes[args-1:]
	call.execute()
	return nil
}

// nextBuffered is next for a request that has arrived whole, so that it can be read without a
// Source. Done is false, and nothing has been read, for any other input.
func (c *conn) nextBuffered() (done bool, err error) {
	buffered, _ := c.Reader.Peek(c.Reader.Buffered()) // it is there
	r := thriftwire.Reader{Bytes: buffered}
	head, err := r.Header(maxName)
	args := r.At
	if r.Format = head.Format; err != nil || r.Skip(thriftwire.Struct, 0) != nil || r.At-args > c.limits.MaxMessage {
		return false, nil //nolint:nilerr // next finds the same
	}
	call, err := c.begin(head)
	if err != nil {
		return true, err
	}
	if e := call.Admit(r.At-args, true); e != nil { // it may move what is buffered
		_, _ = c.Reader.Discard(r.At)
		call.refuse(e)
		return true, nil
	}
	call.Body = make([]byte, 1+r.At-args)
	_, _ = c.Reader.Discard(args - 1)
	_, _ = io.ReadFull(c.Reader, call.Body) // as above
	call.execute()
	return true, nil
}

// nextFrame reads a request with a frame around it, and starts its execution.
func (c *conn) nextFrame() error {
	length, err := c.Reader.Peek(4)
	if err != nil {
		return framebody.Unexpected(err)
	}
	size := int64(length[0])<<24 | int64(length[1])<<16 | int64(length[2])<<8 | int64(length[3])
	_, _ = c.Reader.Discard(4) // Peek has read them
	if size > math.MaxInt32 {
		return fmt.Errorf("a frame has %d bytes", size)
	}
	frame := &io.LimitedReader{R: c.Reader, N: size}
	source := thriftwire.Source{From: frame, Limit: 2 * maxName}
	var r thriftwire.Reader
	source.Attach(&r)
	head, err := r.Header(maxName)
	if err != nil {
		return fmt.Errorf("a frame of %d bytes: %w", size, framebody.Unexpected(err))
	}
	call, err := c.begin(head)
	if err != nil {
		return err
	}
	body, _, refusal, err := framebody.Receive(call.Served, c.Session, make([]byte, 1), frame, int(frame.N))
	switch {
	case err != nil:
		call.End()
		return err
	case refusal != nil:
		call.refuse(refusal)
		_, err = io.Copy(io.Discard, frame)
		return err
	}
	call.Body = body
	call.execute()
	return nil
}

// begin begins the call of a request.
func (c *conn) begin(head thriftwire.Header) (*call, error) {
	if head.Type != thriftwire.Call && head.Type != thriftwire.OneWay {
		return nil, fmt.Errorf("a request is a message of type %d", head.Type)
	}
	codec := c.codecs[head.Format]
	if codec == nil {
		return nil, fmt.Errorf("the client uses the %v protocol: add the codec %q to ServerOptions.Codecs", head.Format, codecNames[head.Format])
	}
	v := c.resolve(head.Name, codec)
	if slices.Contains(c.options.OneWay, v.Call().Method) {
		head.Type = thriftwire.OneWay
	}
	v.Call().OneWay = head.Type == thriftwire.OneWay
	if _, method, ok := strings.Cut(head.Name, ":"); ok {
		head.Name = method // TMultiplexedProtocol expects it in replies
	}
	return &call{Served: v, conn: c, head: head, codec: codec}, nil
}

// resolve begins a call of the method that a name of Thrift means.
func (c *conn) resolve(name string, codec yodel.Codec) *yodel.Served {
	service, method, ok := strings.Cut(name, ":")
	if !ok {
		service, method = c.options.Service, name
	}
	return c.methods.Begin(service, method, codec)
}
