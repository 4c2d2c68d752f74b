// SPDX-License-Identifier: Apache-2.0

package http

import (
	"io"
	std "net/http"

	"github.com/yodel-rpc/yodel"
)

// Admin returns a handler for the probes of Kubernetes and other supervisors, which belongs on a
// port of its own:
//
//	go std.ListenAndServe("127.0.0.1:9090", http.Admin(s, promhttp.Handler()))
//
// /livez has status 200 while the process answers. /readyz has status 200 if yodel.Server.Ready
// returns nil, and 503 otherwise. The reason is in the log of the server. Metrics serves /metrics,
// and may be nil.
func Admin(s *yodel.Server, metrics std.Handler) std.Handler {
	mux := std.NewServeMux()
	mux.HandleFunc("GET /livez", func(w std.ResponseWriter, _ *std.Request) { respond(w, std.StatusOK, "alive\n") })
	mux.HandleFunc("GET /readyz", func(w std.ResponseWriter, _ *std.Request) {
		if s.Ready() != nil {
			respond(w, std.StatusServiceUnavailable, "not ready\n")
			return
		}
		respond(w, std.StatusOK, "ready\n")
	})
	if metrics != nil {
		mux.Handle("GET /metrics", metrics)
	}
	return mux
}

func respond(w std.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text) // if it fails, the client has gone
}
