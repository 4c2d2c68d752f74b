// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"io"
	std "net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// pages serves a page with a script, what the script needs, and takes its result.
func pages(t *testing.T) (h std.Handler, results <-chan string) {
	t.Helper()
	node, modules := realserver.Node(t, "grpc-node")
	script := filepath.Join(t.TempDir(), "page.js")
	run(t, []string{"NODE_PATH=" + modules}, node, filepath.Join(modules, "esbuild", "bin", "esbuild"), "testdata/page.js", "--bundle", "--outfile="+script)
	path, posted := descriptors(t), make(chan string, 1)
	mux := std.NewServeMux()
	mux.HandleFunc("GET /page", func(w std.ResponseWriter, _ *std.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, `<!doctype html><meta charset="utf-8"><title>yodel</title><script src="/page.js"></script>`) // the browser may have gone
	})
	mux.HandleFunc("GET /page.js", func(w std.ResponseWriter, r *std.Request) { std.ServeFile(w, r, script) })
	mux.HandleFunc("GET /descriptors", func(w std.ResponseWriter, r *std.Request) { std.ServeFile(w, r, path) })
	mux.HandleFunc("POST /result", func(_ std.ResponseWriter, r *std.Request) {
		b, _ := io.ReadAll(r.Body) // the test misses the rest
		posted <- string(b)
	})
	return mux, posted
}

// browse opens a page, and returns what its script posts.
func browse(t *testing.T, page string, results <-chan string) string {
	t.Helper()
	log := new(strings.Builder)
	profile, err := os.MkdirTemp("", "chromium") //nolint:usetesting // processes of the browser may still write to it for a moment
	must(t, err)
	defer os.RemoveAll(profile)
	cmd := exec.CommandContext(t.Context(), realserver.Chromium(t), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run", "--user-data-dir="+profile, page)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.WaitDelay = 5 * time.Second
	realserver.EndWithParent(cmd)
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(ended)
	}()
	defer func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
	}()
	select {
	case result := <-results:
		return result
	case <-ended:
		t.Fatalf("the browser ended\n%s", log)
	case <-time.After(time.Minute):
		t.Fatal("the page has posted no result")
	}
	return ""
}

// A page in Chromium calls a yodel server by gRPC-Web, Connect and EventSource: the server that the
// page comes from, and one of another origin that allows it.
func TestBrowser(t *testing.T) {
	realserver.Chromium(t)
	h, results := pages(t)
	page := httptest.NewServer(h)
	defer page.Close()
	same, _ := serveService(t, &http.Options{Handler: h})
	other, _ := serveService(t, &http.Options{Origins: []string{page.URL}})
	strict, _ := serveService(t, &http.Options{Origins: []string{"http://elsewhere.example"}})
	for _, test := range []struct {
		name, page, server string
		passed             int
	}{
		{"same origin", "http://" + same, "http://" + same, 10},
		{"allowed origin", page.URL, "http://" + other, 10},
		{"other origin", page.URL, "http://" + strict, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := browse(t, test.page+"/page?server="+url.QueryEscape(test.server), results)
			if strings.Count(got, "passed ") != test.passed || strings.Contains(got, "failed") != (test.passed == 0) {
				t.Errorf("got\n%s\nwant %d lines that passed", got, test.passed)
			}
		})
	}
}
