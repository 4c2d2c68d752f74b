// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yodel-rpc/yodel/conformance/governed"
	"github.com/yodel-rpc/yodel/rules"
	"github.com/yodel-rpc/yodel/yodeltest"
)

func TestMain(m *testing.M) {
	governed.Child(folder)
	yodeltest.VerifyNoLeaks(m)
}

// examples has a rule of every kind, with its sentence.
var examples = []struct {
	rule     rules.Rule
	sentence string
}{
	{rules.Rule{Weight: &rules.Weight{To: rules.Target{Addr: "10.0.0.7:*"}, Percent: 50}}, "Give addr 10.0.0.7:* 50 % of their usual share of the calls of Shop."},
	{rules.Rule{Canary: &rules.Canary{To: rules.Target{Version: "v2"}, Percent: 10, By: "tenant"}}, "Send 10 % of the calls of Shop to version v2, drawn by tenant."},
	{rules.Rule{Caller: "web", Header: map[string]string{"beta": "1"}, Route: &rules.Route{To: rules.Target{Tag: "gray"}}}, `Send the calls of Shop from web with beta "1" to tag gray.`},
	{rules.Rule{Disable: &rules.Disable{To: &rules.Target{Zone: "a"}}}, "Send none of the calls of Shop to zone a."},
	{rules.Rule{Method: "Buy", Disable: &rules.Disable{Except: []string{"web"}}}, "Refuse the calls of Shop.Buy, except from web."},
	{rules.Rule{Limit: &rules.Limit{PerSecond: 100, By: "caller", Concurrent: 5}}, "Limit the calls of Shop to 100 a second for each caller and 5 at a time in each process."},
	{rules.Rule{Network: "10.1.0.0/16", Limit: &rules.Limit{PerSecond: 1, By: "user"}}, "Limit the calls of Shop from the network 10.1.0.0/16 to 1 a second for each user in each process."},
	{rules.Rule{Identity: map[string]string{"subject": "ann", "claim:role": "admin"}, Disable: &rules.Disable{}}, `Refuse the calls of Shop by verified claim role "admin" by verified subject "ann".`},
	{rules.Rule{Timeout: &rules.Timeout{After: rules.Duration(time.Second)}}, "End the calls of Shop after 1s."},
	{rules.Rule{Retry: &rules.Retry{Times: 2}}, "Make up to 2 attempts for the calls of Shop."},
	{rules.Rule{Hedge: &rules.Hedge{Percentile: 95}}, "Send a second attempt for the calls of Shop that are slower than 95 % of them."},
	{rules.Rule{Breaker: &rules.Breaker{Errors: 5}}, "Stop the calls of Shop to an instance after 5 failures in a row."},
	{rules.Rule{Breaker: &rules.Breaker{Share: 0.5}}, "Stop the calls of Shop to an instance when 50 % of them fail."},
	{rules.Rule{Breaker: &rules.Breaker{Errors: 5, Share: 0.5}}, "Stop the calls of Shop to an instance after 5 failures in a row or when 50 % of them fail."},
	{rules.Rule{Fault: &rules.Fault{Percent: 1, Delay: rules.Duration(time.Second), Code: "unavailable"}}, "Delay 1 % of the calls of Shop by 1s and make 1 % of the calls of Shop fail with unavailable."},
	{rules.Rule{Mock: &rules.Answer{Reply: json.RawMessage(`{"total":2}`)}}, "Answer the calls of Shop with a fixed reply, without executing them."},
	{rules.Rule{Fallback: &rules.Answer{Reply: json.RawMessage(`{"total":0}`)}}, "Answer the calls of Shop with a fixed reply if they fail."},
	{rules.Rule{Switch: &rules.Switch{Name: "newPrices", On: true}}, `Switch "newPrices" on for Shop.`},
}

// A rule that acts no more says so once, and not when it would be switched off.
func TestARuleThatIsOffSaysSoOnce(t *testing.T) {
	ended := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	r := rules.Rule{Service: "Shop", Limit: &rules.Limit{PerSecond: 5}, Rollback: &rules.Rollback{Below: 99, For: rules.Duration(time.Second)}}
	const on = "Limit the calls of Shop to 5 a second in each process. It is switched off if fewer than 99 % of the calls succeed for 1s."
	if got := r.Sentence(); got != on {
		t.Errorf("active: got %q", got)
	}
	r.Off = true
	if got, want := r.Sentence(), "Limit the calls of Shop to 5 a second in each process. It is switched off."; got != want {
		t.Errorf("off: got %q, want %q", got, want)
	}
	r.Off, r.Expires = false, ended
	if got, want := r.Sentence(), "Limit the calls of Shop to 5 a second in each process. It ended at 2020-01-01T00:00:00Z."; got != want {
		t.Errorf("expired: got %q, want %q", got, want)
	}
}

