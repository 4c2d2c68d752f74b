// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
)

// List returns a resolver of the instances in a file, which is read again when it changes. Each
// line has an address, and optionally more fields as in registry.RPCX. Without the field protocol,
// an instance speaks yodel:
//
//	# the old machines
//	10.0.0.1:8972
//	10.0.0.2:8972?weight=2&zone=a
//
// Alternatively the file is a JSON array of discovery.Instance. A file that is empty or cannot be
// read is an error, and clients keep the previous instances. The array [] means that there are no
// instances. To replace the file atomically, rename another file to it. A file that is written in
// place is read once it has not changed for a moment.
func List(path string) discovery.Resolver { return list(path) }

type list string

// Watch implements discovery.Resolver.
func (l list) Watch(ctx context.Context, update func([]discovery.Instance)) error {
	var was, broken os.FileInfo
	for ctx.Err() == nil {
		info, err := os.Stat(string(l))
		if err != nil {
			return err
		}
		if !same(info, was) {
			instances, err := l.read()
			now, gone := os.Stat(string(l))
			switch {
			// A program is writing the file. The part that is there can look like a complete file.
			case gone != nil || !same(now, info) || !settled(now):
			case err == nil:
				was = info
				update(instances)
			case same(info, broken):
				return err
			default:
				// The file may have been truncated just now: some file systems update its time
				// later.
				broken = info
			}
		}
		select {
		case <-time.After(every / 2):
		case <-ctx.Done():
		}
	}
	return nil
}

func same(a, b os.FileInfo) bool {
	return b != nil && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// settled reports whether a file has not been written for a moment.
func settled(info os.FileInfo) bool {
	return time.Since(info.ModTime()).Abs() >= every/2 // the modification time may be in the future
}

func (l list) read() ([]discovery.Instance, error) {
	text, err := os.ReadFile(string(l))
	if err != nil {
		return nil, err
	}
	text = bytes.TrimSpace(text)
	var instances []discovery.Instance
	switch {
	case len(text) == 0:
		err = errors.New("it is empty; [] is a list of no instances")
	case text[0] == '[':
		err = json.Unmarshal(text, &instances)
	default:
		instances, err = parseLines(string(text))
	}
	for i, in := range instances {
		if in.Addr == "" {
			err = errors.Join(err, fmt.Errorf("instance %d has no addr", i+1))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", string(l), err)
	}
	return registry.Distinct(instances), nil
}

func parseLines(text string) ([]discovery.Instance, error) {
	var instances []discovery.Instance
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		addr, rest, _ := strings.Cut(line, "?")
		in, err := registry.RPCX.Instance(registry.RPCX.Name(addr), []byte(rest))
		if fields, _ := url.ParseQuery(rest); !fields.Has("protocol") { // err has the error
			in.Protocols = nil // yodel
		}
		if strings.ContainsAny(addr, " \t") {
			err = errors.Join(err, fmt.Errorf("%q is no address", addr))
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		instances = append(instances, in)
	}
	return instances, nil
}
