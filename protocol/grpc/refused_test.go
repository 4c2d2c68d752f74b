// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/grpc"
	"github.com/yodel-rpc/yodel/protocol/internal/testserve"
)

// Frames of HTTP/2, from RFC 9113.
const (
	settings        = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	goAwayAll       = "\x00\x00\x08\x07\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00" // no stream was processed
	goAwayFirst     = "\x00\x00\x08\x07\x00\x00\x00\x00\x00" + "\x00\x00\x00\x01" + "\x00\x00\x00\x00" // stream 1 was
	resetRefused    = "\x00\x00\x04\x03\x00\x00\x00\x00\x01" + "\x00\x00\x00\x07"
	resetInternal   = "\x00\x00\x04\x03\x00\x00\x00\x00\x01" + "\x00\x00\x00\x02"
	resetEnhance    = "\x00\x00\x04\x03\x00\x00\x00\x00\x01" + "\x00\x00\x00\x0b"
	headersType     = 1
	prefaceSize     = 24
	frameHeaderSize = 9
)

// answerOnce listens, answers the first request on the first connection with frames, and passes all
// further connections on to a server.
func answerOnce(t *testing.T, frames, server string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		first, err := l.Accept()
		if err != nil {
			return
		}
		var answering sync.WaitGroup
		defer answering.Wait()
		defer first.Close()
		answering.Go(func() {
			defer first.Close()
			answer(first, frames)
		})
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", server)
			if err != nil {
				_ = c.Close()
				return
			}
			defer c.Close()
			defer to.Close()
			go func() { _, _ = io.Copy(to, c) }() // it ends with the connections
			go func() { _, _ = io.Copy(c, to) }()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return l.Addr().String()
}

// answer sends settings, and frames for the first request. It processes no further request.
func answer(c net.Conn, frames string) {
	_, _ = io.WriteString(c, settings)
	r, answered := bufio.NewReader(c), false
	if _, err := r.Discard(prefaceSize); err != nil {
		return
	}
	for {
		header := make([]byte, frameHeaderSize)
		if _, err := io.ReadFull(r, header); err != nil {
			return
		}
		if _, err := r.Discard(int(header[0])<<16 | int(header[1])<<8 | int(header[2])); err != nil {
			return
		}
		if header[3] == headersType {
			_, _ = io.WriteString(c, frames)
			if frames == goAwayFirst && !answered {
				return // without a reply
			}
			frames, answered = goAwayFirst, true
		}
	}
}

// A call whose stream the server has certainly not processed is sent again, although its method may
// not be executed twice. Any other call fails.
func TestRefusedStreams(t *testing.T) {
	server := serve(t)
	for name, test := range map[string]struct {
		frames string
		again  bool
		code   yodel.Code // otherwise
	}{
		"refused":                {resetRefused, true, 0},
		"before GOAWAY's stream": {goAwayAll, true, 0},
		"behind GOAWAY's stream": {goAwayFirst, false, yodel.Unavailable},
		"internal error":         {resetInternal, false, yodel.Internal},
		"too much":               {resetEnhance, false, yodel.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			c := yodel.NewClient(discovery.Static("grpc://"+answerOnce(t, test.frames, server)), &yodel.ClientOptions{Wires: []yodel.Wire{grpc.Wire}})
			defer c.Close()
			got, err := double.Call(t.Context(), c, new(21))
			if test.again && (err != nil || *got != 42) {
				t.Errorf("got %v, %v", got, err)
			}
			if e, ok := errors.AsType[*yodel.Error](err); !test.again && (!ok || e.Code != test.code || e.NotProcessed) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

// An upload and a duplex whose stream the server has certainly not processed are begun again with
// the messages that were sent before. The caller's function runs once.
func TestRefusedStreamsBeginAgain(t *testing.T) {
	server := serve(t)
	for name, test := range map[string]struct {
		frames string
		again  bool
	}{
		"refused":                {resetRefused, true},
		"before GOAWAY's stream": {goAwayAll, true},
		"behind GOAWAY's stream": {goAwayFirst, false},
		"internal error":         {resetInternal, false},
	} {
		for kind, call := range map[string]func(c *yodel.Client, runs *int) (int, error){
			"upload": func(c *yodel.Client, runs *int) (int, error) {
				got, err := sum.Call(t.Context(), c, func(send yodel.Send[int]) error {
					*runs++
					for i := range 100 {
						if err := send(&i); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					return 0, err
				}
				return *got, nil
			},
			"duplex": func(c *yodel.Client, runs *int) (total int, err error) {
				return total, echo.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
					*runs++
					for i := range 100 {
						if err := send(&i); err != nil {
							return err
						}
						n, err := recv.Next()
						if err != nil {
							return err
						}
						total += *n
					}
					return nil
				})
			},
			"duplex on two goroutines": func(c *yodel.Client, runs *int) (total int, err error) {
				return total, echo.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) (err error) {
					*runs++
					var sending sync.WaitGroup
					defer sending.Wait()
					sending.Go(func() {
						defer func() { _ = send.End() }() // the receiver meets the error
						for i := range 100 {
							if send(&i) != nil {
								return
							}
						}
					})
					for n, err := range recv {
						if err != nil {
							return err
						}
						total += *n
					}
					return nil
				})
			},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				c := yodel.NewClient(discovery.Static("grpc://"+answerOnce(t, test.frames, server)), &yodel.ClientOptions{Wires: []yodel.Wire{grpc.Wire}})
				defer c.Close()
				runs := 0
				got, err := call(c, &runs)
				if test.again && (err != nil || got != 4950) || !test.again && (err == nil || yodel.NotProcessed(err)) {
					t.Errorf("got %v, %v", got, err)
				}
				if runs != 1 {
					t.Errorf("the caller's function ran %d times", runs)
				}
			})
		}
	}
}

