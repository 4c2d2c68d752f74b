// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/rules"
)

// This file decides who may do what: it has the logins, the sessions and the checks of each
// request.

const (
	maxBody     = 1 << 20          // bytes of a request
	minToken    = 32               // bytes
	linkLife    = 15 * time.Minute // of a login link
	sessionLife = 12 * time.Hour
	maxSessions = 256
	maxLinks    = 64
	// maxBad is how many bad logins one address may send in badSpan, and maxBadAll is how many all
	// addresses may send together.
	maxBad    = 10
	maxBadAll = 100
	badSpan   = time.Minute
	csrfName  = "X-Yodel-Csrf"
)

// A secret is the hash of a token. Tokens themselves are not kept, and hashes of equal length are
// compared in constant time.
type secret [sha256.Size]byte

func hash(token string) secret { return sha256.Sum256([]byte(token)) }

func (s secret) is(other secret) bool { return subtle.ConstantTimeCompare(s[:], other[:]) == 1 }

// doors keeps who may enter.
type doors struct {
	tokens map[secret]User // of programs

	mu       sync.Mutex
	links    []ticket // one-time logins, the oldest first
	sessions []ticket // the oldest first
	bad      map[netip.Addr]int
	badAll   int
	badUntil time.Time // when bad is emptied
}

// A ticket lets a user in until it expires.
type ticket struct {
	token   secret
	user    User
	csrf    string // of a session
	expires time.Time
}

func (d *doors) init(tokens map[string]User) {
	d.tokens = make(map[secret]User)
	for token, user := range tokens {
		d.tokens[hash(token)] = user
	}
	d.bad = make(map[netip.Addr]int)
}

// admit adds a ticket to a list and returns its token. The oldest ticket goes if the list is full.
func admit(list *[]ticket, bound int, user User, life time.Duration) (token string) {
	token = rand.Text() + rand.Text()
	if len(*list) >= bound {
		*list = (*list)[1:]
	}
	*list = append(*list, ticket{hash(token), user, rand.Text(), time.Now().Add(life)})
	return token
}

// find returns the index of a token in a list, or -1. It compares every ticket.
func find(list []ticket, token string) int {
	found, wanted := -1, hash(token)
	for i, t := range list {
		if t.token.is(wanted) && time.Now().Before(t.expires) {
			found = i
		}
	}
	return found
}

// errBadLogin is the error of a wrong token. The first one of a span is errLoudBadLogin, which goes
// to the audit log: the others would fill it.
var errBadLogin, errLoudBadLogin = errors.New("bad login"), errors.New("first bad login of a minute")

// enter exchanges a one-time token for a session. If there were too many bad logins, a wrong token
// gets a wait, which says when to try again. A right one enters even then, so that nobody can keep
// others out: tokens are far too long to be guessed.
func (d *doors) enter(token string, from netip.Addr) (session string, user User, wait time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if now.After(d.badUntil) {
		clear(d.bad)
		d.badAll, d.badUntil = 0, now.Add(badSpan)
	}
	i := find(d.links, token)
	if i < 0 {
		if d.bad[from] >= maxBad || d.badAll >= maxBadAll {
			return "", User{}, d.badUntil.Sub(now), errBadLogin
		}
		d.bad[from]++ // at most maxBadAll addresses
		if d.badAll++; d.badAll == 1 {
			return "", User{}, 0, errLoudBadLogin
		}
		return "", User{}, 0, errBadLogin
	}
	user = d.links[i].user
	d.links = append(d.links[:i:i], d.links[i+1:]...)
	session = admit(&d.sessions, maxSessions, user, sessionLife)
	return session, user, 0, nil
}

// LoginLink returns the path, to be appended to the address of the console, of a link that logs a
// user in once, within 15 minutes. The token is in the fragment, which browsers do not send, so it
// appears in no log.
func (c *Console) LoginLink(user User) string {
	c.doors.mu.Lock()
	defer c.doors.mu.Unlock()
	return "/#login=" + admit(&c.doors.links, maxLinks, user, linkLife)
}

// A caller is the user of a request, and how the console knows that.
type caller struct {
	User

	session *ticket // nil if there is none
	program bool    // the request has one of Options.Tokens
}

