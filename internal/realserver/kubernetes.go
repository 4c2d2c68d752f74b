// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// A KubernetesServer is a Kubernetes API server with its own etcd.
type KubernetesServer struct {
	*Server
	// Token is the token of a user with all permissions. CA is the certificate of the server.
	Token string
	CA    []byte

	etcd *Server
}

// Kubernetes starts a Kubernetes API server without controllers and nodes. The program is large:
// see wantedLarge.
func Kubernetes(t testing.TB) *KubernetesServer {
	t.Helper()
	wantedLarge(t, "kube-apiserver")
	certificate, key := identity(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	k := &KubernetesServer{Token: "token-of-the-tests", CA: certificate, etcd: Etcd(t)}
	k.Server = Start(t, Program{
		Name:    "kube-apiserver",
		Install: "nothing: Go builds it, and needs its modules for that",
		Find:    func() (string, error) { return Built("kube-apiserver", ".") },
		Command: func(found, addr, folder string) (*exec.Cmd, error) {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			for name, text := range map[string]string{
				"server.crt": string(certificate), "server.key": string(key), "tokens": k.Token + `,admin,1,"system:masters"`,
			} {
				if err = os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
					return nil, err
				}
			}
			return exec.Command(found, "--bind-address", host, "--advertise-address", host, "--secure-port", port,
				"--etcd-servers", "http://"+k.etcd.Addr, "--tls-cert-file", "server.crt", "--tls-private-key-file", "server.key",
				"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", "server.key",
				"--service-account-signing-key-file", "server.key", "--disable-admission-plugins", "ServiceAccount",
				"--authorization-mode", "RBAC", "--token-auth-file", "tokens", "--service-cluster-ip-range", "10.0.0.0/24",
				"--endpoint-reconciler-type", "none"), nil
		},
		Probe:  func(ctx context.Context, addr string) error { return askReady(ctx, addr, roots) },
		Within: time.Minute,
	})
	return k
}

// RestartEmpty is Restart without the data. All data is in etcd.
func (k *KubernetesServer) RestartEmpty() {
	k.t.Helper()
	k.stopProcess()
	k.etcd.RestartEmpty()
	k.Restart()
}

// askReady asks an API server whether it is ready. This request needs no token.
func askReady(ctx context.Context, addr string, roots *x509.CertPool) error {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it is not ready: %s", resp.Status)
	}
	return nil
}

// identity returns a self-signed certificate for loopback, and its key.
func identity(t testing.TB) (certificate, key []byte) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "loopback"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, private.Public(), private)
	must(err)
	secret, err := x509.MarshalECPrivateKey(private)
	must(err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})
}
