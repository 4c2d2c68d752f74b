// SPDX-License-Identifier: Apache-2.0

// Command server serves the methods of package greeting until Ctrl-C or SIGTERM. Then it finishes
// the calls that it has accepted.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	client_golang "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/cmd/yodel/starter/greeting"
	"github.com/yodel-rpc/yodel/codec/pbstruct"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/metrics/prometheus"
	yodelhttp "github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/recommended"
	"github.com/yodel-rpc/yodel/registry/file"
)

// Options are the flags.
type options struct {
	addr, metrics, registry string
	diagnostics             bool
}

func main() {
	var o options
	flag.StringVar(&o.addr, "addr", "127.0.0.1:8972", "where to listen for calls")
	flag.StringVar(&o.metrics, "metrics", "127.0.0.1:9090", "where to listen for Prometheus")
	flag.StringVar(&o.registry, "registry", ".yodel", "the folder of the registry")
	flag.BoolVar(&o.diagnostics, "diagnostics", true, "let every caller read statistics and records of calls, as the command yodel does")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once

	if err := run(ctx, o); err != nil {
		log.Fatal(err)
	}
}

// run serves calls and the page of metrics until ctx ends.
func run(ctx context.Context, o options) error {
	l, err := net.Listen("tcp", o.metrics)
	if err != nil {
		return err
	}
	metrics := prometheus.New(nil)
	collected := client_golang.NewRegistry()
	collected.MustRegister(metrics)
	page := &http.Server{
		Handler:           promhttp.HandlerFor(collected, promhttp.HandlerOpts{EnableOpenMetrics: true}),
		ReadHeaderTimeout: 10 * time.Second,
	}
	ended := make(chan error, 1)
	go func() { ended <- page.Serve(l) }()

	s := metrics.NewServer("starter", recommended.Server(&yodel.ServerOptions{
		Registrars:  []discovery.Registrar{file.New(o.registry, nil)}, // any other registry can take its place
		Codecs:      []yodel.Codec{pbstruct.Codec},                    // for clients of gRPC
		Protocols:   []yodel.Protocol{yodelhttp.New(nil)},             // for clients of HTTP, gRPC and Connect
		Diagnostics: o.diagnostics,
	}))
	greeting.Register(s)
	err = errors.Join(s.ListenAndServe(ctx, o.addr), page.Close())
	if failed := <-ended; !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(err, failed)
	}
	return err
}