// identify returns the caller of a request.
func (c *Console) identify(r *http.Request) caller {
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		wanted, found := hash(token), caller{}
		for s, u := range c.doors.tokens {
			if s.is(wanted) {
				found = caller{User: u, program: true}
			}
		}
		if found.program {
			return found
		}
	}
	if session := c.doors.sessionOf(r); session != nil {
		return caller{User: session.user, session: session}
	}
	if c.opts.Authenticate != nil {
		return caller{User: c.opts.Authenticate(r)}
	}
	return caller{}
}

// session returns the session with a token, or nil.
func (d *doors) session(token string) *ticket {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := find(d.sessions, token); i >= 0 {
		session := d.sessions[i]
		return &session
	}
	return nil
}

// allowing passes the requests of users with a role on to f.
func (c *Console) allowing(role Role, f func(w http.ResponseWriter, r *http.Request, user User)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := c.identify(r)
		switch {
		case user.Role == NoRole:
			refuse(w, r, http.StatusUnauthorized, "log in first: the program that serves the console prints a link")
		case user.Role < role:
			refuse(w, r, http.StatusForbidden, fmt.Sprintf("%s is a %s, and this needs the role %s", user.Name, user.Role, role))
		case r.Method != http.MethodGet && r.Method != http.MethodHead && c.forged(r, user) != "":
			refuse(w, r, http.StatusForbidden, c.forged(r, user))
		default:
			f(w, r, user.User)
		}
	})
}

// forged says why a change may come from a page elsewhere, or returns "". A request with one of
// Options.Tokens cannot, because browsers do not know them.
func (c *Console) forged(r *http.Request, from caller) string {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch origin, err2 := url.Parse(r.Header.Get("Origin")); {
	case err != nil || media != "application/json":
		return "a change needs the content type application/json"
	case from.program:
		return ""
	case err2 != nil || !c.isOwn(origin, r):
		return fmt.Sprintf("a change needs the header Origin, with the console's own address; it has %.100q, and the header Host has %.100q: "+
			"behind a proxy, set Options.URL (yodel console --url) to the address in the browser", r.Header.Get("Origin"), r.Host)
	case r.Header.Get("Sec-Fetch-Site") != "" && r.Header.Get("Sec-Fetch-Site") != "same-origin":
		return "a change has to come from the console's own pages"
	case from.session != nil && !hash(from.session.csrf).is(hash(r.Header.Get(csrfName))):
		return "a change needs the header " + csrfName + " with the value that /api/me returns"
	}
	return ""
}

// reading serves what f returns as JSON.
func (c *Console) reading(role Role, f func(r *http.Request) (any, error)) http.Handler {
	return c.allowing(role, func(w http.ResponseWriter, r *http.Request, _ User) {
		v, err := f(r)
		reply(w, r, v, err)
	})
}

// changing serves a change. F records it in the audit log.
func (c *Console) changing(role Role, f func(r *http.Request, user User) (any, error)) http.Handler {
	return c.allowing(role, func(w http.ResponseWriter, r *http.Request, user User) {
		if c.opts.ReadOnly {
			refuse(w, r, http.StatusForbidden, "this console is read-only")
			return
		}
		var v any
		var err error
		if refused := c.work(r, func(r *http.Request) { v, err = f(r, user) }); refused != nil {
			err = refused
		}
		reply(w, r, v, err)
	})
}

// work runs f, which makes changes. The context of its request ends with the console, and Close
// waits until f has recorded them. The body is read before, so that Close does not wait for a slow
// client.
func (c *Console) work(r *http.Request, f func(r *http.Request)) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return yodel.Errorf(yodel.InvalidArgument, "the request cannot be read: %v", err)
	}
	if !c.fleet.begin() {
		return yodel.Errorf(yodel.Unavailable, "the console is closed")
	}
	defer c.fleet.begun.Done()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)() //nolint:contextcheck // the end of the console ends the change too
	r = r.WithContext(ctx)
	r.Body = io.NopCloser(bytes.NewReader(body))
	f(r)
	return nil
}

