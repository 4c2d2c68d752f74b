// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel/internal/hpack"
)

// An echo replies to requests with their bodies. The path says how.
type echo struct {
	begun chan *Stream // gets the streams whose handlers wait, if it is not nil
	leave chan struct{}
}

func (e *echo) Head(s *Stream) Plan {
	switch {
	case strings.HasPrefix(s.Path, "/inline"):
		return Plan{Whole: 1 << 20, Inline: true}
	case strings.HasPrefix(s.Path, "/whole"):
		return Plan{Whole: 1 << 20}
	default:
		return Plan{}
	}
}

var (
	okHeader  = []Field{{Name: ":status", Value: "200"}, {Name: "content-type", Value: "application/grpc", Form: Repeated}}
	okTrailer = []Field{{Name: "grpc-status", Value: "0", Form: Repeated}}
)

func (e *echo) Serve(s *Stream) {
	switch path := s.Path[1:]; {
	case path == "inline/wait", path == "wait":
		e.begun <- s
		<-e.leave
		_ = s.Reply(okHeader, s.Body(), okTrailer)
	case path == "inline/done", path == "done":
		e.begun <- s
		<-s.Done()
		_ = s.Reply(okHeader, nil, okTrailer)
	case path == "feed":
		_ = s.Header(okHeader)
		for range mostControls * 2 / 5 {
			if _, err := s.Write([]byte("0123456789")); err != nil {
				return
			}
		}
		_ = s.End(okTrailer)
	case strings.HasSuffix(path, "exit"):
		runtime.Goexit()
	case path == "early/held":
		_ = s.Reply(okHeader, make([]byte, heldBody), okTrailer)
		s.Interrupt(io.ErrClosedPipe)
	case path == "inline/close":
		s.c.Close()
		switch s.id / 2 % 3 {
		case 0:
			_ = s.Reply(okHeader, nil, okTrailer)
		case 1:
			<-s.Done()
		}
	case path == "early":
		_ = s.Reply(okHeader, nil, okTrailer)
	case path == "none", path == "inline/none":
	case s.Whole() && path != "stream":
		_ = s.Reply(okHeader, s.Body(), okTrailer)
	default:
		_ = s.Header(okHeader)
		if _, err := io.Copy(struct{ io.Writer }{s}, struct{ io.Reader }{s}); err == nil {
			_ = s.End(append(okTrailer[:1:1], s.Trailers()...))
		}
	}
}

// heldBody is a body that is larger than the default window of a stream.
const heldBody = 70000

// A peer is a client made of frames.
type peer struct {
	t       *testing.T
	nc      net.Conn
	conn    *Conn
	encoder hpack.Encoder
	decoder hpack.Decoder[int]
	served  chan error
	id      uint32

	mu     sync.Mutex
	more   sync.Cond
	frames []frame
	err    error
}

// meet serves one end of a pipe, and returns the client at the other.
func meet(t *testing.T, cfg Config) *peer {
	here, there := net.Pipe()
	return newPeer(t, cfg, here, there)
}

// meetTCP is meet over a socket.
func meetTCP(t *testing.T, cfg Config) *peer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	here, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	there, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return newPeer(t, cfg, here, there)
}

// meetTLS is meet over TLS.
func meetTLS(t *testing.T, cfg Config) *peer {
	site := httptest.NewTLSServer(nil) // it has a certificate
	site.Close()
	here, there := net.Pipe()
	trust := site.Client().Transport.(*http.Transport).TLSClientConfig.Clone() // it is
	trust.ServerName = "example.com"
	return newPeer(t, cfg, tls.Client(here, trust), tls.Server(there, site.TLS))
}

// pipeOf returns the ends of a pipe.
func pipeOf(t *testing.T) (here, there net.Conn) {
	here, there = net.Pipe()
	t.Cleanup(func() { here.Close() })
	return here, there
}

func newPeer(t *testing.T, cfg Config, here, there net.Conn) *peer {
	if cfg.Handler == nil {
		cfg.Handler = &echo{}
	}
	p := &peer{t: t, nc: here, conn: New(there, cfg), served: make(chan error, 1)}
	p.more.L = &p.mu
	go p.conn.Serve(nil, func(err error) { p.served <- err })
	go p.read()
	t.Cleanup(func() {
		p.nc.Close()
		p.conn.Close()
	})
	return p
}

