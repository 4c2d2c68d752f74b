// SPDX-License-Identifier: Apache-2.0

// Package errortext carries errors in protocols that have only a text for them. It reads the
// violations of errors for protocols that have JSON.
package errortext

import (
	"cmp"
	"strings"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/internal/badrequest"
)

// absent is how the texts of net/rpc begin for a method that does not exist.
const absent = "rpc: can't find "

// Format returns the text of an error for a client of net/rpc. For a handler's error it is the
// unchanged text. For a method that does not exist, it is the text of net/rpc. For any other error,
// it is the code, the text and the ID. It is never empty, because an empty text means success.
func Format(method string, e *yodel.Error) string {
	switch {
	case e.Code == yodel.Unknown:
		return cmp.Or(strings.TrimSpace(e.Message), "error")
	case e.Code == yodel.Unimplemented && e.NotProcessed:
		return absent + "service " + method
	}
	return e.Error()
}

// Parse returns the error for the text that a server of net/rpc sent.
func Parse(text string) *yodel.Error {
	if strings.HasPrefix(text, absent) {
		return &yodel.Error{Code: yodel.Unimplemented, Message: text, NotProcessed: true}
	}
	code, message := Cut(text)
	return &yodel.Error{Code: code, Message: message}
}

// Cut splits a text that begins with the name of a code, as the texts of yodel servers do. The code
// of any other text is yodel.Unknown.
func Cut(text string) (code yodel.Code, message string) {
	if name, message, ok := strings.Cut(text, ": "); ok && code.UnmarshalText([]byte(name)) == nil && code != 0 {
		return code, message
	}
	return yodel.Unknown, text
}

// Violations returns the violations that details carry, or nil.
func Violations(details []yodel.Detail) (all []badrequest.Violation) {
	for _, d := range details {
		if d.Type != badrequest.Type {
			continue
		}
		some, err := badrequest.Parse(d.Value)
		if err != nil {
			return nil // clients get the detail
		}
		all = append(all, some...)
	}
	return all
}
