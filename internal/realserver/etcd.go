// SPDX-License-Identifier: Apache-2.0

package realserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"testing"
	"time"
)

// Etcd starts an etcd server. The first call builds the program, which takes some minutes of
// processor time.
func Etcd(t testing.TB) *Server {
	t.Helper()
	peer := FreeAddr(t) // no peer connects to this address, but etcd listens on it
	return Start(t, Program{
		Name:    "etcd",
		Install: "nothing: Go builds it, and needs its modules for that",
		Find:    func() (string, error) { return Built("etcd", ".") },
		Command: func(found, addr, folder string) (*exec.Cmd, error) {
			return exec.Command(found, "--data-dir", folder, "--unsafe-no-fsync", "--log-level", "error",
				"--heartbeat-interval", "10", "--election-timeout", "100",
				"--listen-client-urls", "http://"+addr, "--advertise-client-urls", "http://"+addr,
				"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer,
				"--initial-cluster", "default=http://"+peer), nil
		},
		Probe:  func(ctx context.Context, addr string) error { return Get(ctx, "http://"+addr+"/health") },
		Within: time.Minute,
	})
}

// Get is a probe for servers that speak HTTP. It requests a URL, and returns an error unless the
// request succeeds.
func Get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Close = true // a test that checks for leaked goroutines would find those of an open connection
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	err = errors.Join(err, resp.Body.Close())
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return err
}
