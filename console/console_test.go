// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel/inspect/fleet"
	errorids "github.com/yodel-rpc/yodel/internal/catalogue"
)

// The committed front end is what its sources build to, byte for byte.
func TestFrontEndIsBuiltFromItsSources(t *testing.T) {
	if os.Getenv("YODEL_REAL") == "" {
		t.Skip("YODEL_REAL=1 builds the front end with Node.js")
	}
	web := t.TempDir()
	must(t, os.CopyFS(filepath.Join(web, "src"), os.DirFS("web/src")))
	for _, file := range []string{"build.mjs", "package.json", "package-lock.json", "tsconfig.json"} {
		text, err := os.ReadFile(filepath.Join("web", file))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(web, file), text, 0o600))
	}
	for _, args := range [][]string{{"ci", "--ignore-scripts", "--no-audit", "--no-fund"}, {"run", "check"}, {"run", "build"}} {
		npm := exec.CommandContext(t.Context(), "npm", args...)
		npm.Dir = web
		if out, err := npm.CombinedOutput(); err != nil {
			t.Fatalf("npm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	built, err := os.ReadDir(filepath.Join(web, "dist"))
	must(t, err)
	committed, err := dist.ReadDir("web/dist")
	must(t, err)
	if len(built) != len(committed) {
		t.Errorf("the build has %d files, %d are committed: run make console", len(built), len(committed))
	}
	for _, file := range built {
		want, err := os.ReadFile(filepath.Join(web, "dist", file.Name()))
		must(t, err)
		name := strings.TrimSuffix(file.Name(), ".gz")
		if name != file.Name() { // another version of zlib may pack it differently
			z, err := gzip.NewReader(bytes.NewReader(want))
			must(t, err)
			want, err = io.ReadAll(z)
			must(t, err)
		}
		got, err := distFile(name)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what its sources build to: run make console", file.Name())
		}
	}
}

func TestFrontEndIsSmall(t *testing.T) {
	files, err := dist.ReadDir("web/dist")
	must(t, err)
	var packed bytes.Buffer
	for _, file := range files {
		name := strings.TrimSuffix(file.Name(), ".gz")
		body, err := distFile(name)
		must(t, err)
		z := gzip.NewWriter(&packed)
		_, err = z.Write(body)
		must(t, err)
		must(t, z.Close())
		if strings.HasSuffix(name, ".js") && regexp.MustCompile(`(?i)https?://[a-z0-9.]+\.(com|net|org|io)`).Match(regexp.MustCompile(`http://www\.w3\.org/\S+`).ReplaceAll(body, nil)) {
			t.Errorf("%s refers to another host", file.Name())
		}
	}
	t.Logf("%d bytes with gzip", packed.Len())
	if packed.Len() > 300_000 {
		t.Errorf("the front end has %d bytes with gzip, want at most 300000", packed.Len())
	}
}

// keys returns the keys of a table of messages.
func keys(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	found := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^\t"([^"]+)": ("(?:[^"\\]|\\.)*"),$`).FindAllStringSubmatch(string(text), -1) {
		var message string
		must(t, json.Unmarshal([]byte(m[2]), &message))
		found[m[1]] = message
	}
	return found
}

func TestBothLanguagesHaveAllMessages(t *testing.T) {
	en, zh := keys(t, "web/src/en.ts"), keys(t, "web/src/zh.ts")
	if len(en) < 200 || len(en) != len(zh) {
		t.Errorf("English has %d messages, Chinese %d", len(en), len(zh))
	}
	args := regexp.MustCompile(`\{\d\}`)
	for key, message := range en {
		if zh[key] == "" || message == "" {
			t.Errorf("%s has no text in a language", key)
		}
		seen := make(map[string]bool)
		for _, arg := range args.FindAllString(message, -1) {
			seen[arg] = true
		}
		for _, arg := range args.FindAllString(zh[key], -1) {
			delete(seen, arg)
		}
		if len(seen) > 0 {
			t.Errorf("%s: the Chinese text lacks %v", key, seen)
		}
	}
	for kind, text := range fleet.ProblemTexts() {
		if en["problem."+kind] != text {
			t.Errorf("problem.%s: the page says %q, curl %q", kind, en["problem."+kind], text)
		}
	}
}

func TestCurlGetsText(t *testing.T) {
	s := newShop(t)
	base := serveConsole(t, newConsole(t, s, &Options{Tokens: map[string]User{adminToken: {"ci", Viewer}}}))
	get := func(path, accept string) (int, string, string) {
		status, header, body := request{path: path, header: map[string]string{"Authorization": "Bearer " + adminToken, "Accept": accept}}.send(t, base)
		return status, header.Get("Content-Type"), body
	}
	eventually(t, "the shop fails", func() bool {
		_, _, body := get("/", "*/*")
		return strings.Contains(body, "need attention") && strings.Contains(body, "unavailable")
	})
	for path, want := range map[string]string{"/": "SERVICE", "/services": "Stock", "/services/Stock": s.addrs["Stock"][0], "/services/Mail": "idle"} {
		status, kind, body := get(path, "*/*")
		if status != http.StatusOK || !strings.HasPrefix(kind, "text/plain") || !strings.Contains(body, want) || strings.Contains(body, "NaN") {
			t.Errorf("%s: got %d %s\n%s", path, status, kind, body)
		}
		if !regexp.MustCompile(`\nRead at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, \d+ s ago\.\n$`).MatchString(body) {
			t.Errorf("%s does not say how old it is:\n%s", path, body)
		}
		if _, kind, body := get(path, "text/html"); !strings.HasPrefix(kind, "text/html") || !strings.Contains(body, "<div id=\"app\">") {
			t.Errorf("%s in a browser: got %s", path, kind)
		}
	}
	if status, _, _ := get("/services/Nowhere", "*/*"); status != http.StatusNotFound {
		t.Errorf("an unknown service: got %d, want 404", status)
	}
}

func TestPagesGetEveryErrorOfTheCatalogue(t *testing.T) {
	base := serveConsole(t, newConsole(t, newShop(t), nil))
	_, h, body := request{path: "/assets/errors.json"}.send(t, base)
	var list []struct{ ID, Title, Text string }
	if err := json.Unmarshal([]byte(body), &list); err != nil || !strings.HasPrefix(h.Get("Content-Type"), "application/json") {
		t.Fatalf("got %v, %v", h, err)
	}
	all := errorids.All()
	for _, e := range list {
		if all[e.ID].Title != e.Title || e.Text == "" {
			t.Errorf("got %+v", e)
		}
		delete(all, e.ID)
	}
	for id := range all {
		t.Errorf("%s is missing", id)
	}
}

func TestConsoleBelowAPrefix(t *testing.T) {
	s := newShop(t)
	c := newConsole(t, s, nil)
	mux := http.NewServeMux()
	mux.Handle("/ops/", http.StripPrefix("/ops", c))
	base := serveConsole(t, c)
	for path, want := range map[string]string{"/ops/": `src="./assets/app.js"`, "/ops/services/Stock": `src=".././assets/app.js"`} {
		w := &page{recorder: newRecorder()}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
		must(t, err)
		r.Header.Set("Accept", "text/html")
		mux.ServeHTTP(w, r)
		if body := w.body.String(); !strings.Contains(body, want) {
			t.Errorf("%s: the page lacks %s:\n%s", path, want, body)
		}
	}
}

// page is a ResponseWriter that keeps the body.
type page struct {
	*recorder
	body bytes.Buffer
}

func (p *page) Write(b []byte) (int, error) { return p.body.Write(b) }
