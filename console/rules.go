// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/inspect"
	"github.com/yodel-rpc/yodel/inspect/fleet"
	"github.com/yodel-rpc/yodel/introspect"
	"github.com/yodel-rpc/yodel/rules"
)

// This file is screen S8, the rules.

// A ruleView is a rule as the list shows it.
type ruleView struct {
	rules.Rule

	Kind     string `json:"kind"`
	Sentence string `json:"sentence"`
	State    string `json:"state"`
	Across   int    `json:"across,omitempty"`    // the instances on each of which a limit holds
	Reply    string `json:"replyText,omitempty"` // of a mock or a fallback: numbers of JavaScript would lose digits
}

func ruleViewOf(r *rules.Rule) ruleView {
	v := ruleView{Rule: *r, Kind: r.Kind(), Sentence: r.Sentence(), State: r.State(time.Now())}
	if answer := cmp.Or(r.Mock, r.Fallback); answer != nil {
		v.Reply = string(answer.Reply)
	}
	return v
}

// ruleRoutes adds the routes of the rules.
func (c *Console) ruleRoutes(read func(string, Role, func(*http.Request) (any, error)), change func(string, Role, func(*http.Request, User) (any, error))) {
	read("rules", Viewer, c.rules)
	read("rules/forms", Viewer, func(*http.Request) (any, error) { return rules.Forms(), nil })
	read("rules/history", Viewer, c.history)
	read("rules/applied", Viewer, c.applied)
	change("rules/put", Operator, c.putRule)
	change("rules/remove", Operator, c.removeRule)
	change("rules/rollback", Operator, c.rollback)
}

// bookOf returns the rules in the registry, or an error if it keeps none.
func (c *Console) bookOf() (*rules.Book, error) {
	if c.book == nil {
		return nil, yodel.Errorf(yodel.Unimplemented, "this registry keeps no rules")
	}
	return c.book, nil
}

// A records has the rules of all services, and the records that are not valid rules.
type records struct {
	rules   []rules.Rule
	invalid []introspect.RuleState
}

// allRecords returns the records of all services, at most a second old.
func (c *Console) allRecords(ctx context.Context) (records, error) {
	return c.kept.get(ctx, &c.fleet, func(ctx context.Context) (all records, err error) {
		all.rules, all.invalid, err = c.book.Read(ctx, "")
		return all, err
	})
}

// allRules returns the rules of all services, at most a second old.
func (c *Console) allRules(ctx context.Context) ([]rules.Rule, error) {
	all, err := c.allRecords(ctx)
	return all.rules, err
}

// ruleKinds returns the kinds of the active rules by service, and their number. It returns those of
// some services together with an error if it cannot read all.
func (c *Console) ruleKinds(ctx context.Context) (kinds map[string][]string, count int, err error) {
	kinds = make(map[string][]string)
	if c.book == nil {
		return kinds, 0, nil
	}
	all, err := c.allRules(ctx)
	for i := range all {
		if rule := &all[i]; rule.Active(time.Now()) {
			count++
			if !slices.Contains(kinds[rule.Service], rule.Kind()) {
				kinds[rule.Service] = append(kinds[rule.Service], rule.Kind())
			}
		}
	}
	return kinds, count, err
}

// rules serves the rules of a service, or all.
func (c *Console) rules(r *http.Request) (any, error) {
	book, err := c.bookOf()
	if err != nil {
		return nil, err
	}
	list, invalid, incomplete := book.Read(r.Context(), r.FormValue("service"))
	if incomplete != nil && len(list) == 0 {
		return nil, incomplete
	}
	out := make([]ruleView, len(list))
	var s *snapshot // read only if a rule needs it
	for i := range list {
		rule := &list[i]
		if out[i] = ruleViewOf(rule); rule.Across(1) == "" {
			continue
		}
		if s == nil {
			if s, err = c.fleet.get(r.Context(), time.Minute); err != nil {
				return nil, err
			}
		}
		if service := s.Service(rule.Service); service != nil {
			out[i].Across = service.Active()
		}
	}
	answer := map[string]any{"rules": out, "invalid": invalid, "kinds": rules.Kinds()}
	if incomplete != nil {
		answer["err"] = errorText(incomplete)
	}
	return answer, nil
}