// login exchanges the token of a login link for a session.
func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	in := struct{ Token, Path string }{Path: "/"}
	if why := c.forged(r, caller{}); why != "" {
		refuse(w, r, http.StatusForbidden, why)
		return
	}
	err := decode(r, &in)
	if err == nil && !isCookiePath(in.Path) {
		err = yodel.Errorf(yodel.InvalidArgument, "the path %.100q is not that of a page", in.Path)
	}
	if err != nil {
		reply(w, r, nil, err)
		return
	}
	from, _ := netip.ParseAddr(r.RemoteAddr) // as ServeHTTP has set it
	session, user, wait, err := c.doors.enter(in.Token, from)
	switch {
	case wait > 0:
		w.Header().Set("Retry-After", fmt.Sprint(int(wait.Seconds())+1))
		refuse(w, r, http.StatusTooManyRequests, "too many bad logins: try again in a minute")
	case err != nil:
		if errors.Is(err, errLoudBadLogin) {
			c.audit.add(r, User{}, entry{Action: "login", Result: "refused: more bad logins within a minute are not listed"})
		}
		refuse(w, r, http.StatusUnauthorized, "the login link is wrong, used or older than 15 minutes: ask for another one")
	default:
		c.audit.add(r, user, entry{Action: "login", Result: "ok"})
		cookie := cookieOf(r, in.Path) //nolint:gosec // it has the attributes
		cookie.Value, cookie.MaxAge = session, int(sessionLife.Seconds())
		http.SetCookie(w, cookie)
		reply(w, r, struct{}{}, nil)
	}
}

// logout ends the session of a request.
func (c *Console) logout(w http.ResponseWriter, r *http.Request, user User) {
	in := struct{ Path string }{Path: "/"}
	if err := decode(r, &in); err != nil {
		reply(w, r, nil, err)
		return
	}
	if session := c.doors.sessionOf(r); session != nil {
		c.doors.mu.Lock()
		c.doors.sessions = slices.DeleteFunc(c.doors.sessions, func(t ticket) bool { return t.token.is(session.token) })
		c.doors.mu.Unlock()
	}
	c.audit.add(r, user, entry{Action: "logout", Result: "ok"})
	if isCookiePath(in.Path) {
		cookie := cookieOf(r, in.Path) //nolint:gosec // it has the attributes
		cookie.MaxAge = -1
		http.SetCookie(w, cookie)
	}
	reply(w, r, struct{}{}, nil)
}

// invite makes a login link for another user.
func (c *Console) invite(r *http.Request, user User) (any, error) {
	var in struct{ Name, Role string }
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	roles := map[string]Role{"viewer": Viewer, "operator": Operator, "admin": Admin}
	if in.Name == "" || len(in.Name) > 64 || roles[in.Role] == NoRole {
		return nil, yodel.Errorf(yodel.InvalidArgument, "an invitation needs a name, and one of the roles viewer, operator and admin")
	}
	c.audit.add(r, user, entry{Action: "invite", Object: in.Name, After: in.Role, Result: "ok"})
	return map[string]string{"link": c.LoginLink(User{in.Name, roles[in.Role]})}, nil
}

// me describes the user and the console.
func (c *Console) me(r *http.Request) (any, error) {
	user := c.identify(r)
	out := map[string]any{
		"user": user.Name, "role": user.Role.String(), "readOnly": c.opts.ReadOnly, "environment": c.opts.Environment,
		"registry": c.registryName(), "rules": c.book != nil, "overrides": c.describe().Override != nil,
	}
	if user.session != nil {
		out["csrf"] = user.session.csrf
	}
	return out, nil
}

// hostOf returns the Host header without its port.
func hostOf(r *http.Request) string {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// isPlainPath reports whether a path has one spelling only: no empty parts, dots, backslashes or
// control characters, encoded or not.
func isPlainPath(u *url.URL) bool {
	p := u.Path
	if p == "" || p[0] != '/' || path.Clean(p) != p && path.Clean(p)+"/" != p || len(p) > 1024 {
		return false
	}
	if strings.ContainsFunc(p, func(c rune) bool { return c < ' ' || c == 0x7f || c == '\\' || c == 0xfffd }) {
		return false
	}
	for part := range strings.SplitSeq(u.EscapedPath(), "/") {
		plain, err := url.PathUnescape(part)
		if err != nil || plain == "." || plain == ".." || strings.Contains(plain, "/") {
			return false
		}
	}
	return true
}

// decode reads the JSON of a request.
func decode(r *http.Request, v any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return yodel.Errorf(yodel.InvalidArgument, "the request is not the JSON that is wanted: %v", err)
	}
	return nil
}

