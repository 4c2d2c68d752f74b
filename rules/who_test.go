// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	stdtls "crypto/tls"
	"errors"
	"slices"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/internal/testca"
	"github.com/yodel-rpc/yodel/middleware/auth"
	"github.com/yodel-rpc/yodel/registry/memory"
	"github.com/yodel-rpc/yodel/rules"
	"github.com/yodel-rpc/yodel/transport/tls"
)

// loopback is the network of the tests, and elsewhere is one for documentation that no machine is
// in.
const loopback, elsewhere = "127.0.0.0/8", "203.0.113.0/24"

func TestRulesSelectCallersByNetwork(t *testing.T) {
	m := newMall(t, nil)
	for _, step := range []struct {
		what string
		rule rules.Rule
		id   string // of the error of a call
	}{
		{"refuse a network", rules.Rule{Disable: &rules.Disable{}}, "YDL3601"},
		{"refuse a network in the client", rules.Rule{Side: "client", Disable: &rules.Disable{}}, "YDL3601"},
		{"a rate for each address", rules.Rule{Limit: &rules.Limit{PerSecond: 0.1, By: "address"}}, "YDL3301"},
		{"a mock", rules.Rule{Side: "server", Mock: &rules.Answer{Code: "not_found"}}, "YDL3602"},
	} {
		step.rule.Network = elsewhere
		other := m.put(step.rule)
		m.follows(other)
		if !m.work(4) {
			t.Errorf("%s: a rule for another network acts", step.what)
		}
		step.rule.Network = loopback
		r := m.put(step.rule)
		within(t, step.what, func() bool { return m.failsWith(step.id) })
		m.remove(r)
		m.remove(other)
		within(t, "the end of "+step.what, func() bool { return m.work(4) })
	}
	m.put(rules.Rule{Network: elsewhere, Route: &rules.Route{To: rules.Target{Version: "v1"}, Strict: true}})
	m.put(rules.Rule{Network: "127.0.0.1", Route: &rules.Route{To: rules.Target{Version: "v2"}}})
	within(t, "a route for the machine of the client", func() bool { return m.share(50) == 1 })
}

// follows waits until the servers and the client follow a rule.
func (m *mall) follows(r rules.Rule) {
	m.t.Helper()
	within(m.t, "the process follows the rule", func() bool {
		for _, state := range m.rules.Rules().Rules {
			if state.ID == r.ID && state.Revision == r.Revision {
				return true
			}
		}
		return false
	})
}

// An office has a server that knows the identity of its callers.
type office struct {
	*mall
	addr string
}

// newOffice starts a server with a transport and middleware.
func newOffice(t *testing.T, transport yodel.Transport, middleware ...yodel.Middleware) *office {
	t.Helper()
	registry := memory.New(nil)
	o := &office{mall: &mall{t: t, book: open(t, registry), rules: rules.With(registry, nil)}}
	s := yodel.NewServer(&yodel.ServerOptions{Registrars: []discovery.Registrar{o.rules}, Transport: transport, Middleware: middleware})
	buy.Handle(s, func(context.Context, *order) (*order, error) { return &order{}, nil })
	o.addr = serve(t, s)
	return o
}

// answers returns the ID of the error of a call, or "".
func (o *office) answers(c *yodel.Client, md yodel.Metadata) string {
	o.t.Helper()
	_, err := buy.Do(o.t.Context(), c, &yodel.Call{Metadata: md, Tenant: "acme"}, &order{})
	if e, ok := errors.AsType[*yodel.Error](err); ok {
		return e.ID
	} else if err != nil {
		o.t.Fatal(err)
	}
	return ""
}

func TestRulesSelectCallersByVerifiedIdentity(t *testing.T) {
	o := newOffice(t, nil, func(next yodel.Handler) yodel.Handler {
		checked := auth.Check(func(ctx context.Context, _, token string) (context.Context, error) {
			return auth.WithIdentity(ctx, &auth.Identity{Subject: token, Tenant: token + "'s", Claims: map[string]any{
				"roles": []any{"buyer", "admin of " + token}, "level": 3, "team": []string{"a"},
			}}), nil
		})(next)
		return func(ctx context.Context, call *yodel.Call) error {
			if call.Metadata["authorization"] == "" { // strangers may call too
				return next(ctx, call)
			}
			return checked(ctx, call)
		}
	})
	c := yodel.Dial(o.addr)
	t.Cleanup(c.Close)
	claims := func(token string) yodel.Metadata {
		md := yodel.Metadata{"subject": "ann", "tenant": "ann's", "claim:roles": "admin of ann", "roles": "admin of ann", "level": "3"}
		if token != "" {
			md["authorization"] = token
		}
		return md
	}
	for name, pattern := range map[string]string{"subject": "an*", "tenant": "ann*", "claim:roles": "admin of ann"} {
		r := o.put(rules.Rule{Identity: map[string]string{name: pattern, "claim:level": "3", "claim:team": "a"}, Disable: &rules.Disable{}})
		within(t, name, func() bool { return o.answers(c, claims("ann")) == "YDL3601" })
		for _, token := range []string{"bob", ""} {
			if id := o.answers(c, claims(token)); id != "" {
				t.Errorf("%s: a caller with the token %q that claims to be ann is taken for ann: %s", name, token, id)
			}
		}
		o.remove(r)
		within(t, "the end of "+name, func() bool { return o.answers(c, claims("ann")) == "" })
	}
	o.put(rules.Rule{Limit: &rules.Limit{PerSecond: 0.001, Burst: 1, By: "user"}})
	within(t, "a rate for each user", func() bool { return o.answers(c, claims("ann")) == "YDL3301" })
	if first, second := o.answers(c, claims("bob")), o.answers(c, claims("bob")); first != "" || second != "YDL3301" {
		t.Errorf("bob's calls end with %q and %q", first, second)
	}
}

