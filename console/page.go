// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/yodel-rpc/yodel/docs"
)

// This file serves the pages: the built front end for browsers, and plain text for curl.

// The front end, as `make console` builds it from web/src.
//
//go:embed web/dist
var dist embed.FS

// screens are the first parts of the paths of pages.
var screens = []string{"", "services", "topology", "live", "samples", "rules", "call", "registry", "audit", "checks"}

// page serves an asset, or a page: as text if the client does not ask for HTML.
func (c *Console) page(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		refuse(w, r, http.StatusMethodNotAllowed, "pages are read with GET")
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) == 2 && parts[0] == "assets" {
		asset(w, r, parts[1])
		return
	}
	if !slices.Contains(screens, parts[0]) || len(parts) > 3 {
		refuse(w, r, http.StatusNotFound, "there is no page "+r.URL.Path)
		return
	}
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		c.allowing(Viewer, func(w http.ResponseWriter, r *http.Request, _ User) { c.text(w, r, parts) }).ServeHTTP(w, r)
		return
	}
	html, err := dist.ReadFile("web/dist/index.html")
	if err != nil {
		refuse(w, r, http.StatusInternalServerError, "the console was built without its pages")
		return
	}
	// The page is found below any path, so it refers to its files relative to its own depth.
	root := strings.Repeat("../", strings.Count(strings.TrimPrefix(r.URL.Path, "/"), "/"))
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Add("Vary", "Accept")
	send(w, r, bytes.ReplaceAll(html, []byte("{root}"), []byte(root+"./")))
}

