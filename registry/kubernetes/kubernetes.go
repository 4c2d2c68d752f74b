// SPDX-License-Identifier: Apache-2.0

// Package kubernetes finds instances by the EndpointSlices of Kubernetes, and knows a registry for
// servers that have no Service there.
//
//	c := yodel.NewClient(kubernetes.Service("shop/arith:yodel", nil), nil)
//
// Kubernetes itself registers the pods of a Service, and withdraws them before it ends them. A
// client in the same cluster needs no more than the permission to list and watch endpointslices in
// the namespace. It is told of every change at once.
//
// The package speaks to the API server with the standard library alone; client-go would add 29 MB
// to a program.
package kubernetes

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/registry"
)

// Options changes how the API server is used. The zero value is good for a process in a pod.
type Options struct {
	// Options are for New, except for Reconcile and Logger. Reconcile is 5 min by default.
	registry.Options
	// Server is the URL of the API server. Default: the one of the cluster that the process runs
	// in.
	Server string
	// Namespace is where New keeps its records, and Service looks when it is told no namespace.
	// Default: the one of the pod.
	Namespace string
	// TokenFile has the token of a service account. It is read for every request, because
	// Kubernetes replaces it every hour. Default: the one of the pod, for the default Server.
	TokenFile string
	// TLS is how to connect. Default: to servers with a certificate from the cluster.
	TLS *tls.Config
	// Timeout is how long the API server may take to answer. Default 10 s.
	Timeout time.Duration
}

// mounted is where Kubernetes puts what a pod needs to speak to it.
const mounted = "/var/run/secrets/kubernetes.io/serviceaccount"

// shortest is the time below which something that ends again and again is broken.
const shortest = time.Second

// An api is an API server.
type api struct {
	Options
	http  *http.Client
	close context.CancelFunc // closes the connections, whatever they are used for
}

// connect returns the API server that o says. It does not wait for it. Its connections live until
// it is closed.
func connect(o *Options) (*api, error) { return connectFrom(o, mounted) }

func connectFrom(o *Options, mounted string) (*api, error) {
	if o == nil {
		o = &Options{}
	}
	a := &api{Options: *o}
	a.Timeout = cmp.Or(max(a.Timeout, 0), 10*time.Second)
	a.Reconcile = cmp.Or(max(a.Reconcile, 0), 5*time.Minute)
	a.Logger = cmp.Or(a.Logger, slog.Default())
	if a.Namespace == "" {
		text, err := os.ReadFile(filepath.Join(mounted, "namespace")) //nolint:gosec // a constant, but in tests
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("kubernetes: %w", err)
		}
		a.Namespace = cmp.Or(strings.TrimSpace(string(text)), "default")
	}
	if a.Server == "" {
		if err := a.inCluster(mounted); err != nil {
			return nil, fmt.Errorf("kubernetes: %w", err)
		}
	}
	a.Server = strings.TrimSuffix(a.Server, "/")
	life, end := context.WithCancel(context.Background())
	a.close = end
	// A transport changes its TLS configuration, and that one is for several.
	a.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &mortal{conn, context.AfterFunc(life, func() { conn.Close() })}, nil
		},
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: a.TLS.Clone(), ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 16,
		IdleConnTimeout: time.Minute, TLSHandshakeTimeout: a.Timeout, ResponseHeaderTimeout: a.Timeout,
		// A watch may be silent for a minute, also when nobody is there any more.
		HTTP2: &http.HTTP2Config{SendPingTimeout: a.Timeout, PingTimeout: a.Timeout},
	}}
	return a, nil
}

// inCluster makes the API server the one of the cluster that the process runs in.
func (a *api) inCluster(mounted string) error {
	host := os.Getenv("KUBERNETES_SERVICE_HOST")
	if host == "" {
		return errors.New("the process runs in no cluster, and Options.Server says no other one")
	}
	a.Server = "https://" + net.JoinHostPort(host, cmp.Or(os.Getenv("KUBERNETES_SERVICE_PORT"), "443"))
	a.TokenFile = cmp.Or(a.TokenFile, filepath.Join(mounted, "token"))
	if a.TLS != nil {
		return nil
	}
	authority, err := os.ReadFile(filepath.Join(mounted, "ca.crt")) //nolint:gosec // as above
	if err != nil {
		return err
	}
	a.TLS = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	if !a.TLS.RootCAs.AppendCertsFromPEM(authority) {
		return fmt.Errorf("there is no certificate in %s", filepath.Join(mounted, "ca.crt"))
	}
	return nil
}

// A mortal connection ends with the life of something else, unless it is closed before.
type mortal struct {
	net.Conn
	forget func() bool
}

func (m *mortal) Close() error {
	m.forget()
	return m.Conn.Close()
}

// A status is what the API server says of a request that failed.
type status struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (s status) Error() string {
	return fmt.Sprintf("kubernetes: the API server answered %d: %s", s.Code, s.Message)
}

// is reports whether err is an answer with a code.
func is(err error, code int) bool {
	var s status
	return errors.As(err, &s) && s.Code == code
}

// path returns that of the slices of a namespace, or of one of them.
func path(namespace, name string) string {
	all := "/apis/discovery.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/endpointslices"
	if name == "" {
		return all
	}
	return all + "/" + url.PathEscape(name)
}

// A request is one for the API server. Body is written as JSON, unless it is nil.
type request struct {
	method, path string
	query        url.Values
	kind         string // of the body
	body         any
}

// send returns the answer to a request, whose body the caller closes.
func (a *api) send(ctx context.Context, r request) (*http.Response, error) {
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, a.Server+r.path+"?"+r.query.Encode(), body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if r.kind != "" {
		req.Header.Set("Content-Type", r.kind)
	}
	if a.TokenFile != "" {
		token, err := os.ReadFile(a.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("kubernetes: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	if resp.StatusCode < http.StatusMultipleChoices {
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // the status says enough
	said := status{Code: resp.StatusCode}
	if json.Unmarshal(text, &said) != nil || said.Message == "" {
		said = status{resp.StatusCode, strings.TrimSpace(string(text[:min(len(text), 500)]))}
	}
	return nil, said
}

// do sends a request and reads the answer into result, unless that is nil.
func (a *api) do(ctx context.Context, r request, result any) error {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	resp, err := a.send(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if result == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	} else {
		err = json.NewDecoder(resp.Body).Decode(result)
	}
	if err != nil {
		return fmt.Errorf("kubernetes: %w", err)
	}
	return nil
}
