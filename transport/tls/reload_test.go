// SPDX-License-Identifier: Apache-2.0

package tls_test

import (
	stdtls "crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yodel-rpc/yodel/transport/mem"
	"github.com/yodel-rpc/yodel/transport/tls"
)

func TestReloadFollowsItsFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, files := newAuthority(t), newFiles(t)
		files.write(t, ca.certificate(t, "first"))
		certificate, err := tls.Reload(files.certificate, files.key)
		if err != nil {
			t.Fatal(err)
		}
		wantName(t, certificate, "first")

		files.write(t, ca.certificate(t, "second"))
		wantName(t, certificate, "first") // the files are not looked at again so soon
		time.Sleep(time.Second)
		wantName(t, certificate, "second")

		time.Sleep(time.Second)
		broken := ca.certificate(t, "third")
		broken.key = broken.key[:50]
		files.write(t, broken)
		wantName(t, certificate, "second") // the last good one stays
		if certificate.Err() == nil {
			t.Error("got no error for files that cannot be used")
		}

		files.write(t, ca.certificate(t, "fourth"))
		if certificate.Err() == nil {
			t.Error("files were looked at twice in one second")
		}
		time.Sleep(time.Second)
		if err := certificate.Err(); err != nil {
			t.Errorf("got %v for files that are good again", err)
		}
		wantName(t, certificate, "fourth")

		_ = os.Remove(files.key)
		time.Sleep(time.Second)
		wantName(t, certificate, "fourth")
		if certificate.Err() == nil {
			t.Error("got no error for a file that is gone")
		}
	})
}

func TestReloadNeedsGoodFilesToBeginWith(t *testing.T) {
	files := newFiles(t)
	if _, err := tls.Reload(files.certificate, files.key); err == nil {
		t.Error("got no error without files")
	}
	ca := newAuthority(t)
	files.write(t, keyPair{ca.certificate(t, "a").certificate, ca.certificate(t, "b").key})
	if _, err := tls.Reload(files.certificate, files.key); err == nil {
		t.Error("got no error for the key of another certificate")
	}
}

func TestHandshakesOfBothSidesUseTheReloadedCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, ca, files := newAuthority(t), newAuthority(t), newFiles(t)
		files.write(t, old.certificate(t, "localhost"))
		certificate, err := tls.Reload(files.certificate, files.key)
		if err != nil {
			t.Fatal(err)
		}
		transport := &tls.Transport{
			Server: &stdtls.Config{GetCertificate: certificate.GetCertificate, ClientCAs: ca.pool},
			Client: &stdtls.Config{GetClientCertificate: certificate.GetClientCertificate, RootCAs: ca.pool},
			Over:   mem.New(),
		}
		serve(t, transport, "localhost:1")
		if err := exchange(t, transport, "localhost:1"); err == nil {
			t.Error("got no error with the old authority's certificate")
		}
		files.write(t, ca.certificate(t, "localhost"))
		time.Sleep(time.Second)
		if err := exchange(t, transport, "localhost:1"); err != nil {
			t.Errorf("got %v with the new certificate", err)
		}
	})
}

// certificateFiles are files that somebody else replaces.
type certificateFiles struct {
	certificate, key string
	changes          *int
}

func newFiles(t *testing.T) certificateFiles {
	t.Helper()
	folder := t.TempDir()
	return certificateFiles{filepath.Join(folder, "server.crt"), filepath.Join(folder, "server.key"), new(int)}
}

// write replaces the files, and makes sure that their times differ from the last ones.
func (f certificateFiles) write(t *testing.T, pair keyPair) {
	t.Helper()
	*f.changes++
	changed := time.Date(2020, 1, 1, 0, 0, *f.changes, 0, time.UTC)
	for name, content := range map[string][]byte{f.certificate: pair.certificate, f.key: pair.key} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, changed, changed); err != nil {
			t.Fatal(err)
		}
	}
}

func wantName(t *testing.T, certificate *tls.Certificate, want string) {
	t.Helper()
	pair, err := certificate.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if got := parsed.Subject.CommonName; got != want {
		t.Errorf("got the certificate of %q, want %q", got, want)
	}
}
