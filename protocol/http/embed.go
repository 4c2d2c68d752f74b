// SPDX-License-Identifier: Apache-2.0

package http

import (
	"crypto/tls"
	"errors"
	"net"
	std "net/http"
	"net/netip"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// Handler returns an http.Handler that serves the calls of s in an HTTP server of the program, for
// example below a path, or behind middleware for HTTP:
//
//	mux.Handle("/", http.New(nil).Handler(server))
//
// It serves the protocols that a Protocol serves on the server's own port. Streams in both
// directions and unencrypted gRPC need an HTTP server that speaks HTTP/2, see
// http.Server.Protocols. The server does not have to serve a port, and the Protocol does not have
// to be in its options.
//
// Each request is a connection for the server: ServerOptions.Connect is called for each, and each
// is one of ServerOptions.MaxConns. Call.Peer has the address and the TLS state of the request. Its
// Conn cannot be read or written. The HTTP server accepts the connections, so it needs the TLS
// configuration and the filters of addresses: ServerOptions.Transport and Accept are not used. The
// limits of connections are those of the HTTP server, such as ReadHeaderTimeout, MaxHeaderBytes and
// IdleTimeout. The server must shut down after the HTTP server: once its Shutdown was called,
// requests get status 503.
func (p *Protocol) Handler(s *yodel.Server) std.Handler {
	return std.HandlerFunc(func(w std.ResponseWriter, r *std.Request) {
		err := s.ServeSession(peerOf(r), func(ses *yodel.Session) {
			ses.HideErrors = !p.opts.ExposeErrors
			(&router{protocol: p, session: ses}).route(w, r)
		})
		if err != nil {
			e := &yodel.Error{Code: yodel.Unavailable, Message: err.Error(), NotProcessed: true}
			if told, ok := errors.AsType[*yodel.Error](err); ok {
				e.ID, e.Message = told.ID, told.Message
			}
			w.Header().Set("Connection", "close")
			body := errorBody(w.Header(), e, httpwire.NewJSONError(e))
			w.WriteHeader(std.StatusServiceUnavailable)
			_, _ = w.Write(body) // if it fails, the client has gone
		}
	})
}

// peerOf returns the client of a request.
func peerOf(r *std.Request) *yodel.Peer {
	c := requestConn{remote: addrOf(r.RemoteAddr)}
	c.local, _ = r.Context().Value(std.LocalAddrContextKey).(net.Addr)
	peer := &yodel.Peer{Addr: c.remote, Conn: c, Agent: r.UserAgent(), Name: httpwire.Caller(r.UserAgent())}
	if r.TLS != nil {
		peer.Conn = tlsConn{c, *r.TLS}
	}
	return peer
}

// addrOf returns an address that an HTTP server has written as text.
func addrOf(text string) net.Addr {
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		return &net.UnixAddr{Net: "unix", Name: text} // or another transport, whose addresses are names too
	}
	return net.TCPAddrFromAddrPort(at)
}

// A requestConn is what is known of the connection of a request that another HTTP server has read.
type requestConn struct{ local, remote net.Addr }

func (c requestConn) LocalAddr() net.Addr            { return c.local }
func (c requestConn) RemoteAddr() net.Addr           { return c.remote }
func (requestConn) Read([]byte) (int, error)         { return 0, errOthers }
func (requestConn) Write([]byte) (int, error)        { return 0, errOthers }
func (requestConn) Close() error                     { return errOthers }
func (requestConn) SetDeadline(time.Time) error      { return errOthers }
func (requestConn) SetReadDeadline(time.Time) error  { return errOthers }
func (requestConn) SetWriteDeadline(time.Time) error { return errOthers }

// errOthers is the error of all that a Peer.Conn of an HTTP server of the program cannot do.
var errOthers = errors.New("the connection belongs to the HTTP server of the program")

// A tlsConn is a requestConn with TLS.
type tlsConn struct {
	requestConn
	state tls.ConnectionState
}

// ConnectionState lets Peer.TLS return the state.
func (c tlsConn) ConnectionState() tls.ConnectionState { return c.state }