// reply writes a value, or the error, as JSON. A browser that has the value already gets the status
// 304.
func reply(w http.ResponseWriter, r *http.Request, v any, err error) {
	if err != nil {
		refuseFor(w, r, err)
		return
	}
	body, err := encode(v)
	if err != nil {
		refuse(w, r, http.StatusInternalServerError, "the reply could not be encoded")
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if r.Method == http.MethodGet {
		h.Set("Cache-Control", "private, no-cache")
	}
	if !unchanged(w, r, body) {
		send(w, r, body)
	}
}

// unchanged sets the ETag of a body. If the browser has that body already, unchanged answers with
// the status 304 and reports true.
func unchanged(w http.ResponseWriter, r *http.Request, body []byte) bool {
	sum := sha256.Sum256(body)
	tag := fmt.Sprintf(`"%x"`, sum[:12])
	w.Header().Set("ETag", tag)
	if r.Method != http.MethodGet || r.Header.Get("If-None-Match") != tag {
		return false
	}
	w.WriteHeader(http.StatusNotModified)
	return true
}

// encode returns a value as JSON. Characters that change the direction of the text after them
// become U+FFFD, so that a name of the fleet cannot change how the rest of a page reads. That
// includes those that the JSON of a reply has as \u202e.
func encode(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	for i := 0; i < len(body); i++ {
		if body[i] != '\\' {
			continue
		}
		if i++; i+4 < len(body) && body[i] == 'u' { // a backslash in JSON always has a successor
			if c, err := strconv.ParseUint(string(body[i+1:i+5]), 16, 16); err == nil && strings.ContainsRune(turning, rune(c)) {
				copy(body[i+1:], "fffd")
			}
		}
	}
	if bytes.ContainsAny(body, turning) {
		body = bytes.Map(func(c rune) rune {
			if strings.ContainsRune(turning, c) {
				return 0xfffd
			}
			return c
		}, body)
	}
	return body, err
}

// turning has the characters of Unicode that embed, override and isolate directions.
const turning = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"

func statusOf(err error) int {
	switch yodel.CodeOf(err) {
	case yodel.InvalidArgument, yodel.FailedPrecondition, yodel.OutOfRange:
		return http.StatusBadRequest
	case yodel.NotFound:
		return http.StatusNotFound
	case yodel.AlreadyExists, yodel.Aborted:
		return http.StatusConflict
	case yodel.Unimplemented:
		return http.StatusNotImplemented
	case yodel.PermissionDenied:
		return http.StatusForbidden
	case yodel.ResourceExhausted:
		return http.StatusTooManyRequests
	default:
		return http.StatusBadGateway
	}
}

// errorText returns the text of an error for the user.
func errorText(err error) string {
	if e, ok := errors.AsType[*yodel.Error](err); ok {
		return e.Message
	}
	return err.Error()
}

// refuseFor writes why a request fails. A change that is based on old data has the difference, and
// one that has to be confirmed has what the user types for that.
func refuseFor(w http.ResponseWriter, r *http.Request, err error) {
	fields := map[string]any{"error": errorText(err)}
	status := statusOf(err)
	conflict, old := errors.AsType[*rules.ConflictError](err)
	unconfirmed, open := errors.AsType[*unconfirmedError](err)
	switch {
	case old:
		status, fields["diff"] = http.StatusConflict, conflict.Diff
	case open:
		status, fields["confirm"] = http.StatusConflict, unconfirmed.service
	default:
		refuse(w, r, status, errorText(err))
		return
	}
	body, err := encode(fields)
	if err != nil {
		refuse(w, r, status, errorText(err))
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have gone
}

// refuse writes an error, as JSON for the pages and as a line for people.
func refuse(w http.ResponseWriter, r *http.Request, status int, text string) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if strings.HasPrefix(r.URL.Path, "/api/") {
		h.Set("Content-Type", "application/json")
		w.WriteHeader(status)
		body, err := json.Marshal(map[string]string{"error": text})
		if err == nil { // strings can be encoded
			_, _ = w.Write(body) // the client may have gone
		}
		return
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, printable(text)) //nolint:gosec // it is plain text, and the browser must not guess; the client may have gone
}