// A stream that cannot be begun again, because the client has not kept all that was sent, or
// because no server processes it, fails with an error that says that it was not executed.
func TestRefusedStreamsFail(t *testing.T) {
	const long yodel.Upload[string, int] = "test.Numbers.Long"
	first, second := answerOnce(t, resetRefused, ""), answerOnce(t, resetRefused, "")
	for name, test := range map[string]struct {
		servers discovery.Resolver
		size    int
		id      string
	}{
		"more than is kept": {discovery.Static("grpc://" + first), 65 << 10, "YDL1104"},
		"no server":         {discovery.Static("grpc://" + second), 10, "YDL1003"},
	} {
		t.Run(name, func(t *testing.T) {
			c := yodel.NewClient(test.servers, &yodel.ClientOptions{Wires: []yodel.Wire{grpc.Wire}, DialTimeout: time.Second})
			defer c.Close()
			var sent error
			_, err := long.Call(t.Context(), c, func(send yodel.Send[string]) error {
				for sent == nil { // until the end of the stream is noticed
					sent = send(new(strings.Repeat("x", test.size)))
				}
				return sent
			})
			if !yodel.NotProcessed(err) || yodel.CodeOf(err) != yodel.Unavailable {
				t.Errorf("the call: %v", err)
			}
			if e, ok := errors.AsType[*yodel.Error](sent); !ok || e.ID != test.id || strings.Count(e.Message, string(long)) != 1 {
				t.Errorf("sending: %v", sent)
			}
		})
	}
}

// A function that panics, or ends its goroutine, does so on that of its caller, also while an
// attempt is made again.
func TestAPanicInTheCallersFunction(t *testing.T) {
	server := serve(t)
	for what, leave := range map[string]func(){"panic": func() { panic("a bug") }, "Goexit": runtime.Goexit} {
		for name, addr := range map[string]string{"": server, "refused": answerOnce(t, resetRefused, server)} {
			t.Run(what+"/"+name, func(t *testing.T) {
				c := yodel.NewClient(discovery.Static("grpc://"+addr), &yodel.ClientOptions{Wires: []yodel.Wire{grpc.Wire}})
				defer c.Close()
				gone := make(chan any, 1)
				go func() {
					defer func() { gone <- recover() }()
					err := echo.Call(t.Context(), c, func(recv yodel.Recv[int], send yodel.Send[int]) error {
						_ = send(new(1))
						_, err := recv.Next()
						leave()
						return err
					})
					t.Errorf("the call returned %v", err)
				}()
				if value := <-gone; (value != nil) != (what == "panic") {
					t.Errorf("recovered %v", value)
				}
			})
		}
	}
}

const (
	beganFeed   = "\x00\x00\x19\x01\x04\x00\x00\x00\x01" + "\x88\x0f\x10\x15application/grpc+json" // HEADERS with the status 200
	wholeNumber = "\x00\x00\x07\x00\x00\x00\x00\x00\x01" + "\x00\x00\x00\x00\x0242"                // DATA with a message
	halfNumber  = "\x00\x00\x07\x00\x00\x00\x00\x00\x01" + "\x00\x00\x00\x00\x6442"                // DATA with the beginning of one
	endOfFeed   = "\x00\x00\x00\x00\x01\x00\x00\x00\x01"                                           // DATA without bytes, at the end
)

// answerAndClose listens, sends frames for the first request, and closes the connection.
func answerAndClose(t *testing.T, frames string) (addr string) {
	t.Helper()
	return testserve.Accept(t, "", func(c net.Conn) {
		_, _ = io.WriteString(c, settings)
		r := bufio.NewReader(c)
		_, err := r.Discard(prefaceSize)
		for header := make([]byte, frameHeaderSize); err == nil && header[3] != headersType; {
			if _, err = io.ReadFull(r, header); err == nil {
				_, err = r.Discard(int(header[0])<<16 | int(header[1])<<8 | int(header[2]))
			}
		}
		_, _ = io.WriteString(c, frames)
	}).Addr
}

// A feed whose connection is lost fails as a call whose connection is lost, wherever it was. A feed
// that its server ends within a message breaks the protocol.
func TestALostConnectionEndsAFeed(t *testing.T) {
	const count yodel.Feed[int, int] = "Test.Count"
	for name, test := range map[string]struct {
		frames string
		code   yodel.Code
		id     string
	}{
		"before a message":     {beganFeed, yodel.Unavailable, "YDL1104"},
		"behind a message":     {beganFeed + wholeNumber, yodel.Unavailable, "YDL1104"},
		"within a message":     {beganFeed + halfNumber, yodel.Unavailable, "YDL1104"},
		"end within a message": {beganFeed + halfNumber + endOfFeed, yodel.Internal, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := yodel.NewClient(discovery.Static("grpc://"+answerAndClose(t, test.frames)), &yodel.ClientOptions{Wires: []yodel.Wire{grpc.Wire}})
			defer c.Close()
			var failure error
			for _, err := range count.Call(t.Context(), c, new(int)) {
				failure = err
			}
			if e, ok := errors.AsType[*yodel.Error](failure); !ok || e.Code != test.code || e.ID != test.id {
				t.Errorf("got %v, want the code %v and the ID %q", failure, test.code, test.id)
			}
		})
	}
}
