// SPDX-License-Identifier: Apache-2.0

package httplink

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"

	"github.com/yodel-rpc/yodel"
)

// A greetedConn notices whether the server begins with settings, as servers of HTTP/2 do.
type greetedConn struct {
	net.Conn
	greeting chan error // capacity 1: gets nil, or why there are no settings
	// For Read, which net/http calls from one goroutine.
	known bool // greeting has got its element
	read  int  // bytes that were read before
}

// In RFC 9113, section 4.1, the fourth byte of a frame is its type.
const (
	typeAt       = 3
	typeSettings = 4
)

var errNoSettings = errors.New("the server does not begin with settings of HTTP/2")

// Read implements net.Conn.
func (c *greetedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.known {
		return n, err
	}
	at := typeAt - c.read
	c.read += n
	greeting := err
	switch {
	case n > at && b[at] == typeSettings:
		greeting = nil
	case n > at:
		greeting = errNoSettings
	case err == nil: // more bytes decide it
		return n, nil
	}
	c.known = true
	c.greeting <- greeting
	return n, err
}

// awaitSettings waits until the server has sent its settings. It returns an error if the connection
// ends first.
func (c *greetedConn) awaitSettings(ctx context.Context, ep *yodel.Endpoint) error {
	var err error
	select {
	case err = <-c.greeting:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if secure, ok := c.Conn.(interface{ ConnectionState() tls.ConnectionState }); ok && err != nil && secure.ConnectionState().NegotiatedProtocol == "" {
		return mismatch(ep, err, `TLS has negotiated no protocol, and this Wire needs HTTP/2: put "h2" into NextProtos of the TLS configurations`)
	}
	if errors.Is(err, io.EOF) {
		return mismatch(ep, err, "the server ended the connection without a word; does it speak HTTP/2?")
	}
	return err
}

// mismatch returns the error of a server that does not speak HTTP/2.
func mismatch(ep *yodel.Endpoint, cause error, what string) error {
	return &yodel.Error{Code: yodel.Unavailable, ID: "YDL1101", NotProcessed: true, Message: ep.Addr() + ": " + what, Cause: cause}
}
