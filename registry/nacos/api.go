// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// This file uses the Open API of Nacos: https://nacos.io/en/docs/v3.0/manual/user/open-api/ and,
// for version 1, https://nacos.io/en/docs/v1/open-api/.

const (
	instanceV3 = "/nacos/v3/client/ns/instance"
	instanceV1 = "/nacos/v1/ns/instance"
)

func (r *Registry) path() string {
	if r.opts.V1 {
		return instanceV1
	}
	return instanceV3
}

func (r *Registry) register(ctx context.Context, about url.Values) error {
	return r.succeed(r.ask(ctx, request{method: http.MethodPost, path: r.path(), query: about}))
}

// deregister removes a record. Nacos 3 fails with status 500 if it removes the same record by
// itself meanwhile, because its client was silent for too long. So deregister asks a second time
// then.
func (r *Registry) deregister(ctx context.Context, record url.Values) error {
	to := request{method: http.MethodDelete, path: r.path(), query: record}
	answer, err := r.ask(ctx, to)
	if failed, ok := errors.AsType[httpError](err); ok && failed.status == http.StatusInternalServerError {
		answer, err = r.ask(ctx, to)
	}
	return r.succeed(answer, err)
}

// These are the codes in the answer to a heartbeat.
const (
	unknownV3 = 21003
	knownV1   = 10200
	unknownV1 = 20404
)

// beat sends a heartbeat for a record, and reports whether Nacos knows the record.
func (r *Registry) beat(ctx context.Context, record url.Values) (known bool, err error) {
	record = maps.Clone(record)
	if r.opts.V1 {
		record.Set("serviceName", r.opts.Group+"@@"+record.Get("serviceName")) // here the name includes the group
		answer, err := r.ask(ctx, request{method: http.MethodPut, path: r.path() + "/beat", query: record})
		var result struct {
			Code int `json:"code"`
		}
		if err == nil {
			err = json.Unmarshal(answer, &result)
		}
		if err == nil && result.Code != knownV1 && result.Code != unknownV1 {
			err = fmt.Errorf("nacos: a heartbeat was answered with %s", answer)
		}
		return result.Code == knownV1, err
	}
	record.Set("heartBeat", "true")
	err = r.succeed(r.ask(ctx, request{method: http.MethodPost, path: r.path(), query: record}))
	var no refusal
	if errors.As(err, &no) && no.code == unknownV3 {
		return false, nil
	}
	return err == nil, err
}

// list returns the answer of Nacos that lists a service's instances in a cluster, or in all
// clusters for "". The method hosts reads it.
func (r *Registry) list(ctx context.Context, service, cluster string) ([]byte, error) {
	q := r.about(service)
	switch {
	case cluster == "":
	case r.opts.V1:
		q.Set("clusters", cluster)
	default:
		q.Set("clusterName", cluster)
	}
	return r.ask(ctx, request{method: http.MethodGet, path: r.path() + "/list", query: q})
}

func (r *Registry) hosts(answer []byte) (hosts []host, err error) {
	if r.opts.V1 {
		var list struct {
			Hosts []host `json:"hosts"`
		}
		err = json.Unmarshal(answer, &list)
		return list.Hosts, err
	}
	err = unpack(answer, &hosts)
	return hosts, err
}

// A refusal is an answer of Nacos with an error code.
type refusal struct {
	code    int
	message string
}

func (r refusal) Error() string { return fmt.Sprintf("nacos: it answered %d: %s", r.code, r.message) }

// succeed returns an error unless the answer reports success.
func (r *Registry) succeed(answer []byte, err error) error {
	switch {
	case err != nil:
		return err
	case !r.opts.V1:
		return unpack(answer, nil)
	case string(answer) != "ok":
		return fmt.Errorf("nacos: it answered %q", answer)
	}
	return nil
}

// unpack reads the data in an answer of version 3. It discards the data if the argument data is
// nil.
func unpack(answer []byte, data any) error {
	var result struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(answer, &result); err != nil {
		return fmt.Errorf("nacos: read its answer: %w", err)
	}
	if result.Code != 0 {
		return refusal{result.Code, result.Message}
	}
	if data == nil {
		return nil
	}
	return json.Unmarshal(result.Data, data)
}

