// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	std "net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/http"
)

// A picture is what a form uploads.
type picture struct {
	Title  string   `json:"title"`
	Image  []byte   `json:"image"`
	More   [][]byte `json:"more"`
	Notes  string   `json:"notes"`
	Tags   []string `json:"tags"`
	Width  int      `json:"width"`
	Public bool     `json:"public"`
	By     struct {
		Name string `json:"name"`
	} `json:"by"`
}

// aForm returns a multipart form and its content type. Fields are pairs of a name and a value. A
// name that begins with @ is that of a file.
func aForm(t testing.TB, fields ...string) (body, kind string) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(fields); i += 2 {
		name, file := strings.CutPrefix(fields[i], "@")
		create := w.CreateFormField
		if file {
			create = func(name string) (io.Writer, error) { return w.CreateFormFile(name, "photo.png") }
		}
		part, err := create(name)
		must(t, err)
		_, _ = part.Write([]byte(fields[i+1]))
	}
	must(t, w.Close())
	return b.String(), w.FormDataContentType()
}

// A browser posts a form with a file to a method, and to a route.
func TestFormsOfABrowser(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		routes := []http.Route{{Pattern: "POST /pictures/{title}", Method: "Test.Show"}}
		s, c := newSite(t, &http.Options{Forms: true, Routes: routes, Origins: []string{"https://shop.example", "*"}}, yodel.ServerOptions{}), client(t, h2)
		var got picture
		yodel.Method[picture, text]("Test.Show").Handle(s.Server, func(_ context.Context, in *picture) (*text, error) {
			got = *in
			return &text{"seen"}, nil
		})
		body, kind := aForm(t, "title", "a <cat>", "@image", "\x89PNG\x00", "@more", "1", "@more", "2", "@notes", "ring twice", "tags", "x", "tags", "y", "width", "7", "public", "on", "by.name", "Ali")
		want := `{a <cat> [137 80 78 71 0] [[49] [50]] ring twice [x y] 7 true {Ali}}`
		for path, title := range map[string]string{"/Test/Show": "a <cat>", "/pictures/dog": "dog"} {
			for _, headers := range [][]string{nil, {"Origin", "http://" + s.addr}, {"Origin", "https://shop.example"}, {"Sec-Fetch-Site", "same-origin"}} {
				got = picture{}
				s.do(c, "POST", path, body, append([]string{"Content-Type", kind}, headers...)...).is(t, 200, `{"text":"seen"}`)
				if text := fmt.Sprint(got); text != strings.Replace(want, "a <cat>", title, 1) {
					t.Errorf("%s: got %s", path, text)
				}
			}
			for _, headers := range [][]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}, {"Origin", "null"}} {
				s.do(c, "POST", path, body, append([]string{"Content-Type", kind}, headers...)...).fails(t, 403, yodel.PermissionDenied, "another site")
			}
		}
		got = picture{}
		values := url.Values{"title": {"t"}, "tags": {"x", "y"}, "width": {""}, "image": {""}}
		s.do(c, "POST", "/Test/Show", values.Encode(), "Content-Type", "application/x-www-form-urlencoded").is(t, 200, `{"text":"seen"}`)
		if text := fmt.Sprint(got); text != `{t [] []  [x y] 0 false {}}` {
			t.Errorf("got %s", text)
		}
		closed := newSite(t, nil, yodel.ServerOptions{})
		closed.do(c, "POST", "/Test/Echo", "text=x", "Content-Type", "application/x-www-form-urlencoded").fails(t, 415, yodel.Unknown, "no codec")
	})
}

// Forms that are wrong get a clear answer, in the limits of a message.
func TestHostileForms(t *testing.T) {
	s, c := newSite(t, &http.Options{Forms: true}, yodel.ServerOptions{Limits: yodel.Limits{MaxMessage: 1 << 20}}), client(t, false)
	yodel.Method[picture, text]("Test.Show").Handle(s.Server, func(context.Context, *picture) (*text, error) { return &text{"seen"}, nil })
	must(t, s.Handle("Test.Add", func(a, b int) int { return a + b }))
	form, kind := aForm(t, "title", "x")
	many := strings.Repeat(strings.Split(form, "\r\nx\r\n")[0]+"\r\nx\r\n", 2000) + form
	const boundary = "multipart/form-data; boundary=b"
	head := "--b\r\nContent-Disposition: form-data; name=title\r\n"
	for _, test := range []struct {
		what, path, body, kind string
		status                 int
		code                   yodel.Code
		message                string
	}{
		{"no boundary", "/Test/Show", form, "multipart/form-data", 400, yodel.InvalidArgument, "no boundary"},
		{"another boundary", "/Test/Show", form, "multipart/form-data; boundary=other", 400, yodel.InvalidArgument, "another boundary"},
		{"cut off", "/Test/Show", form[:len(form)-20], kind, 400, yodel.InvalidArgument, "cut off"},
		{"endless headers", "/Test/Show", head + strings.Repeat("A: b\r\n", 100_000) + "\r\nx\r\n--b--\r\n", boundary, 400, yodel.InvalidArgument, "too many"},
		{"a long header", "/Test/Show", head + "A: " + strings.Repeat("x", 500_000), boundary, 400, yodel.InvalidArgument, "cut off"},
		{"many parts", "/Test/Show", many, kind, 400, yodel.InvalidArgument, "more than 1000 fields"},
		{"many values", "/Test/Show", strings.Repeat("tags=x&", 2000), "application/x-www-form-urlencoded", 400, yodel.InvalidArgument, "more than 1000 fields"},
		{"too large", "/Test/Show", head + "\r\n" + strings.Repeat("x", 2<<20) + "\r\n--b--\r\n", boundary, 413, yodel.ResourceExhausted, "limit"},
		{"no name", "/Test/Show", "--b\r\nA: b\r\n\r\nx\r\n--b--\r\n", boundary, 400, yodel.InvalidArgument, "no name"},
		{"no such field", "/Test/Show", "tittle=x", "application/x-www-form-urlencoded", 400, yodel.InvalidArgument, "no such field"},
		{"not a number", "/Test/Show", "width=x", "application/x-www-form-urlencoded", 400, yodel.InvalidArgument, "not an integer"},
		{"a file for a number", "/Test/Show", strings.Replace(head, "title", "width; filename=x", 1) + "\r\nx\r\n--b--\r\n", boundary, 400, yodel.InvalidArgument, "takes no file"},
		{"several values", "/Test/Add", "a=1", "application/x-www-form-urlencoded", 501, yodel.Unimplemented, "takes no form"},
		{"an upload", "/Test/Gather", form, kind, 501, yodel.Unimplemented, "kind upload"},
		{"no method", "/Test/None", form, kind, 404, yodel.Unimplemented, ""},
	} {
		r := s.do(c, std.MethodPost, test.path, test.body, "Content-Type", test.kind)
		if r.fails(t, test.status, test.code, test.message); t.Failed() {
			t.Fatal(test.what)
		}
	}
	s.do(c, "POST", "/Test/Show", form, "Content-Type", kind).is(t, 200, `{"text":"seen"}`)
}
