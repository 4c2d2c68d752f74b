// SPDX-License-Identifier: Apache-2.0

// Package kubernetes finds instances by the EndpointSlices of Kubernetes. It also has a registry
// for servers without a Service.
//
//	c := yodel.NewClient(kubernetes.Service("shop/arith:yodel", nil), nil)
//
// Kubernetes itself registers the pods of a Service, and withdraws a pod before it stops it. A
// client in the same cluster needs only the permission to list and watch endpointslices in the
// namespace. Kubernetes reports every change to the client at once.
//
// The package uses only the standard library to talk to the API server. client-go would add 29 MB
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
	// Server is the URL of the API server. Default: the API server of the cluster in which the
	// process runs.
	Server string
	// Namespace is the namespace in which New keeps its records, and in which Service looks if its
	// target names no namespace. Default: the namespace of the pod.
	Namespace string
	// TokenFile is the file with the token of a service account. It is read for every request,
	// because Kubernetes replaces the token every hour. Default: the pod's token file, if Server
	// has its default.
	TokenFile string
	// TLS is the configuration for TLS. Default: the server needs a certificate from the cluster's
	// authority.
	TLS *tls.Config
	// Timeout limits how long a request waits for the API server. Default 10 s.
	Timeout time.Duration
}

// mounted is the folder in which Kubernetes mounts the credentials of a pod.
const mounted = "/var/run/secrets/kubernetes.io/serviceaccount"

// shortest is the least time that a watch should last. If it ends sooner, follow fails instead of
// watching again.
const shortest = time.Second

// listsAtOnce is how many lists a process asks for at once. The API server reads all slices of the
// namespace for each, so a console that follows all services could make all lists fail.
const listsAtOnce = 8

// An api is an API server.
type api struct {
	Options
	http  *http.Client
	lists chan struct{}      // capacity listsAtOnce: held by each list with a label
	close context.CancelFunc // closes all connections, even those in use
}

// connect returns a client for the API server of o. It does not wait for a connection. The
// connections live until close is called.
func connect(o *Options) (*api, error) { return connectFrom(o, mounted) }

func connectFrom(o *Options, mounted string) (*api, error) {
	if o == nil {
		o = &Options{}
	}
	a := &api{Options: *o, lists: make(chan struct{}, listsAtOnce)}
	a.Timeout = cmp.Or(max(a.Timeout, 0), 10*time.Second)
	a.Reconcile = cmp.Or(max(a.Reconcile, 0), 5*time.Minute)
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
	// A transport changes its TLS configuration, so it gets a clone: several transports may share
	// Options.TLS.
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
		// A watch may be silent for a minute, even if the server is gone. Pings detect that.
		HTTP2: &http.HTTP2Config{SendPingTimeout: a.Timeout, PingTimeout: a.Timeout},
	}}
	return a, nil
}

// inCluster sets the API server to the one of the cluster in which the process runs.
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

// A mortal is a connection that life closes when it ends. Closing the mortal earlier removes it
// from life.
type mortal struct {
	net.Conn
	forget func() bool
}

func (m *mortal) Close() error {
	m.forget()
	return m.Conn.Close()
}

// A status is the API server's description of a failed request.
type status struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (s status) Error() string {
	return fmt.Sprintf("kubernetes: the API server answered %d: %s", s.Code, s.Message)
}

// is reports whether err is a status with this code.
func is(err error, code int) bool {
	var s status
	return errors.As(err, &s) && s.Code == code
}

// path returns the path of the slices of a namespace, or of the slice with this name.
func path(namespace, name string) string {
	all := "/apis/discovery.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/endpointslices"
	if name == "" {
		return all
	}
	return all + "/" + url.PathEscape(name)
}

// A request is a request to the API server. Body is written as JSON, unless it is nil.
type request struct {
	method, path string
	query        url.Values
	kind         string // the content type of the body
	body         any
}

// send sends a request and returns the answer. The caller closes its body.
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
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // 64 KiB are enough for a status
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
