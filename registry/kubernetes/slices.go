// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// A slice has the fields of an EndpointSlice that this package uses.
type slice struct {
	APIVersion  string     `json:"apiVersion,omitempty"`
	Kind        string     `json:"kind,omitempty"`
	Metadata    metadata   `json:"metadata"`
	AddressType string     `json:"addressType"` // IPv4, IPv6 or FQDN
	Endpoints   []endpoint `json:"endpoints"`
	Ports       []port     `json:"ports"`
}

type metadata struct {
	Name            string            `json:"name,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Continue        string            `json:"continue,omitempty"` // of a list that has another page
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
}

type endpoint struct {
	Addresses  []string   `json:"addresses"`
	Conditions conditions `json:"conditions,omitzero"`
	Zone       string     `json:"zone,omitempty"`
	NodeName   string     `json:"nodeName,omitempty"`
	TargetRef  struct {
		Name string `json:"name,omitempty"`
		UID  string `json:"uid,omitempty"`
	} `json:"targetRef,omitzero"`
}

type conditions struct {
	Ready       *bool `json:"ready,omitempty"` // nil counts as ready
	Terminating bool  `json:"terminating,omitempty"`
}

type port struct {
	Name string `json:"name,omitempty"`
	Port int    `json:"port,omitempty"` // 0 means all ports
}

// A list is the answer to a list request: the slices, and the version of the list.
type list struct {
	Metadata metadata `json:"metadata"`
	Items    []slice  `json:"items"`
}

// An event is one event of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// These are the types of events.
const (
	deleted  = "DELETED"
	bookmark = "BOOKMARK" // reports a newer version without a change
	failed   = "ERROR"
)

// A follower receives slices: first all slices, and then each slice that has changed.
type follower interface {
	replace(all []slice)
	change(s slice, gone bool)
}

// follow passes the slices with a label to f, until ctx ends or the API server fails. If the server
// no longer has the events since the last one, follow lists the slices again.
func (a *api) follow(ctx context.Context, namespace, selector string, f follower) error {
	for ctx.Err() == nil {
		began := time.Now()
		err := a.listAndWatch(ctx, namespace, selector, f)
		switch {
		case ctx.Err() != nil:
		case !is(err, http.StatusGone):
			return err
		case time.Since(began) < shortest:
			return fmt.Errorf("again and again: %w", err)
		}
	}
	return nil
}

func (a *api) listAndWatch(ctx context.Context, namespace, selector string, f follower) error {
	r := request{method: http.MethodGet, path: path(namespace, ""), query: url.Values{"labelSelector": {selector}}}
	var all list
	select {
	case a.lists <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := a.do(ctx, r, &all)
	<-a.lists
	if err != nil {
		return err
	}
	f.replace(all.Items)
	r.query.Set("watch", "true")
	r.query.Set("allowWatchBookmarks", "true")
	// The server ends the watch after this time, in case it does not notice that the client is
	// gone.
	r.query.Set("timeoutSeconds", strconv.Itoa(int(a.Reconcile/time.Second)+1))
	version := all.Metadata.ResourceVersion
	for {
		began := time.Now()
		r.query.Set("resourceVersion", version)
		var err error
		if version, err = a.watch(ctx, r, version, f); err != nil {
			return err
		}
		// The server or a proxy ends a watch from time to time. A new watch continues at the last
		// version, without a new list.
		if time.Since(began) < shortest {
			return errors.New("kubernetes: the API server ends a watch at once")
		}
	}
}

// watch passes changes to f until the API server ends the stream, and returns the last version.
func (a *api) watch(ctx context.Context, r request, version string, f follower) (string, error) {
	resp, err := a.send(ctx, r)
	if err != nil {
		return version, err
	}
	defer resp.Body.Close()
	for events := json.NewDecoder(resp.Body); ; {
		var e event
		if err = events.Decode(&e); errors.Is(err, io.EOF) {
			return version, nil
		}
		if err != nil {
			return version, fmt.Errorf("kubernetes: %w", err)
		}
		if e.Type == failed {
			var said status
			if err = json.Unmarshal(e.Object, &said); err == nil {
				err = said
			}
			return version, err
		}
		var s slice
		if err = json.Unmarshal(e.Object, &s); err != nil {
			return version, fmt.Errorf("kubernetes: %w", err)
		}
		version = s.Metadata.ResourceVersion
		if e.Type != bookmark {
			f.change(s, e.Type == deleted)
		}
	}
}
