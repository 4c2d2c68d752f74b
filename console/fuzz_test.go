// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/registry/memory"
)

// No request of a caller without a role gets anything but the pages' own files, whatever its path,
// host, token and body are.
func FuzzRequestsWithoutRole(f *testing.F) {
	f.Add("GET", "/api/overview", "127.0.0.1", "x", "{}")
	f.Add("POST", "/api/rules/put", "localhost:80", "", `{"service":"a"}`)
	f.Add("GET", "/assets/..%2f..%2fgo.mod", "[::1]:1", "", "")
	f.Add("GET", "/services/%00/..", "127.0.0.1", "", "")
	f.Add("POST", "/api/login", "127.0.0.1", "", `{"token":"x"}`)
	c, err := New(memory.New(nil), &Options{Tokens: map[string]User{adminToken: {"ci", Admin}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = c.Close() }) // it has no file
	f.Fuzz(func(t *testing.T, method, path, host, token, body string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || strings.Contains(token, adminToken) {
			t.Skip("it is not a request")
		}
		r := (&http.Request{
			Method: method, URL: u, Host: host, Body: http.NoBody, RemoteAddr: "127.0.0.1:1",
			Header: http.Header{"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}, "Origin": {"http://" + host}},
		}).WithContext(t.Context())
		if body != "" {
			r.Body = http.MaxBytesReader(nil, nopCloser{strings.NewReader(body)}, maxBody)
		}
		w := newRecorder()
		c.ServeHTTP(w, r)
		if strings.HasPrefix(u.Path, "/assets/") || w.status >= 300 {
			return
		}
		t.Errorf("%s %s of %s: got %d", method, path, host, w.status)
	})
}

// nopCloser is a body that needs no closing.
type nopCloser struct{ *strings.Reader }

func (nopCloser) Close() error { return nil }
