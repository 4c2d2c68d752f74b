// SPDX-License-Identifier: Apache-2.0

// Package httpconnect begins a connection of another protocol with an HTTP request CONNECT, as
// net/rpc and rpcx do for servers that share a port with HTTP.
package httpconnect

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
)

// Ask asks the HTTP server at the other end of nc for its service at a path, and reads the answer
// from reader. It returns when ctx ends.
func Ask(ctx context.Context, nc net.Conn, reader *bufio.Reader, path string) error {
	deadline, _ := ctx.Deadline()
	_ = nc.SetDeadline(deadline) // if nc does not support deadlines, the end of ctx closes it
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	defer stop()
	if _, err := io.WriteString(nc, "CONNECT "+path+" HTTP/1.0\n\n"); err != nil {
		return err
	}
	line, err := reader.ReadSlice('\n')
	status := string(bytes.TrimRight(line, "\r\n"))
	if err == nil && !strings.HasPrefix(status, "HTTP/1.0 200 ") && !strings.HasPrefix(status, "HTTP/1.1 200 ") {
		return fmt.Errorf("the server answered CONNECT %s with %.60q", path, status)
	}
	if err == nil {
		err = skipHeader(reader)
	}
	if err != nil {
		return fmt.Errorf("read the answer to CONNECT %s: %w", path, framebody.Unexpected(err))
	}
	return nc.SetDeadline(time.Time{})
}

// Accept answers the request with which a connection begins, unless the connection begins with the
// protocol itself. Is reports whether the first byte is that of a request. Connected ends the
// status of the answer, for example "Connected to Go RPC".
func Accept(s *yodel.Session, is func(first byte) bool, connected string) error {
	if err := s.Next(); err != nil {
		return err
	}
	if first, err := s.Reader.Peek(1); err != nil || !is(first[0]) {
		return err
	}
	if err := skipHeader(s.Reader); err != nil {
		return fmt.Errorf("read the CONNECT request: %w", err)
	}
	_, err := io.WriteString(s, "HTTP/1.0 200 "+connected+"\n\n")
	return err
}

// maxHeader is the largest size of a request or an answer, in bytes.
const maxHeader = 8 << 10

// skipHeader reads lines up to an empty line.
func skipHeader(from interface {
	ReadSlice(delim byte) ([]byte, error)
}) error {
	for n := 0; n < maxHeader; {
		line, err := from.ReadSlice('\n')
		if err != nil {
			return framebody.Unexpected(err)
		}
		if n += len(line); len(bytes.TrimRight(line, "\r\n")) == 0 {
			return nil
		}
	}
	return errors.New("it has more than 8 KiB")
}
