// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/yodel-rpc/yodel"
)

// SendFile sends a file of file.FileSize bytes to a server of rpcx or to Transfers. It calls the
// server by c, and connects to the address that the server names, over TCP without TLS. It returns
// when the server has closed that connection. If from has another number of bytes, SendFile fails.
//
// A server of rpcx does not say whether it has received the whole file, and its handler may leave
// the connection open. SendFile waits for it for a second at most after it has sent the file.
func SendFile(ctx context.Context, c yodel.Caller, file *File, from io.Reader) error {
	conn, closes, err := openTransfer(ctx, c, methodUpload, file)
	if err != nil {
		return err
	}
	return transfer(ctx, conn, methodUpload, file, func() error {
		if _, err := io.Copy(conn, &wholeReader{from, file.FileSize}); err != nil {
			return err
		}
		if err := conn.CloseWrite(); err != nil {
			return err
		}
		if !closes {
			_ = conn.SetReadDeadline(time.Now().Add(maxCloseWait)) // if it fails, the connection has ended
		}
		_, err := io.Copy(io.Discard, conn)
		if !closes && errors.Is(err, os.ErrDeadlineExceeded) {
			return context.Cause(ctx)
		}
		return err
	})
}

// maxCloseWait is how long SendFile waits until a server of rpcx closes the connection.
const maxCloseWait = time.Second

// DownloadFile receives a file from a server of rpcx or from Transfers, and writes it to to. File
// has its name and meta. It calls and connects as SendFile does. The end of the connection is the
// end of the file. Transfers reset the connection of a download that failed, which makes
// DownloadFile fail. Most handlers of rpcx do not, so compare the size if the file matters.
func DownloadFile(ctx context.Context, c yodel.Caller, file *File, to io.Writer) error {
	conn, _, err := openTransfer(ctx, c, methodDownload, file)
	if err != nil {
		return err
	}
	return transfer(ctx, conn, methodDownload, file, func() error {
		_, err := io.Copy(to, conn)
		return err
	})
}

// OpenStream opens a stream of rpcx: a connection that both sides use as they like. It calls and
// connects as SendFile does. Ctx limits only the opening. The caller must close the connection.
func OpenStream(ctx context.Context, c yodel.Caller, meta map[string]string) (net.Conn, error) {
	conn, _, err := openTransfer(ctx, c, methodStream, &streamRequest{meta})
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// openTransfer calls a method for a token, and opens the connection that begins with it. Closes
// reports whether the server says that it closes the connection in the end.
func openTransfer(ctx context.Context, c yodel.Caller, method string, args any) (conn *net.TCPConn, closes bool, err error) {
	reply := new(tokenReply)
	if err := c.Do(ctx, &yodel.Call{Method: method, Args: args, Reply: reply}); err != nil {
		return nil, false, err
	}
	if len(reply.Token) != len(token{}) {
		return nil, false, yodel.Errorf(yodel.Internal, "%s: the server returned a token of %d bytes", method, len(reply.Token))
	}
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", reply.Addr)
	if err != nil {
		return nil, false, &yodel.Error{Code: yodel.Unavailable, Cause: err, Message: fmt.Sprintf("%s: connect for the transfer: %v", method, err)}
	}
	if at, ok := ctx.Deadline(); ok {
		_ = nc.SetWriteDeadline(at)
	}
	if _, err = nc.Write(reply.Token); err != nil {
		_ = nc.Close()
		return nil, false, &yodel.Error{Code: yodel.Unavailable, Cause: err, Message: fmt.Sprintf("%s: send the token: %v", method, err)}
	}
	_ = nc.SetDeadline(time.Time{})
	return nc.(*net.TCPConn), reply.Closes, nil //nolint:forcetypeassert // of the network "tcp"
}

// transfer runs f, which ends when ctx does, and closes the connection.
func transfer(ctx context.Context, conn *net.TCPConn, method string, file *File, f func() error) error {
	defer func() { _ = conn.Close() }() // err has what matters
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := f()
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err == nil {
		return nil
	}
	_ = conn.SetLinger(0) // the server must not take a part of the file for the whole
	e := &yodel.Error{Code: yodel.Unavailable, Cause: err, Message: fmt.Sprintf("%s: %q: %v", method, file.FileName, err)}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		e.Code = yodel.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		e.Code = yodel.Canceled
	}
	return e
}
