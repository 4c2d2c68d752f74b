// SPDX-License-Identifier: Apache-2.0

package nacos

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// This file stores records of operators, such as rules, in configurations of Nacos. A configuration
// has all records of a kind for a service. It is in the group of the service, and Nacos's console
// shows it:
//
//	yodel-rules         {"Shop": {}}: the services with records
//	yodel-rules:Shop    {"canary-7f3a": {"schema": 1, "service": "Shop", …}}

// keptList returns the id of the configuration that has the services with records of a kind.
func keptList(kind string) string { return "yodel-" + kind }

// keptID returns the id of the configuration for the records of a kind. Nacos allows letters,
// digits and "_-.:" in it.
func keptID(kind, service string) string {
	var b strings.Builder
	b.WriteString(keptList(kind) + ":")
	for i := range len(service) {
		if c := service[i]; c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, ":%02X", c)
		}
	}
	if id := b.String(); len(id) > maxID {
		hash := sha256.Sum256([]byte(service)) // no two names have one id, because the cut ones end in a hash
		return id[:200] + "::" + hex.EncodeToString(hash[:16])
	}
	return b.String()
}

// maxID is the size of the longest id of a configuration, in the database of Nacos.
const maxID = 255

// recordsIn returns the records in a configuration.
func recordsIn(content string) (map[string][]byte, error) {
	var all map[string]json.RawMessage
	if content != "" {
		if err := json.Unmarshal([]byte(content), &all); err != nil {
			return nil, fmt.Errorf("nacos: read the records: %w", err)
		}
	}
	records := make(map[string][]byte, len(all))
	for id, value := range all {
		var text string
		if json.Unmarshal(value, &text) == nil && value[0] == '"' {
			records[id] = []byte(text)
			continue
		}
		var plain bytes.Buffer
		if err := json.Compact(&plain, value); err != nil {
			return nil, fmt.Errorf("nacos: read the record %s: %w", id, err)
		}
		records[id] = plain.Bytes()
	}
	return records, nil
}

// contentOf returns a configuration with records. A record that is a JSON object is part of its
// JSON. Any other record is a string in it.
func contentOf(records map[string][]byte) (string, error) {
	all := make(map[string]any, len(records))
	for id, value := range records {
		switch {
		case !utf8.Valid(value):
			return "", fmt.Errorf("nacos: the record %s is no text", id)
		case bytes.HasPrefix(value, []byte("{")) && json.Valid(value):
			all[id] = json.RawMessage(value)
		default:
			all[id] = string(value)
		}
	}
	var b bytes.Buffer
	out := json.NewEncoder(&b)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	err := out.Encode(all)
	return strings.TrimSpace(b.String()), err
}

// settling is how long Nacos may take to return a change.
const settling = 2 * time.Second

// Keep stores a record of an operator, as registry.Registry.Keep does, in a configuration of Nacos.
// It returns when Nacos returns the change. With authentication, the user needs the permission to
// change configurations, and with version 3 of the API the role of an administrator.
func (r *Registry) Keep(ctx context.Context, service, kind, id string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.Timeout)
	defer cancel()
	key := keptID(kind, service)
	before, err := r.readConfiguration(ctx, r.opts.Group, key)
	if err == nil && before == "" && value != nil {
		err = r.setRecord(ctx, keptList(kind), service, []byte("{}"))
	}
	if err != nil {
		return err
	}
	return r.setRecord(ctx, key, id, value)
}

// setRecord changes a record in a configuration, and returns when Nacos returns the change.
func (r *Registry) setRecord(ctx context.Context, key, id string, value []byte) error {
	replaced, published := "", time.Time{}
	for {
		before, err := r.readConfiguration(ctx, r.opts.Group, key)
		if err != nil {
			return err
		}
		content, err := withRecord(before, id, value)
		if err != nil || content == before {
			return err
		}
		if before != replaced || time.Since(published) > settling { // Nacos has returned the last change
			err = r.publishConfiguration(ctx, r.opts.Group, key, before, content)
			switch {
			case err == nil:
				replaced, published = before, time.Now()
			case !isConflict(err):
				return err
			}
		}
		if !pause(ctx) {
			return fmt.Errorf("nacos: change %s: %w", key, cmp.Or(err, context.Cause(ctx)))
		}
	}
}

// isConflict reports whether a configuration may not have been published because there is another
// content than the caller has read. Nacos answers so to failures of its own too.
func isConflict(err error) bool {
	failed, ok := errors.AsType[httpError](err)
	return ok && failed.status == http.StatusInternalServerError
}

// withRecord returns a configuration in which a record has a value, or does not exist if value is
// nil.
func withRecord(before, id string, value []byte) (string, error) {
	records, err := recordsIn(before)
	if err != nil {
		return "", err
	}
	if old, ok := records[id]; ok == (value != nil) && bytes.Equal(old, value) {
		return before, nil
	}
	if value == nil {
		delete(records, id)
	} else {
		records[id] = value
	}
	return contentOf(records)
}

// keptEvery is the longest interval at which Kept polls.
const keptEvery = time.Second

// Kept calls update with all records of a kind for a service, by ID, at once and after every
// change, until ctx ends. It polls every second, or more often if Options.Every is shorter.
func (r *Registry) Kept(ctx context.Context, service, kind string, update func(records map[string][]byte)) error {
	return r.kept(ctx, min(r.opts.Every, keptEvery), service, kind, update)
}

// kept is Kept with an interval.
func (r *Registry) kept(ctx context.Context, every time.Duration, service, kind string, update func(records map[string][]byte)) error {
	key := keptID(kind, service)
	last, records := "", map[string][]byte{}
	return poll(ctx, every, update, func() (map[string][]byte, error) {
		content, err := r.readConfiguration(ctx, r.opts.Group, key)
		if err != nil || content == last {
			return records, err
		}
		now, err := recordsIn(content)
		if err != nil {
			return nil, err
		}
		last, records = content, now
		return records, nil
	})
}

// KeptServices returns the services that have, or had, records of a kind.
func (r *Registry) KeptServices(ctx context.Context, kind string) ([]string, error) {
	content, err := r.readConfiguration(ctx, r.opts.Group, keptList(kind))
	if err != nil {
		return nil, err
	}
	services, err := recordsIn(content)
	return slices.Sorted(maps.Keys(services)), err
}