// Two of the clients have certificates of the authority. The third has one of another authority
// with the same names, which the server asks for and does not verify.
func TestRulesSelectCallersByVerifiedCertificate(t *testing.T) {
	ca, stranger := testca.New(t), testca.New(t)
	const spiffe = "spiffe://acme.example/web"
	for verified, authority := range map[bool]*testca.Authority{true: ca, false: stranger} {
		config := &stdtls.Config{Certificates: []stdtls.Certificate{ca.Certificate(t, "server")}, ClientAuth: stdtls.RequireAnyClientCert}
		if verified {
			config.ClientCAs, config.ClientAuth = ca.Pool, stdtls.RequireAndVerifyClientCert
		}
		o := newOffice(t, &tls.Transport{Server: config})
		dial := func(cert stdtls.Certificate) *yodel.Client {
			c := yodel.NewClient(discovery.Static(o.addr), &yodel.ClientOptions{
				Transport: &tls.Transport{Client: &stdtls.Config{RootCAs: ca.Pool, Certificates: []stdtls.Certificate{cert}}},
			})
			t.Cleanup(c.Close)
			return c
		}
		web, batch := dial(authority.Certificate(t, "web", spiffe)), dial(authority.Certificate(t, "batch", "spiffe://acme.example/batch"))
		for name, pattern := range map[string]string{"certificate": "CN=web,*", "san": spiffe, "spiffe": "*/web"} {
			r := o.put(rules.Rule{Identity: map[string]string{name: pattern}, Side: "server", Mock: &rules.Answer{Code: "not_found"}})
			o.follows(r)
			want := ""
			if verified {
				want = "YDL3602"
			}
			within(t, name, func() bool { return o.answers(web, nil) == want })
			if id := o.answers(batch, nil); id != "" {
				t.Errorf("%s: another certificate is taken for that of web: %s", name, id)
			}
			o.remove(r)
		}
	}
}

func TestTheScopeOfCallersIsChecked(t *testing.T) {
	one := func(name string) map[string]string { return map[string]string{name: "x"} }
	many := map[string]string{"subject": "a", "tenant": "a", "certificate": "a", "san": "a", "spiffe": "a"}
	for _, name := range []string{"a", "b", "c", "d"} {
		many["claim:"+name] = "a"
	}
	to := rules.Target{Version: "v1"}
	for what, test := range map[string]struct {
		rule rules.Rule
		want string
	}{
		"a network":                      {rules.Rule{Network: "10.0.0.0/8", Disable: &rules.Disable{}}, ""},
		"an address":                     {rules.Rule{Network: "::ffff:10.0.0.1", Disable: &rules.Disable{}}, ""},
		"no network":                     {rules.Rule{Network: "10.0.0.x", Disable: &rules.Disable{}}, "YDL-R030"},
		"a wildcard":                     {rules.Rule{Network: "10.*", Disable: &rules.Disable{}}, "YDL-R030"},
		"an address inside a range":      {rules.Rule{Network: "10.1.0.0/8", Disable: &rules.Disable{}}, "YDL-R030"},
		"an address with a zone":         {rules.Rule{Network: "fe80::1%eth0", Disable: &rules.Disable{}}, "YDL-R030"},
		"an unknown name":                {rules.Rule{Identity: one("user"), Disable: &rules.Disable{}}, "YDL-R008"},
		"a claim without a name":         {rules.Rule{Identity: one("claim:"), Disable: &rules.Disable{}}, "YDL-R008"},
		"an empty value":                 {rules.Rule{Identity: map[string]string{"subject": ""}, Disable: &rules.Disable{}}, "YDL-R004"},
		"many names":                     {rules.Rule{Identity: many, Disable: &rules.Disable{}}, "YDL-R006"},
		"an identity in clients":         {rules.Rule{Identity: one("subject"), Route: &rules.Route{To: to}}, "YDL-R010"},
		"an identity, disable instances": {rules.Rule{Identity: one("subject"), Disable: &rules.Disable{To: &to}}, "YDL-R010"},
		"an identity on the client":      {rules.Rule{Identity: one("subject"), Side: "client", Fault: &rules.Fault{Code: "internal"}}, "YDL-R010"},
		"an identity on the server":      {rules.Rule{Identity: one("subject"), Fault: &rules.Fault{Code: "internal"}}, ""},
		"a switch for a network":         {rules.Rule{Network: "10.0.0.0/8", Switch: &rules.Switch{Name: "x"}}, "YDL-R010"},
		"a switch for an identity":       {rules.Rule{Identity: one("subject"), Switch: &rules.Switch{Name: "x"}}, "YDL-R010"},
		"a rate by user":                 {rules.Rule{Limit: &rules.Limit{PerSecond: 1, By: "users"}}, "YDL-R008"},
	} {
		test.rule.Service, test.rule.Author, test.rule.Reason = "Shop", "ann", "a test"
		found := slices.DeleteFunc(test.rule.Check(), func(p rules.Problem) bool { return p.Warning })
		if (len(found) > 0) != (test.want != "") || len(found) > 0 && found[0].ID != test.want {
			t.Errorf("%s: got the problems %v, want %q", what, found, test.want)
		}
	}
}