// A changeView is a change of the rules of a service.
type changeView struct {
	rules.Change

	Diff     []string `json:"diff"`
	Sentence string   `json:"sentence"`
}

// history serves the changes of the rules of a service, the newest first.
func (c *Console) history(r *http.Request) (any, error) {
	book, err := c.bookOf()
	if err != nil {
		return nil, err
	}
	changes, err := book.History(r.Context(), r.FormValue("service"))
	if err != nil {
		return nil, err
	}
	out := make([]changeView, len(changes))
	for i := range changes {
		out[i] = changeView{Change: changes[i], Diff: changes[i].Diff()}
		if rule := cmp.Or(changes[i].After, changes[i].Before); rule != nil {
			out[i].Sentence = rule.Sentence()
		}
	}
	return out, nil
}

// An appliedRule is a rule as one process applies it.
type appliedRule struct {
	introspect.RuleState

	Instance string `json:"instance"`
	Name     string `json:"name,omitempty"`
}

// applied serves which processes apply a rule, and how often it acted.
func (c *Console) applied(r *http.Request) (any, error) {
	s, err := c.fleet.get(r.Context(), time.Minute)
	if err != nil {
		return nil, err
	}
	service, id := r.FormValue("service"), r.FormValue("id")
	var from []*fleet.Instance
	seen := make(map[string]bool)
	for _, of := range s.Services {
		for _, in := range of.Instances {
			if in.Info != nil && !seen[in.Addr] && len(from) < maxSampled {
				seen[in.Addr] = true
				from = append(from, in)
			}
		}
	}
	var mu sync.Mutex
	states := []appliedRule{}
	c.ask(r.Context(), from, func(ctx context.Context, in *fleet.Instance, client *yodel.Client, err error) {
		if err != nil {
			return
		}
		found, err := inspect.Rules.Call(ctx, client, &inspect.Empty{})
		if err != nil {
			return // the process follows no rules
		}
		mu.Lock()
		defer mu.Unlock()
		for _, one := range found.Rules {
			if one.Service == service && one.ID == id {
				states = append(states, appliedRule{one, in.Addr, found.Name})
			}
		}
	})
	sort.Slice(states, func(i, j int) bool { return states[i].Instance < states[j].Instance })
	return states, nil
}

// readRule reads a rule from a request. The author is the user.
func readRule(r *http.Request, user User) (rules.Rule, error) {
	var body json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return rules.Rule{}, yodel.Errorf(yodel.InvalidArgument, "the rule is not JSON: %v", err)
	}
	rule, err := rules.Decode(body)
	if err != nil {
		return rule, yodel.Errorf(yodel.InvalidArgument, "%s", err.Error())
	}
	rule.Author = user.Name
	return rule, nil
}

// trafficOf returns what the preview of a change needs of a service.
func trafficOf(view *snapshot, name string) *rules.Traffic {
	t := &rules.Traffic{Live: make(map[string]*introspect.Live)}
	for _, s := range view.Services {
		t.Services = append(t.Services, s.Name)
	}
	service := view.Service(name)
	if service == nil {
		return t
	}
	for _, in := range service.Instances {
		t.Instances = append(t.Instances, in.Instance)
		if in.Live != nil {
			t.Live[in.Addr] = in.Live
		}
	}
	for i := range service.Methods {
		t.Methods = append(t.Methods, service.Methods[i].Name)
	}
	return t
}

// present returns the rules and the traffic of a service.
func (c *Console) present(ctx context.Context, book *rules.Book, service string) ([]rules.Rule, *rules.Traffic, error) {
	now, err := book.List(ctx, service)
	if err != nil {
		return nil, nil, err
	}
	s, err := c.fleet.get(ctx, time.Minute)
	if err != nil {
		return now, &rules.Traffic{}, nil //nolint:nilerr // rules can be changed all the same, with an unknown effect
	}
	return now, trafficOf(s, service), nil
}

