// SPDX-License-Identifier: Apache-2.0

package yodeltest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
)

// This file has the rule about names that are too long for a registry, or that a registry may take
// for each other.

// A trialName is a name that a registry carries or refuses.
type trialName struct {
	what    string // for example "service"
	text    string // contains a new name of this test, so an error can be recognised
	service string
	in      discovery.Instance
	refused error
}

// limitInError matches the limit that an error has to name.
var limitInError = regexp.MustCompile(`limit of \d+ (bytes|characters)`)

// longNames announces instances with names of many lengths and scripts, and names that differ only
// at their ends or in where one part ends. Each is carried as it is, or refused.
func (x registryTrial) longNames() error {
	names := slices.Concat(x.longServices(), x.longFields())
	each := func(do func(n *trialName) error) error {
		return x.inParallel(len(names), func(i int) error { return do(names[i]) })
	}
	err := each(func(n *trialName) error {
		n.refused = x.announce(n.service, x.long(), n.in)
		if n.refused == nil || n.named() {
			return nil
		}
		return fmt.Errorf("a %s of %d bytes, %.60s…, is refused without its name or the limit: %w", n.what, len(n.text), n.text, n.refused)
	})
	if err == nil {
		err = x.carries(names)
	}
	if err == nil {
		err = x.listsCarried(names)
	}
	return errors.Join(err, each(func(n *trialName) error { return x.withdraw(n.service, n.in.Addr) }))
}

// named reports whether the refusal names the limit, and the text or its record.
func (n *trialName) named() bool {
	said := n.refused.Error()
	record := strings.Contains(said, n.service) && strings.Count(said, n.in.Addr) > 1 // Announce is not the registry's
	return limitInError.MatchString(said) && (record || strings.Contains(said, n.text[:40]))
}

// longServices returns names of services, each with an instance.
func (x registryTrial) longServices() (names []*trialName) {
	add := func(service, addr string) {
		in := discovery.Instance{Addr: addr, Weight: len(names) + 2}
		names = append(names, &trialName{what: "service", text: service, service: service, in: in})
	}
	for _, size := range longSizes {
		for _, letter := range longLetters {
			name := x.longText(size, letter)
			add(name+"1", "10.0.0.1:80")
			add(name+"2", "10.0.0.1:80")
		}
	}
	base := strings.Repeat("a", 20) + x.name() // whichever part is longer
	for _, between := range []string{"@", "/", " ", ":", "^", "%", "#", "=", "%2F", "%40", "@@", "..", "-"} {
		add(base+between+"b", "c:80")
		add(base, "b"+between+"c:80")
	}
	return names
}

// longFields returns instances of a service. Each has a long text in one of its fields.
func (x registryTrial) longFields() (names []*trialName) {
	service := x.name()
	for what, set := range map[string]func(in *discovery.Instance, text string){
		"address":        func(in *discovery.Instance, text string) { in.Addr = text + ":80" },
		"version":        func(in *discovery.Instance, text string) { in.Version = text },
		"group":          func(in *discovery.Instance, text string) { in.Group = text },
		"zone":           func(in *discovery.Instance, text string) { in.Zone = text },
		"incarnation":    func(in *discovery.Instance, text string) { in.Incarnation = text },
		"tag":            func(in *discovery.Instance, text string) { in.Tags = []string{"a", text} },
		"metadata value": func(in *discovery.Instance, text string) { in.Metadata = yodel.Metadata{"a": text} },
		"metadata key":   func(in *discovery.Instance, text string) { in.Metadata = yodel.Metadata{text: "a"} },
	} {
		for i, size := range longSizes {
			text := x.longText(size, longLetters[i%len(longLetters)])
			for _, end := range []string{"1", "2"} {
				n := &trialName{what: what, text: text + end, service: service}
				n.in.Addr = fmt.Sprintf("10.0.0.1:%d", 1000+len(names))
				set(&n.in, n.text)
				names = append(names, n)
			}
		}
	}
	// A whole record may be too large, too.
	n := &trialName{what: "metadata value", text: x.longText(2<<20, "x"), service: service}
	n.in = discovery.Instance{Addr: "10.0.0.1:999", Metadata: yodel.Metadata{"a": n.text}}
	return append(names, n)
}

// These are the sizes of names in bytes, which are near to limits of registries, and their letters
// of one to four bytes.
var (
	longSizes   = []int{60, 120, 200, 250, 500, 1000, 5000}
	longLetters = []string{"x", "ü", "订", "🛒"}
)

// longText returns a new text of a size that consists of a letter.
func (x registryTrial) longText(size int, letter string) string {
	base := strings.Repeat("a", 15) + x.name()
	return base + strings.Repeat(letter, (size-len(base))/len(letter))
}

// carries checks that each service has the instances that were not refused, and no others.
func (x registryTrial) carries(names []*trialName) error {
	want := make(map[string]map[string]discovery.Instance)
	for _, n := range names {
		if want[n.service] == nil {
			want[n.service] = make(map[string]discovery.Instance)
		}
		if n.refused == nil {
			want[n.service][n.in.Addr] = n.in
		}
	}
	services := slices.Collect(maps.Keys(want))
	return x.inParallel(len(services), func(i int) error {
		service := services[i]
		if len(want[service]) == 0 {
			return x.carriesNone(service)
		}
		w := x.follow(service)
		err := w.see(fmt.Sprintf("the %d instances that were announced", len(want[service])), func(got []discovery.Instance) bool {
			for _, in := range got {
				if !reflect.DeepEqual(in, want[service][in.Addr]) {
					return false
				}
			}
			return len(got) == len(want[service])
		})
		if err != nil {
			err = fmt.Errorf("the service %.60s… of %d bytes: %w", service, len(service), err)
		}
		return errors.Join(err, w.stop())
	})
}

// carriesNone checks that a service whose only instance was refused has none, or that Watch fails.
func (x registryTrial) carriesNone(service string) error {
	w := resolverTrial{x.Service(service), nil, nil, x.patience}.watch(0)
	select {
	case err := <-w.ended:
		w.ended <- err
		w.cancel()
		return nil
	case <-w.changed:
	}
	if got := w.last(); len(got) > 0 {
		return errors.Join(fmt.Errorf("the service %.60s…, which was refused, has the instances of another: %v", service, got), w.stop())
	}
	return w.stop()
}

// listsCarried waits until the list of services has all that were not refused.
func (x registryTrial) listsCarried(names []*trialName) error {
	lister, ok := x.Registrar.(interface {
		Services(ctx context.Context) ([]string, error)
	})
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), x.patience)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		known, err := lister.Services(ctx)
		missing := slices.IndexFunc(names, func(n *trialName) bool { return n.refused == nil && !slices.Contains(known, n.service) })
		switch {
		case err == nil && missing < 0:
			return nil
		case err != nil:
			return fmt.Errorf("list the services: %w", err)
		case ctx.Err() != nil:
			return fmt.Errorf("the list lacks the service %.60s… of %d bytes", names[missing].service, len(names[missing].service))
		}
		select {
		case <-time.After(pause): // a registry that is polled may list late
		case <-ctx.Done():
		}
	}
}

// inParallel calls do for each number below n, sixteen at a time, and returns the first errors.
func (x registryTrial) inParallel(n int, do func(i int) error) error {
	var wg sync.WaitGroup
	faults := make([]error, 16)
	for part := range faults {
		wg.Go(func() {
			for i := part; i < n && faults[part] == nil; i += len(faults) {
				faults[part] = do(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(faults...)
}
