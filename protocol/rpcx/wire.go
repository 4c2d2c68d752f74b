// SPDX-License-Identifier: Apache-2.0

package rpcx

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpconnect"
	"github.com/yodel-rpc/yodel/protocol/internal/pipelined"
)

// Wire returns a Wire that calls servers of rpcx, for ClientOptions.Wires. Its name is "rpcx".
// Calls without a codec of their own use codec, or the client's codec if codec is nil. If the
// compressor of the call or of the client is gzip, requests of more than 1,024 bytes are
// compressed. A client with another compressor sends them as they are.
func Wire(codec yodel.Codec) yodel.Wire { return WireWith(codec, nil) }

// WireOptions are the options of a Wire. The zero value is ready for use.
type WireOptions struct {
	// Codecs has the names of the codecs for serialize types, in addition to the types 0 to 4 or in
	// place of them. The largest type is 15.
	Codecs map[byte]string
	// Path makes the client begin each connection with the HTTP request CONNECT for this path, for
	// servers that listen on the network "http". The usual path is "/_rpcx_". The name of the Wire
	// is then "rpcx+http". Default none.
	Path string
	// Push receives the messages that servers send without being asked, as one-way calls of the
	// method that the message names. A *yodel.Server that has this method is a suitable Push. The
	// calls of one connection are made one after the other. Their context ends with the connection.
	// If 1024 messages or Limits.MaxUnsent bytes wait, further messages are dropped. Without Push,
	// all of them are dropped. Dropped counts them, and those whose method was not executed.
	Push yodel.Caller
	// Dropped, if not nil, is increased by each pushed message that was dropped.
	Dropped *atomic.Int64
}

// WireWith is Wire with options. It panics if a serialize type is larger than 15. O may be nil, and
// is copied.
func WireWith(codec yodel.Codec, o *WireOptions) yodel.Wire {
	if o == nil {
		o = new(WireOptions)
	}
	types := With(&Options{Codecs: o.Codecs}).(*protocol).types //nolint:forcetypeassert // as With returns it
	w := &wire{codec: codec, types: types, path: o.Path, push: o.Push, dropped: o.Dropped}
	if w.dropped == nil {
		w.dropped = new(atomic.Int64)
	}
	return w
}

type wire struct {
	codec   yodel.Codec
	types   map[string]byte // the serialize types by the names of codecs
	path    string          // "" without HTTP
	push    yodel.Caller
	dropped *atomic.Int64
}

// Name implements yodel.Wire.
func (w *wire) Name() string {
	if w.path != "" {
		return "rpcx+http"
	}
	return "rpcx"
}

// Connect implements yodel.Wire.
func (w *wire) Connect(ctx context.Context, nc net.Conn, ep *yodel.Endpoint) (yodel.Link, error) {
	limits := ep.Client().Limits()
	l := &link{Link: pipelined.NewLink[*reply](nc, ep.Addr(), limits, ep), wire: w}
	l.frames = frameReader{Reader: l.Reader, maxMetadata: limits.MaxMetadata, maxPairs: limits.MaxPairs}
	if w.path != "" {
		if err := httpconnect.Ask(ctx, nc, l.Reader, w.path); err != nil {
			return nil, err
		}
	}
	if w.push != nil {
		l.pushes = newPushes(w.push, w.dropped, limits.MaxUnsent) // before the reading goroutine starts
	}
	l.Start(l.next, l.sendHeartbeat)
	if w.push != nil {
		ep.Client().Background(func(ctx context.Context) { l.pushes.run(ctx, l.Done()) })
	}
	return l, nil
}

// sendHeartbeat sends a heartbeat as clients of rpcx do: with the time in nanoseconds, encoded in
// MessagePack. Its answer is a frame that no call waits for.
func (l *link) sendHeartbeat() {
	const int64Follows = 0xd3
	payload := append([]byte{int64Follows}, make([]byte, 8)...)
	for i, now := 8, time.Now().UnixNano(); i > 0; i, now = i-1, now>>8 {
		payload[i] = byte(now)
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.Limits.KeepAlive)
	defer cancel()
	_, _ = l.Send(ctx, false, func(number uint64) ([]byte, error) { // if it is not sent, the connection stays silent
		h := head{flags: heartbeat, serialize: 3, seq: number - 1, payload: len(payload)}
		return append(h.append(nil), payload...), nil
	})
}
