// SPDX-License-Identifier: Apache-2.0

package h2http

import (
	"net/http"
	"strings"

	"github.com/yodel-rpc/yodel/internal/h2"
)

// A known is how a field of responses is sent.
type known struct {
	name string
	form h2.Form
}

// knownFields has common fields of responses by their canonical names. Those that are the same in
// most responses of a connection are repeated.
var knownFields = map[string]known{
	"Content-Type":                  {"content-type", h2.Repeated},
	"Grpc-Status":                   {"grpc-status", h2.Repeated},
	"Grpc-Message":                  {"grpc-message", h2.Once},
	"Grpc-Encoding":                 {"grpc-encoding", h2.Repeated},
	"Grpc-Accept-Encoding":          {"grpc-accept-encoding", h2.Repeated},
	"Accept-Encoding":               {"accept-encoding", h2.Repeated},
	"Connect-Accept-Encoding":       {"connect-accept-encoding", h2.Repeated},
	"Vary":                          {"vary", h2.Repeated},
	"Access-Control-Allow-Origin":   {"access-control-allow-origin", h2.Repeated},
	"Access-Control-Expose-Headers": {"access-control-expose-headers", h2.Repeated},
	"X-Content-Type-Options":        {"x-content-type-options", h2.Repeated},
	"Set-Cookie":                    {"set-cookie", h2.Secret},
	"Date":                          {"date", h2.Once},
}

// Fields returns the fields of a header or a trailer behind others. It leaves out what HTTP/2 does
// not have.
func Fields(fields []h2.Field, h http.Header) []h2.Field {
	for name, values := range h {
		fields = appendFields(fields, name, values)
	}
	return fields
}

// appendFields appends the fields of a header. It leaves out what HTTP/2 does not have: fields of a
// connection (RFC 9113, section 8.2.2), and names and values with bytes that a peer refuses.
func appendFields(fields []h2.Field, name string, values []string) []h2.Field {
	as, ok := knownFields[name]
	if !ok {
		as.name = strings.ToLower(name)
		switch as.name {
		case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
			return fields
		}
		if !isName(as.name) {
			return fields
		}
	}
	for _, value := range values {
		if value = strings.Trim(value, " \t"); isValue(value) {
			fields = append(fields, h2.Field{Name: as.name, Value: value, Form: as.form})
		}
	}
	return fields
}

// isName reports whether a name in lower case is a token (RFC 9110, section 5.6.2).
func isName(name string) bool {
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return name != ""
}

// isValue reports whether a value has no control characters except tabs.
func isValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