// An unconfirmedError is the error of a change that stops calls, or names something that does not
// exist. The user types the name of the service to make it all the same.
type unconfirmedError struct{ service, text string }

func (e *unconfirmedError) Error() string { return e.text }

// confirmed returns an *unconfirmedError if an effect has to be confirmed, and the user has not
// typed the name of the service.
func confirmed(r *http.Request, service string, e *rules.Effect) error {
	var why []string
	for _, p := range e.Problems {
		if p.Force {
			why = append(why, p.Text)
		}
	}
	if len(why) == 0 || r.URL.Query().Get("confirm") == service {
		return nil
	}
	if e.Text != "" {
		why = append(why, e.Text)
	}
	return &unconfirmedError{service, strings.Join(why, "; ")}
}

// preview serves what a rule would do, without storing it.
func (c *Console) preview(r *http.Request, user User) (any, error) {
	book, err := c.bookOf()
	if err != nil {
		return nil, err
	}
	rule, err := readRule(r, user)
	if err != nil {
		return nil, err
	}
	s, err := c.fleet.get(r.Context(), time.Minute)
	if err != nil {
		return nil, err
	}
	traffic := trafficOf(s, rule.Service)
	all, err := book.List(r.Context(), rule.Service)
	if err != nil {
		return nil, err
	}
	if rule.Reason == "" {
		rule.Reason = "preview" // the form asks for it at the end
	}
	return map[string]any{"effect": rules.Preview(&rule, all, traffic), "sentence": rule.Sentence(), "kind": rule.Kind()}, nil
}

// putRule stores a rule.
func (c *Console) putRule(r *http.Request, user User) (any, error) {
	book, err := c.bookOf()
	if err != nil {
		return nil, err
	}
	rule, err := readRule(r, user)
	if err != nil {
		return nil, err
	}
	now, traffic, err := c.present(r.Context(), book, rule.Service)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(rule.Check(), func(p rules.Problem) bool { return !p.Warning }) {
		if err := confirmed(r, rule.Service, rules.Preview(&rule, now, traffic)); err != nil {
			return nil, err
		}
	}
	before := sentenceOf(r.Context(), book, rule.Service, rule.ID)
	stored, err := book.Put(r.Context(), rule)
	object := rule.Service + " " + cmp.Or(stored.ID, rule.ID, rule.Kind())
	e := entry{Action: "rule", Object: object, Before: before, After: rule.Sentence(), Reason: rule.Reason, Result: resultOf(err)}
	if err == nil {
		e.Undo = undoTo(rule.Service, stored.Revision-1)
	}
	c.audit.add(r, user, e)
	if err != nil {
		return nil, ruleError(err)
	}
	c.kept.forget()
	return ruleViewOf(&stored), nil
}

// undoTo returns the request that makes the rules of a service what they were after a revision.
func undoTo(service string, revision int) *undo {
	return &undo{"rules/rollback", map[string]any{"service": service, "revision": revision}}
}

// newest returns the revision of the newest change of the rules of a service, or 0 if there is
// none. It returns -1 if the history cannot be read.
func newest(ctx context.Context, book *rules.Book, service string) int {
	switch changes, err := book.History(ctx, service); {
	case err != nil:
		return -1
	case len(changes) == 0:
		return 0
	default:
		return changes[0].Revision
	}
}

// undoSince returns the request that takes back all changes since a revision of newest. It returns
// nil if there are none, or if some are not mine, or if the history does not say.
func undoSince(ctx context.Context, book *rules.Book, service string, was int, mine func(*rules.Change) bool) *undo {
	changes, err := book.History(ctx, service)
	n := slices.IndexFunc(changes, func(c rules.Change) bool { return c.Revision <= was })
	if n < 0 {
		n = len(changes)
	}
	if err != nil || was < 0 || n == 0 || slices.ContainsFunc(changes[:n], func(c rules.Change) bool { return !mine(&c) }) {
		return nil
	}
	return undoTo(service, was)
}

