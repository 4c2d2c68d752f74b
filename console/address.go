// SPDX-License-Identifier: Apache-2.0

package console

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// This file is about the address of the console in browsers, which a proxy may change: its host,
// its path, and the cookies of its sessions.

// parseURL parses Options.URL, without the default port and with a slash at the end of the path.
func parseURL(text string) (*url.URL, error) {
	at, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the URL: %w", err)
	}
	if at.Path += "/"; strings.HasSuffix(at.Path, "//") {
		at.Path = at.Path[:len(at.Path)-1]
	}
	ports := map[string]string{"http": ":80", "https": ":443"}
	if ports[at.Scheme] == "" || at.Hostname() == "" || at.User != nil || at.RawQuery != "" || at.Fragment != "" || !isPlainPath(at) {
		return nil, fmt.Errorf("the URL %q is not like https://ops.example/yodel/", text)
	}
	at.Host = strings.ToLower(strings.TrimSuffix(at.Host, ports[at.Scheme]))
	return at, nil
}

// isOwn reports whether an origin is that of the console's own pages: the host of the request, or
// the console's URL.
func (c *Console) isOwn(origin *url.URL, r *http.Request) bool {
	return origin.Host != "" && (origin.Host == r.Host || c.url != nil && origin.Scheme == c.url.Scheme && origin.Host == c.url.Host)
}

// rebase takes the path of the console's URL off a request, if the proxy has left it there. It
// returns the path to which a request without the last slash is redirected, or "".
func (c *Console) rebase(r *http.Request) (to string) {
	if c.url == nil || c.url.Path == "/" {
		return ""
	}
	base := strings.TrimSuffix(c.url.Path, "/")
	if r.URL.Path == base {
		return c.url.Path
	}
	plain, ok := strings.CutPrefix(r.URL.Path, base+"/")
	raw, same := strings.CutPrefix(r.URL.EscapedPath(), c.url.EscapedPath())
	if ok && same {
		at := *r.URL
		at.Path, at.RawPath = "/"+plain, "/"+raw
		r.URL = &at
	}
	return ""
}

// clientOf returns the address of the client. Behind proxies that the console knows, it is the last
// address in X-Forwarded-For that is not one of theirs: clients can make up those before it.
func (c *Console) clientOf(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{} // all such clients count as one
	}
	client := at.Addr().Unmap()
	chain := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, text := range slices.Backward(chain) {
		if !slices.ContainsFunc(c.opts.Proxies, func(p netip.Prefix) bool { return p.Contains(client) }) {
			break
		}
		before, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil {
			withPort, err := netip.ParseAddrPort(strings.TrimSpace(text))
			if err != nil {
				break
			}
			before = withPort.Addr()
		}
		client = before.Unmap().WithZone("")
	}
	return client
}

const (
	// cookiePrefix begins the names of the sessions' cookies.
	cookiePrefix = "yodel-console-"
	maxCookies   = 16 // of a request that are looked at
)

// cookieOf returns the cookie of a session, without a value. Its name has the port, because
// browsers share cookies among the ports of a host, and the path of the console, below which
// browsers send it: proxies have several consoles on one host. It is for TLS only if the page came
// by TLS, which its Origin says.
func cookieOf(r *http.Request, path string) *http.Cookie {
	at := url.URL{Host: r.Host}
	name := cookiePrefix + at.Port()
	if at.Port() == "" {
		name = cookiePrefix + "default"
	}
	if path != "/" {
		name += url.QueryEscape(path)
	}
	secure := r.TLS != nil || strings.HasPrefix(r.Header.Get("Origin"), "https://")
	return &http.Cookie{Name: name, Path: path, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: secure} //nolint:gosec // Secure is for TLS
}

// isCookiePath reports whether a path, as a page says that it has it, can be that of a cookie.
func isCookiePath(path string) bool {
	at, err := url.ParseRequestURI(path)
	return err == nil && at.Host == "" && at.EscapedPath() == path && strings.HasSuffix(path, "/") && !strings.Contains(path, ";") && isPlainPath(at)
}

// sessionOf returns the session of a request, or nil. The console need not know its own path for
// that: the values of cookies are secrets, so a cookie with the right value is the right one.
func (d *doors) sessionOf(r *http.Request) *ticket {
	looked := 0
	for _, cookie := range r.Cookies() {
		if !strings.HasPrefix(cookie.Name, cookiePrefix) {
			continue
		}
		if session := d.session(cookie.Value); session != nil {
			return session
		}
		if looked++; looked == maxCookies {
			break
		}
	}
	return nil
}
