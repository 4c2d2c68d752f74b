// SPDX-License-Identifier: Apache-2.0

package mdns

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/discovery"
	"github.com/yodel-rpc/yodel/registry"
)

// These are the keys of the TXT record, as in RFC 6763, section 6. A key of the metadata is
// prefixed with "md-" and escaped as in URLs. The tags are escaped in the same way and separated by
// commas.
const (
	keyService   = "service"
	keyAddr      = "addr"
	keyGroup     = "group"
	keyVersion   = "version"
	keyWeight    = "weight"
	keyZone      = "zone"
	keyLatitude  = "latitude"
	keyLongitude = "longitude"
	keyState     = "state"
	keyTags      = "tags"
	keyStarted   = "started"
	keyRun       = "incarnation"
	keyCallRate  = "callrate"
	keyInflight  = "inflight"
	keyProtocols = "protocols"
	metadataKey  = "md-"
)

// textOf returns the strings of the TXT record for an instance of a service.
func textOf(service string, in discovery.Instance) ([]string, error) {
	var text []string
	add := func(key, value string) {
		if value != "" {
			text = append(text, key+"="+value)
		}
	}
	number := func(n float64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatFloat(n, 'g', -1, 64)
	}
	list := func(values []string) string {
		escaped := make([]string, len(values))
		for i, value := range values {
			escaped[i] = url.QueryEscape(value)
		}
		return strings.Join(escaped, ",")
	}
	add("txtvers", "1")
	add(keyService, service)
	add(keyAddr, in.Addr)
	add(keyGroup, in.Group)
	add(keyVersion, in.Version)
	add(keyWeight, number(float64(in.Weight)))
	add(keyZone, in.Zone)
	add(keyLatitude, number(in.Latitude))
	add(keyLongitude, number(in.Longitude))
	add(keyState, in.State)
	add(keyTags, list(in.Tags))
	add(keyProtocols, list(in.Protocols))
	if !in.Started.IsZero() {
		add(keyStarted, in.Started.Format(time.RFC3339Nano))
	}
	add(keyRun, in.Incarnation)
	add(keyCallRate, number(in.CallRate))
	add(keyInflight, number(float64(in.Inflight)))
	for key, value := range in.Metadata {
		text = append(text, metadataKey+url.QueryEscape(key)+"="+value)
	}
	for _, one := range text {
		if len(one) > 255 {
			key, value, _ := strings.Cut(one, "=")
			if strings.HasPrefix(key, metadataKey) {
				key, value = "entry of the metadata", one
			}
			return nil, registry.TooLong("mdns", key, value, len(one), 255, "bytes") // with its key
		}
	}
	return text, nil
}

// instanceOf reads a TXT record that textOf, or another program, wrote.
func instanceOf(text []string) (service string, in discovery.Instance, err error) {
	values := make(map[string]string)
	number := func(key string) float64 {
		n, bad := strconv.ParseFloat(cmp.Or(values[key], "0"), 64)
		if bad != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			err = errors.Join(err, fmt.Errorf("%s=%q is no number", key, values[key]))
		}
		return n
	}
	whole := func(key string) int {
		n, bad := strconv.Atoi(cmp.Or(values[key], "0"))
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("%s=%q is no whole number", key, values[key]))
		}
		return n
	}
	unescape := func(value string) string {
		plain, bad := url.QueryUnescape(value)
		err = errors.Join(err, bad)
		return plain
	}
	for _, one := range text {
		key, value, _ := strings.Cut(one, "=")
		if name, ok := strings.CutPrefix(key, metadataKey); ok {
			if in.Metadata == nil {
				in.Metadata = make(yodel.Metadata)
			}
			in.Metadata[unescape(name)] = value
		} else if _, again := values[key]; !again { // the first value of a key counts
			values[key] = value
		}
	}
	in.Addr, in.Group, in.Version, in.Zone, in.State = values[keyAddr], values[keyGroup], values[keyVersion], values[keyZone], values[keyState]
	in.Incarnation = values[keyRun]
	in.Weight, in.Inflight = whole(keyWeight), whole(keyInflight)
	in.Latitude, in.Longitude, in.CallRate = number(keyLatitude), number(keyLongitude), number(keyCallRate)
	list := func(key string) (all []string) {
		if values[key] == "" {
			return nil
		}
		for value := range strings.SplitSeq(values[key], ",") {
			all = append(all, unescape(value))
		}
		return all
	}
	in.Tags, in.Protocols = list(keyTags), list(keyProtocols)
	if started := values[keyStarted]; started != "" {
		var bad error
		in.Started, bad = time.Parse(time.RFC3339Nano, started)
		err = errors.Join(err, bad)
	}
	return values[keyService], in, err
}

// escape returns plain with the escapes that package dns expects in names and texts.
func escape(plain string) string {
	var b strings.Builder
	for i := range len(plain) {
		switch c := plain[i]; {
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, "\\%03d", c)
		case strings.IndexByte(`. '@;()"\`, c) >= 0:
			b.WriteByte('\\')
			fallthrough
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// unescape undoes escape, and reads the escapes of other programs.
func unescape(escaped string) string {
	plain := make([]byte, 0, len(escaped))
	for i := 0; i < len(escaped); i++ {
		c := escaped[i]
		if c == '\\' && i+1 < len(escaped) {
			i++
			c = escaped[i]
			if i+2 < len(escaped) {
				if n, err := strconv.ParseUint(escaped[i:i+3], 10, 8); err == nil {
					c, i = byte(n), i+2
				}
			}
		}
		plain = append(plain, c)
	}
	return string(plain)
}