// A request is a request to Nacos.
type request struct {
	method, path string
	query        url.Values
	replaced     string // the MD5 of the configuration that is replaced, if any
}

// ask sends a request to the servers one after the other until one answers, and returns the answer.
func (r *Registry) ask(ctx context.Context, to request) ([]byte, error) {
	if r.wrong != nil {
		return nil, fmt.Errorf("nacos: %w", r.wrong)
	}
	token, err := r.token(ctx, "")
	if err != nil {
		return nil, err
	}
	answer, err := r.send(ctx, to, token)
	var no httpError
	if token != "" && errors.As(err, &no) && (no.status == http.StatusForbidden || no.status == http.StatusUnauthorized) {
		if token, err = r.token(ctx, token); err == nil { // the server may no longer know the token
			answer, err = r.send(ctx, to, token)
		}
	}
	return answer, err
}

// send sends a request with a token, as ask does.
func (r *Registry) send(ctx context.Context, to request, token string) (answer []byte, err error) {
	r.mu.Lock()
	first := r.preferred
	r.mu.Unlock()
	for i := range r.servers {
		server := (first + i) % len(r.servers)
		answer, err = r.sendTo(ctx, r.servers[server], to, token)
		var no httpError
		if err == nil || errors.As(err, &no) && no.status < http.StatusInternalServerError {
			r.prefer(server)
			return answer, err
		}
		if ctx.Err() != nil {
			r.prefer((server + 1) % len(r.servers)) // this server did not answer in time
			break
		}
	}
	return nil, err
}

// prefer makes the next request begin with this server.
func (r *Registry) prefer(server int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.preferred = server
}

// An httpError is an answer with an HTTP status other than 200.
type httpError struct {
	status int
	text   string
}

func (e httpError) Error() string { return e.text }

func (r *Registry) sendTo(ctx context.Context, server string, to request, token string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	target, body := server+to.path, io.Reader(http.NoBody)
	if to.method == http.MethodPost { // metadata may be long, and passwords in a URL get into logs
		body = strings.NewReader(to.query.Encode())
	} else {
		target += "?" + to.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, to.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("nacos: %w", err)
	}
	if to.method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if to.replaced != "" {
		req.Header.Set("Casmd5", to.replaced)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("nacos: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		text := bytes.TrimSpace(answer[:min(len(answer), 500)])
		at := *req.URL
		at.RawQuery = ""
		err = httpError{resp.StatusCode, fmt.Sprintf("nacos: %s %s: %s: %s", to.method, at.Redacted(), resp.Status, text)}
	}
	return answer, err
}

// A session is a login.
type session struct {
	token string
	until time.Time // when to log in again
}

// token returns a token for requests that differs from refused. Without a username, the token is
// empty.
func (r *Registry) token(ctx context.Context, refused string) (string, error) {
	if r.opts.Username == "" {
		return "", nil
	}
	var s session
	select {
	case s = <-r.session:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	defer func() { r.session <- s }()
	if s.token != refused && s.token != "" && time.Now().Before(s.until) {
		return s.token, nil
	}
	login := request{
		method: http.MethodPost, path: "/nacos/v3/auth/user/login",
		query: url.Values{"username": {r.opts.Username}, "password": {r.opts.Password}},
	}
	if r.opts.V1 {
		login.path = "/nacos/v1/auth/login"
	}
	answer, err := r.send(ctx, login, "")
	if err != nil {
		return "", fmt.Errorf("log in as %s: %w", r.opts.Username, err)
	}
	var granted struct {
		AccessToken string `json:"accessToken"`
		TokenTTL    int    `json:"tokenTtl"` // in seconds
	}
	if err = json.Unmarshal(answer, &granted); err == nil && granted.AccessToken == "" {
		err = errors.New("there is no token in the answer")
	}
	if err != nil {
		return "", fmt.Errorf("nacos: log in as %s: %w", r.opts.Username, err)
	}
	s = session{granted.AccessToken, time.Now().Add(time.Duration(granted.TokenTTL) * time.Second * 9 / 10)}
	return s.token, nil
}
