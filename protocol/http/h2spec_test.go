// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"encoding/xml"
	"errors"
	"io"
	"net"
	std "net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/realserver"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// A server passes as many of the 147 strict tests of HTTP/2 as net/http does. The others fail in
// net/http too.
func TestH2spec(t *testing.T) {
	const most, least = 147, 140
	tool := realserver.Tool(t, "h2spec", "github.com/summerwind/h2spec/cmd/h2spec")
	page := std.HandlerFunc(func(w std.ResponseWriter, r *std.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // net/http checks its length meanwhile
		_, _ = io.WriteString(w, "a page")
	})
	s := newSite(t, &http.Options{Handler: page}, yodel.ServerOptions{})
	host, port, err := net.SplitHostPort(s.addr)
	must(t, err)
	report := filepath.Join(t.TempDir(), "report.xml")
	cmd := exec.CommandContext(t.Context(), tool, "--strict", "--host", host, "--port", port, "--timeout", "2", "--junit-report", report)
	realserver.EndWithParent(cmd)
	out, err := cmd.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		t.Fatal(err)
	}
	file, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var suites struct {
		Suites []struct {
			Cases []struct {
				Package string    `xml:"package,attr"`
				Name    string    `xml:"classname,attr"`
				Skipped *struct{} `xml:"skipped"`
				Failure string    `xml:"failure"`
				Error   string    `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	must(t, xml.Unmarshal(file, &suites))
	all, passed := 0, 0
	for _, suite := range suites.Suites {
		for _, c := range suite.Cases {
			all++
			switch {
			case c.Skipped != nil:
				t.Logf("skipped: %s: %s", c.Package, c.Name)
			case c.Failure+c.Error != "":
				t.Logf("failed: %s: %s\n%s%s", c.Package, c.Name, c.Failure, c.Error)
			default:
				passed++
			}
		}
	}
	t.Logf("%d of %d tests passed", passed, all)
	if all != most || passed < least {
		t.Errorf("%d of %d tests passed, want %d of %d", passed, all, least, most)
	}
	s.post(client(t, true), "/Test/Echo", "{}").is(t, 200, `{"text":""}`)
}