func TestEveryKindHasASentenceAndSurvivesJSON(t *testing.T) {
	kinds := make(map[string]bool)
	for _, example := range examples {
		r := example.rule
		r.Schema, r.ID, r.Service, r.Author, r.Reason = rules.Schema, "r1", "Shop", "ann", "a test"
		r.Expires = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		kinds[r.Kind()] = true
		want := example.sentence + " It ends at 2030-01-01T00:00:00Z."
		if r.Canary != nil {
			want += " When it has ended, " + r.Canary.To.String() + " gets none of them."
		}
		if got := r.Sentence(); got != want {
			t.Errorf("%s: got %q", r.Kind(), got)
		}
		if found := r.Check(); len(found) > 0 {
			t.Errorf("%s: %v", r.Kind(), found)
		}
		data, err := json.Marshal(&r)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := rules.Decode(data); err != nil || !reflect.DeepEqual(back, r) {
			t.Errorf("%s became %+v, %v", data, back, err)
		}
	}
	for _, kind := range rules.Kinds() {
		if !kinds[kind] {
			t.Errorf("no example of a %s rule", kind)
		}
	}
}

func TestFieldsWithoutEffectAreRefused(t *testing.T) {
	on := &rules.Switch{Name: "new", On: true}
	for field, r := range map[string]rules.Rule{
		"method": {Method: "Buy", Switch: on}, "caller": {Caller: "web", Switch: on}, "tenant": {Tenant: "acme", Switch: on},
		"header":   {Header: map[string]string{"beta": "1"}, Switch: on},
		"limit.by": {Expires: time.Now().Add(time.Hour), Limit: &rules.Limit{Concurrent: 10, By: "caller"}},
	} {
		r.Service = "Shop"
		if found := r.Check(); len(found) != 1 || found[0].ID != "YDL-R010" || found[0].Field != field || found[0].Warning {
			t.Errorf("%s: got %v", field, found)
		}
	}
}

func TestDecodeSuggestsFields(t *testing.T) {
	_, err := rules.Decode([]byte(`{"schema":1,"service":"Shop","canery":{"percent":10}}`))
	if err == nil || !strings.Contains(err.Error(), `did you mean "canary"? [YDL-R001]`) {
		t.Errorf("got %v", err)
	}
}

func TestRollbackConditionsHaveAText(t *testing.T) {
	for _, text := range []string{"ok<99% for 30s", "ok<99.5% for 1m0s, 100 calls"} {
		if b, err := rules.ParseRollback(text); err != nil || b.String() != text {
			t.Errorf("%q became %v, %v", text, b, err)
		}
	}
	for _, text := range []string{"", "ok<99%", "p99<3% for 1s", "ok<x% for 1s", "ok<1% for 1s, x calls"} {
		if b, err := rules.ParseRollback(text); err == nil {
			t.Errorf("%q became %v", text, b)
		}
	}
}

// sourceFiles returns the names of the files of the package, without tests.
func sourceFiles(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
}

// TestDocumentationListsProblems keeps docs/rules.md and the code equal.
func TestDocumentationListsProblems(t *testing.T) {
	doc, err := os.ReadFile("../docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]string)
	for _, row := range regexp.MustCompile(`(?m)^\| (YDL-R\d+) \| ([^|]+) \|`).FindAllStringSubmatch(string(doc), -1) {
		listed[row[1]] = row[2]
	}
	if !maps.Equal(listed, rules.Problems) {
		t.Errorf("docs/rules.md lists %q\nthe code has %q", listed, rules.Problems)
	}
	var source []byte
	for _, file := range sourceFiles(t) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, data...)
	}
	for id := range rules.Problems {
		if bytes.Count(source, []byte(`"`+id+`"`)) < 2 {
			t.Errorf("no code reports %s", id)
		}
	}
}

// TestDocumentedRulesAreValid checks the JSON in docs/rules.md.
func TestDocumentedRulesAreValid(t *testing.T) {
	doc, err := os.ReadFile("../docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```json\n(.*?)```").FindSubmatch(doc)
	if r, err := rules.Decode(block[1]); err != nil || len(r.Check()) > 0 {
		t.Errorf("%v, %v", err, r.Check())
	}
	if examples := len(documented(t)); examples < len(rules.Kinds()) {
		t.Errorf("found %d examples", examples)
	}
}

// FuzzDecode checks that a rule that passes Decode and Check has a sentence, a JSON form that is
// equal, and an effect.
func FuzzDecode(f *testing.F) {
	for _, example := range examples {
		r := example.rule
		r.Service = "Shop"
		data, err := json.Marshal(&r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"schema":1,"rollback":{"for":"1h"},"canary":{"percent":1e99}} x`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := rules.Decode(data)
		if err != nil {
			if err.Error() == "" {
				t.Error("an empty error")
			}
			return
		}
		_ = r.Sentence()
		_ = rules.Preview(&r, []rules.Rule{r}, traffic()).Text
		for _, p := range r.Check() {
			if !p.Warning {
				return
			}
		}
		again, err := json.Marshal(&r)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := rules.Decode(again); err != nil || back.Sentence() != r.Sentence() {
			t.Errorf("%s became %s, %v", data, again, err)
		}
	})
}
