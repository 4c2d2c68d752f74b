// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"context"
	"crypto/md5" //nolint:gosec // Nacos compares a configuration by it
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// This file uses the part of the Open API for configurations.

// missingV3 is the code in an answer of version 3 for a configuration that does not exist.
const missingV3 = 20004

// configuration returns the parameters that identify a configuration.
func (r *Registry) configuration(group, id string) url.Values {
	if !r.opts.V1 {
		return url.Values{"namespaceId": {r.opts.Namespace}, "groupName": {group}, "dataId": {id}}
	}
	q := url.Values{"group": {group}, "dataId": {id}}
	if r.opts.Namespace != publicNamespace { // its id is empty here
		q.Set("tenant", r.opts.Namespace)
	}
	return q
}

// readConfiguration returns the content of a configuration, or "" if there is none. Nacos may
// return the previous content for a moment after a change.
func (r *Registry) readConfiguration(ctx context.Context, group, id string) (string, error) {
	to := request{method: http.MethodGet, path: "/nacos/v3/client/cs/config", query: r.configuration(group, id)}
	if r.opts.V1 {
		to.path = "/nacos/v1/cs/configs"
	}
	answer, err := r.ask(ctx, to)
	var failed httpError
	for errors.As(err, &failed) && failed.status == http.StatusConflict && pause(ctx) { // it is being changed
		answer, err = r.ask(ctx, to)
	}
	if errors.As(err, &failed) && failed.status == http.StatusNotFound {
		return "", nil
	}
	if err != nil || r.opts.V1 {
		return string(answer), err
	}
	var data struct {
		Content string `json:"content"`
	}
	err = unpack(answer, &data)
	var no refusal
	if errors.As(err, &no) && no.code == missingV3 {
		return "", nil
	}
	return data.Content, err
}

// pause waits until Nacos may have stored a change, and reports false if ctx has ended.
func pause(ctx context.Context) bool {
	select {
	case <-time.After(50 * time.Millisecond):
		return true
	case <-ctx.Done():
		return false
	}
}

// publishConfiguration sets the content of a configuration. It fails if there is another content
// before than the given one, which is "" if there is no configuration.
func (r *Registry) publishConfiguration(ctx context.Context, group, id, before, content string) error {
	to := request{method: http.MethodPost, path: "/nacos/v3/admin/cs/config", query: r.configuration(group, id)}
	sum := md5.Sum([]byte(before)) //nolint:gosec // see above
	to.replaced = hex.EncodeToString(sum[:])
	to.query.Set("content", content)
	if !r.opts.V1 {
		return r.succeed(r.ask(ctx, to))
	}
	to.path = "/nacos/v1/cs/configs"
	answer, err := r.ask(ctx, to)
	if err == nil && string(answer) != "true" {
		err = fmt.Errorf("nacos: it answered %q", answer)
	}
	return err
}
