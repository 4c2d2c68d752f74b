// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"strings"

	"github.com/yodel-rpc/yodel/introspect"
)

// This file finds out where calls fail: the processes of a view also say what became of the calls
// that they have made.

// made is the calls that the processes of a view have made.
type made struct {
	byService map[string]map[*introspect.Live]bool // the processes that call a service
	refused   map[string]*tally                    // calls that were sent to no instance, by service
	failed    map[*introspect.Live]map[fault]float64
}

// A fault is how and where a call has failed.
type fault struct {
	code    string
	service string
	addr    string // empty if the call reached no instance
}

// callsMade adds up the calls that processes have made within a window.
func callsMade(processes []*introspect.Live, w *window) *made {
	m := &made{make(map[string]map[*introspect.Live]bool), make(map[string]*tally), make(map[*introspect.Live]map[fault]float64)}
	for _, live := range processes {
		for i := range live.Series {
			s := &live.Series[i]
			service := ServiceOf(s.Method)
			if s.Side != "client" || introspect.Infrastructure(service) {
				continue
			}
			t := ofSeries(s, live, w.own[live])
			if m.byService[service] == nil {
				m.byService[service] = make(map[*introspect.Live]bool)
			}
			m.byService[service][live] = true
			if m.failed[live] == nil { // it has made calls
				m.failed[live] = make(map[fault]float64)
			}
			for code, calls := range t.codes {
				m.failed[live][fault{code, service, s.Peer}] += calls
			}
			if s.Peer == "" {
				merge(m.refused, map[string]*tally{service: t})
			}
		}
	}
	return m
}

// clients returns how many processes call a service.
func (m *made) clients(service string) int { return len(m.byService[service]) }

// unsent returns the calls of a service that were sent to no instance.
func (m *made) unsent(service string) *tally {
	if t := m.refused[service]; t != nil {
		return t
	}
	return &tally{known: true}
}

// blame is a service whose calls fail, and how many of these calls there were.
type blame struct {
	service string
	addr    string // of the instance at which nearly all of them fail; "" if there is none
	calls   float64

	cause string // the service from which service has got the errors, or itself
	path  string // to the cause, for people
}

// blames has where calls have failed, by code.
type blames map[string]blame

// anyFailed is the key of the blame for all codes with the outcome Failed: a service may give the
// errors that it passes on another code.
const anyFailed = "failed"

// blames finds out where the calls have failed that processes have made, except those to a service
// itself, by code.
func (m *made) blames(except string, processes map[*introspect.Live]bool) blames {
	sums, at := make(map[[2]string]float64), make(map[fault]float64)
	for live := range processes {
		for f, calls := range m.failed[live] {
			if f.service == except {
				continue
			}
			codes := []string{f.code}
			if introspect.OutcomeOf(f.code) == introspect.Failed {
				codes = append(codes, anyFailed)
			}
			for _, code := range codes {
				sums[[2]string{code, f.service}] += calls
				at[fault{code, f.service, f.addr}] += calls
			}
		}
	}
	all := make(blames)
	for key, calls := range sums {
		if b := all[key[0]]; calls > b.calls || calls == b.calls && key[1] < b.service {
			all[key[0]] = blame{service: key[1], calls: calls}
		}
	}
	for f, calls := range at {
		if b := all[f.code]; b.service == f.service && calls > nearlyAll*b.calls {
			b.addr = f.addr
			all[f.code] = b
		}
	}
	return all
}

// nearlyAll is the share of the errors of a service for which one instance is named.
const nearlyAll = 0.9

// attribute finds out which of the errors of a service, and of each of its instances, come from the
// services that it calls. A client that several servers share belongs to one of them, so that an
// instance whose process has made no calls has the errors of the others.
func (s *Service) attribute(m *made) {
	all := make(map[*introspect.Live]bool)
	for _, in := range s.Instances {
		if in.Live != nil {
			all[in.Live] = true
		}
	}
	s.blame = m.blames(s.Name, all)
	for _, in := range s.Instances {
		if in.blame = s.blame; m.failed[in.Live] != nil {
			in.blame = m.blames(s.Name, map[*introspect.Live]bool{in.Live: true})
		}
	}
}

// trace follows the errors that services pass on to the services where they come from.
func trace(services []*Service) {
	byName := make(map[string]*Service)
	for _, s := range services {
		byName[s.Name] = s
	}
	for _, s := range services {
		s.blame.follow(s.Name, byName)
		for _, in := range s.Instances {
			in.blame.follow(s.Name, byName)
		}
	}
}

// follow sets the causes of errors that the service from has got.
func (all blames) follow(from string, byName map[string]*Service) {
	const most = 8 // services in a path
	for code, b := range all {
		last, path, seen := b, []string{b.service}, map[string]bool{from: true, b.service: true}
		for byName[last.service] != nil && len(path) < most {
			next := byName[last.service].culprit(code)
			if next.service == "" || seen[next.service] {
				break
			}
			seen[next.service] = true
			last, path = next, append(path, next.service)
		}
		if s := byName[last.service]; last.addr != "" && s != nil && len(s.Instances) > 1 {
			path[len(path)-1] += "@" + last.addr
		}
		b.cause, b.path = last.service, strings.Join(path, " → ")
		all[code] = b
	}
}

// of returns the service from which t has got most of the errors with a code. Its name is empty if
// there is none.
func (all blames) of(code string, t *Traffic) blame {
	seconds := t.Span.Seconds()
	if own, b := t.Errors[code]*seconds, all[code]; own > 0 && b.calls >= own/2 {
		return b
	}
	if code != anyFailed && (code == introspect.Disabled || introspect.OutcomeOf(code) != introspect.Failed) {
		return blame{}
	}
	if own, b := t.Failed*t.Judged()*seconds, all[anyFailed]; own > 0 && b.calls >= own/2 {
		return b
	}
	return blame{}
}

// culprit returns the service from which s has got most of the errors with a code.
func (s *Service) culprit(code string) blame { return s.blame.of(code, &s.Traffic) }
