// SPDX-License-Identifier: Apache-2.0

package dubbo

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/yodel-rpc/yodel/internal/hessian"
	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
)

// A frame is, with all numbers in big endian:
//
//	2 bytes   magic
//	byte      flags: request, two-way, event, and the serialization in the lower five bits
//	byte      status of a response
//	uint64    number of the request
//	uint32    length of the body
//	…         body
//
// The body of a request is the version of the protocol, the interface, its version, the method, the
// types of the parameters, the arguments, and the attachments. The body of a response is a kind, a
// value unless the kind says that there is none, and attachments if the kind says so. If the status
// is not statusOK, the body is a text.
const (
	magic    = "\xda\xbb"
	headSize = 16

	request       byte = 0x80 // otherwise a response
	twoWay        byte = 0x40 // a response is expected
	event         byte = 0x20
	serialization byte = 0x1f // the mask of the serialization
	hessian2      byte = 2
)

// The statuses of responses.
const (
	statusOK              byte = 20
	statusClientTimeout   byte = 30
	statusServerTimeout   byte = 31
	statusBadRequest      byte = 40
	statusServiceNotFound byte = 60
	statusExhausted       byte = 100 // SERVER_THREADPOOL_EXHAUSTED_ERROR
)

// The kinds of responses. A kind that has attachments is greater by withAttachments.
const (
	kindException   = 0
	kindValue       = 1
	kindNull        = 2
	withAttachments = 3
)

const (
	// version is the version of the protocol. Only clients of this version take attachments of
	// responses.
	version = "2.0.2"
	// readOnly is the body of the event by which a server says that it takes no further requests:
	// the string R.
	readOnly = "\x01R"
	// maxEvent is the largest size of an event.
	maxEvent = 4 << 10
	// maxNames is the largest size of the names in a request.
	maxNames = 16 << 10
	// maxBody is the largest size of a body that an int has on every platform.
	maxBody = 1<<31 - 1
)

// A head is the beginning of a frame.
type head struct {
	flags  byte
	status byte
	number uint64
	body   int // the size of the body
}

func (h *head) is(flag byte) bool { return h.flags&flag != 0 }

// append appends the head of a frame with a body of this size.
func (h *head) append(b []byte, body int) []byte {
	b = append(append(b, magic...), h.flags, h.status)
	b = binary.BigEndian.AppendUint64(b, h.number)
	return binary.BigEndian.AppendUint32(b, uint32(body)) //nolint:gosec // the limits of messages are smaller
}

// Errors of frames.
var (
	errMagic      = errors.New("a frame does not begin with 0xdabb")
	errTooLarge   = errors.New("a frame is too large")
	errEventLarge = errors.New("an event is too large")
)

// A frameReader reads frames. Its buffer must have room for maxNames.
type frameReader struct{ *bufio.Reader }

// head reads the head of a frame. The caller must read or skip the body next.
func (r frameReader) head() (h head, err error) {
	b, err := r.Peek(headSize)
	if err != nil {
		if len(b) > 0 {
			err = framebody.Unexpected(err)
		}
		return h, err
	}
	if string(b[:2]) != magic {
		return h, errMagic
	}
	size := binary.BigEndian.Uint32(b[12:])
	if size > maxBody {
		return h, errTooLarge
	}
	h = head{flags: b[2], status: b[3], number: binary.BigEndian.Uint64(b[4:]), body: int(size)}
	_, err = r.Discard(headSize) // the bytes are in the buffer
	return h, err
}

// skip discards n bytes.
func (r frameReader) skip(n int) error { return framebody.Skip(r.Reader, n) }

// body reads a body of n bytes.
func (r frameReader) body(n int) ([]byte, error) {
	return framebody.Read(nil, r.Reader, n, framebody.Uncounted{})
}

// names are the names in a request.
type names struct {
	version    string // of the protocol
	path       string // the interface
	service    string // the version of the interface
	method     string
	types      string // of the parameters, as descriptors of the JVM
	parameters int
	size       int // how many bytes of the body the names are
}

// The methods of every interface.
const (
	echoMethod    = "$echo"
	genericMethod = "$invoke"
	genericAsync  = "$invokeAsync"
)

// isGeneric reports whether the arguments are the name, the types and the arguments of a method.
func (n *names) isGeneric() bool {
	return (n.method == genericMethod || n.method == genericAsync) && n.parameters == 3
}

// names reads the names in a request without reading over them. They must fit in the buffer.
func (r frameReader) names(body int) (n names, err error) {
	b, err := r.Peek(min(body, maxNames))
	if err != nil {
		return n, framebody.Unexpected(err)
	}
	return readNames(b)
}

// readNames reads the names at the beginning of a body.
func readNames(b []byte) (n names, err error) {
	values := hessian.NewReader(b)
	for _, text := range []*string{&n.version, &n.path, &n.service, &n.method, &n.types} {
		if *text, err = values.Text(); err != nil {
			return n, fmt.Errorf("the names of a request: %w", err)
		}
	}
	if n.path = n.path[strings.LastIndexByte(n.path, '/')+1:]; n.method == "" || n.path == "" {
		return n, errors.New("a request names no interface or no method")
	}
	n.size = values.At()
	n.parameters, err = countTypes(n.types)
	return n, err
}

// countTypes returns how many descriptors of types of the JVM follow one another.
func countTypes(types string) (n int, err error) {
	for rest := types; rest != ""; n++ {
		rest = strings.TrimLeft(rest, "[")
		switch {
		case rest == "":
		case rest[0] == 'L':
			if i := strings.IndexByte(rest, ';'); i > 0 {
				rest = rest[i+1:]
				continue
			}
		case strings.IndexByte("ZBCSIJFD", rest[0]) >= 0:
			rest = rest[1:]
			continue
		}
		return 0, fmt.Errorf("%.100q are not descriptors of types", types)
	}
	return n, nil
}
