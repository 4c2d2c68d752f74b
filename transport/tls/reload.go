// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// reloadEvery is the minimum time between two checks of a Certificate's files.
const reloadEvery = time.Second

// A Certificate follows its files. A handshake that finds them changed uses the new ones. If the
// new files cannot be used, the last good certificate stays in force, and later handshakes try them
// again. It needs no goroutine, because handshakes check the files, at most once a second. It may
// be used concurrently.
type Certificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	checked time.Time // when the files were checked last
	loaded  [2]stamp  // the versions of the files from which current was read
	current *tls.Certificate
	err     error // why current differs from the files
}

// A stamp identifies a version of a file.
type stamp struct {
	changed time.Time
	size    int64
}

// Reload reads a certificate and its key from PEM files, now and whenever they change. The
// certificate file may also contain the intermediate certificates, after the certificate.
func Reload(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile}
	if err := c.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// GetCertificate is for the field of that name in a server's tls.Config.
func (c *Certificate) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.latest(), nil
}

// GetClientCertificate is for the field of that name in a client's tls.Config.
func (c *Certificate) GetClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return c.latest(), nil
}

// Err returns why the certificate in force differs from the one in the files, for a health check or
// a log. It returns nil if they are the same. It checks the files as a handshake does.
func (c *Certificate) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshLocked()
	return c.err
}

func (c *Certificate) latest() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refreshLocked()
	return c.current
}

func (c *Certificate) refreshLocked() {
	now := time.Now()
	if now.Sub(c.checked) < reloadEvery {
		return
	}
	c.checked = now
	c.err = c.loadLocked()
}

// loadLocked reads the files if they have changed. It takes the stamps before it reads, so that the
// next check detects a change during the read.
func (c *Certificate) loadLocked() error {
	var found [2]stamp
	for i, name := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return fmt.Errorf("reload certificate: %w", err)
		}
		found[i] = stamp{info.ModTime(), info.Size()}
	}
	if found == c.loaded {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("reload certificate %s with key %s: %w", c.certFile, c.keyFile, err)
	}
	c.current, c.loaded = &pair, found
	return nil
}
