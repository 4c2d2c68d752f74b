// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/framebody"
)

// A File describes a file that is transferred. The fields have the names of rpcx.
type File struct {
	// FileName is the name that the client has given. A server must not use it as a path unchecked.
	FileName string `json:"file_name"`
	// FileSize is the size in bytes. It is 0 in a download.
	FileSize int64             `json:"file_size,omitempty"`
	Meta     map[string]string `json:"meta,omitempty"`
}

// TransferOptions are the options of Transfers. Transfers of a kind whose function is nil are not
// served.
type TransferOptions struct {
	// Upload receives a file. From ends with io.EOF after FileSize bytes. If the client sends fewer
	// or more bytes, Read fails. The upload may take 1 s for each 4 KiB and twice Limits.KeepAlive
	// in all, including the time that Upload takes. Then Read fails too.
	Upload func(ctx context.Context, file *File, from io.Reader) error
	// Download sends a file.
	Download func(ctx context.Context, file *File, to io.Writer) error
	// Stream uses a connection in both directions. The server closes the connection when Stream
	// returns. Reads have no deadline unless Stream sets one.
	Stream func(ctx context.Context, meta map[string]string, conn net.Conn) error
	// Addr is the host and port to which clients connect for a transfer. Default: the address at
	// which the call of the client has arrived.
	Addr string
	// MaxSize is the size of the largest file that clients may upload, in bytes. Default 1 GiB.
	MaxSize int64
	// MaxTokens is how many tokens may wait for their connections. Further calls fail. Default
	// 1000.
	MaxTokens int
	// TokenLife is how long a token waits for its connection. Default 30 s.
	TokenLife time.Duration
}

// Transfers serves the transfers of files and the streams of rpcx: its services _filetransfer and
// _streamservice. A client calls a method, gets a token, and begins a further connection with the
// token, which may be used once. Transfers is the Protocol of these connections:
//
//	transfers := rpcx.NewTransfers(&rpcx.TransferOptions{Upload: save})
//	server := yodel.NewServer(&yodel.ServerOptions{Protocols: []yodel.Protocol{rpcx.Protocol, transfers}})
//	err := transfers.Register(server)
//
// Middleware decides about the calls. It does not see the further connections, and neither does
// ServerOptions.Connect. These are calls of no method, so statistics do not include them. Clients
// of rpcx make them without TLS. If the server uses TLS, serve them by a second server without it,
// whose only Protocol is the same Transfers, and set TransferOptions.Addr to its address.
//
// The functions of TransferOptions run concurrently. Their context ends when the connection does.
// If one returns an error or panics, the server resets the connection, so that the client does not
// take a part of a file for the whole. The server does not log the error. A shutdown waits for the
// functions.
type Transfers struct {
	opts TransferOptions

	mu     sync.Mutex
	tokens map[token]waiting
}

// A token is how a connection begins.
type token [32]byte

// firstByte is the first byte of all tokens. No other protocol of yodel begins with it. The others
// are random.
const firstByte = 0xa5

// A waiting is a transfer that waits for its connection.
type waiting struct {
	expires time.Time
	serve   func(ctx context.Context, s *yodel.Session, conn net.Conn) error
}

// A tokenReply is the reply to a call that begins a transfer. The fields have the names of rpcx.
type tokenReply struct {
	Token []byte `json:"token"`
	Addr  string `json:"addr"`
	// Closes says that the server closes the connection of a file when it has taken the file. Only
	// Transfers say so.
	Closes bool `json:"closes,omitempty"`
}

// A streamRequest has the arguments of a call that begins a stream.
type streamRequest struct {
	Meta map[string]string `json:"meta,omitempty"`
}

const (
	methodUpload   = "_filetransfer.TransferFile"
	methodDownload = "_filetransfer.DownloadFile"
	methodStream   = "_streamservice.Stream"

	maxDescription = 16 << 10 // of the name and the meta of a transfer, in bytes
	leastPace      = 4 << 10  // the lowest rate of an upload, in bytes per second
)

// NewTransfers returns Transfers. O is copied.
func NewTransfers(o *TransferOptions) *Transfers {
	t := &Transfers{opts: *o, tokens: make(map[token]waiting)}
	if t.opts.MaxSize <= 0 {
		t.opts.MaxSize = 1 << 30
	}
	if t.opts.MaxTokens <= 0 {
		t.opts.MaxTokens = 1000
	}
	if t.opts.TokenLife <= 0 {
		t.opts.TokenLife = 30 * time.Second
	}
	return t
}

// Register registers the methods by which clients begin transfers.
func (t *Transfers) Register(s *yodel.Server) error {
	var err error
	if t.opts.Upload != nil {
		err = s.Handle(methodUpload, t.upload)
	}
	if t.opts.Download != nil {
		err = errors.Join(err, s.Handle(methodDownload, t.download))
	}
	if t.opts.Stream != nil {
		err = errors.Join(err, s.Handle(methodStream, t.stream))
	}
	return err
}

