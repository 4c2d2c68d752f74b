// SPDX-License-Identifier: Apache-2.0

// Command tls serves and calls over mutual TLS: the server and the client each show a certificate,
// and each checks that of the other. It makes its own certificates, in a temporary folder.
//
//	go run ./examples/tls
//
// It prints:
//
//	hello checkout, over TLS 1.3
//	without a certificate: unavailable
package main

import (
	"context"
	stdtls "crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/transport/tls"
)

const hello yodel.Method[struct{}, string] = "Hello"

// region mutual

// secure returns a transport for servers and clients. Each side shows the certificate in the files
// service.crt and service.key, and accepts only peers with a certificate of authorities.pem. New
// certificates are read when the files change.
func secure(folder string) (*tls.Transport, error) {
	certificate, err := tls.Reload(filepath.Join(folder, "service.crt"), filepath.Join(folder, "service.key"))
	if err != nil {
		return nil, err
	}
	authorities, err := readAuthorities(folder)
	if err != nil {
		return nil, err
	}
	return &tls.Transport{
		Server: &stdtls.Config{GetCertificate: certificate.GetCertificate, ClientCAs: authorities},
		Client: &stdtls.Config{GetClientCertificate: certificate.GetClientCertificate, RootCAs: authorities},
	}, nil
}

func readAuthorities(folder string) (*x509.CertPool, error) {
	pem, err := fs.ReadFile(os.DirFS(folder), "authorities.pem")
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("there is no certificate in authorities.pem of %s", folder)
	}
	return pool, nil
}

// endregion mutual

func main() {
	folder, err := os.MkdirTemp("", "yodel-tls-")
	if err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(run(folder), os.RemoveAll(folder)); err != nil {
		log.Fatal(err)
	}
}

func run(folder string) error {
	if err := issue(folder); err != nil {
		return err
	}
	transport, err := secure(folder)
	if err != nil {
		return err
	}
	l, err := transport.Listen("127.0.0.1:0")
	if err != nil {
		return err
	}
	// region server
	s := yodel.NewServer(&yodel.ServerOptions{Transport: transport}) // then s.ListenAndServe(ctx, ":8972")
	// endregion server
	hello.Handle(s, greet)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	served := make(chan error)
	go func() { served <- s.Serve(ctx, l) }()

	// region client
	addr := l.Addr().String()
	c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{Transport: transport})
	text, err := hello.Call(ctx, c, &struct{}{})
	// endregion client
	if err != nil {
		return err
	}
	fmt.Println(*text)
	c.Close()

	if err := callAsStranger(ctx, folder, addr); err != nil {
		return err
	}
	stop()
	return <-served
}

// region peer

// greet greets the owner of the client's certificate.
func greet(ctx context.Context, _ *struct{}) (*string, error) {
	state := yodel.CallFrom(ctx).Peer().TLS()
	name := state.PeerCertificates[0].Subject.CommonName
	return new("hello " + name + ", over " + stdtls.VersionName(state.Version)), nil
}

// endregion peer

// callAsStranger calls without a certificate, which the server refuses.
func callAsStranger(ctx context.Context, folder, addr string) error {
	authorities, err := readAuthorities(folder)
	if err != nil {
		return err
	}
	c := yodel.NewClient(discovery.Static(addr), &yodel.ClientOptions{
		Transport: &tls.Transport{Client: &stdtls.Config{RootCAs: authorities}},
	})
	defer c.Close()
	_, err = hello.Call(ctx, c, &struct{}{})
	fmt.Println("without a certificate:", yodel.CodeOf(err))
	return nil
}