// asset serves a file of the front end, by its exact name.
func asset(w http.ResponseWriter, r *http.Request, name string) {
	types := map[string]string{".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".json": "application/json"}
	kind, ok := types[path.Ext(name)]
	var body []byte
	var err error
	if name == "errors.json" {
		body, err = errorCatalogue()
	} else {
		body, err = distFile(name)
	}
	if !ok || err != nil {
		refuse(w, r, http.StatusNotFound, "there is no such file")
		return
	}
	w.Header().Set("Content-Type", kind+"; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	if !unchanged(w, r, body) {
		send(w, r, body)
	}
}

// distFile returns a file of the front end. The script is embedded with gzip, so that the programs
// with a console are smaller.
func distFile(name string) ([]byte, error) {
	packed, err := dist.ReadFile("web/dist/" + name + ".gz")
	if err != nil {
		return dist.ReadFile("web/dist/" + name)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// errorSection matches a section of docs/errors.md: its identifier, its title and its text.
var errorSection = regexp.MustCompile(`(?s)^(YDL\d+): ([^\n]*)\n(.*)$`)

// errorCatalogue returns the sections of docs/errors.md in JSON. The program has that page once,
// for its commands too.
var errorCatalogue = sync.OnceValues(func() ([]byte, error) {
	type section struct {
		ID    string `json:"id"`
		Title string `json:"title"`
		Text  string `json:"text"`
	}
	sections := []section{}
	for _, text := range strings.Split(docs.Errors(), "\n## ")[1:] {
		if m := errorSection.FindStringSubmatch(text); m != nil {
			sections = append(sections, section{m[1], m[2], strings.TrimSpace(m[3])})
		}
	}
	return json.Marshal(sections)
})

// send writes a body, compressed if it is worth it and the client takes that.
func send(w http.ResponseWriter, r *http.Request, body []byte) {
	if len(body) > 1400 && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		var packed bytes.Buffer
		z, _ := gzip.NewWriterLevel(&packed, gzip.BestSpeed) // the level exists
		_, _ = z.Write(body)                                 // a buffer takes everything
		_ = z.Close()
		w.Header().Set("Content-Encoding", "gzip")
		body = packed.Bytes()
	}
	w.Header().Add("Vary", "Accept-Encoding")
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	_, _ = w.Write(body) //nolint:gosec // the content type is set, and the browser must not guess
}

// text serves a page for curl.
func (c *Console) text(w http.ResponseWriter, r *http.Request, parts []string) {
	s, err := c.fleet.get(r.Context(), time.Minute)
	if err != nil {
		refuse(w, r, statusOf(err), errorText(err))
		return
	}
	var out bytes.Buffer
	switch {
	case parts[0] == "" || parts[0] == "services" && len(parts) == 1:
		textOverview(&out, c.overviewOf(r, s))
	case parts[0] == "services" && s.Service(parts[1]) != nil:
		service := s.Service(parts[1])
		v := viewOf(service, nil)
		printf(&out, "%s: %s, %d of %s\n", printable(v.Name), v.State, v.Up, count(v.Total, "instance", "instances"))
		for i := range v.Problems {
			printf(&out, "  %s\n", printable(v.Problems[i].String()))
		}
		t := table(&out, "INSTANCE\tSTATE\tVERSION\tREQ/S\tOK\tP50\tP99\tWHY")
		for _, in := range service.Instances {
			n := numbersOf(&in.Traffic)
			printf(t, "%s\t%s\t%s\t%s\t%s\n", printable(in.Addr), in.State, printable(in.Version), n, printable(in.Why))
		}
		_ = t.Flush() // a buffer takes everything
		t = table(&out, "\nMETHOD\tREQ/S\tOK\tP50\tP99")
		for i := range service.Methods {
			printf(t, "%s\t%s\n", printable(service.Methods[i].Name), numbersOf(&service.Methods[i].Traffic))
		}
		_ = t.Flush() // as above
	case parts[0] == "services":
		refuse(w, r, http.StatusNotFound, "the registry has no service "+parts[1])
		return
	default:
		refuse(w, r, http.StatusNotAcceptable, "this page is for browsers; / and /services/NAME are text too")
		return
	}
	printf(&out, "\nRead at %s UTC, %d s ago.\n", s.At.UTC().Format(time.DateTime), int(time.Since(s.At).Seconds()))
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Add("Vary", "Accept")
	send(w, r, out.Bytes())
}

func textOverview(out *bytes.Buffer, v *overview) {
	for _, why := range v.Missing {
		printf(out, "Not all is shown: %s\n", printable(why))
	}
	bad := 0
	for _, s := range v.Services {
		if s.wrong() {
			bad++
		}
	}
	switch {
	case v.Err != "":
		printf(out, "The registry does not answer: %s, as of %s. %s\n\n", count(len(v.Services), "service that it named before", "services that it named before"), v.At.UTC().Format(time.RFC3339), printable(v.Err))
	case len(v.Services) == 0:
		fmt.Fprintln(out, "No service is registered yet.")
		return
	case bad == 0:
		said := count(v.Rules, "rule is", "rules are") + " active."
		if v.RulesErr != "" {
			said = "Not all rules can be read now: " + printable(v.RulesErr)
		}
		fmt.Fprintf(out, "%s healthy. %s\n\n", count(len(v.Services), "service is", "services are"), said)
	default:
		fmt.Fprintf(out, "%d of %s.\n\n", bad, count(len(v.Services), "service needs attention", "services need attention"))
	}
	t := table(out, "SERVICE\tSTATE\tUP\tREQ/S\tOK\tP50\tP99\tATTENTION")
	for _, s := range v.Services {
		why := make([]string, len(s.Problems))
		for i := range s.Problems {
			why[i] = s.Problems[i].String()
		}
		printf(t, "%s\t%s\t%d/%d\t%s\t%s\n", printable(s.Name), s.State, s.Up, s.Total, s.numbers, printable(strings.Join(why, "; ")))
	}
	_ = t.Flush() // a buffer takes everything
}

// count returns a number, with the word for one thing or for several.
func count(n int, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", several)
}

func table(out *bytes.Buffer, head string) *tabwriter.Writer {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	printf(t, "%s\n", head)
	return t
}

// printf writes into a buffer, which takes everything.
func printf(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// printable returns a text of the fleet without the characters that could move the cursor of a
// terminal, change its colours, or make up a line: each becomes "?".
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || unicode.Is(unicode.Cf, c) || c == '\u2028' || c == '\u2029' {
			return '?'
		}
		return c
	}, text)
}

// String returns the four columns of numbers, separated by tabs.
func (n numbers) String() string {
	switch {
	case n.Rate == nil:
		return "no data\t\t\t"
	case n.OK == nil:
		return "idle\t\t\t"
	}
	ms := func(f *float64) string {
		if f == nil {
			return ""
		}
		return brief(time.Duration(*f * 1e6))
	}
	return fmt.Sprintf("%g\t%s\t%s\t%s", *n.Rate, percent(*n.OK), ms(n.P50), ms(n.P99))
}