func (t *Transfers) upload(ctx context.Context, file *File, reply *tokenReply) error {
	if n := file.FileSize; n < 0 || n > t.opts.MaxSize {
		return yodel.Errorf(yodel.ResourceExhausted, "the file has %d bytes, the server's limit is %d", n, t.opts.MaxSize)
	}
	return t.begin(ctx, reply, len(file.FileName), file.Meta, func(ctx context.Context, s *yodel.Session, conn net.Conn) error {
		if keepAlive := s.Limits().KeepAlive; keepAlive > 0 {
			_ = conn.SetReadDeadline(time.Now().Add(2*keepAlive + time.Duration(file.FileSize/leastPace)*time.Second)) // it never fails
		}
		return t.opts.Upload(ctx, file, &wholeReader{conn, file.FileSize})
	})
}

func (t *Transfers) download(ctx context.Context, file *File, reply *tokenReply) error {
	return t.begin(ctx, reply, len(file.FileName), file.Meta, func(ctx context.Context, _ *yodel.Session, conn net.Conn) error {
		return t.opts.Download(ctx, file, onlyWriter{conn})
	})
}

func (t *Transfers) stream(ctx context.Context, q *streamRequest, reply *tokenReply) error {
	return t.begin(ctx, reply, 0, q.Meta, func(ctx context.Context, _ *yodel.Session, conn net.Conn) error {
		return t.opts.Stream(ctx, q.Meta, conn)
	})
}

// begin makes a token for a transfer whose description has n bytes and meta.
func (t *Transfers) begin(ctx context.Context, reply *tokenReply, n int, meta map[string]string, serve func(context.Context, *yodel.Session, net.Conn) error) error {
	for key, value := range meta {
		n += len(key) + len(value)
	}
	if n > maxDescription {
		return yodel.Errorf(yodel.ResourceExhausted, "the name and the meta have %d bytes, the limit is %d", n, maxDescription)
	}
	addr := t.opts.Addr
	if peer := yodel.CallFrom(ctx).Peer(); addr == "" && peer.Conn != nil {
		if local, ok := peer.Conn.LocalAddr().(*net.TCPAddr); ok {
			addr = local.String()
		}
	}
	if addr == "" {
		return yodel.Errorf(yodel.FailedPrecondition, "the call did not come over TCP: set rpcx.TransferOptions.Addr")
	}
	var key token
	_, _ = rand.Read(key[:]) // it never fails
	key[0] = firstByte
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.tokens) >= t.opts.MaxTokens {
		maps.DeleteFunc(t.tokens, func(_ token, w waiting) bool { return now.After(w.expires) })
	}
	if len(t.tokens) >= t.opts.MaxTokens {
		return yodel.Errorf(yodel.ResourceExhausted, "%d transfers wait for their connections, which is the limit", len(t.tokens))
	}
	t.tokens[key] = waiting{now.Add(t.opts.TokenLife), serve}
	*reply = tokenReply{key[:], addr, true}
	return nil
}

// Name implements yodel.Protocol.
func (*Transfers) Name() string { return "rpcx-transfer" }

// Match implements yodel.Protocol. It decides after 32 bytes, so that a client cannot find out a
// token byte by byte.
func (t *Transfers) Match(first []byte) (ok, more bool) {
	if len(first) == 0 || first[0] != firstByte {
		return false, len(first) == 0
	}
	if len(first) < len(token{}) {
		return false, true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok = t.tokens[token(first)]
	return ok, false
}

// take removes a token, and returns what it stands for.
func (t *Transfers) take(key token) (waiting, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, ok := t.tokens[key]
	delete(t.tokens, key)
	return w, ok && time.Now().Before(w.expires)
}

// Serve implements yodel.Protocol.
func (t *Transfers) Serve(ctx context.Context, s *yodel.Session) error {
	defer s.Busy()()
	conn := s.AsConn()
	var key token
	if _, err := io.ReadFull(conn, key[:]); err != nil {
		return framebody.Unexpected(err)
	}
	w, ok := t.take(key)
	if !ok {
		return errors.New("the token of a transfer has expired, or was used before")
	}
	complete := false
	defer func() {
		if tcp, ok := s.Conn.(interface{ SetLinger(int) error }); ok && !complete {
			_ = tcp.SetLinger(0) // the server resets the connection when it closes it
		}
	}()
	complete = w.serve(ctx, s, conn) == nil
	return nil
}

// A wholeReader reads the bytes of an upload. It fails if there are fewer or more than expected.
type wholeReader struct {
	from io.Reader
	left int64
}

// Read implements io.Reader.
func (r *wholeReader) Read(b []byte) (int, error) {
	if r.left == 0 {
		var one [1]byte
		switch n, err := r.from.Read(one[:]); {
		case n > 0:
			return 0, errors.New("the client sends more bytes than it has announced")
		default:
			return 0, err
		}
	}
	if int64(len(b)) > r.left {
		b = b[:r.left]
	}
	n, err := r.from.Read(b)
	if r.left -= int64(n); r.left > 0 {
		err = framebody.Unexpected(err)
	} else {
		err = nil // the next Read has it
	}
	return n, err
}

// An onlyWriter hides the other methods of a connection.
type onlyWriter struct{ io.Writer }