func (p *peer) read() {
	var buf []byte
	piece := make([]byte, 32<<10)
	for {
		n, err := p.nc.Read(piece)
		p.mu.Lock()
		buf = append(buf, piece[:n]...)
		for {
			f, n, fault := next(buf)
			if fault != nil {
				err = fault
			}
			if n == 0 {
				break
			}
			if f.payload = bytes.Clone(f.payload); f.kind == headersFrame {
				// blocks are decoded in their order, so that a test can take replies in any order
				f.payload, err = p.decode(f.payload)
			}
			p.frames = append(p.frames, f)
			buf = buf[n:]
		}
		p.err = err
		p.more.Broadcast()
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// decode returns the fields of a block, each in a line.
func (p *peer) decode(block []byte) (lines []byte, err error) {
	err = p.decoder.Decode(block, func(name, value string, _ *int) bool {
		lines = append(lines, name+"="+value+"\n"...)
		return true
	})
	return lines, err
}

func (p *peer) send(frames ...[]byte) {
	p.t.Helper()
	if _, err := p.nc.Write(slices.Concat(frames...)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) greet(settings ...setting) {
	p.t.Helper()
	p.send([]byte(preface), appendSettings(nil, settings...))
}

// head returns the header block of a request.
func (p *peer) head(path string, fields ...Field) (block []byte) {
	for _, f := range append([]Field{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path, Form: Repeated}, {Name: ":authority", Value: "a"}}, fields...) {
		block = appendField(block, &p.encoder, &f)
	}
	return block
}

// begin returns HEADERS of a new stream.
func (p *peer) begin(flags byte, path string, fields ...Field) []byte {
	if p.id++; p.id%2 == 0 {
		p.id++
	}
	return raw(headersFrame, flagEndHeaders|flags, p.id, string(p.head(path, fields...)))
}

// awaitFrame waits for a frame, removes it and returns it. Frames before it stay.
func (p *peer) awaitFrame(what string, is func(f frame) bool) frame {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for i, f := range p.frames {
			if is(f) {
				p.frames = slices.Delete(p.frames, i, i+1)
				return f
			}
		}
		if p.err != nil {
			p.t.Fatalf("the connection has ended before %s: %v, with %v", what, p.err, p.frames)
		}
		p.more.Wait()
	}
}

// seen returns the frames that have arrived and were not awaited.
func (p *peer) seen() []frame {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.frames)
}

func (p *peer) awaitReset(id uint32) errorCode {
	p.t.Helper()
	f := p.awaitFrame(fmt.Sprint("RST_STREAM ", id), func(f frame) bool { return f.kind == resetFrame && f.stream == id })
	return errorCode(f.payload[3])
}

func (p *peer) awaitGoAway() (last uint32, code errorCode) {
	p.t.Helper()
	f := p.awaitFrame("GOAWAY", func(f frame) bool { return f.kind == goAwayFrame })
	return uint32(f.payload[2])<<8 | uint32(f.payload[3]), errorCode(f.payload[7])
}

// awaitPong waits until all frames that were sent before have been handled.
func (p *peer) awaitPong() {
	p.t.Helper()
	p.send(appendPing(nil, 0, [8]byte{1: 1}))
	p.awaitFrame("PING", func(f frame) bool { return f.kind == pingFrame && f.has(flagAck) })
}

// reply waits for the reply on a stream, and returns its body and its fields.
func (p *peer) reply(id uint32) (body string, fields []string) {
	p.t.Helper()
	for {
		f := p.awaitFrame(fmt.Sprint("a reply on ", id), func(f frame) bool {
			return f.stream == id && (f.kind == headersFrame || f.kind == dataFrame || f.kind == resetFrame)
		})
		switch f.kind {
		case resetFrame:
			return body, append(fields, fmt.Sprint("reset ", f.payload[3]))
		case dataFrame:
			body += string(f.payload)
		default:
			fields = append(fields, strings.Fields(string(f.payload))...)
		}
		if f.has(flagEndStream) {
			return body, fields
		}
	}
}

// over closes the connection and returns what Serve has returned.
func (p *peer) over() error {
	p.nc.Close()
	return <-p.served
}

const okFields = "[:status=200 content-type=application/grpc grpc-status=0]"

func (p *peer) check(id uint32, want string) {
	p.t.Helper()
	if body, fields := p.reply(id); body != want || fmt.Sprint(fields) != okFields {
		p.t.Errorf("stream %d: %d bytes and %v, want %d bytes and %s", id, len(body), fields, len(want), okFields)
	}
}

// isFault checks that Serve has ended with a Fault of this code.
func isFault(t *testing.T, err error, code errorCode) {
	t.Helper()
	if f, ok := errors.AsType[*Fault](err); !ok || f.code != code {
		t.Errorf("Serve returns %v, want a Fault with the code %d", err, code)
	}
}
