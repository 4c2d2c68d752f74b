// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	std "net/http"
	"net/url"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/protocol/internal/httpwire"
)

// This file makes a JSON object of the form that a browser posts: see Options.Forms.

const (
	multipartForm = "multipart/form-data"
	encodedForm   = "application/x-www-form-urlencoded"
)

// maxFormFields is how many fields a form may have.
const maxFormFields = 1000

// isForm reports whether the request is a form that Options.Forms lets in.
func (x *exchange) isForm(media string) bool {
	return x.router.protocol.opts.Forms && x.r.Method == std.MethodPost && (media == multipartForm || media == encodedForm)
}

// foreignForm reports whether a page of another site has posted the form. Browsers send forms, with
// cookies, without asking the server first. They name the site in a header.
func (x *exchange) foreignForm() bool {
	origin := x.r.Header.Get("Origin")
	for _, allowed := range x.router.protocol.opts.Origins {
		if origin != "" && strings.EqualFold(allowed, origin) { // "*" is for requests without cookies
			return false
		}
	}
	return new(std.CrossOriginProtection).Check(x.r) != nil
}

// needsOrigin is the text of the answer to a form of another site.
const needsOrigin = "the form comes from a page of another site, which Options.Origins does not name"

// readForm reads the form of a request into v.Body, after it has admitted the call.
func (x *exchange) readForm() *yodel.Error {
	if e := x.readBody(); e != nil {
		return e
	}
	x.v.Owned = true
	x.v.Transform = func(body []byte) ([]byte, error) {
		message, err := x.formJSON(body)
		if err != nil {
			return nil, x.wrongParameter(err)
		}
		return message, nil
	}
	return nil
}

// formJSON returns the JSON object of a form. The body is within the limits of a message.
func (x *exchange) formJSON(body []byte) ([]byte, error) {
	form, kind := &form{exchange: x, fields: make(map[string][]string)}, x.r.Header.Get("Content-Type")
	if in, _ := x.v.Types(); len(in) == 1 {
		form.message = in[0]
	}
	var err error
	if httpwire.ContentType(kind) == encodedForm {
		err = form.parse(string(body))
	} else {
		err = form.read(body, kind)
	}
	if err != nil {
		return nil, err
	}
	in, _ := x.v.Types()
	return fieldsOf(in, form.fields)
}

// A form collects the fields of a form.
type form struct {
	*exchange
	message reflect.Type // of the request; nil if it is not known
	fields  map[string][]string
	n       int
}

// parse takes the fields of a URL-encoded form.
func (f *form) parse(body string) error {
	if strings.Count(body, "&") >= maxFormFields {
		return tooManyFields()
	}
	values, err := url.ParseQuery(body)
	if err != nil {
		return errors.New("the form is malformed")
	}
	for name, all := range values {
		for _, value := range all {
			if err := f.add(name, value, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// read takes the parts of a multipart form.
func (f *form) read(body []byte, kind string) error {
	_, parameters, err := mime.ParseMediaType(kind)
	if boundary := parameters["boundary"]; err != nil || boundary == "" {
		return errors.New("the content type of the form names no boundary")
	}
	if end := "--" + parameters["boundary"] + "--"; !bytes.HasPrefix(body, []byte(end)) && !bytes.Contains(body, []byte("\n"+end)) {
		return errors.New("the form is cut off, or has another boundary than its content type names")
	}
	parts := multipart.NewReader(bytes.NewReader(body), parameters["boundary"])
	for {
		part, err := parts.NextRawPart()
		switch {
		case err == io.EOF: //nolint:errorlint // a form without its end has an error that wraps it
			return nil
		case err != nil:
			return errors.New("the form is malformed: a part has a broken header, or too many or too long headers")
		}
		_, about, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if err != nil || about["name"] == "" {
			return errors.New("a part of the form has no name")
		}
		content := new(strings.Builder)
		if _, err := io.Copy(content, part); err != nil {
			return errors.New("the form is malformed")
		}
		file, isFile := about["filename"]
		if isFile && file == "" && content.Len() == 0 {
			continue // no file was chosen
		}
		if err := f.add(about["name"], content.String(), isFile); err != nil {
			return err
		}
	}
}

// add adds a value as fieldsOf takes it. It counts the memory that its JSON takes.
func (f *form) add(name, value string, file bool) error {
	if f.n++; f.n > maxFormFields {
		return tooManyFields()
	}
	const escaped = 6 // bytes of JSON for a character, at most
	need := escaped * len(value)
	if file {
		need = 3 * base64.StdEncoding.EncodedLen(len(value)) // the string, its JSON and the object
	}
	if !f.session.Reserve(need) {
		return f.noMemory()
	}
	f.reserved += need
	t := f.typeOf(name)
	text := t != nil && t.Kind() == reflect.String
	switch {
	case file && text && !utf8.ValidString(value):
		return fmt.Errorf("the file in the field %.100q is not text", name)
	case file && t != nil && !text && !isBytes(t) && t.Kind() != reflect.Interface:
		return fmt.Errorf("the field %.100q takes no file", name)
	case file && !text:
		value = base64.StdEncoding.EncodeToString([]byte(value))
	case value == "" && t != nil && !text:
		return nil // an empty input of a form that is not for text
	case value == "on" && t != nil && t.Kind() == reflect.Bool:
		value = "true" // a checkbox
	}
	f.fields[name] = append(f.fields[name], value)
	return nil
}

// typeOf returns the type of a value of a field, or nil if it is not known.
func (f *form) typeOf(name string) reflect.Type {
	t := f.message
	path := strings.Split(name, ".")
	for _, one := range path[:min(len(path), maxDepth)] {
		t, _, _ = fieldOf(t, one) // fieldsOf returns the error
	}
	if t = pointee(t); t != nil && t.Kind() == reflect.Slice && !isBytes(t) && !hasOwnJSON(t) {
		t = pointee(t.Elem())
	}
	return t
}

// isBytes reports whether JSON has a base64 string for t.
func isBytes(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 && !hasOwnJSON(t)
}

func tooManyFields() error { return fmt.Errorf("the form has more than %d fields", maxFormFields) }
