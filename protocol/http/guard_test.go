// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	std "net/http"
	"net/http/httptrace"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/compress"
	"github.com/yodel-rpc/yodel/compress/gzip"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// A harmful is a Binding and a Compressor that does harm in one of its methods.
type harmful struct {
	compress.Compressor
	at   string
	harm func()
}

func (h *harmful) do(at string) {
	if h.at == at {
		h.harm()
	}
}

func (h *harmful) Match(_, path string) ([]string, bool) {
	if path != "/bound" {
		return nil, false
	}
	h.do("Match")
	return nil, true
}

func (h *harmful) Request(_ []string, _ url.Values, body []byte) ([]byte, error) {
	h.do("Request")
	return body, nil
}

func (h *harmful) Reply() func([]byte) ([]byte, error) {
	h.do("Reply")
	return func(message []byte) ([]byte, error) {
		h.do("the function of Reply")
		return message, nil
	}
}

func (h *harmful) Decompress(dst, src []byte, limit int) ([]byte, error) {
	h.do("Decompress")
	return h.Compressor.Decompress(dst, src, limit)
}

// A lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// Code of users that runs for a request fails that request. The connection goes on, the log has one
// line, and the client learns nothing of the panic.
func TestUserCodeOfRoutesCannotEndTheConnection(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"Match", "Request", "Reply", "the function of Reply", "Decompress"} {
		for how, harm := range map[string]func(){"panics": func() { panic("a secret") }, "exits": runtime.Goexit} {
			t.Run(at+"/"+how, func(t *testing.T) {
				t.Parallel()
				h := &harmful{Compressor: gzip.Compressor, at: at, harm: harm}
				log := new(lockedBuffer)
				s := newSite(t, &http.Options{Routes: []http.Route{{Method: string(echo), Binding: h}}}, yodel.ServerOptions{
					Compressors: []compress.Compressor{h}, Logger: slog.New(slog.NewTextHandler(log, nil)),
				})
				packed, err := gzip.Compressor.Append(nil, []byte(`{"text":"a"}`))
				must(t, err)
				client := &std.Client{Transport: new(std.Transport)}
				defer client.CloseIdleConnections()
				post := func(path string, body []byte, encoding string) (status int, answer string, reused bool) {
					r, err := std.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
						GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused },
					}), std.MethodPost, "http://"+s.addr+path, bytes.NewReader(body))
					must(t, err)
					r.Header.Set("Content-Type", "application/json")
					if encoding != "" {
						r.Header.Set("Content-Encoding", encoding)
					}
					reply, err := client.Do(r)
					if err != nil {
						t.Fatalf("%s: the connection ended: %v", path, err)
					}
					defer reply.Body.Close()
					b, err := io.ReadAll(reply.Body)
					must(t, err)
					return reply.StatusCode, string(b), reused
				}
				status, answer, _ := post("/bound", packed, "gzip")
				if status != std.StatusInternalServerError || strings.Contains(answer, "secret") {
					t.Errorf("got %d %s", status, answer)
				}
				status, answer, reused := post("/"+string(echo), []byte(`{"text":"b"}`), "")
				if status != std.StatusOK || !strings.Contains(answer, `"b"`) || !reused {
					t.Errorf("afterwards: got %d %s, on the same connection: %v", status, answer, reused)
				}
				if lines := strings.Count(log.String(), "a secret"); how == "panics" && lines != 1 {
					t.Errorf("the log has %d lines: %s", lines, log.String())
				}
			})
		}
	}
}

// A handler of requests that are no calls can end its own request only.
func TestHandlersOfOtherRequestsCannotEndTheServer(t *testing.T) {
	t.Parallel()
	for how, harm := range map[string]func(){"panics": func() { panic("a secret") }, "exits": runtime.Goexit} {
		for _, h2 := range []bool{false, true} {
			t.Run(fmt.Sprint(how, "/HTTP 2 ", h2), func(t *testing.T) {
				t.Parallel()
				log := new(lockedBuffer)
				s := newSite(t, &http.Options{
					Handler: std.HandlerFunc(func(std.ResponseWriter, *std.Request) { harm() }),
					Logger:  slog.New(slog.NewTextHandler(log, nil)),
				}, yodel.ServerOptions{MaxOpen: 4})
				caller := client(t, h2)
				const requests = 6 // more than may be open
				for range requests {
					reply, err := caller.Get("http://" + s.addr + "/page")
					if err == nil {
						var body []byte
						body, err = io.ReadAll(reply.Body)
						_ = reply.Body.Close()
						if strings.Contains(string(body), "secret") || err == nil && reply.StatusCode == std.StatusOK {
							t.Errorf("got %s %s", reply.Status, body)
						}
					}
				}
				reply, err := caller.Post("http://"+s.addr+"/"+string(echo), "application/json", strings.NewReader(`{"text":"b"}`))
				must(t, err)
				defer reply.Body.Close()
				if reply.StatusCode != std.StatusOK {
					t.Errorf("afterwards: got %s", reply.Status)
				}
				if lines := strings.Count(log.String(), "panicked"); how == "panics" && lines != requests {
					t.Errorf("the log has %d lines, want one for each request: %s", lines, log.String())
				}
			})
		}
	}
}