// removeRule removes a rule.
func (c *Console) removeRule(r *http.Request, user User) (any, error) {
	var in struct {
		Service, ID, Reason string
		Revision            int // on which the change is based; 0 means any
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	book, err := c.bookOf()
	if err != nil {
		return nil, err
	}
	now, traffic, err := c.present(r.Context(), book, in.Service)
	if err != nil {
		return nil, err
	}
	after := slices.DeleteFunc(slices.Clone(now), func(o rules.Rule) bool { return o.ID == in.ID })
	if err := confirmed(r, in.Service, rules.PreviewChange(in.Service, now, after, traffic)); err != nil {
		return nil, err
	}
	before, was := sentenceOf(r.Context(), book, in.Service, in.ID), newest(r.Context(), book, in.Service)
	err = book.Remove(r.Context(), in.Service, in.ID, in.Revision, user.Name, in.Reason)
	e := entry{Action: "unrule", Object: in.Service + " " + in.ID, Before: before, Reason: in.Reason, Result: resultOf(err)}
	if err == nil {
		e.Undo = undoSince(r.Context(), book, in.Service, was, func(c *rules.Change) bool {
			return c.What == "remove" && c.Rule == in.ID && c.Author == user.Name
		})
	}
	c.audit.add(r, user, e)
	c.kept.forget()
	return struct{}{}, ruleError(err)
}

// rollback makes the rules of a service what they were.
func (c *Console) rollback(r *http.Request, user User) (any, error) {
	var in struct {
		Service, Reason string
		Revision, From  int // from is the newest revision that the user has seen; 0 means any
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	book, err := c.bookOf()
	if err != nil {
		return nil, err
	}
	if after, _, err := book.At(r.Context(), in.Service, in.Revision); err == nil { // else Rollback says why not
		now, traffic, err := c.present(r.Context(), book, in.Service)
		if err != nil {
			return nil, err
		}
		if err := confirmed(r, in.Service, rules.PreviewChange(in.Service, now, after, traffic)); err != nil {
			return nil, err
		}
	}
	before, was := sentences(book.List(r.Context(), in.Service)), newest(r.Context(), book, in.Service)
	err = book.Rollback(r.Context(), in.Service, in.Revision, in.From, user.Name, in.Reason)
	e := entry{
		Action: "rollback", Object: fmt.Sprintf("%s to revision %d", in.Service, in.Revision), Before: before,
		After: sentences(book.List(r.Context(), in.Service)), Reason: in.Reason, Result: resultOf(err),
	}
	if err == nil {
		e.Undo = undoSince(r.Context(), book, in.Service, was, func(c *rules.Change) bool { return c.What == "rollback" && c.Author == user.Name })
	}
	c.audit.add(r, user, e)
	c.kept.forget()
	return struct{}{}, ruleError(err)
}

// sentenceOf returns a rule in words, or "" if there is none with the ID.
func sentenceOf(ctx context.Context, book *rules.Book, service, id string) string {
	list, err := book.List(ctx, service)
	if err != nil {
		return ""
	}
	for i := range list {
		if list[i].ID == id {
			return list[i].Sentence()
		}
	}
	return ""
}

// sentences returns rules in words.
func sentences(list []rules.Rule, err error) string {
	if err != nil {
		return "unknown: " + err.Error()
	}
	if len(list) == 0 {
		return "no rules"
	}
	var out []string
	for i := range list {
		out = append(out, list[i].Sentence())
	}
	return strings.Join(out, " ")
}

// ruleError gives an error of a Book the code by which the status is chosen.
func ruleError(err error) error {
	switch invalid, ok := errors.AsType[*rules.InvalidError](err); {
	case ok:
		return yodel.Errorf(yodel.InvalidArgument, "%s", invalid.Error())
	case errors.As(err, new(*rules.ConflictError)):
		return err
	case errors.Is(err, rules.ErrNoRule):
		return yodel.Errorf(yodel.NotFound, "%s", err.Error())
	}
	return err
}
