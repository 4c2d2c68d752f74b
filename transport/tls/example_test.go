// SPDX-License-Identifier: Apache-2.0

package tls_test

import (
	stdtls "crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/yodel-rpc/yodel/transport/tls"
)

// A transport for servers and clients that prove to each other who they are, and take new
// certificates without a restart.
func Example_mutual() {
	certificate, err := tls.Reload("service.crt", "service.key")
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Println("no certificate yet")
		return
	}
	authorities := x509.NewCertPool()
	pem, err := os.ReadFile("authorities.pem")
	if err != nil || !authorities.AppendCertsFromPEM(pem) {
		fmt.Println("no authorities in authorities.pem", err)
		return
	}
	_ = &tls.Transport{
		Server: &stdtls.Config{GetCertificate: certificate.GetCertificate, ClientCAs: authorities},
		Client: &stdtls.Config{GetClientCertificate: certificate.GetClientCertificate, RootCAs: authorities},
	}
	// Output: no certificate yet
}
