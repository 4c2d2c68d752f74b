// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	stdtls "crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/protocol/http"
	"github.com/yodel-rpc/yodel/recommended"
	"github.com/yodel-rpc/yodel/registry/etcd"
	"github.com/yodel-rpc/yodel/transport/tls"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:0", "where to listen")
	secure := flag.Bool("tls", false, "use TLS, with cert.pem and key.pem")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once

	if err := run(ctx, flag.Arg(0), *addr, *secure); err != nil {
		log.Fatal(err)
	}
}

// run connects to etcd, and serves one service until ctx ends.
func run(ctx context.Context, service, addr string, secure bool) error {
	var transport yodel.Transport // nil is TCP
	if secure {
		var err error
		if transport, err = encrypted(); err != nil {
			return err
		}
	}
	registry := etcd.New("127.0.0.1:2379", nil)
	err := serve(ctx, service, addr, transport, registry)
	return errors.Join(err, registry.Close())
}

func serve(ctx context.Context, service, addr string, transport yodel.Transport, registry *etcd.Registry) error {
	s := yodel.NewServer(recommended.Server(&yodel.ServerOptions{
		Registrars: []discovery.Registrar{registry},
		Protocols:  []yodel.Protocol{http.New(nil)}, // for curl
		Transport:  transport,
	}))
	switch service {
	case "prices":
		prices(s)
	case "orders":
		c := yodel.NewClient(registry.Service("shop.Prices"), recommended.Client(&yodel.ClientOptions{
			Timeout:   2 * time.Second, // for calls without a deadline
			Transport: transport,
		}))
		defer c.Close()
		orders(s, c)
	default:
		return fmt.Errorf("there is no service %q: want prices or orders", service)
	}
	return s.ListenAndServe(ctx, addr)
}

// encrypted returns a transport with TLS. Clients accept servers with the certificate in cert.pem.
func encrypted() (*tls.Transport, error) {
	certificate, err := tls.Reload("cert.pem", "key.pem")
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile("cert.pem")
	if err != nil {
		return nil, err
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(pem) {
		return nil, errors.New("there is no certificate in cert.pem")
	}
	return &tls.Transport{
		Server: &stdtls.Config{GetCertificate: certificate.GetCertificate},
		Client: &stdtls.Config{RootCAs: authorities},
	}, nil
}
